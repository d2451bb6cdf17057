"""CpuGpuBuffer and copy_to_gpu_many: intruded upon by what they read and by torch."""

import contextlib
import copy

import torch

from intruders.describing import read, tell
from intruders.door import Token
from intruders.gates import ANYWHERE
from intruders.keys import Key
from intruders.matrix import Block
from intruders.tensors import fill_what_was_freed, give_other_memory, numbers, swap, use_of_a_subclass
from intruders.world import World, form_of


class Buffers(World):
    """Three buffers; the acts and gates are about the second, which is also `buffer`."""

    def __init__(self, form, shape):
        self.base = form_of("CpuGpuBuffer", form)
        self.cls = type("Sub", (self.base,), {}) if shape == "in a subclass" else self.base
        self.many = form_of("copy_to_gpu_many", form)
        self.n = int("3")
        self.size, self.flag = int("4"), True
        self.buffers = [self.made(100 * i) for i in (1, 2, 3)]
        self.buffer = self.buffers[1]
        self.ns = [int("2"), self.n, None]
        self.look_alike = type("LookAlike", (), {})()
        self.look_alike.cpu, self.look_alike.gpu = numbers(500), numbers(600)

    def made(self, start):
        buffer = self.cls(6, dtype=torch.int64, device="cpu", pin_memory=False)
        buffer.cpu, buffer.gpu = numbers(start), numbers(start * 10)
        buffer.np = buffer.cpu.numpy()
        return buffer

    def watch(self, kind):
        self.buffer.cpu = self.buffer.cpu.as_subclass(kind)
        self.buffer.gpu = self.buffer.gpu.as_subclass(kind)

    def state(self):
        told = []
        for buffer in self.get("buffers") or ():
            attributes = {key: value for key, value in vars(buffer).items() if type(key) is str}
            told.append([type(buffer).__name__, tell(attributes)])
        return [told, tell(self.get("ns"))]

    def watched(self):
        for name in ("buffers", "buffer", "ns", "look_alike"):
            if self.get(name) is not None:
                yield name, self.get(name)
        for name in ("cpu", "gpu"):
            thing = vars(self.get("buffer")).get(name) if self.get("buffer") is not None else None
            if isinstance(thing, torch.Tensor):
                yield name, thing

    def lasting(self):
        for i, buffer in enumerate(self.buffers):
            yield f"buffer {i}", buffer
            for name in ("cpu", "gpu"):
                token = getattr(vars(buffer).get(name), "token", None)
                if token is not None:
                    yield token.name, token
        if self.cls is not self.base:
            yield "class", self.cls


def construct(world):
    made = world.cls(world.size, dtype=torch.int64, device="cpu", pin_memory=False, with_numpy=world.flag)
    return sorted(vars(made)), made.cpu


def construct_of_bfloat16(world):
    made = world.cls.__new__(world.cls)
    try:
        made.__init__(world.size, dtype=torch.bfloat16, device="cpu", pin_memory=False)
    except ValueError as error:
        return sorted(vars(made)), error
    return None


def state_of(world):
    state = world.buffer.__reduce_ex__(2)[2]
    return sorted(name for name in state if type(name) is str)


