"""ConstantList: every way of using a view, intruded upon."""

import contextlib
import copy
import pickle
import weakref

from intruders.describing import read, tell
from intruders.door import Token
from intruders.gates import ANYWHERE
from intruders.keys import Key, told_name
from intruders.matrix import Block
from intruders.world import World, form_of


class Views(World):
    """A view of a list with something of every kind in it; `evil` stands in its middle."""

    def __init__(self, form, shape):
        self.form, self.shape = form, shape
        self.cls = self.base = form_of("ConstantList", form)
        if "subclass" in shape:
            self.cls = type("Sub", (self.base,), {})
        self.needle, self.bound, self.name = int("1000"), int("1"), "_x"
        self.evil = Token("evil")
        self.items = [Token("first"), int("5"), self.evil, int("1000"), "text", Token("last"), int("7")]
        self.view = self.cls(self.items)
        if shape == "with its own dictionary":
            self.view.__dict__ = {"note": Token("note"), "_x": self.items}
        elif shape == "of a view":
            self.inner, self.view = self.view, self.cls(self.view)

    def become_evil(self, evil):
        """Put `evil` where comparing, indexing and formatting meet it."""
        self.evil = self.items[2] = evil

    def state(self):
        view = self.get("view")
        if view is None:
            return tell(self.get("items"))
        attributes = read(view, "__dict__")
        if isinstance(attributes, dict):
            # An exact compiled view keeps `_x` beside its dictionary: the one difference there is.
            attributes = {key: value for key, value in attributes.items() if type(key) is str and key != "_x"}
        viewed = read(view, "_x")
        return [
            type(view).__name__, tell(viewed), viewed is self.get("items"), tell(attributes), tell(self.get("items")),
            tell(self.get("made")),
        ]  # fmt: skip

    def watched(self):
        for name in ("items", "view", "evil", "needle", "inner", "made"):
            if self.get(name) is not None:
                yield name, self.get(name)

    def lasting(self):
        yield from ((token.name, token) for token in self.items if isinstance(token, Token))
        yield "view", self.view
        if self.cls is not self.base:
            yield "class", self.cls


# ---- entries ------------------------------------------------------------------------------------------------------


def state_of(world, protocol):
    # Of a pickle: the rest is told by identity. Either form may leave an empty state out.
    reduced = world.view.__reduce_ex__(protocol)
    state = dict(reduced[2] or {}) if len(reduced) > 2 else {}
    return {name: value for name, value in state.items() if type(name) is str}


def construct(world):
    made = world.cls(world.items)
    return made._x is world.items


def construct_by_name(world):
    return world.cls(x=world.items)


def let_go(world):
    view = world.view
    world.view = None
    del view


def let_go_of_the_list(world):
    world.items = None
    world.evil = None
    world.view._x = None


def assign_whole_dictionary(world):
    world.view.__dict__ = {"_x": [1, 2], "other": 3}
    return world.view._x, world.view.other


def delete_whole_dictionary(world):
    del world.view.__dict__
    return read(world.view, "_x")


def attributes(world):
    view = world.view
    view.note = world.needle
    note = view.note
    del view.note
    return note, hasattr(view, "note")


def pickled(world):
    world.items[:] = [5, int("1000"), "text"]
    return tell(pickle.loads(pickle.dumps(world.items))), tell(world.view)


def use_after(world):
    world.view._x = world.items
    return world.view[1], len(world.view), world.needle in world.view


