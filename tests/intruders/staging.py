"""StagingGroup: intruded upon by what it reads."""

import contextlib
import warnings

import torch

from intruders.describing import tell
from intruders.door import Token
from intruders.keys import told_name
from intruders.matrix import Block
from intruders.tensors import fill_what_was_freed, give_other_memory
from intruders.world import World, form_of

warnings.simplefilter("ignore", RuntimeWarning)  # buffers leave their group here all the time
NAMES = ("ids", "positions", "scales", "flags")


class Group(World):
    """A group of four buffers, and what is asked of it."""

    def __init__(self, form):
        self.group = form_of("StagingGroup", form)("cpu", pin_memory=False)
        dtypes = (torch.int64, torch.int64, torch.float32, torch.bool)
        self.buffers = [self.group.buffer(name, 6, dtype=dtype) for name, dtype in zip(NAMES, dtypes, strict=True)]
        self.group.freeze()
        for i, buffer in enumerate(self.buffers):
            buffer.cpu.copy_(torch.arange(6) + 10 * i)
            buffer.token = Token(NAMES[i])
        self.n = int("3")
        self.request = {"ids": self.n, "scales": None, "flags": int("2")}

    def state(self):
        told = [[type(one).__name__, tell(one.cpu), tell(one.gpu)] for one in self.get("buffers") or ()]
        group = self.get("group")
        return [told, tell(self.get("request")), str(group.stats()).split(" in ")[0] if group is not None else None]

    def watched(self):
        for name in ("group", "buffers", "request"):
            if self.get(name) is not None:
                yield name, self.get(name)

    def lasting(self):
        yield "group", self.group
        for i, buffer in enumerate(self.buffers):
            yield f"buffer {i}", buffer
            yield buffer.token.name, buffer.token


def step(world):
    with world.group.step():
        for buffer in [*world.buffers]:
            buffer.copy_to_gpu(2)


ENTRIES = {
    "flush": lambda world: world.group.flush(),
    "flush(n)": lambda world: world.group.flush(world.n),
    "flush(names)": lambda world: world.group.flush(world.request),
    "flush(too many)": lambda world: world.group.flush(99),
    "flush(an unknown name)": lambda world: world.group.flush({"ids": 1, "nobody": 2}),
    "copy_to_gpu(n)": lambda world: world.buffers[0].copy_to_gpu(world.n).tolist(),
    "step": step,
    "fetch": lambda world: world.group.fetch(world.request).wait(),
}

ACTS = {
    "other memory of cpu": lambda world: give_other_memory(world.buffers[0].cpu),
    "other memory of gpu": lambda world: give_other_memory(world.buffers[2].gpu),
    "another cpu": lambda world: setattr(world.buffers[0], "cpu", torch.full((6,), 44)),
    "another gpu": lambda world: setattr(world.buffers[3], "gpu", torch.zeros(6, dtype=torch.bool)),
    "resizes gpu": lambda world: world.buffers[1].gpu.resize_(2),
    "writes": lambda world: world.buffers[3].cpu.fill_(True),
    "flushes": lambda world: world.group.flush(1),
    "clears the request": lambda world: world.request.clear(),
    "asks for more": lambda world: world.request.update(positions=4, nobody=1),
    "closes the group": lambda world: world.group.close(),
    "drops everything": lambda world: (vars(world).clear(), fill_what_was_freed()),
    "clears the list": lambda world: (world.buffers.clear(), fill_what_was_freed()),
}


@contextlib.contextmanager
def index_of_the_count(world, door):
    class Count(Token):
        def __index__(self):
            door()
            return 3

    world.n = Count("count")
    world.request["ids"] = world.n
    yield


@contextlib.contextmanager
def names_of_a_mapping(world, door):
    class Request(dict):
        def items(self):
            for item in [*dict.items(self)]:
                door()
                yield item
            door()

    world.request = Request(world.request)
    yield


@contextlib.contextmanager
def hash_of_a_name(world, door):
    world.request = {told_name("ids", door): 2, "flags": 1}
    yield


STRICT = {
    "count's __index__": index_of_the_count,
    "a mapping's items": names_of_a_mapping,
    "a name's hash": hash_of_a_name,
}

BLOCKS = [Block(name="staging", make=Group, entries=ENTRIES, acts=ACTS, strict=STRICT)]
torch.set_num_threads(1)
