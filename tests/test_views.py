"""ConstantList, in both forms: what a user of the view sees. Agreement on arbitrary contents: test_views_properties."""

import collections.abc
import copy
import gc
import inspect
import os
import pickle
import subprocess
import sys
import types
import typing
import weakref

import implementations
import pytest
from comparing import outcome

import fastutils

T = typing.TypeVar("T")
METHODS = ["append", "extend", "insert", "pop", "remove", "clear", "index", "count", "copy"]


@pytest.fixture
def ConstantList(form, monkeypatch):
    cls = implementations.load("ConstantList", form)
    monkeypatch.setattr(fastutils, "ConstantList", cls)  # where pickles look for it
    return cls


def said(caught):
    """The message without the module, which Python names for a slot since 3.13 and for types of the stable ABI."""
    return str(caught.value).replace("fastutils.", "")


def publish(cls, monkeypatch):
    """Makes a class of a test importable, so that its instances can be pickled."""
    cls.__qualname__ = cls.__name__
    monkeypatch.setattr(sys.modules[__name__], cls.__name__, cls, raising=False)
    return cls


def test_it_shows_the_list_and_its_later_changes(ConstantList):
    items = [1, 2, 3]
    view = ConstantList(items)
    assert view._x is items
    assert [view[0], view[-1], view[1:], len(view), list(view), repr(view)] == [
        1, 3, [2, 3], 3, [1, 2, 3], "ConstantList([1, 2, 3])"
    ]  # fmt: skip
    items.append(4)
    assert (view[-1], len(view), 4 in view, view.index(4), list(reversed(view))) == (4, 4, True, 3, [4, 3, 2, 1])
    items.clear()
    assert (len(view), list(view), bool(view), repr(view)) == (0, [], False, "ConstantList([])")


def test_slices_and_copies_are_plain_new_lists(ConstantList):
    items = [[1], [2], [3]]
    view = ConstantList(items)
    for part in (view[:], view.copy(), view[0:99], view[::1]):
        assert type(part) is list
        assert part == items
        assert part is not items
        assert part[0] is items[0]
    assert view[::-1] == [[3], [2], [1]]
    assert view[None:-1:None] == [[1], [2]]


@pytest.mark.parametrize("i", [3, -4, 10**30, -(10**30), 2**30, -(2**31)])
def test_an_index_out_of_range_is_the_lists_error(ConstantList, i):
    with pytest.raises(IndexError) as theirs:
        [1, 2, 3][i]
    with pytest.raises(IndexError) as ours:
        ConstantList([1, 2, 3])[i]
    assert str(ours.value) == str(theirs.value)


def test_it_refuses_changes_and_leaves_the_list_alone(ConstantList):
    view = ConstantList([1, 2])
    for change, message in (
        (lambda: view.__setitem__(0, 5), "Cannot set item in a constant list"),
        (lambda: view.__setitem__(slice(None), []), "Cannot set item in a constant list"),
        (lambda: view.__setitem__("no index", 5), "Cannot set item in a constant list"),
        (lambda: view.__delitem__(0), "Cannot delete item from a constant list"),
        (lambda: view.__delitem__(slice(None)), "Cannot delete item from a constant list"),
        (lambda: view.append(item=3), "Cannot append to a constant list"),
    ):
        with pytest.raises(TypeError) as caught:
            change()
        assert str(caught.value) == message
    with pytest.raises(TypeError, match="Cannot set item in a constant list"):
        view[5] = 1
    with pytest.raises(TypeError, match="Cannot delete item from a constant list"):
        del view[5]
    assert view._x == [1, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda cls: cls(),
        lambda cls: cls([1], [2]),
        lambda cls: cls(y=[1]),
        lambda cls: cls([1], x=[1]),
        lambda cls: cls.__init__(cls([])),
        lambda cls: cls([]).append(),
        lambda cls: cls([]).append(1, 2),
        lambda cls: cls([]).append(other=1),
        lambda cls: cls([]).append(1, item=1),
        lambda cls: cls([]).insert(0, 1),
        lambda cls: cls([]).clear(1),
        lambda cls: cls([]).copy(1),
        lambda cls: cls([]).index(),
        lambda cls: cls([]).index(1, 2, 3, 4),
        lambda cls: cls([]).index(1, item=1),
        lambda cls: cls([]).index(start=1),
        lambda cls: cls([]).count(),
        lambda cls: cls([]).count(1, 2),
        lambda cls: cls.append(),
    ],
)
def test_wrong_arguments_are_a_type_error(ConstantList, call):
    with pytest.raises(TypeError) as caught:
        call(ConstantList)
    assert "constant list" not in str(caught.value)


