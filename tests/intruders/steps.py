"""compute_iteration_details: every way through it, intruded upon by what it reads."""

import contextlib
import types
from functools import cached_property

from comparing import Cached

from intruders.describing import tell
from intruders.door import Token
from intruders.keys import Key, Named
from intruders.matrix import Block
from intruders.world import World, form_of


class Output:
    """As the scheduler's: plain attributes."""


class Request:
    pass


def fresh_class():
    """A class that the compiled form has to judge anew, and may recognise."""

    def again(function):
        return types.FunctionType(function.__code__, function.__globals__, function.__name__)

    return type(
        "Fresh",
        (),
        {
            "is_context_phase": again(Cached.is_context_phase),
            "_req_id_to_num_output_tokens": cached_property(again(Cached._req_id_to_num_output_tokens.func)),
        },
    )


class Steps(World):
    """What one engine step scheduled: two requests that are new and four that run, one of them in context."""

    def __init__(self, form, shape):
        self.details = form_of("compute_iteration_details", form)
        ids = [str(f"request {i}") for i in range(6)]
        if shape == "ids of any kind":
            ids = [Named(f"request {i}") for i in range(6)]
        self.ids = ids
        self.cls = fresh_class() if shape != "classes of others" else type("Asked", (), {"is_context_phase": asked})
        self.output, self.cached = type("Out", (Output,), {})(), self.cls()
        request = type("New", (Request,), {})
        self.new = [request(), request()]
        for one, name in zip(self.new, ids[4:], strict=True):
            one.req_id = name
        self.req_ids, self.outputs = ids[:4], [int("3"), int("0"), int("1000"), int("2000")]
        scheduled = [*ids[:4], *ids[4:]] if shape != "another order" else [*ids[3:], *ids[:3]]
        self.tokens = {name: int(f"{1000 + i}") for i, name in enumerate(scheduled)}
        self.cached.req_ids, self.cached.num_output_tokens = self.req_ids, self.outputs
        self.output.scheduled_new_reqs = self.new if shape != "nothing new" else []
        self.output.num_scheduled_tokens = self.tokens
        self.output.scheduled_cached_reqs = self.cached
        if shape == "nothing new":
            del self.tokens[ids[4]], self.tokens[ids[5]]
        elif shape == "map already made":
            self.cached._req_id_to_num_output_tokens = dict(zip(self.req_ids, self.outputs, strict=True))
        elif shape == "new ones as a tuple":
            self.output.scheduled_new_reqs = tuple(self.new)

    def state(self):
        told = [tell(self.get(name)) for name in ("tokens", "req_ids", "outputs")]
        for name in ("output", "cached"):
            attributes = vars(self.get(name)) if self.get(name) is not None else {}
            # The compiled form does not leave its class's map of the requests behind.
            told.append(sorted((key, str(tell(value))) for key, value in attributes.items() if key in ATTRIBUTES))
        return [*told, len(self.get("new") or ())]

    def watched(self):
        names = ("output", "cached", "tokens", "req_ids", "outputs", "new")
        yield from ((name, self.get(name)) for name in names if self.get(name) is not None)

    def lasting(self):
        yield from (("output", self.output), ("cached", self.cached), ("class", self.cls))
        yield from (("new", one) for one in self.new)
        yield from (("id", one) for one in self.ids if isinstance(one, Token))


def asked(self, req_id):
    return self.num_output_tokens[self.req_ids.index(req_id)] == 0 if req_id in self.req_ids else False


ATTRIBUTES = (
    "scheduled_new_reqs",
    "num_scheduled_tokens",
    "scheduled_cached_reqs",
    "req_ids",
    "num_output_tokens",
    "note",
)

ENTRIES = {
    "details": lambda world: world.details(world.output),
    "details by name": lambda world: world.details(scheduler_output=world.output),
    "details of nothing": lambda world: world.details(None),
}


# ---- acts ---------------------------------------------------------------------------------------------------------


def map_of_others(world):
    vars(world.cached)["_req_id_to_num_output_tokens"] = {world.ids[0]: 0}


def other_method(world):
    world.cls.is_context_phase = lambda self, req_id: True


def method_of_the_instance(world):
    world.cached.is_context_phase = lambda req_id: True


def replace(name, value):
    def act(world):
        owner = world.output if "scheduled" in name else world.cached
        setattr(owner, name, value(world))

    return act