# `[*list]`, because the interpreter's own `tuple(list)`, `list[:2]` and `list * 2` read on where a collection within
# their allocation has made the list shorter (Python <= 3.11).
ENTRIES = {
    "construction": construct,
    "construction of bfloat16": construct_of_bfloat16,
    "construction again": lambda world: world.buffer.__init__(2, dtype=torch.int64, device="cpu", pin_memory=False),
    "copy_to_gpu": lambda world: world.buffer.copy_to_gpu(),
    "copy_to_gpu(n)": lambda world: world.buffer.copy_to_gpu(world.n),
    "copy_to_gpu(n=n)": lambda world: world.buffer.copy_to_gpu(n=world.n),
    "copy_to_gpu(too many)": lambda world: world.buffer.copy_to_gpu(99),
    "copy_to_gpu(from the end)": lambda world: world.buffer.copy_to_gpu(-2),
    "copy_to_cpu": lambda world: world.buffer.copy_to_cpu(),
    "copy_to_cpu(n)": lambda world: world.buffer.copy_to_cpu(world.n),
    "copy_to_gpu, unbound": lambda world: world.base.copy_to_gpu(world.buffer, world.n),
    "copy_to_gpu of a look-alike": lambda world: world.base.copy_to_gpu(world.look_alike, world.n),
    "copy_to_gpu kept bound": lambda world: (world.buffer.copy_to_gpu, world.buffer.copy_to_cpu)[0](2),
    "copies on end": lambda world: (world.buffer.copy_to_gpu(1).tolist(), world.buffer.copy_to_gpu(2)),
    "attributes": lambda world: (world.buffer.cpu, world.buffer.gpu, read(world.buffer, "np")),
    "set cpu": lambda world: setattr(world.buffer, "cpu", numbers(7)),
    "delete gpu": lambda world: (delattr(world.buffer, "gpu"), world.buffer.copy_to_gpu()),
    "reduce": state_of,
    "copy.copy": lambda world: sorted(name for name in vars(copy.copy(world.buffer)) if type(name) is str),
    "many, all rows": lambda world: world.many(world.buffers),
    "many, n": lambda world: world.many(world.buffers, world.n),
    "many, ns": lambda world: world.many(world.buffers, world.ns),
    "many, a tuple of ns": lambda world: world.many(world.buffers, (*world.ns,)),
    "many, views": lambda world: world.many(world.buffers, world.ns, views=True),
    "many, too few ns": lambda world: world.many(world.buffers, [*world.ns][:2]),
    "very many": lambda world: world.many([*world.buffers] * 23, [*world.ns] * 23),
}


# ---- acts ---------------------------------------------------------------------------------------------------------


def other_dictionary(world):
    world.buffer.__dict__ = {"cpu": numbers(31), "gpu": numbers(41)}
    fill_what_was_freed()


def without(name):
    return lambda world: vars(world.buffer).pop(name, None)


def drop_the_buffers(world):
    world.buffers = world.buffer = None
    fill_what_was_freed()


def property_for_gpu(world):
    if world.cls is not world.base:
        world.cls.gpu = property(lambda self: numbers(70))


def own_copy(world):
    world.buffer.copy_to_gpu = lambda n=None: numbers(90)


ACTS = {
    "another cpu": lambda world: setattr(world.buffer, "cpu", numbers(51)),
    "another gpu": lambda world: setattr(world.buffer, "gpu", numbers(61)),
    "another np": lambda world: setattr(world.buffer, "np", numbers(71).numpy()),
    "another gpu of the last": lambda world: setattr(world.buffers[2], "gpu", numbers(61)),
    "no tensor as gpu": lambda world: setattr(world.buffer, "gpu", 5),
    "no cpu": without("cpu"),
    "no gpu": without("gpu"),
    "no np": without("np"),
    "another dictionary": other_dictionary,
    "an empty dictionary": lambda world: setattr(world.buffer, "__dict__", {}),
    "clears the attributes": lambda world: vars(world.buffer).clear(),
    "clears the buffers": lambda world: world.buffers.clear(),
    "reverses the buffers": lambda world: world.buffers.reverse(),
    "clears the ns": lambda world: world.ns.clear(),
    "other ns": lambda world: world.ns.__setitem__(slice(None), [1, 1, 1]),
    "other memory of cpu": lambda world: give_other_memory(world.buffer.cpu),
    "other memory of gpu": lambda world: give_other_memory(world.buffer.gpu),
    "resizes gpu": lambda world: world.buffer.gpu.resize_(2),
    "writes cpu": lambda world: world.buffer.cpu.fill_(44),
    "swaps cpu and gpu": lambda world: swap(world.buffer.cpu, world.buffer.gpu),
    "drops the buffers": drop_the_buffers,
    "a copy_to_gpu of its own": own_copy,
    "a property for gpu": property_for_gpu,
    "another class": lambda world: setattr(world.buffer, "__class__", type("Other", (world.cls,), {})),
}


def tolerant(act):
    """An act that finds nothing to act upon any more does nothing."""

    def do(world):
        with contextlib.suppress(AttributeError):
            act(world)

    return do


# ---- gates --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def index_of_n(world, door):
    class Rows(Token):
        def __index__(self):
            door()
            return 3

    world.n = world.size = Rows("rows")
    world.ns[1] = world.n
    yield


@contextlib.contextmanager
def truth_of_the_flag(world, door):
    class Flag:
        def __bool__(self):
            door()
            return True

    world.flag = Flag()
    yield


def iteration_of(name):
    @contextlib.contextmanager
    def gate(world, door):
        kept = list(getattr(world, name))

        class Items(list):
            def __iter__(self):
                for one in kept:
                    door()
                    yield one
                door()

        setattr(world, name, Items(kept))
        yield
        kept.clear()

    return gate