def test_arguments_go_by_name_too(ConstantList):
    view = ConstantList(x=[5, 6, 5])
    assert view.index(item=5, start=1) == 2
    assert view.index(5, stop=1) == 0
    assert view.index(5, stop=None, start=1) == 2
    assert view.count(value=5) == 2


def test_index_passes_its_bounds_on(ConstantList):
    calls = []

    class Recorder(list):
        def index(self, *arguments):
            calls.append(arguments)
            return 77

    view = ConstantList(Recorder("abc"))
    assert [view.index("z"), view.index("z", "s"), view.index("z", 1, 2), view.index("z", stop=9)] == [77] * 4
    assert calls == [("z", 0, 3), ("z", "s", 3), ("z", 1, 2), ("z", 0, 9)]


@pytest.mark.parametrize("x", [(1, 2, 1), "aba", range(4), b"ab", [1.5, None], {1: "a", 0: "b"}.values()], ids=repr)
def test_it_wraps_what_is_no_list(ConstantList, x):
    view = ConstantList(x)
    assert (len(view), list(view), repr(view)) == (len(x), list(x), f"ConstantList({x})")
    for operation in (
        lambda v: v[0],
        lambda v: v[-1:],
        lambda v: v["a"],
        lambda v: "a" in v,
        lambda v: v.copy(),
        lambda v: v.index(1, 0, len(v)),
        lambda v: v[10**20],
    ):
        assert outcome(operation, view) == outcome(operation, x)
    assert view.count(1) == list(x).count(1)


def test_it_wraps_a_list_with_methods_of_its_own(ConstantList):
    class Own(list):
        def __getitem__(self, item):
            return ("item", item)

        def __len__(self):
            return 77

        def __iter__(self):
            return iter("own")

        def __contains__(self, item):
            return item == "anything"

        def index(self, *arguments):
            return arguments

        def copy(self):
            return "copy"

        def __format__(self, specification):
            return "formatted"

    view = ConstantList(Own([1000, 2000]))
    assert (view[0], view[-1], view[1:]) == (("item", 0), ("item", -1), ("item", slice(1, None)))
    assert (len(view), list(view), 1000 in view, "anything" in view) == (77, ["o", "w", "n"], False, True)
    assert (view.index(1000), view.copy(), repr(view)) == ((1000, 0, 77), "copy", "ConstantList(formatted)")
    assert (view.count("o"), next(reversed(view))) == (1, ("item", 76))


def test_wrapping_none_fails_when_used(ConstantList):
    view = ConstantList(None)
    assert view._x is None
    with pytest.raises(TypeError, match="has no len"):
        len(view)


def test_equality_and_hash_are_those_of_identity(ConstantList):
    items = [1]
    one, other = ConstantList(items), ConstantList(items)
    assert one == one
    assert one != other
    assert one != items
    assert {one: 1, other: 2}[one] == 1
    assert hash(one) == object.__hash__(one)


def test_items_match_by_identity_first(ConstantList):
    nan = float("nan")
    view = ConstantList([nan, 1, True, 2**70, 1.0])
    assert nan in view
    assert float("nan") not in view
    assert view.index(nan) == 0
    assert [view.index(True), view.index(1.0), view.index(2**70)] == [1, 1, 3]
    assert view.index(True, 2) == 2
    assert view.index(1, 2) == 2
    assert (view.count(1), view.count(nan), view.count(2**70)) == (3, 1, 1)


def test_ints_after_other_things_are_found(ConstantList):
    class Seven:
        def __eq__(self, other):
            return other == 7

    seven = Seven()
    view = ConstantList([1000, 2000, "x", seven, int("3000"), False, int("3000")])
    assert 3000 in view
    assert 7 in view
    assert 0 in view
    assert 8 not in view
    assert (view.index(3000), view.index(7), view.index(0), view.index(3000, 5)) == (4, 3, 5, 6)
    with pytest.raises(ValueError, match="3000"):
        view.index(3000, 0, 4)