def other_dictionary(name):
    def act(world):
        owner = getattr(world, name)
        owner.__dict__ = {**vars(owner), "note": 1}
        [{"filler": i} for i in range(50)]

    return act


def drop_the_lists(world):
    world.req_ids = world.outputs = world.tokens = world.new = None
    world.cached.req_ids, world.cached.num_output_tokens = [], []
    world.output.num_scheduled_tokens, world.output.scheduled_new_reqs = {}, []
    [[i] * 8 for i in range(50)]


def swap_a_key(world):
    world.tokens["another"] = world.tokens.pop(world.ids[0], 1)


def property_for_a_list(world):
    world.cls.req_ids = property(lambda self: [])


ACTS = {
    "clears the tokens": lambda world: world.tokens.clear(),
    "more tokens": lambda world: world.tokens.update({"more": 7, "and more": 8}),
    "swaps a request": swap_a_key,
    "other numbers": lambda world: world.tokens.update(dict.fromkeys(world.tokens, 5)),
    "clears the ids": lambda world: world.req_ids.clear(),
    "clears the outputs": lambda world: world.outputs.clear(),
    "zeroes the outputs": lambda world: world.outputs.__setitem__(slice(None), [0] * len(world.outputs)),
    "longer lists": lambda world: (world.req_ids.extend(["x"] * 50), world.outputs.extend([0] * 50)),
    "clears the new": lambda world: world.new.clear(),
    "more new": lambda world: len(world.new) < 20 and world.new.append(world.new[0]),
    "replaces the tokens": replace("num_scheduled_tokens", lambda world: {world.ids[0]: 9}),
    "replaces the new": replace("scheduled_new_reqs", lambda world: []),
    "replaces the cached": replace("scheduled_cached_reqs", lambda world: world.cls()),
    "replaces the ids": replace("req_ids", lambda world: list(reversed(world.ids))),
    "replaces the outputs": replace("num_output_tokens", lambda world: (0, 0)),
    "no ids": lambda world: vars(world.cached).pop("req_ids", None),
    "no tokens": lambda world: vars(world.output).pop("num_scheduled_tokens", None),
    "clears the cached": lambda world: vars(world.cached).clear(),
    "clears the output": lambda world: vars(world.output).clear(),
    "another dictionary of the output": other_dictionary("output"),
    "another dictionary of the cached": other_dictionary("cached"),
    "a map": map_of_others,
    "another method": other_method,
    "a method of the instance": method_of_the_instance,
    "a property for the ids": property_for_a_list,
    "drops the lists": drop_the_lists,
}


# ---- gates --------------------------------------------------------------------------------------------------------


def property_gate(owner, name):
    """Reading `name` of the world's `owner`, by a property of its class."""

    @contextlib.contextmanager
    def gate(world, door):
        things = world.new if owner == "new" else [getattr(world, owner)]

        def get(thing):
            door()
            try:
                return vars(thing)[name]
            except KeyError:
                raise AttributeError(name) from None

        def put(thing, value):
            vars(thing)[name] = value

        setattr(type(things[0]), name, property(get, put))
        yield

    return gate


def getattr_gate(owner, name):
    """The same by __getattr__: what is asked for is not in its usual place."""

    @contextlib.contextmanager
    def gate(world, door):
        things = world.new if owner == "new" else [getattr(world, owner)]
        kept = {id(thing): vars(thing).pop(name) for thing in things}

        def missing(thing, asked_for):
            if asked_for != name or id(thing) not in kept:
                raise AttributeError(asked_for)
            door()
            return kept[id(thing)]

        type(things[0]).__getattr__ = missing
        yield
        kept.clear()

    return gate


def getattribute_gate(owner):
    @contextlib.contextmanager
    def gate(world, door):
        things = world.new if owner == "new" else [getattr(world, owner)]

        def get(thing, name):
            if name in ATTRIBUTES or name in ("req_id", "is_context_phase"):
                door()
            return object.__getattribute__(thing, name)

        type(things[0]).__getattribute__ = get
        yield

    return gate


@contextlib.contextmanager
def ids_method(world, door, name):
    def method(self, *arguments):
        door()
        return getattr(Named, name)(self, *arguments)

    type_of = type("Intruding", (Named,), {name: method, **({"__hash__": Named.__hash__} if name == "__eq__" else {})})
    for one in world.ids:
        if isinstance(one, Named):
            one.__class__ = type_of
    yield
    for one in vars(world).get("ids", ()):
        one.__class__ = Named