ENTRIES = {
    "construction": construct,
    "construction by name": construct_by_name,
    "construction of many": lambda world: len([world.cls(world.items) for _ in range(40)]),
    "init again": lambda world: world.view.__init__([world.needle]),
    "init again with the same": lambda world: world.view.__init__(world.items),
    "new without init": lambda world: read(world.cls.__new__(world.cls), "_x"),
    "len": lambda world: len(world.view),
    "truth": lambda world: bool(world.view),
    "[int]": lambda world: world.view[1],
    "[negative int]": lambda world: world.view[-1],
    "[bound]": lambda world: world.view[world.bound],
    "[too large]": lambda world: world.view[99],
    "[a:b]": lambda world: world.view[1:5],
    "[bound:]": lambda world: world.view[world.bound :],
    "[:bound]": lambda world: world.view[: world.bound],
    "[::bound]": lambda world: world.view[:: world.bound],
    "[:]": lambda world: world.view[:],
    "int in": lambda world: int("7") in world.view,
    "missing int in": lambda world: int("12345") in world.view,
    "evil in": lambda world: world.evil in world.view,
    "other in": lambda world: 1.5 in world.view,
    "iteration": lambda world: [item for item in world.view],  # noqa: C416
    "list": lambda world: list(world.view),
    "tuple": lambda world: tuple(world.view),
    "iterator kept": lambda world: next(iter(world.view)),
    "reversed": lambda world: list(reversed(world.view)),
    "unpacking": lambda world: [*world.view],
    "sum": lambda world: sum(world.view[-1:]),
    "index of an int": lambda world: world.view.index(int("7")),
    "index of a missing int": lambda world: world.view.index(int("12345")),
    "index of evil": lambda world: world.view.index(world.evil),
    "index from bound": lambda world: world.view.index(int("1000"), world.bound),
    "index to bound": lambda world: world.view.index(int("1000"), 0, world.bound),
    "index by name": lambda world: world.view.index(item=int("7"), stop=99),
    "count of an int": lambda world: world.view.count(int("7")),
    "count of evil": lambda world: world.view.count(world.evil),
    "count by name": lambda world: world.view.count(value="text"),
    "copy": lambda world: world.view.copy(),
    "repr": lambda world: repr(world.view),
    "format": lambda world: f"{world.view}",
    "reduce": lambda world: state_of(world, 2),
    "reduce by the oldest": lambda world: state_of(world, 0),
    "copy.copy": lambda world: copy.copy(world.view),
    "pickle": pickled,
    "attributes": attributes,
    "get _x": lambda world: world.view._x,
    "get an odd name": lambda world: getattr(world.view, world.name),
    "set _x": lambda world: setattr(world.view, "_x", [world.needle]),
    "set and use _x": use_after,
    "delete _x": lambda world: delattr(world.view, "_x"),
    "delete and get _x": lambda world: (delattr(world.view, "_x"), world.view._x),
    "assign __dict__": assign_whole_dictionary,
    "delete __dict__": delete_whole_dictionary,
    "hash and equality": lambda world: ({world.view: 1}[world.view], world.view == world.view, world.view != 5),
    "drop the view": let_go,
    "drop the list": let_go_of_the_list,
    "append": lambda world: world.view.append(world.needle),
    "extend": lambda world: world.view.extend([world.needle]),
    "insert": lambda world: world.view.insert(world.evil),
    "pop": lambda world: world.view.pop(world.bound),
    "remove": lambda world: world.view.remove(world.evil),
    "clear": lambda world: world.view.clear(),
    "set item": lambda world: world.view.__setitem__(world.bound, world.evil),
    "delete item": lambda world: world.view.__delitem__(world.bound),
}  # fmt: skip

BY_ITEMS = ("list", "tuple", "iteration", "reversed", "unpacking")


# ---- acts ---------------------------------------------------------------------------------------------------------


def clear_attributes(world):
    vars(world.view).clear()
    if isinstance(read(world.view, "_x"), AttributeError):
        return
    with contextlib.suppress(AttributeError):  # a property cannot be deleted
        del world.view._x


def nobody_views(world):
    with contextlib.suppress(AttributeError):
        del world.view._x


def other_dictionary(world):
    world.view.__dict__ = {"_x": [9], "other": world.needle}
    [{"filler": i} for i in range(50)]  # what was freed is used again


def shorten(world):
    del world.items[1:]


def lengthen(world):
    if len(world.items) < 64:
        world.items.extend(range(30))


def drop_the_item(world):
    evil, world.evil = world.evil, None
    del evil
    world.items[:] = [None if isinstance(item, Token) else item for item in world.items]
    [Token("filler") for _ in range(20)]