def property_for(name):
    @contextlib.contextmanager
    def gate(world, door):
        def get(buffer):
            door()
            try:
                return vars(buffer)[name]
            except KeyError:
                raise AttributeError(name) from None

        def put(buffer, value):
            door()
            vars(buffer)[name] = value

        setattr(world.cls, name, property(get, put))
        yield

    return gate


@contextlib.contextmanager
def getattr_for_gpu(world, door):
    def missing(buffer, name):
        if name != "gpu":
            raise AttributeError(name)
        door()
        return vars(buffer).get("stored")

    world.cls.__getattr__ = missing
    vars(world.buffer)["stored"] = vars(world.buffer).pop("gpu")
    yield


@contextlib.contextmanager
def getattribute(world, door):
    def get(buffer, name):
        if name in ("cpu", "gpu", "copy_to_gpu", "copy_to_cpu"):
            door()
        return object.__getattribute__(buffer, name)

    world.cls.__getattribute__ = get
    yield


@contextlib.contextmanager
def setattribute(world, door):
    def put(buffer, name, value):
        door()
        object.__setattr__(buffer, name, value)

    world.cls.__setattr__ = put
    yield


@contextlib.contextmanager
def copy_of_the_class(world, door):
    base = world.base

    def copy_to_gpu(buffer, n=None):
        door()
        return base.copy_to_gpu(buffer, n)

    world.cls.copy_to_gpu = copy_to_gpu
    yield


@contextlib.contextmanager
def copy_of_the_instance(world, door):
    base, buffer = world.base, world.buffer

    def copy_to_gpu(n=None):
        door()
        return base.copy_to_gpu(buffer, n)

    world.buffer.copy_to_gpu = copy_to_gpu
    yield
    buffer = None


@contextlib.contextmanager
def end_of_a_tensor(world, door):
    class End(Token):
        def __del__(self):
            door()

    world.buffer.gpu.token = End("end")
    yield


def key_like(name):
    @contextlib.contextmanager
    def gate(world, door):
        world.buffer.__dict__ = {Key(name, door): 1, **vars(world.buffer)}
        yield

    return gate


STRICT = {
    "n's __index__": index_of_n,
    "truth of with_numpy": truth_of_the_flag,
    "iteration of the buffers": iteration_of("buffers"),
    "iteration of the ns": iteration_of("ns"),
    "use of a subclass of Tensor": use_of_a_subclass,
    "a copy_to_gpu of its own": copy_of_the_instance,
    "end of a tensor": end_of_a_tensor,
}
STRICT_IN_SUBCLASSES = {
    **{f"property {name}": property_for(name) for name in ("cpu", "gpu", "np")},
    "__getattr__ for gpu": getattr_for_gpu,
    "__getattribute__": getattribute,
    "__setattr__": setattribute,
    "copy_to_gpu of the class": copy_of_the_class,
}
KEYS = {f"key like {name} in the dictionary": key_like(name) for name in ("cpu", "gpu", "copy_to_gpu")}

DROPPING_THE_DICTIONARY = {"another dictionary", "an empty dictionary", "drops the buffers", "drops everything"}


STORING = ("construction again", "delete gpu", "set cpu", "copy.copy")


def only_compiled(entry, gate, act):
    if entry == "very many" and gate in ANYWHERE:
        return True  # too many steps of the Python form to try
    # The interpreter looks into an instance's dictionary without holding it (Python <= 3.12).
    return act in DROPPING_THE_DICTIONARY and gate in KEYS


def makes_no_sense(entry, gate, act):
    # ... and stores into it so, here in Python code, which is the same in both forms.
    return act in DROPPING_THE_DICTIONARY and entry in STORING and (gate in KEYS or gate == "end of a tensor")


def block(shape, strict):
    return Block(
        name=f"buffers {shape}",
        make=lambda form: Buffers(form, shape),
        entries=ENTRIES,
        acts={name: tolerant(act) for name, act in ACTS.items()},
        strict=strict,
        unsteady=KEYS,
        only_compiled=only_compiled,
        makes_no_sense=lambda entry, gate, act: (
            makes_no_sense(entry, gate, act) or (act == "a property for gpu" and shape != "in a subclass")
        ),
    )


BLOCKS = [block("as they are", STRICT), block("in a subclass", {**STRICT, **STRICT_IN_SUBCLASSES})]
torch.set_num_threads(1)