def test_reversed_is_lazy(ConstantList):
    items = [1, 2, 3]
    backwards = reversed(ConstantList(items))
    items.append(4)  # before the first step: counts
    assert next(backwards) == 4
    items[0] = 9
    assert list(backwards) == [3, 2, 9]
    shrunk = reversed(ConstantList(items))
    next(shrunk)
    items.clear()
    with pytest.raises(IndexError):
        next(shrunk)
    assert inspect.isgenerator(reversed(ConstantList(())))


def test_it_is_a_sequence(ConstantList):
    view = ConstantList([1, 2, 3])
    for kind in (collections.abc.Sequence, collections.abc.Reversible, collections.abc.Collection):
        assert isinstance(view, kind)
        assert issubclass(ConstantList, kind)
    assert not isinstance(view, (list, collections.abc.MutableSequence))
    assert isinstance(type("Sub", (ConstantList,), {})([]), collections.abc.Sequence)
    match view:
        case [first, *rest]:
            assert (first, rest) == (1, [2, 3])
        case _:
            pytest.fail("no sequence pattern matches")


def test_it_is_generic(ConstantList):
    alias = ConstantList[int]
    assert typing.get_origin(alias) is ConstantList
    assert typing.get_args(alias) == (int,)
    view = alias([1])
    assert type(view) is ConstantList
    assert view.__orig_class__ == alias
    assert typing.get_args(ConstantList[T][str]) == (str,)

    class Sub(ConstantList[T], typing.Generic[T]):
        pass

    assert typing.get_args(Sub[int]) == (int,)
    assert Sub([1, 2])[-1] == 2


def test_the_viewed_list_can_be_replaced_and_removed(ConstantList):
    view = ConstantList([1])
    view._x = [2, 3]
    assert list(view) == [2, 3]
    view.__init__([4])
    assert view[0] == 4
    del view._x
    for use in (
        lambda: view._x, lambda: len(view), lambda: view[0], lambda: view[:], lambda: 1 in view, lambda: iter(view),
        lambda: repr(view), lambda: view.copy(), lambda: view.index(1), lambda: view.count(1),
        lambda: next(reversed(view)),
    ):  # fmt: skip
        with pytest.raises(AttributeError) as caught:
            use()
        assert said(caught) == "'ConstantList' object has no attribute '_x'"
    with pytest.raises(AttributeError):
        del view._x
    view._x = (7,)
    assert view[0] == 7


def test_new_without_init_has_no_list_yet(ConstantList):
    view = ConstantList.__new__(ConstantList)
    assert not hasattr(view, "_x")
    view.__init__([1])
    assert view[0] == 1


def test_attributes_and_weak_references(ConstantList):
    view = ConstantList([1])
    view.note = "kept"
    assert view.note == "kept"
    assert view.__dict__["note"] == "kept"
    with pytest.raises(AttributeError) as caught:
        _ = view.other
    assert said(caught) == "'ConstantList' object has no attribute 'other'"
    del caught  # an AttributeError holds its object
    attributes = view.__dict__
    reference, gone = weakref.ref(view), []
    weakref.finalize(view, gone.append, True)
    del view
    assert reference() is None
    assert gone == [True]
    assert attributes["note"] == "kept"  # a dictionary outlives its view unharmed


def test_cycles_are_collected(ConstantList):
    class Sub(ConstantList):
        pass

    def through_the_list(cls):
        items = []
        items.append(cls(items))
        return items[0]

    def through_an_attribute(cls):
        view = cls([])
        view.me = view
        return view

    def through_itself(cls):
        view = cls(None)
        view._x = view
        return view

    for cls in (ConstantList, Sub):
        for make in (through_the_list, through_an_attribute, through_itself):
            reference = weakref.ref(make(cls))
            gc.collect()
            assert reference() is None, make.__name__


def test_a_long_chain_of_views_is_freed_without_overflowing_the_stack(ConstantList):
    for wrap in (lambda inner: inner, lambda inner: [inner]):
        view = ConstantList([])
        for _ in range(100_000):
            view = ConstantList(wrap(view))
        del view