def ids_gate(name):
    return lambda world, door: ids_method(world, door, name)


@contextlib.contextmanager
def sum_of_tokens(world, door):
    class Number(int):
        def __radd__(self, other):
            door()
            return other + int(self)

    world.tokens[world.ids[1]] = Number(1001)
    yield


@contextlib.contextmanager
def output_compared(world, door):
    class Number(int):
        def __eq__(self, other):
            door()
            return int(self) == other

        __hash__ = int.__hash__

    world.outputs[1] = Number(0)
    if "_req_id_to_num_output_tokens" in vars(world.cached):
        world.cached._req_id_to_num_output_tokens[world.ids[1]] = world.outputs[1]
    yield


@contextlib.contextmanager
def truth_of_the_answer(world, door):
    class Truth:
        def __bool__(self):
            door()
            return False

    world.cls.is_context_phase = lambda self, req_id: Truth()
    yield


@contextlib.contextmanager
def the_method_itself(world, door):
    def method(self, req_id):
        door()
        return False

    world.cls.is_context_phase = method
    yield


def key_gate(owner, name):
    @contextlib.contextmanager
    def gate(world, door):
        thing = getattr(world, owner)
        thing.__dict__ = {Key(name, door): 1, **vars(thing)}
        yield

    return gate


@contextlib.contextmanager
def new_ones_from_a_generator(world, door):
    new = world.new

    class Requests(list):
        def __iter__(self):
            for one in new:
                door()
                yield one

    world.output.scheduled_new_reqs = Requests(new)
    yield


STRICT = {
    **{
        f"property {name} of the {owner}": property_gate(owner, name)
        for owner, name in (
            ("output", "scheduled_new_reqs"), ("output", "num_scheduled_tokens"), ("output", "scheduled_cached_reqs"),
            ("new", "req_id"),
        )
    },
    **{
        f"__getattr__ for {name} of the {owner}": getattr_gate(owner, name)
        for owner, name in (("output", "num_scheduled_tokens"), ("new", "req_id"))
    },
    **{f"__getattribute__ of the {owner}": getattribute_gate(owner) for owner in ("output", "cached", "new")},
    "sum of tokens": sum_of_tokens,
    "an output compared": output_compared,
    "truth of the answer": truth_of_the_answer,
    "the method": the_method_itself,
    "new ones from a generator": new_ones_from_a_generator,
}  # fmt: skip
STRICT_OF_THE_LISTS = {
    "property req_ids of the cached": property_gate("cached", "req_ids"),
    "property num_output_tokens of the cached": property_gate("cached", "num_output_tokens"),
    "__getattr__ for req_ids of the cached": getattr_gate("cached", "req_ids"),
}
KEYS = {
    f"key like {name} in the {owner}": key_gate(owner, name)
    for owner, name in (
        ("output", "num_scheduled_tokens"), ("output", "scheduled_cached_reqs"), ("cached", "req_ids"),
        ("cached", "is_context_phase"), ("cached", "_req_id_to_num_output_tokens"),
    )
}  # fmt: skip
IDS = {"__hash__ of an id": ids_gate("__hash__"), "__eq__ of an id": ids_gate("__eq__")}

DROPPING_A_DICTIONARY = {"another dictionary of the output", "another dictionary of the cached", "drops everything"}


def only_compiled(entry, gate, act):
    # The interpreter looks into an instance's dictionary without holding it (Python <= 3.12).
    return gate in KEYS and act in DROPPING_A_DICTIONARY


def block(shape, strict, unsteady):
    return Block(
        name=f"step: {shape}", make=lambda form: Steps(form, shape), entries=ENTRIES, acts=ACTS, strict=strict,
        unsteady=unsteady, only_compiled=only_compiled,
    )  # fmt: skip


ALL = {**STRICT, **STRICT_OF_THE_LISTS}
BLOCKS = [
    block("in its order", ALL, KEYS),
    block("another order", ALL, KEYS),
    block("nothing new", ALL, KEYS),
    block("map already made", STRICT, KEYS),
    block("new ones as a tuple", ALL, KEYS),
    block("ids of any kind", ALL, {**KEYS, **IDS}),
    block("classes of others", ALL, KEYS),
]
