"""ConstantList under hostile input: nothing crashes the interpreter, and both forms do the same."""

import contextlib
import gc
import itertools
import re
import sys
import threading

import implementations
import pytest
from comparing import forms, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

VIEWS = forms("ConstantList")


class Hostile:
    """Runs `do` whenever it is compared, indexed, hashed or formatted; `then` is the answer."""

    def __init__(self, do, then=False):
        self.do, self.then = do, then

    def __eq__(self, other):
        self.do()
        return self.then

    def __hash__(self):
        self.do()
        return 1

    def __index__(self):
        self.do()
        return 1

    def __repr__(self):
        self.do()
        return "hostile"


def nothing():
    pass


def fail():
    raise ZeroDivisionError("hostile")


# What the hostile object does to the view and its list while the view works on them.
DEEDS = {
    "nothing": lambda view: None,
    "raises": lambda view: fail(),
    "clears the list": lambda view: view._x.clear(),
    "shortens the list": lambda view: view._x.__delitem__(slice(1, None)),
    "fills the list": lambda view: len(view._x) < 64 and view._x.extend(range(5)),
    "replaces the list": lambda view: setattr(view, "_x", [7] * 3),
    "replaces the list by a tuple": lambda view: setattr(view, "_x", (7, 8)),
    "replaces the list by nothing": lambda view: setattr(view, "_x", None),
    "removes the list": lambda view: view.__dict__.clear() or (hasattr(view, "_x") and delattr(view, "_x")),
    "starts again": lambda view: view.__init__([1, 2]),
    "collects garbage": lambda view: gc.collect(),
}

