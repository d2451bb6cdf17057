"""Wrong arguments of every kind, to every compiled entry point: an error or torch's own answer, never a crash."""

import itertools
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from implementations import load


class Hostile:
    """Raises from everything it is asked but its class."""

    def __getattribute__(self, name):
        if name == "__class__":
            return Hostile
        raise ValueError(f"asked for {name}")

    def __index__(self):
        raise ValueError("index")

    def __len__(self):
        raise ValueError("len")

    def __getitem__(self, key):
        raise ValueError("getitem")

    def __eq__(self, other):
        raise ValueError("eq")

    __hash__ = None


class HalfBuilt(torch.Tensor):
    """A tensor subclass, of which no memory layout may be assumed."""


def odd_things():
    bare = torch.Tensor.__new__(torch.Tensor)
    return [
        None, True, 0, -1, 3, 2**70, -(2**70), 2.5, float("nan"), "", "rows", b"", [], [1, 2], (), {}, object(),
        Hostile(), type, torch.Tensor, torch, len, slice(None), ..., bare,
        torch.ones(3), torch.ones(3).as_subclass(HalfBuilt), torch.nn.Parameter(torch.ones(3)), torch.ones(()),
        torch.ones(3, dtype=torch.int16), torch.ones(3, device="meta"), torch.eye(2).to_sparse(),
        [torch.ones(2), torch.ones(2), 1],
    ]  # fmt: skip


def refused_or_answered(function, *arguments, **keywords):
    try:
        return "answered", function(*arguments, **keywords)
    except Exception as error:
        return "refused", error


THINGS = st.sampled_from(range(len(odd_things())))


def same_kind(compiled, python, *positions):
    """Both forms, each with arguments of its own, answer or refuse with the same type of error."""
    outcomes = []
    for function in (compiled, python):
        things = odd_things()
        outcome, what = refused_or_answered(function, *(things[i] for i in positions))
        outcomes.append((outcome, type(what) if outcome == "refused" else None))
    assert outcomes[0] == outcomes[1]


@given(THINGS, THINGS, THINGS)
def test_copy_slice(a, b, c):
    same_kind(load("copy_slice", "compiled"), load("copy_slice", "python"), a, b, c)


def test_tensor_data_of_everything():
    for i in range(len(odd_things())):
        same_kind(load("tensor_data", "compiled"), load("tensor_data", "python"), i)


@given(st.lists(st.tuples(THINGS, THINGS, THINGS), max_size=4))
def test_copy_slices(entries):
    forms = [load("copy_slices", form) for form in ("compiled", "python")]
    kinds = []
    for function in forms:
        things = odd_things()
        outcome, what = refused_or_answered(function, [tuple(things[i] for i in entry) for entry in entries])
        kinds.append((outcome, type(what)))
    assert kinds[0] == kinds[1]


def test_plurals_of_everything():
    for name in ("copy_slices", "copy_to_gpu_many"):
        compiled, python = load(name, "compiled"), load(name, "python")
        for i in range(len(odd_things())):
            same_kind(compiled, python, i)
            same_kind(lambda x, f=compiled: f([x]), lambda x, f=python: f([x]), i)


@given(THINGS, THINGS, THINGS)
def test_buffer(cpu, gpu, n):
    kinds = []
    for form in ("compiled", "python"):
        things = odd_things()
        buffer = load("CpuGpuBuffer", form)(3, dtype=torch.float32, device="cpu", pin_memory=False)
        buffer.copy_to_gpu(2)
        buffer.cpu, buffer.gpu = things[cpu], things[gpu]
        for copy in (buffer.copy_to_gpu, buffer.copy_to_cpu):
            outcome, what = refused_or_answered(copy, things[n])
            kinds.append((form, outcome, type(what)))
    assert [k[1:] for k in kinds[:2]] == [k[1:] for k in kinds[2:]]


def test_an_unmade_buffer():
    compiled = load("CpuGpuBuffer", "compiled")
    buffer = compiled.__new__(compiled)
    for use in (
        buffer.copy_to_gpu,
        buffer.copy_to_cpu,
        lambda: buffer.cpu,
        lambda: buffer.np,
        lambda: buffer.copy_to_gpu(1),
    ):
        with pytest.raises(AttributeError):
            use()
    buffer.__init__(2, dtype=torch.float32, device="cpu")
    buffer.__init__(3, dtype=torch.float32, device="cpu")
    assert buffer.copy_to_gpu(3).shape == (3,)
    with pytest.raises(AttributeError):
        compiled.copy_to_gpu(object())
    with pytest.raises(TypeError):
        compiled.copy_to_gpu()


def test_the_inner_type_is_safe_to_make():
    kind = type(load("tensor_data", "compiled")(torch.ones(1)).obj)
    empty = kind.__new__(kind)
    with pytest.raises(BufferError, match="no bytes"):
        memoryview(empty)
    with pytest.raises(BufferError, match="no bytes"):
        empty.base  # noqa: B018


def test_threads_on_the_same_tensors_and_buffers():
    copy_slice, tensor_data = load("copy_slice", "compiled"), load("tensor_data", "compiled")
    copy_to_gpu_many = load("copy_to_gpu_many", "compiled")
    source, target = torch.arange(64), torch.zeros(64, dtype=torch.int64)
    buffer = load("CpuGpuBuffer", "compiled")(64, dtype=torch.int64, device="cpu")
    failures = []

    def work(seed):
        try:
            for i in range(3000):
                assert len(copy_slice(source, target, (i + seed) % 65)) == (i + seed) % 65
                assert len(tensor_data(source)) == 512
                copy_to_gpu_many([buffer] * 3, [1, None, 5])
                if i % 50 == 0:
                    buffer.gpu = torch.zeros(64, dtype=torch.int64)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_lists_changed_while_they_are_copied():
    copy_slices, copy_to_gpu_many = load("copy_slices", "compiled"), load("copy_to_gpu_many", "compiled")
    Buffer = load("CpuGpuBuffer", "compiled")

    class Meddling(Buffer):
        def copy_to_gpu(self, n=None):
            buffers.clear()
            counts.clear()
            return super().copy_to_gpu(n)

    make = itertools.cycle([Buffer, Meddling])
    buffers = [next(make)(4, dtype=torch.int32, device="cpu") for _ in range(6)]
    counts = [2] * 6
    kept = list(buffers)
    for buffer in kept:
        buffer.np[:] = 7
    copy_to_gpu_many(buffers, counts)
    assert [buffer.gpu.tolist() for buffer in kept] == [[7, 7, 0, 0]] * 6

    class MeddlingTensor(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            pairs.clear()
            for entry in entries:
                entry.clear()
            return super().__torch_function__(function, types, args, kwargs or {})

    target = torch.zeros(4)
    entries = [[torch.ones(4), torch.zeros(4).as_subclass(MeddlingTensor), 2], [torch.ones(4), target, 3]]
    pairs = list(entries)
    copy_slices(pairs)
    assert target.tolist() == [1, 1, 1, 0]