def property_for_x(world):
    world.cls._x = property(lambda view: [77])


def forget_property(world):
    for name in ("_x", "__getattr__"):
        if name in vars(world.cls):
            delattr(world.cls, name)


ACTS = {
    "another list": lambda world: setattr(world.view, "_x", [world.needle] * 3),
    "a tuple": lambda world: setattr(world.view, "_x", (world.needle, 8)),
    "None as list": lambda world: setattr(world.view, "_x", None),
    "the view itself": lambda world: setattr(world.view, "_x", world.view),
    "no _x": nobody_views,
    "starts again": lambda world: world.view.__init__([1, 2]),
    "another dictionary": other_dictionary,
    "an empty dictionary": lambda world: setattr(world.view, "__dict__", {}),
    "no dictionary": lambda world: delattr(world.view, "__dict__"),
    "clears the attributes": clear_attributes,
    "clears the list": lambda world: world.items.clear(),
    "shortens the list": shorten,
    "lengthens the list": lengthen,
    "reverses the list": lambda world: world.items.reverse(),
    "drops the items": drop_the_item,
    "drops the view": let_go,
    "a property for _x": property_for_x,
    "no property": forget_property,
}


# ---- gates --------------------------------------------------------------------------------------------------------


def answering(name, answer):
    """A gate: the special method `name` of an item, which gives `answer` afterwards."""

    @contextlib.contextmanager
    def gate(world, door):
        def method(self, *arguments):
            door()
            return answer(self, *arguments) if callable(answer) else answer

        members = {name: method}
        if name == "__eq__":
            members["__hash__"] = Token.__hash__
        evil = type("Evil", (Token,), members)("evil")
        world.become_evil(evil)
        if name == "__index__":
            world.bound = evil
        yield
        # What is told and counted afterwards must not hold what only the gate held.
        evil = None

    return gate


class Truth:
    def __init__(self, door, answer):
        self.door, self.answer = door, answer

    def __bool__(self):
        self.door()
        return self.answer


@contextlib.contextmanager
def truth_of_equality(world, door):
    evil = type("Evil", (Token,), {"__eq__": lambda self, other: Truth(door, False), "__hash__": Token.__hash__})
    world.become_evil(evil("evil"))
    yield


@contextlib.contextmanager
def end_of_an_item(world, door):
    """The finalizer of an item that only the viewed list holds, which only the view holds."""
    evil = type("Evil", (Token,), {"__del__": lambda self: door()})
    world.become_evil(evil("evil"))
    world.evil = world.items = None
    yield


@contextlib.contextmanager
def end_of_the_view(world, door):
    watching = weakref.ref(world.view, lambda reference: door())
    yield
    del watching


@contextlib.contextmanager
def key_in_the_dictionary(world, door):
    world.view.__dict__ = {Key("_x", door): 1, **vars(world.view), "_x": world.items}
    yield


@contextlib.contextmanager
def odd_name(world, door):
    world.name = told_name("_x", door)
    yield
    world.name = None


@contextlib.contextmanager
def property_of_the_class(world, door):
    def get(view):
        door()
        if "stored" not in vars(view):
            raise AttributeError("nothing stored")
        return vars(view)["stored"]

    def put(view, value):
        door()
        vars(view)["stored"] = value

    vars(world.view)["stored"] = vars(world.view).pop("_x")
    world.cls._x = property(get, put)
    yield


@contextlib.contextmanager
def getattr_of_the_class(world, door):
    def missing(view, name):
        if name != "_x":
            raise AttributeError(name)
        door()
        return vars(view).get("stored", ())

    vars(world.view)["stored"] = vars(world.view).pop("_x")
    world.cls.__getattr__ = missing
    yield


@contextlib.contextmanager
def getattribute_of_the_class(world, door):
    def get(view, name):
        if name == "_x":
            door()
        return object.__getattribute__(view, name)

    world.cls.__getattribute__ = get
    yield


@contextlib.contextmanager
def setattr_of_the_class(world, door):
    def put(view, name, value):
        door()
        object.__setattr__(view, name, value)

    world.cls.__setattr__ = put
    yield