OPERATIONS = {
    "in": lambda view, evil: evil in view,
    "an int in": lambda view, evil: 1000 in view,
    "index": lambda view, evil: view.index(evil),
    "index of an int": lambda view, evil: view.index(1000),
    "index from": lambda view, evil: view.index(5, evil),
    "index of an int from": lambda view, evil: view.index(1000, evil, 99),
    "index to": lambda view, evil: view.index(5, 0, evil),
    "count": lambda view, evil: view.count(evil),
    "count of an int": lambda view, evil: view.count(1000),
    "item": lambda view, evil: view[evil],
    "slice": lambda view, evil: len(view[evil:]),
    "slice to": lambda view, evil: len(view[:evil]),
    "slice by": lambda view, evil: len(view[::evil]),
    "list": lambda view, evil: len(list(view)),
    "reversed": lambda view, evil: len(list(reversed(view))),
    "repr": lambda view, evil: repr(view),
    "sorted": lambda view, evil: sorted(view, key=lambda item: item == evil and 0),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("deed", DEEDS)
def test_deeds_in_the_middle_of_an_operation(operation, deed):
    results = {}
    for form, cls in VIEWS.items():
        for then in (False, True):
            view = cls(None)
            evil = Hostile(lambda view=view: DEEDS[deed](view), then)
            # The only references to the list and its items are the view's own.
            view._x = [int("2000"), evil, int("5"), int("1000"), *map(str, range(20))]
            got = outcome(OPERATIONS[operation], view, evil)
            results.setdefault(then, []).append((form, repr(got) if "Hostile" not in repr(got) else "hostile"))
            evil.do = nothing
    for each in results.values():
        assert len({result for _, result in each}) == 1, each


JUNK = st.one_of(
    st.integers(),
    st.integers(-5, 5),
    st.booleans(),
    st.floats(),
    st.text(max_size=2),
    st.binary(max_size=2),
    st.lists(st.none(), max_size=2),
    st.builds(slice, st.none() | st.integers(), st.text(max_size=1)),
    st.sampled_from([None, 2**64, -(2**63), sys.maxsize, NotImplemented, ..., int]),
)
SPECIAL = "getitem setitem delitem contains len iter reversed repr init class_getitem reduce_ex new"
NAMES = ["append", "extend", "insert", "pop", "remove", "clear", "index", "count", "copy"] + [
    f"__{n}__" for n in SPECIAL.split()
]
ARITY_WORDS = ("argument", "expected")


def plain(result, cls):
    """A result that can be compared across forms; of a TypeError about the number of arguments only the type."""
    if isinstance(result, tuple) and len(result) == 2 and result[0] is TypeError:
        return TypeError if any(word in result[1] for word in ARITY_WORDS) else result
    return re.sub(" at 0x[0-9a-f]+", "", repr(result)) if not isinstance(result, cls) else "a view"


@settings(max_examples=400)
@given(
    st.sampled_from(NAMES),
    st.lists(JUNK, max_size=4),
    st.dictionaries(st.sampled_from(["item", "value", "start", "stop", "x", "other"]), JUNK, max_size=2),
    st.lists(JUNK, max_size=3),
)
def test_any_arguments_to_any_method(name, arguments, named, items):
    # Special methods of compiled types take no keywords, and a class is no GenericAlias of the typing module.
    if name.startswith("__") and name != "__init__":
        named = {}
    if name in ("__class_getitem__", "__new__", "__reduce_ex__"):
        for cls in VIEWS.values():
            outcome(getattr(cls(items), name), *arguments)
        return
    results = [plain(outcome(getattr(cls(items), name), *arguments, **named), cls) for cls in VIEWS.values()]
    assert all(result == results[0] for result in results), results


@given(st.lists(JUNK, max_size=2), st.dictionaries(st.sampled_from(["x", "y", "item"]), JUNK, max_size=2))
def test_any_arguments_to_the_class(arguments, named):
    results = [plain(outcome(cls, *arguments, **named), cls) for cls in VIEWS.values()]
    assert all(result == results[0] for result in results), results


@given(JUNK, JUNK)
def test_viewing_anything(x, key):
    for operation in (
        len,
        list,
        repr,
        lambda v: v[key],
        lambda v: key in v,
        lambda v: v.copy(),
        lambda v: v.index(key),
    ):
        results = [plain(outcome(operation, cls(x)), cls) for cls in VIEWS.values()]
        assert all(result == results[0] for result in results), results


def test_a_finalizer_that_empties_the_list_during_a_slice(form):
    cls = implementations.load("ConstantList", form)
    view = cls([])

    class Evil:
        def __del__(self):
            view._x.clear()

    threshold = gc.get_threshold()
    gc.set_threshold(1)  # a collection may start at every allocation
    try:
        for _ in range(50):
            view._x = [[i] for i in range(50)]
            evil = Evil()
            evil.me = evil
            del evil
            assert len(view[10:40]) in (0, 30)
    finally:
        gc.set_threshold(*threshold)


def test_threads_that_change_the_list_and_the_view(form):
    cls = implementations.load("ConstantList", form)
    view = cls(list(range(1000, 1200)))
    allowed = (IndexError, ValueError, AttributeError)
    failures, stop = [], threading.Event()

    def read():
        try:
            for i in itertools.count():
                if stop.is_set():
                    return
                for operation in (
                    lambda: view[-1], lambda: view[3:9], lambda: len(view), lambda: 1150 in view, lambda: view.copy(),
                    lambda: view.index(1150), lambda: list(view), lambda: cls(view)[0], lambda i=i: view.count(i),
                ):  # fmt: skip
                    with contextlib.suppress(*allowed):
                        operation()
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    readers = [threading.Thread(target=read) for _ in range(3)]
    try:
        for reader in readers:
            reader.start()
        for i in range(300):
            view._x = [int(str(value)) for value in range(1000, 1000 + i)]
            view._x.extend("text")
            del view._x[: i // 2]
            view._x.clear()
            if i % 7 == 0:
                del view._x
    finally:
        stop.set()
        for reader in readers:
            reader.join(30)
        sys.setswitchinterval(interval)
    assert failures == []
    assert not any(reader.is_alive() for reader in readers)