def test_repr_of_a_view_in_its_own_list(ConstantList):
    items = []
    items.append(ConstantList(items))
    assert repr(items[0]) == "ConstantList([ConstantList([...])])"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_keep_everything(ConstantList, protocol, monkeypatch):
    class WithAttributes(ConstantList):
        kind = "sub"

    class WithSlots(ConstantList):
        __slots__ = ("extra", "unset")

    for cls in (ConstantList, publish(WithAttributes, monkeypatch), publish(WithSlots, monkeypatch)):
        view = cls([1, [2]])
        view.note = {"a": 1}
        if cls is WithSlots:
            view.extra = (1, 2)
        back = pickle.loads(pickle.dumps(view, protocol))
        assert type(back) is cls
        assert (back._x, back.note, list(back)) == ([1, [2]], {"a": 1}, [1, [2]])
        if cls is WithSlots:
            assert back.extra == (1, 2)
            assert not hasattr(back, "unset")
    assert not hasattr(pickle.loads(pickle.dumps(ConstantList.__new__(ConstantList), protocol)), "_x")


def test_a_pickle_keeps_sharing_and_cycles(ConstantList):
    items = [1]
    items.append(ConstantList(items))
    back = pickle.loads(pickle.dumps(items))
    assert back[1]._x is back


def test_a_subclass_says_how_it_is_pickled(ConstantList, monkeypatch):
    class Counted(ConstantList):
        def __new__(cls, *arguments):
            self = super().__new__(cls)
            self.made_with = arguments
            return self

        def __init__(self, x):
            super().__init__(x)

        def __getnewargs__(self):
            return ("from a pickle",)

        def __getstate__(self):
            return [*self]

        def __setstate__(self, state):
            self.__init__(state)

    back = pickle.loads(pickle.dumps(publish(Counted, monkeypatch)([1, 2])))
    assert (list(back), back.made_with) == ([1, 2], ("from a pickle",))

    class Reduced(ConstantList):
        def __reduce__(self):
            return (type(self), ([*self, "reduced"],))

    assert list(pickle.loads(pickle.dumps(publish(Reduced, monkeypatch)([1])))) == [1, "reduced"]


def test_copies(ConstantList):
    class Sub(ConstantList):
        pass

    for cls in (ConstantList, Sub):
        view = cls([[1]])
        view.note = [2]
        shallow, deep = copy.copy(view), copy.deepcopy(view)
        assert type(shallow) is type(deep) is cls
        assert shallow._x is view._x
        assert shallow.note is view.note
        assert deep._x == view._x
        assert deep._x is not view._x
        assert deep._x[0] is not view._x[0]
        assert deep.note == [2]
        assert deep.note is not view.note


SCRIPT = """
import pickle, sys
from fastutils import ConstantList, _select
print(_select.choose("ConstantList").implementation, file=sys.stderr)
if sys.argv[1] == "dump":
    view = ConstantList([1, "a"])
    view.note = 5
    sys.stdout.buffer.write(pickle.dumps(view, int(sys.argv[2])))
else:
    view = pickle.loads(sys.stdin.buffer.read())
    print(type(view) is ConstantList, view, view._x, view.note)
"""


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_each_form_reads_the_others_pickles(protocol):
    implementations.load("ConstantList", "compiled")

    def run(no_extensions, *arguments, given=b""):
        environment = {**os.environ, "FASTUTILS_NO_EXTENSIONS": no_extensions}
        command = [sys.executable, "-c", SCRIPT, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, env=environment, check=True, timeout=60)
        assert done.stderr.decode().split() == [{"0": "compiled", "1": "python"}[no_extensions]]
        return done.stdout

    for writer, reader in (("0", "1"), ("1", "0")):
        written = run(writer, "dump", str(protocol))
        assert run(reader, "load", given=written) == b"True ConstantList([1, 'a']) [1, 'a'] 5\n"