@contextlib.contextmanager
def methods_of_what_is_viewed(world, door):
    def method(name):
        def called(self, *arguments):
            door()
            return getattr(list, name)(self, *arguments)

        return called

    names = ("__len__", "__getitem__", "__iter__", "__contains__", "index", "copy", "__repr__", "__format__", "count")
    members = {name: method(name) for name in names if name != "__format__"}
    members["__format__"] = lambda self, spec: (door(), "formatted")[1]
    world.items = type("Listlike", (list,), members)(world.items)
    world.view._x = world.items
    yield


EVERY_VIEW = {
    "item's __eq__, no": answering("__eq__", False),
    "item's __eq__, yes": answering("__eq__", True),
    "item's __eq__, stops": answering("__eq__", lambda self, other: next(iter(()))),
    "truth of an item's __eq__": truth_of_equality,
    "item's __repr__": answering("__repr__", "evil"),
    "bound's __index__": answering("__index__", 2),
    "finalizer of an item": end_of_an_item,
    "weakref callback of the view": end_of_the_view,
}
SUBCLASSES = {
    "property _x": property_of_the_class,
    "__getattr__ for _x": getattr_of_the_class,
    "__getattribute__ for _x": getattribute_of_the_class,
    "__setattr__": setattr_of_the_class,
}

# What refuses looks at no view: one shape stands for all.
REFUSING = {"append", "extend", "insert", "pop", "remove", "clear", "set item", "delete item"}
ONLY_IN_SUBCLASSES = {"a property for _x", "no property"}  # an exact compiled view's class cannot be changed
STORING = {
    "init again", "init again with the same", "set _x", "set and use _x", "delete _x", "delete and get _x",
    "drop the list",
}  # fmt: skip
LETTING_GO_OF_THE_DICTIONARY = {
    "another dictionary", "an empty dictionary", "no dictionary", "drops the view", "drops everything",
}  # fmt: skip


def only_compiled(entry, gate, act):
    # The interpreter looks into an instance's dictionary, and stores there, without holding it (Python <= 3.12).
    return act in LETTING_GO_OF_THE_DICTIONARY and (
        gate == "key in the dictionary" or (gate == "finalizer of an item" and entry in STORING)
    )


DIFFERS = {
    # The compiled form's __getstate__ is Python code, which reads the dictionary and then `_x`.
    **{
        (entry, gate, None): "a state read in two steps"
        for entry in ("reduce", "reduce by the oldest", "copy.copy")
        for gate in (*ANYWHERE, "key in the dictionary")
    },
    # What hashing a name raises is dropped by the interpreter where it asks the class for the name, and then the name
    # is not found there; the compiled form has it there.
    ("get an odd name", "odd name", "raises"): "the interpreter drops it",
}
# The interpreter itself keeps the frame when a trace function raises in copyreg's bare `except`.
KEEPS = {("copy.copy", "trace function", "raises"), ("reduce", "trace function", "raises")}


def block(shape, strict, unsteady=()):
    subclass = "subclass" in shape
    return Block(
        name=f"view {shape}",
        make=lambda form: Views(form, shape),
        entries=ENTRIES,
        strict=strict,
        unsteady=dict(unsteady),
        acts=ACTS,
        makes_no_sense=lambda entry, gate, act: (
            (act in ONLY_IN_SUBCLASSES and not subclass) or (entry in REFUSING and shape != "in its slot")
        ),
        only_compiled=only_compiled,
        by_items=BY_ITEMS,
        differs=DIFFERS,
        keeps=KEEPS,
    )


KEY = {"key in the dictionary": key_in_the_dictionary}
BLOCKS = [
    block(
        "in its slot", {**EVERY_VIEW, "methods of what is viewed": methods_of_what_is_viewed}, {"odd name": odd_name}
    ),
    block("with its own dictionary", EVERY_VIEW, KEY),
    block("of a view", EVERY_VIEW),
    block("in a subclass", {**EVERY_VIEW, **SUBCLASSES}, KEY),
]
