"""record_function_or_nullcontext, with scopes off and while it is chosen whether they are, intruded upon."""

import contextlib
from unittest import mock

from fastutils import _host, scopes
from intruders.door import Token
from intruders.matrix import Block
from intruders.world import World, form_of


class Name(str):
    """A name of a kind of its own."""

    __slots__ = ("token",)


class Scopes(World):
    def __init__(self, form):
        scopes._reset()
        self.scope = form_of("record_function_or_nullcontext", form)
        self.name, self.other = "".join(["a ", "name"]), Name("another")
        self.thing = Token("thing")
        self.other.token = Token("other")
        self.held = [self.scope(self.name) for _ in range(3)]
        if self.unchosen:
            scopes._reset()

    unchosen = False

    def state(self):
        return [self.get("name"), len(self.get("held") or ())]

    def lasting(self):
        yield from (("thing", self.thing), ("other", self.other.token))

    def end(self):
        super().end()
        scopes._reset()


class Unchosen(Scopes):
    """Each call is the first one."""

    unchosen = True


def entered(world, name):
    with world.scope(name) as inside:
        return inside


def nested(world):
    with world.scope("outer") as outer, world.scope(world.name) as inner, world.scope(world.other) as last:
        return outer, inner, last


def twice(world):
    scope = world.scope(world.name)
    with scope as one, scope as other:
        return one, other


def dropped_inside(world):
    scopes_left = [world.scope(world.name)]
    with scopes_left.pop() as inside:
        world.held = None
        return inside


def enters_kept(world):
    enters = [world.scope(name).__enter__ for name in ("x", "y", "z")]
    return [enter() for enter in enters]


def raised_inside(world):
    with world.scope(world.name):
        raise KeyError(world.name)


def by_a_stack(world):
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(world.scope(name)) for name in (world.name, "b", "c")]


ENTRIES = {
    "a plain name": lambda world: entered(world, world.name),
    "a name of its own kind": lambda world: entered(world, world.other),
    "a thing": lambda world: entered(world, world.thing),
    "by name": lambda world: world.scope(name=world.name).__enter__(),
    "nested": nested,
    "twice": twice,
    "many": lambda world: [entered(world, str(i)) for i in range(40)],
    "dropped inside": dropped_inside,
    "enters kept": enters_kept,
    "raised inside": raised_inside,
    "by a stack": by_a_stack,
    "made and dropped": lambda world: [world.scope(world.name) for _ in range(40)].clear(),
    "no name": lambda world: world.scope(),
}


def call_again(world):
    with world.scope("again"), world.scope("and again"):
        pass


ACTS = {
    "forgets the choice": lambda world: scopes._reset(),
    "calls again": call_again,
    "drops what is held": lambda world: setattr(world, "held", None),
    "drops the names": lambda world: vars(world).update(name="", other=Name(""), thing=None),
    "makes and drops many": lambda world: [world.scope(str(i)) for i in range(50)].clear(),
}


@contextlib.contextmanager
def reading_of_the_environment(world, door):
    read = _host.env

    def asked(name):
        door()
        return read(name)

    with mock.patch.object(_host, "env", asked):
        yield


@contextlib.contextmanager
def choosing(world, door):
    chosen = scopes._chosen

    def choose():
        found = chosen()
        door()
        return found

    with mock.patch.object(scopes, "_chosen", choose):
        yield


READING = {"reading of the environment": reading_of_the_environment}
# The compiled form keeps the choice for itself, too: what is forgotten just after it was made is made again by the
# Python form only.
CHOOSING = {"choosing": choosing}
BLOCKS = [
    Block(name="scopes, off", make=Scopes, entries=ENTRIES, acts=ACTS, unsteady=READING | CHOOSING),
    Block(name="scopes, first use", make=Unchosen, entries=ENTRIES, acts=ACTS, strict=READING, unsteady=CHOOSING),
]