def test_subclasses_override_what_they_want(ConstantList):
    class Mixin:
        def __init__(self, *arguments, **options):
            self.mixed = True
            super().__init__(*arguments, **options)

    class Sub(Mixin, ConstantList, typing.Generic[T]):
        def __init__(self, x, tag=None):
            super().__init__(x)
            self.tag = tag

        def __getitem__(self, item):
            return ("got", super().__getitem__(item))

        def __len__(self):
            return 2

        def __iter__(self):
            return iter(["one", "two", "one"])

    sub = Sub([1, 2, 3], tag="t")
    assert (sub.mixed, sub.tag, sub._x) == (True, "t", [1, 2, 3])
    assert sub[0] == ("got", 1)
    assert (len(sub), list(sub), sub.count("one")) == (2, ["one", "two", "one"], 2)
    assert list(reversed(sub)) == [("got", 2), ("got", 1)]
    assert (3 in sub, sub.copy(), repr(sub)) == (True, [1, 2, 3], "ConstantList([1, 2, 3])")

    class Abstract(ConstantList, collections.abc.Sequence):
        pass

    assert Abstract([1]).index(1) == 0


def test_a_subclass_may_make_x_something_else(ConstantList, monkeypatch):
    class Computed(ConstantList):
        given = None

        @property
        def _x(self):
            return self.given * 2

        @_x.setter
        def _x(self, value):
            self.given = value

    view = Computed([1, 2])
    assert (len(view), view[-1], view[1:3], 2 in view, view.index(2), view.count(1)) == (4, 2, [2, 1], True, 1, 2)
    publish(Computed, monkeypatch)
    assert [*pickle.loads(pickle.dumps(view))] == [*copy.copy(view)] == [1, 2, 1, 2]

    class Fallback(ConstantList):
        def __getattr__(self, name):
            if name == "_x":
                return ["from __getattr__"]
            raise AttributeError(name)

    assert list(Fallback.__new__(Fallback)) == ["from __getattr__"]

    class Slot(ConstantList):
        __slots__ = ("_x",)

    slot = Slot([5])
    assert (slot[0], len(slot), slot._x, copy.copy(slot)._x) == (5, 1, [5], [5])


def test_both_forms_look_alike_to_inspect():
    compiled, python = (implementations.load("ConstantList", form) for form in ("compiled", "python"))
    assert inspect.getdoc(compiled) == inspect.getdoc(python)
    assert compiled.__module__ == python.__module__ == "fastutils"
    assert compiled.__qualname__ == python.__qualname__ == "ConstantList"
    names = [[(p.name, p.kind) for p in inspect.signature(cls).parameters.values()] for cls in (compiled, python)]
    assert names[0] == names[1]
    for method in METHODS:
        ours, twins = (inspect.signature(getattr(cls([]), method)) for cls in (compiled, python))
        assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
            (p.name, p.kind, p.default) for p in twins.parameters.values()
        ], method
        assert inspect.getdoc(getattr(compiled, method)) == inspect.getdoc(getattr(python, method)), method
    public = [{name for name in dir(cls) if not name.startswith("_")} for cls in (compiled, python)]
    assert public[0] == public[1] == set(METHODS)


def test_importing_the_module_again_gives_the_same_type(monkeypatch):
    first = implementations.load("ConstantList", "compiled")
    kept = first([1])
    monkeypatch.delitem(sys.modules, "fastutils._views")
    again = implementations.load("ConstantList", "compiled")
    assert again is first
    assert isinstance(sys.modules["fastutils._views"], types.ModuleType)
    assert kept[0] == 1


# ---- where an instance keeps its state ---------------------------------------------------------------------------


def test_the_dictionary_holds_the_other_attributes(ConstantList):
    view = ConstantList([1, 2])
    attributes = vars(view)
    attributes["more"] = 1
    assert (view[0], view.more, view._x) == (1, 1, [1, 2])
    view._x = [8, 9]
    assert (list(view), view._x) == ([8, 9], [8, 9])
    assert {**attributes, "_x": None} == {"_x": None, "more": 1}  # whether `_x` is in it is up to the form
    del view.more
    assert "more" not in attributes
    with pytest.raises(TypeError):
        view.__dict__ = 3


