"""tensor_data and the memoryview that it gives, intruded upon."""

import contextlib
import gc

import torch

from intruders.describing import tell
from intruders.matrix import Block
from intruders.tensors import fill_what_was_freed, give_other_memory, numbers, swap, use_of_a_subclass
from intruders.world import World, form_of


class Data(World):
    def __init__(self, form):
        self.tensor_data = form_of("tensor_data", form)
        self.tensor, self.other = numbers(10), numbers(20)
        self.strided = torch.arange(12).reshape(3, 4).t()
        self.memory = self.tensor_data(self.tensor)

    def watch(self, kind):
        self.tensor = self.tensor.as_subclass(kind)

    def state(self):
        return [tell(self.get(name)) for name in ("tensor", "other", "strided")]

    def watched(self):
        for name in ("tensor", "other", "strided"):
            if self.get(name) is not None:
                yield name, self.get(name)

    def lasting(self):
        yield from ((one.token.name, one.token) for one in (self.tensor, self.other))


def keep(world):
    memory = world.tensor_data(world.tensor)
    world.tensor = world.memory = None
    gc.collect()
    fill_what_was_freed()
    return bytes(memory)


def write(world):
    memory = world.tensor_data(world.tensor)
    memory[0] = 99
    return memory[:8].tolist()


def base(world):
    memory = world.tensor_data(world.tensor)
    first = memory.obj.base
    memory.release()
    return isinstance(first, torch.Tensor), bytes(first.view(torch.uint8).tolist())


def release(world):
    memory = world.tensor_data(world.tensor)
    part = memory[4:]
    memory.release()
    return bytes(part)


def hashed(world):
    memory = world.tensor_data(world.tensor).toreadonly()
    try:
        return hash(memory)
    except TypeError as error:  # its text names what holds the memory, which is of another type in each form
        return str(error).partition(":")[0]


ENTRIES = {
    "contiguous": lambda world: bytes(world.tensor_data(world.tensor)),
    "strided": lambda world: bytes(world.tensor_data(world.strided)),
    "by name": lambda world: len(world.tensor_data(tensor=world.tensor)),
    "a part": lambda world: bytes(world.tensor_data(world.tensor[1:3])),
    "every second": lambda world: bytes(world.tensor_data(world.tensor[::2])),
    "one": lambda world: bytes(world.tensor_data(world.tensor[:1])),
    "none": lambda world: bytes(world.tensor_data(world.tensor[:0])),
    "no tensor": lambda world: world.tensor_data(None),
    "meta": lambda world: world.tensor_data(torch.ones(2, device="meta")),
    "kept": keep,
    "written": write,
    "base": base,
    "base of a strided one": lambda world: bytes(world.tensor_data(world.strided).obj.base.view(torch.uint8).tolist()),
    "released": release,
    "hash": hashed,
    "slice": lambda world: world.tensor_data(world.tensor)[::8].tolist(),
    "comparison": lambda world: world.tensor_data(world.tensor) == world.tensor_data(world.tensor),
    "cast": lambda world: world.tensor_data(world.tensor).cast("q").tolist(),
}


def drop_the_tensors(world):
    world.tensor = world.other = world.strided = world.memory = None
    fill_what_was_freed()


ACTS = {
    "other memory": lambda world: give_other_memory(world.tensor),
    "resizes": lambda world: world.tensor.resize_(2),
    "writes": lambda world: world.tensor.fill_(44),
    "swaps": lambda world: swap(world.tensor, world.other),
    "releases the memory": lambda world: world.memory.release(),
    "drops the memory": lambda world: setattr(world, "memory", None),
    "drops the tensors": drop_the_tensors,
}


def tolerant(act):
    def do(world):
        with contextlib.suppress(AttributeError):
            act(world)

    return do


BLOCKS = [
    Block(
        name="data", make=Data, entries=ENTRIES, acts={name: tolerant(act) for name, act in ACTS.items()},
        strict={"use of a subclass": use_of_a_subclass},
    )
]  # fmt: skip
torch.set_num_threads(1)
