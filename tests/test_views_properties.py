"""ConstantList against the plain list that it views: whatever the list gives or raises, both forms give and raise."""

import operator

from comparing import forms, outcome
from hypothesis import given
from hypothesis import strategies as st

INTS = st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31), st.integers(2**29, 2**33), st.integers())
ITEMS = st.one_of(INTS, st.booleans(), st.none(), st.floats(), st.text(max_size=2), st.tuples(st.integers(0, 2)))
LISTS = st.one_of(st.lists(INTS, max_size=40), st.lists(ITEMS, max_size=12), st.lists(st.integers(0, 4), max_size=8))
BOUNDS = st.one_of(st.integers(-6, 12), INTS, st.booleans())
SLICES = st.builds(slice, st.none() | BOUNDS, st.none() | BOUNDS, st.none() | st.integers(-3, 3) | INTS)

VIEWS = forms("ConstantList")


def same(one, other):
    """Equal, of one type, and for lists with identical items (NaN is not equal to itself)."""
    if type(one) is list and type(other) is list:
        return len(one) == len(other) and all(map(operator.is_, one, other))
    return type(one) is type(other) and (one is other or one == other)


def check(function, items, *arguments):
    expected = outcome(function, items, *arguments)
    for form, cls in VIEWS.items():
        got = outcome(function, cls(items), *arguments)
        assert same(got, expected), form


@given(LISTS, BOUNDS)
def test_items(items, i):
    check(operator.getitem, items, i)


@given(LISTS, SLICES)
def test_slices(items, part):
    check(operator.getitem, items, part)


@given(LISTS, st.one_of(st.none(), st.text(max_size=1), st.floats(), st.lists(st.integers(), max_size=1)))
def test_what_is_no_index(items, key):
    check(operator.getitem, items, key)


@given(LISTS, ITEMS)
def test_membership_position_and_count(items, value):
    check(operator.contains, items, value)
    check(lambda x: x.index(value), items)
    check(lambda x: x.count(value), items)


@given(LISTS.filter(len), st.data())
def test_what_is_there_is_found(items, data):
    value = data.draw(st.sampled_from(items))
    if type(value) is int:
        value = int(str(value))  # equal, but another object
    check(operator.contains, items, value)
    check(lambda x: x.index(value), items)
    check(lambda x: x.count(value), items)


@given(LISTS, ITEMS, BOUNDS, BOUNDS)
def test_positions_within_bounds(items, value, start, stop):
    check(lambda x: x.index(value, start, stop), items)
    check(lambda x: x.index(value, start), items)


@given(LISTS, ITEMS, st.one_of(st.none(), st.text(max_size=1), st.floats()))
def test_bounds_that_are_none(items, value, bound):
    check(lambda x: x.index(value, bound, 3), items)
    if bound is not None:  # the view's own default
        check(lambda x: x.index(value, 0, bound), items)


@given(LISTS)
def test_iteration_length_and_copy(items):
    check(len, items)
    check(list, items)
    check(lambda x: [*reversed(x)], items)
    check(lambda x: x.copy(), items)
    check(lambda x: [value for value in iter(x)], items)  # noqa: C416


@given(LISTS, LISTS)
def test_later_changes_show(items, others):
    views = [cls(items) for cls in VIEWS.values()]
    items[1:2] = others
    for view in views:
        assert len(view) == len(items)
        assert same(view[:], items)
        view._x = others
        assert same(list(view), others)