def test_assigning_the_dictionary_replaces_all_attributes(ConstantList):
    view = ConstantList([1, 2])
    view.note = 1
    view.__dict__ = {"_x": (3,)}
    assert view[0] == 3
    assert not hasattr(view, "note")
    assert vars(view) == {"_x": (3,)}
    vars(view)["_x"] = [5]
    assert (view[-1], view._x) == (5, [5])
    view._x = [6]
    assert (vars(view), len(view)) == ({"_x": [6]}, 1)
    del view._x
    assert vars(view) == {}
    with pytest.raises(AttributeError, match="_x"):
        len(view)
    with pytest.raises(AttributeError, match="_x"):
        del view._x
    view.__dict__ = {}
    assert not hasattr(view, "_x")


def test_the_state_of_a_subclass_is_in_the_dictionary(ConstantList):
    class Sub(ConstantList):
        pass

    view = Sub([1, 2])
    attributes = vars(view)
    assert attributes == {"_x": [1, 2]}
    attributes["_x"] = [7]
    attributes["more"] = 1
    assert (view[0], len(view), view.more, view._x) == (7, 1, 1, [7])
    view._x = [8, 9]
    assert attributes == {"_x": [8, 9], "more": 1}
    del view._x
    assert attributes == {"more": 1}


class HashOfX:
    """A key that hashes like "_x"; once armed, its first comparison runs `act`."""

    act = None

    def __hash__(self):
        return hash("_x")

    def __eq__(self, other):
        act, HashOfX.act = HashOfX.act, None
        if act is not None:
            act()
        return False


@pytest.mark.parametrize("attribute", ["_x", "__dict__"])
def test_a_key_may_change_the_dictionary_that_is_searched(ConstantList, attribute):
    view, viewed = ConstantList([1]), [1, 2, 3]
    view.__dict__ = {HashOfX(): 1, "_x": viewed}
    new = [9] if attribute == "_x" else {"_x": [9]}
    HashOfX.act = lambda: setattr(view, attribute, new)
    assert list(view) in ([1, 2, 3], [9])
    assert list(view) == [9]
    assert sys.getrefcount(viewed) == 2


def test_the_abstract_methods_of_a_subclass_must_be_there(ConstantList):
    import abc

    class Abstract(ConstantList):
        @abc.abstractmethod
        def first(self):
            raise NotImplementedError

    class StillAbstract(Abstract):
        pass

    class Concrete(StillAbstract):
        def first(self):
            return self[0]

    class WithMeta(ConstantList, abc.ABC):
        @abc.abstractmethod
        def first(self):
            raise NotImplementedError

    for cls in (Abstract, StillAbstract, WithMeta):
        with pytest.raises(TypeError, match="first"):
            cls([1])
    assert Concrete([5]).first() == 5


def test_making_a_subclass_runs_no_descriptor(ConstantList):
    class Descriptor:
        def __get__(self, instance, owner=None):
            raise LookupError("asked")

    class View(ConstantList):
        descriptor = Descriptor()
        dynamic = types.DynamicClassAttribute(lambda self: 5)

    assert View([1]).dynamic == 5
    assert type(ConstantList)("View", (ConstantList,), {1: 2})([3])[0] == 3


def test_it_is_as_generic_as_upstreams(ConstantList):
    assert issubclass(ConstantList, typing.Generic)
    assert len(ConstantList.__parameters__) == 1
    assert ConstantList[T].__parameters__ == (T,)
    with pytest.raises(TypeError):
        ConstantList[int, str]

    class OfInts(ConstantList[int]):
        pass

    assert OfInts.__parameters__ == ()
    with pytest.raises(TypeError):
        OfInts[int]
    assert typing.get_args(OfInts.__orig_bases__[0]) == (int,)


def test_a_comparison_that_ends_an_iteration_is_an_error_of_count(ConstantList):
    class Ending:
        def __eq__(self, other):
            raise StopIteration

        __hash__ = None

    for value in (5, Ending()):
        with pytest.raises(RuntimeError) as caught:
            ConstantList([1, Ending(), 2]).count(value)
        assert isinstance(caught.value.__cause__, StopIteration)


