"""copy_slice and copy_slices: intruded upon by what they read and by torch."""

import contextlib

import torch

from intruders.describing import tell
from intruders.door import Token
from intruders.gates import ANYWHERE
from intruders.matrix import Block
from intruders.tensors import fill_what_was_freed, give_other_memory, numbers, swap, use_of_a_subclass
from intruders.world import World, form_of


class Copies(World):
    """Five pairs of tensors, one of which only torch can copy, with what names them."""

    def __init__(self, form):
        self.copy_slice, self.copy_slices = form_of("copy_slice", form), form_of("copy_slices", form)
        self.n = int("3")
        self.sources = [numbers(10 * i) for i in range(1, 6)]
        self.targets = [numbers(1000 * i) for i in range(1, 6)]
        self.targets[2] = self.targets[2].double()
        self.source, self.target = self.sources[0], self.targets[0]
        self.entry = [self.sources[1], self.targets[1], int("2")]
        self.name_all()

    def name_all(self):
        self.pairs = [
            (self.sources[0], self.targets[0], self.n),
            self.entry,
            (self.sources[2], self.targets[2], self.n),
            (self.sources[3], self.targets[3], int("0")),
            (self.sources[4], self.targets[4], int("6")),
        ]

    def watch(self, kind):
        self.targets[0] = self.target = self.target.as_subclass(kind)
        self.sources[3] = self.sources[3].as_subclass(kind)
        self.name_all()

    def state(self):
        return [tell(self.get(name)) for name in ("sources", "targets")] + [len(self.get("pairs") or ())]

    def watched(self):
        for name in ("sources", "targets", "pairs", "entry"):
            if self.get(name) is not None:
                yield name, self.get(name)
        for name in ("source", "target"):
            if self.get(name) is not None:
                yield name, self.get(name)

    def lasting(self):
        yield from ((one.token.name, one.token) for one in (*self.sources, *self.targets) if hasattr(one, "token"))


# `[*list]`, because the interpreter's own `tuple(list)` and `list * 2` read on where a collection within their
# allocation has made the list shorter (Python <= 3.11).
ENTRIES = {
    "copy_slice": lambda world: world.copy_slice(world.source, world.target, world.n),
    "copy_slice by name": lambda world: world.copy_slice(from_tensor=world.source, to_tensor=world.target, length=2),
    "copy_slice of no rows": lambda world: world.copy_slice(world.source, world.target, 0),
    "copy_slice of too many rows": lambda world: world.copy_slice(world.source, world.target, 99),
    "copy_slice from the end": lambda world: world.copy_slice(world.source, world.target, -2),
    "copy_slice by torch": lambda world: world.copy_slice(world.sources[2], world.targets[2], world.n),
    "copy_slice of nothing": lambda world: world.copy_slice(world.source, None, world.n),
    "copy_slices": lambda world: world.copy_slices(world.pairs),
    "copy_slices, views": lambda world: world.copy_slices(world.pairs, views=True),
    "copy_slices of a tuple": lambda world: world.copy_slices((*world.pairs,)),
    "copy_slices of many": lambda world: world.copy_slices([*world.pairs] * 14),
    "copy_slices of a wrong entry": lambda world: world.copy_slices([*world.pairs, 5]),
    "copy_slices of nothing": lambda world: world.copy_slices([]),
}


def drop_the_tensors(world):
    for name in ("sources", "targets", "source", "target", "pairs", "entry"):
        setattr(world, name, None)
    fill_what_was_freed()


def empty_the_lists(world):
    world.sources.clear()
    world.targets.clear()
    world.source = world.target = None
    world.pairs.clear()
    world.entry.clear()
    fill_what_was_freed()


ACTS = {
    "clears the pairs": lambda world: world.pairs.clear(),
    "more pairs": lambda world: len(world.pairs) < 20 and world.pairs.append((world.sources[1], world.targets[4], 1)),
    "reverses the pairs": lambda world: world.pairs.reverse(),
    "clears an entry": lambda world: world.entry.clear(),
    "another entry": lambda world: world.entry.__setitem__(slice(None), [world.sources[4], world.targets[4], 4]),
    "other memory of a source": lambda world: give_other_memory(world.sources[0]),
    "other memory of a target": lambda world: give_other_memory(world.targets[0]),
    "resizes a target": lambda world: world.targets[0].resize_(2),
    "resizes a source": lambda world: world.sources[4].resize_(2),
    "writes a source": lambda world: world.sources[0].fill_(44),
    "writes a later source": lambda world: world.sources[4].fill_(44),
    "swaps two sources": lambda world: swap(world.sources[0], world.sources[4]),
    "swaps two targets": lambda world: swap(world.targets[0], world.targets[4]),
    "wants gradients": lambda world: world.targets[4].is_floating_point() and world.targets[4].requires_grad_(),
    "drops the tensors": drop_the_tensors,
    "empties the lists": empty_the_lists,
}


# ---- gates --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def index_of_the_length(world, door):
    class Length(Token):
        def __index__(self):
            door()
            return 3

    world.n = Length("length")
    world.name_all()
    yield


@contextlib.contextmanager
def pairs_from_a_generator(world, door):
    kept = list(world.pairs)

    class Pairs(list):
        def __iter__(self):
            for one in kept:
                door()
                yield one
            door()

    world.pairs = Pairs(world.pairs)
    yield
    kept.clear()


@contextlib.contextmanager
def entry_from_a_generator(world, door):
    class Entry(list):
        def __iter__(self):
            for one in list.__iter__(self):
                door()
                yield one

        def __len__(self):
            door()
            return list.__len__(self)

    world.entry = Entry(world.entry)
    world.name_all()
    yield


@contextlib.contextmanager
def getitem_of_no_tensor(world, door):
    class Rows:
        def __init__(self, tensor):
            self.tensor = tensor

        def __getitem__(self, key):
            door()
            return self.tensor[key]

    world.targets[0] = world.target = Rows(world.target)
    world.name_all()
    yield
    if world.get("target") is not None and isinstance(world.target, Rows):
        world.target = world.target.tensor


STRICT = {
    "length's __index__": index_of_the_length,
    "use of a subclass": use_of_a_subclass,
    "pairs from a generator": pairs_from_a_generator,
    "an entry's own iteration": entry_from_a_generator,
    "rows of no tensor": getitem_of_no_tensor,
}

DIFFERS = {
    ("copy_slices of many", None, "swaps two targets"): "the Python form's loop still holds the last view: no swap",
}


def only_compiled(entry, gate, act):
    # The steps of the Python form are too many to try: that nothing crashes or is kept must do.
    return entry == "copy_slices of many" and gate in ANYWHERE


BLOCKS = [
    Block(
        name="copies", make=Copies, entries=ENTRIES, acts=ACTS, strict=STRICT, differs=DIFFERS,
        only_compiled=only_compiled,
    )
]  # fmt: skip
torch.set_num_threads(1)