def test_a_collection_that_shortens_the_list_while_it_is_copied(ConstantList):
    # Python <= 3.11 collects within the allocation of the new list, and its own slicing would read freed memory then.
    if implementations.load("ConstantList", "python") is ConstantList:
        pytest.skip("Python's own slicing does not look again")
    script = (
        "import gc, sys\n"
        "from fastutils._views import ConstantList\n"
        "class Cycle:\n"
        "    def __init__(self): self.me = self\n"
        "    def __del__(self): items.clear()\n"
        "for read in (lambda v: v.copy(), lambda v: v[:], lambda v: v[10:900]):\n"
        "    for attempt in range(300):\n"
        "        items = [[i] for i in range(1000)]\n"
        "        view, kept = ConstantList(items), []\n"
        "        gc.collect(); Cycle(); gc.set_threshold(1)\n"
        "        for _ in range(attempt % 90): kept.append([])\n"
        "        part = read(view)\n"
        "        gc.set_threshold(700)\n"
        "        assert part in ([], [[i] for i in range(1000)], [[i] for i in range(10, 900)]), len(part)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_state_written_by_hand_is_restored(ConstantList):
    class ByHand(ConstantList):
        def __getstate__(self):
            return self.__dict__.copy()

        def __setstate__(self, state):
            self.__dict__.update(state)

        def __copy__(self):
            new = type(self).__new__(type(self))
            new.__dict__.update(self.__dict__)
            return new

    view = ByHand([1, 2])
    new = ByHand.__new__(ByHand)
    new.__setstate__(view.__getstate__())
    assert new[1] == 2
    assert copy.copy(view)[1] == 2
    assert copy.deepcopy(view)[1] == 2


def test_a_subclass_may_reduce_itself_by_the_inherited_way(ConstantList):
    class Reducing(ConstantList):
        def __reduce__(self):
            return super().__reduce__()

    function, arguments, state = Reducing([1]).__reduce__()
    made = function(*arguments)
    made.__dict__.update(state)
    assert list(made) == [1]


def test_what_a_subclass_makes_of_the_attribute_counts(ConstantList):
    class Late(ConstantList):
        pass

    view = Late([1])
    Late._x = property(lambda self: [9])
    assert view[0] == 9

    class Intercepted(ConstantList):
        def __getattribute__(self, name):
            return [5] if name == "_x" else super().__getattribute__(name)

    assert Intercepted([1])[0] == 5


@pytest.mark.parametrize(
    "read",
    [
        *(len, list, repr, bool, lambda v: v[0], lambda v: v[:1], lambda v: 3 in v),
        *(lambda v: v.index(1), lambda v: v.count(1), lambda v: v.copy(), lambda v: list(reversed(v))),
    ],
)
def test_a_view_of_itself_raises_instead_of_crashing(ConstantList, read):
    view = ConstantList([])
    view._x = view
    with pytest.raises(RecursionError):
        read(view)
    one, other = ConstantList([]), ConstantList([])
    one._x, other._x = other, one
    with pytest.raises(RecursionError):
        read(one)


def test_index_goes_on_where_a_comparison_made_the_list_longer(ConstantList):
    items = []

    class Growing:
        def __eq__(self, other):
            if len(items) < 2:
                items.append(other)
            return False

        __hash__ = None

    items.append(Growing())
    assert ConstantList(items).index(5, 0, 100) == 1


def test_it_stays_a_sequence_when_the_module_is_loaded_again():
    script = (
        "import gc, importlib, fastutils, fastutils.views\n"
        "from collections.abc import Sequence\n"
        "importlib.reload(fastutils.views); gc.collect()\n"
        "class Sub(fastutils.ConstantList): pass\n"
        "assert isinstance(fastutils.ConstantList([1]), Sequence) and issubclass(Sub, Sequence)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    "between", ["slice(v)", "types.MethodType(print, v)", "collections.deque([v])", "[v]", "v", "(v,)"]
)
def test_a_long_chain_of_views_is_freed_on_a_small_stack(between):
    implementations.load("ConstantList", "compiled")  # an unoptimised Python cannot always do it with its own classes
    script = (
        "import collections, threading, types\nfrom fastutils._views import ConstantList\n"
        "def go():\n"
        "    v = ConstantList([])\n"
        f"    for _ in range(200_000): v = ConstantList({between})\n"
        "    del v\n"
        "    print('freed')\n"
        "threading.stack_size(2 << 20)\n"
        "thread = threading.Thread(target=go); thread.start(); thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "freed\n"), done.stderr[-500:]
