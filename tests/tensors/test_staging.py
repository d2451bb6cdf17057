"""StagingGroup on the CPU, where an upload is a copy: what is refused, what leaves, and what the buffers are."""

import contextlib
import copy
import gc
import itertools
import os
import pickle
import threading
import tracemalloc
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from implementations import load
from torch.utils._python_dispatch import TorchDispatchMode

from fastutils.tensors.staging import costs, fetch

CPU = torch.device("cpu")
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.fixture(autouse=True)
def _one_form(form, monkeypatch):
    """A group of the Python form has buffers of the Python form, as where nothing is compiled."""
    if form == "python":
        monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", "1")


@pytest.fixture
def Group(form):
    return load("StagingGroup", form)


@pytest.fixture
def group(Group):
    return Group("cpu", pin_memory=False)


def ints(group, **sizes):
    return [group.buffer(name, size, dtype=torch.int32) for name, size in sizes.items()]


def gpus(*buffers):
    return [buffer.gpu.tolist() for buffer in buffers]


@contextlib.contextmanager
def leaving(name, what):
    """One warning, and the line that it names is here."""
    with pytest.warns(RuntimeWarning, match=f"buffer {name!r} leaves its staging group: its .{what} was") as warned:
        yield
    assert len(warned) == 1
    assert warned[0].filename == __file__


# ---- what an upload does


def test_each_way_to_ask_for_rows(group):
    a, b = ints(group, a=3, b=4)
    a.np[:], b.np[:] = 1, 2
    group.flush(2)
    assert gpus(a, b) == [[1, 1, 0], [2, 2, 0, 0]]
    group.flush({"b": 3})
    assert gpus(a, b) == [[1, 1, 0], [2, 2, 2, 0]]
    group.flush({"a": None, "b": 0})
    assert gpus(a, b) == [[1, 1, 1], [2, 2, 2, 0]]
    group.flush({})
    group.flush()
    assert gpus(a, b) == [[1, 1, 1], [2, 2, 2, 2]]
    a.np[:], b.np[:] = 5, 6
    assert gpus(a, b) == [[1, 1, 1], [2, 2, 2, 2]]  # gpu is not cpu
    assert group.stats().flushes == 5
    assert (group.stats().runtime_calls, group.stats().slots, group.stats().waits) == (0, 0, 0)


def test_bytes_are_counted(group):
    ints(group, a=3, b=4)
    group.buffer("c", 3, 5, dtype=torch.float64)
    group.flush(2)
    assert group.stats().live_bytes == group.stats().bytes_moved == 2 * (4 + 4 + 40)
    assert group.stats(reset=True).flushes == 1
    assert group.stats().flushes == group.stats().live_bytes == 0


@pytest.mark.parametrize("n", [True, np.int64(1), np.uint8(1), torch.tensor(1)], ids=str)
def test_counts_that_are_ints_in_effect(group, n):
    (a,) = ints(group, a=3)
    a.np[:] = 1
    group.flush(n)
    assert gpus(a) == [[1, 0, 0]]
    a.np[:] = 2
    group.flush({"a": n})
    assert gpus(a) == [[2, 0, 0]]


@pytest.mark.parametrize("n", [-1, 4, 2**40, 2**80, -(2**80), np.int64(-2)], ids=str)
def test_counts_that_there_are_no_rows_for(group, n):
    a, b = ints(group, a=3, b=9)
    a.np[:], b.np[:] = 1, 1
    for request in (n, {"a": n}, {"b": 2, "a": n}):
        with pytest.raises(ValueError, match=rf"buffer 'a' has 3 rows: {int(n)} of them cannot be copied"):
            group.flush(request)
    assert gpus(a, b) == [[0] * 3, [0] * 9]  # nothing is uploaded then
    assert group.stats().flushes == 0


@pytest.mark.parametrize("n", ["3", 1.0, [1], ("a", 1), {"a"}, object, b"1", 1j, torch.ones(2)], ids=str)
def test_requests_that_are_none(group, n):
    a, b = ints(group, a=3, b=3)
    a.np[:], b.np[:] = 1, 1
    for request in (n, {"b": n}, {"a": 2, "b": n}):
        with pytest.raises(TypeError, match="None, an int, or a mapping of names to these"):
            group.flush(request)
    assert gpus(a, b) == [[0] * 3] * 2


def test_unknown_names(group):
    (a,) = ints(group, a=3)
    a.np[:] = 1
    for request in ({"a": 1, "b": 1}, {1: 1}, {None: None}, {"": 1}):
        with pytest.raises(ValueError, match=r"no buffer .*; it has 'a'"):
            group.flush(request)
    with pytest.raises(TypeError):
        group.flush(UnhashableNames())
    assert gpus(a) == [[0] * 3]


class UnhashableNames(Mapping):
    def __getitem__(self, key):
        return 1

    def __iter__(self):
        return iter([["a"]])

    def __len__(self):
        return 1


class Name(str):
    """Equal to its text, with code of its own."""

    def __eq__(self, other):
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Shouting(dict):
    def items(self):
        return [(name.lower(), n) for name, n in super().items()]


@pytest.mark.parametrize(
    "request_",
    [
        {Name("a"): 2},
        OrderedDict(a=2),
        types.MappingProxyType({"a": 2}),
        Shouting(A=2),
        {"".join(["", "a"]): 2},
        {"a": np.int32(2)},
    ],
    ids=["str subclass", "OrderedDict", "proxy", "dict subclass", "equal str", "numpy int"],
)
def test_mappings_of_other_kinds(group, request_):
    a, b = ints(group, a=3, b=3)
    a.np[:], b.np[:] = 1, 1
    group.flush(request_)
    assert gpus(a, b) == [[1, 1, 0], [0, 0, 0]]


def test_a_mapping_that_raises(group):
    class Raising(Mapping):
        def __getitem__(self, key):
            raise ZeroDivisionError

        def __iter__(self):
            return iter("a")

        def __len__(self):
            return 1

    (a,) = ints(group, a=3)
    a.np[:] = 1
    with pytest.raises(ZeroDivisionError):
        group.flush(Raising())
    assert gpus(a) == [[0] * 3]


def test_a_name_that_is_a_subclass_of_str(group):
    (a,) = [group.buffer(Name("a"), 2, dtype=torch.int32)]
    a.np[:] = 1
    group.flush({"a": 1})
    assert gpus(a) == [[1, 0]]
    other = type(group)("cpu")
    other.buffer("a", 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="a buffer 'a' already"):
        other.buffer(Name("a"), 2, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float64])
def test_every_width_of_elements(group, dtype):
    a = group.buffer("a", 5, dtype=dtype)
    b = group.buffer("b", 5, 3, dtype=torch.int32)
    c = group.buffer("c", 5, dtype=torch.bool)
    a.np[:], b.np[:], c.np[:] = 1, 2, True
    group.flush(3)
    assert gpus(a, c) == [[1] * 3 + [0] * 2, [True] * 3 + [False] * 2]
    assert b.gpu.tolist() == [[2] * 3] * 3 + [[0] * 3] * 2
    assert b.copy_to_gpu(1)._base is b.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, *FLOAT8], ids=str)
def test_types_that_numpy_has_not(group, form, dtype):
    plain = load("CpuGpuBuffer", form)
    with pytest.raises((ValueError, TypeError)) as expected:
        plain(4, dtype=dtype, device=CPU, pin_memory=False)
    with pytest.raises(type(expected.value)) as refused:
        group.buffer("a", 4, dtype=dtype)
    assert str(refused.value) == str(expected.value)
    a = group.buffer("a", 4, dtype=dtype, with_numpy=False)  # the name is still free
    assert not hasattr(a, "np")
    a.cpu.copy_(torch.ones(4))
    a.copy_to_gpu(3)
    group.flush(2)
    assert a.gpu.float().tolist() == [1, 1, 1, 0]


def test_buffers_without_elements(group):
    empty, rows = group.buffer("empty", 0, 7, dtype=torch.int32), group.buffer("rows", 5, 0, dtype=torch.int64)
    (a,) = ints(group, a=2)
    a.np[:] = 1
    group.flush()
    group.flush({"rows": 4, "empty": 0})
    assert empty.copy_to_gpu(3).shape == (0, 7)
    assert rows.copy_to_gpu(3).shape == (3, 0)
    assert gpus(a) == [[1, 1]]
    with pytest.raises(ValueError, match="'empty' has 0 rows: 1 of them"):
        group.flush(1)


def test_a_group_of_nothing(Group):
    for group in (Group("cpu"), Group("cpu")):
        group.flush()
        group.flush(3)
        with group.step():
            pass
        assert group.fetch().wait() == {}
    only = Group("cpu")
    nothing = only.buffer("nothing", 0, dtype=torch.int32)
    only.flush()
    assert nothing.gpu.shape == (0,)


def test_a_scalar_is_one_row(group):
    a, (b,) = group.buffer("a", (), dtype=torch.float32), ints(group, b=3)
    a.cpu.fill_(2)
    b.np[:] = 1
    group.flush(0)
    group.flush({"a": 0})
    assert gpus(a, b) == [0, [0] * 3]
    group.flush(1)
    assert gpus(a, b) == [2, [1, 0, 0]]
    a.np[...] = 3
    assert a.copy_to_gpu() is a.gpu
    assert gpus(a) == [3]
    with pytest.raises(ValueError, match="'a' has 1 rows: 2 of them"):
        group.flush(2)
    for plain_error in (a.copy_to_gpu, a.copy_to_cpu):
        with pytest.raises(IndexError):
            plain_error(1)
    assert group.fetch({"a": 1}).wait()["a"].tolist() == 3


def test_more_buffers_than_a_round(group):
    buffers = [group.buffer(str(i), 3, dtype=torch.int32) for i in range(130)]
    for i, buffer in enumerate(buffers):
        buffer.np[:] = i
    group.flush(1)
    buffers[129].copy_to_gpu(2)
    group.flush({"64": 2, "65": None})
    with group.step():
        buffers[1].copy_to_gpu(2)
        buffers[2].copy_to_gpu(3)
    full = {1: 2, 2: 3, 64: 2, 65: 3, 129: 2}
    assert gpus(*buffers) == [[i] * full.get(i, 1) + [0] * (3 - full.get(i, 1)) for i in range(130)]
    with pytest.raises(ValueError, match="'0' has 3 rows: 4"):
        group.flush(4)


def test_big_buffers(group):
    """More than a quarter of a megabyte is torch's to copy; it is one upload all the same."""
    big = group.buffer("big", 200_000, dtype=torch.int32)
    (small,) = ints(group, small=200_000 // 4)
    big.np[:], small.np[:] = 1, 2
    group.flush(40_000)
    group.flush({"big": None})
    big.copy_to_gpu(100_000)
    assert int(big.gpu.sum()) == 200_000
    assert int(small.gpu.sum()) == 80_000
    assert group.stats().flushes == 3
    assert group.stats().live_bytes == 320_000 + 800_000 + 400_000
    assert big.gpu._version == 3


# ---- making and laying out


def test_a_name_twice(group):
    (a,) = ints(group, a=3)
    with pytest.raises(ValueError, match="has a buffer 'a' already"):
        group.buffer("a", 5, dtype=torch.int64)
    a.np[:] = 1
    group.flush()
    assert gpus(a) == [[1] * 3]


def refused(group):
    with pytest.raises(ValueError, match="3 rows"):
        group.flush(77)


FIRST_USES = {
    "freeze": lambda group, a: group.freeze(),
    "flush": lambda group, a: group.flush(),
    "a wrong flush": lambda group, a: refused(group),
    "copy": lambda group, a: a.copy_to_gpu(),
    "cpu": lambda group, a: a.cpu,
    "np": lambda group, a: a.np,
    "hasattr": lambda group, a: hasattr(a, "gpu"),
    "step": lambda group, a: group.step().__enter__(),
    "fetch": lambda group, a: group.fetch(),
    "close": lambda group, a: group.close(),
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_a_buffer_that_comes_too_late(group, use):
    (a,) = ints(group, a=3)
    FIRST_USES[use](group, a)
    with pytest.raises(RuntimeError, match="buffer 'b' comes too late"):
        group.buffer("b", 3, dtype=torch.int32)


def test_what_is_no_use(group):
    (a,) = ints(group, a=3)
    assert not hasattr(a, "something")
    assert isinstance(a, load("CpuGpuBuffer", "python"))
    assert set(vars(a)) == {"_staging"}
    assert repr(a)
    assert group.stats().flushes == 0
    group.mode = "loop"
    group.step()
    assert group.calibrate() == costs.costs_of(CPU)
    ints(group, b=2)  # not too late
    group.freeze()
    assert set(vars(a)) == {"_staging", "cpu", "gpu", "np"}


def test_addresses_never_change(group):
    a, b = ints(group, a=3, b=70)
    c = group.buffer("c", 5, 3, dtype=torch.int64)
    where = [tensor.data_ptr() for buffer in (a, b, c) for tensor in (buffer.cpu, buffer.gpu)]
    tensors = [(buffer.cpu, buffer.gpu, buffer.np) for buffer in (a, b, c)]
    for _ in range(3):
        group.flush(2)
        group.mode = "merge"
        a.copy_to_gpu()
    assert [tensor.data_ptr() for buffer in (a, b, c) for tensor in (buffer.cpu, buffer.gpu)] == where
    assert all(
        before is now
        for found, buffer in zip(tensors, (a, b, c), strict=True)
        for before, now in zip(found, (buffer.cpu, buffer.gpu, buffer.np), strict=True)
    )
    assert all(buffer.np.ctypes.data == buffer.cpu.data_ptr() for buffer in (a, b, c))


@pytest.mark.parametrize("alignment", [16, 64, 256, 4096])
def test_places_are_aligned_and_apart(Group, alignment):
    group = Group("cpu", alignment=alignment, pin_memory=False)
    buffers = [group.buffer(str(i), i, dtype=torch.int16) for i in range(12)]
    group.freeze()
    for side in ("cpu", "gpu"):
        tensors = [getattr(buffer, side) for buffer in buffers if len(buffer.cpu)]
        starts = sorted((tensor.data_ptr(), tensor.numel() * 2) for tensor in tensors)
        assert {(start - starts[0][0]) % alignment for start, _ in starts} == {0}
        assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(starts))


@pytest.mark.parametrize("alignment", [0, 8, 15, 24, -256, 100])
def test_bad_alignments(Group, alignment):
    with pytest.raises(ValueError, match=f"alignment={alignment} is no power of two"):
        Group("cpu", alignment=alignment)


@pytest.mark.parametrize(("slots", "most"), [(0, 8), (-1, 8), (3, 2), (0, 0), (9, 8)])
def test_bad_slots(Group, slots, most):
    with pytest.raises(ValueError, match=f"slots={slots} and max_slots={most}"):
        Group("cpu", slots=slots, max_slots=most)


@pytest.mark.parametrize("bad", ["fast", "", None, 3, ["auto"], "AUTO"], ids=str)
def test_bad_modes(Group, group, bad):
    with pytest.raises(ValueError, match="is none of 'auto', 'pack', 'merge', 'loop'"):
        Group("cpu", mode=bad)
    with pytest.raises(ValueError, match="is none of"):
        group.mode = bad
    assert group.mode == "auto"


def test_bad_devices(Group):
    with pytest.raises(ValueError, match="no events on meta"):
        Group("meta")
    for bad in ("nowhere", 3.5, object()):
        with pytest.raises((RuntimeError, TypeError)):
            Group(bad)
    with pytest.raises(TypeError):
        Group("cpu", "loop")  # the rest is by keyword
    with pytest.raises(TypeError):
        Group()


@pytest.mark.parametrize("size", [(-1,), ("3",), (2.5,), ((3, -2),), (None,)], ids=str)
def test_bad_sizes_take_no_name(group, size):
    with pytest.raises((RuntimeError, TypeError)):
        group.buffer("a", *size, dtype=torch.int32)
    (a,) = ints(group, a=2)
    assert a.gpu.shape == (2,)


def test_a_buffer_that_is_dropped_is_left_where_it_is(group):
    a, b = ints(group, a=3, b=3)
    del a
    gc.collect()
    b.np[:] = 1
    group.flush()
    group.flush({"a": 2})
    assert gpus(b) == [[1] * 3]


# ---- what a buffer is


def test_a_staged_buffer_is_a_buffer(form, group):
    Buffer = load("CpuGpuBuffer", form)
    (a,) = ints(group, a=4)
    single = Buffer(4, dtype=torch.int32, device=CPU, pin_memory=False, staged=True)
    for staged in (a, single):
        assert isinstance(staged, Buffer)
        assert staged.cpu is not staged.gpu
        assert staged.cpu.data_ptr() != staged.gpu.data_ptr()
        staged.np[:] = [1, 2, 3, 4]
        assert staged.copy_to_gpu() is staged.gpu
        staged.np[:] = 9
        view = staged.copy_to_gpu(-2)
        assert (view.tolist(), view._base is staged.gpu) == ([9, 9], True)
        assert staged.copy_to_gpu(n=0).shape == (0,)
        assert staged.copy_to_gpu(np.int64(100)).shape == (4,)
        assert staged.gpu.tolist() == [9] * 4
        staged.gpu.fill_(5)
        assert staged.copy_to_cpu(1).tolist() == [5]
        assert staged.copy_to_cpu() is staged.cpu
        assert staged.np.tolist() == [5] * 4
        for wrong in ("3", 1.0, [1]):
            with pytest.raises(TypeError):
                staged.copy_to_gpu(wrong)
        with pytest.raises(TypeError):
            staged.copy_to_gpu(1, 2)
        with pytest.raises(TypeError):
            staged.copy_to_gpu(m=1)
        assert (staged.gpu._base, staged.cpu._base) == (None, None)


def test_the_staged_form_of_a_buffer_alone(form):
    Buffer = load("CpuGpuBuffer", form)
    buffer = Buffer(3, 2, dtype=torch.float32, device=CPU, pin_memory=False, staged=True, with_numpy=False)
    assert set(vars(buffer)) >= {"cpu", "gpu"}
    assert not hasattr(buffer, "np")
    buffer.cpu.fill_(1)
    buffer.copy_to_gpu(2)
    assert buffer.gpu.tolist() == [[1, 1], [1, 1], [0, 0]]
    assert type(Buffer(3, dtype=torch.int32, device=CPU, pin_memory=False, staged=False)) is Buffer


def test_a_subclass_with_a_copy_of_its_own(form):
    Buffer = load("CpuGpuBuffer", form)
    seen = []

    class Counting(Buffer):
        extra = 3

        def __init__(self, *size, **options):
            super().__init__(*size, staged=True, **options)
            self.more = 4

        def copy_to_gpu(self, n=None):
            seen.append(n)
            return super().copy_to_gpu(n)

    made = Counting(3, dtype=torch.int32, device=CPU, pin_memory=False)
    made.np[:] = 1
    assert made.copy_to_gpu(2).tolist() == [1, 1]
    load("copy_to_gpu_many", form)([made], [1])
    assert seen == [2, 1]
    assert (made.extra, made.more) == (3, 4)
    assert isinstance(made, Counting)
    with leaving(".*", "cpu"):
        made.cpu = torch.full((3,), 7, dtype=torch.int32)
    assert type(made) is Counting
    assert made.copy_to_gpu(3).tolist() == [7] * 3
    assert seen == [2, 1, 3]


def test_staged_classes_go_when_their_classes_go(form):
    Buffer = load("CpuGpuBuffer", form)

    def use():
        class Mine(Buffer):
            pass

        Mine(3, dtype=torch.int32, device=CPU, pin_memory=False, staged=True).copy_to_gpu()
        return weakref.ref(Mine)

    seen = use()
    gc.collect()
    assert seen() is None


def test_nothing_is_pickled_or_copied(form, group):
    (a,) = ints(group, a=3)
    single = load("CpuGpuBuffer", form)(3, dtype=torch.int32, device=CPU, pin_memory=False, staged=True)
    for staged in (a, single):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="staged CpuGpuBuffer can be neither pickled nor copied"):
                attempt(staged)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="StagingGroup can be neither pickled nor copied"):
            attempt(group)


def test_a_python_group_of_compiled_buffers(monkeypatch):
    """Where there is a compiled form of buffers, all groups have these."""
    monkeypatch.delenv("FASTUTILS_NO_EXTENSIONS", raising=False)
    Buffer = load("CpuGpuBuffer", "compiled")
    group = load("StagingGroup", "python")("cpu")
    a, b = ints(group, a=3, b=3)
    assert isinstance(a, Buffer)
    a.np[:], b.np[:] = 1, 2
    a.copy_to_gpu(2)
    with group.step():
        b.copy_to_gpu(1)
        b.np[:] = 3
    assert gpus(a, b) == [[1, 1, 0], [3, 0, 0]]


# ---- leaving


@pytest.mark.parametrize("used", [False, True], ids=["first use", "later"])
@pytest.mark.parametrize("what", ["cpu", "gpu", "np"])
def test_a_tensor_that_is_replaced_takes_its_buffer_out(form, group, what, used):
    a, b = ints(group, a=3, b=3)
    if used:
        group.flush()
    other = torch.full((3,), 5, dtype=torch.int32)
    other = other.numpy() if what == "np" else other
    with leaving("a", what):
        setattr(a, what, other)
    assert type(a) is load("CpuGpuBuffer", form)
    setattr(a, what, other)  # once
    a.cpu.fill_(1)
    b.np[:] = 1
    group.flush()
    group.flush(3)
    assert b.gpu.tolist() == [1] * 3
    assert a.gpu.tolist() == ([5] * 3 if what == "gpu" else [0] * 3)
    assert a.copy_to_gpu(2) is not None
    assert a.gpu.tolist() == [1, 1, *a.gpu.tolist()[2:]]
    for request in ({"a": 1}, {"a": None, "b": 1}):
        with pytest.raises(ValueError, match="buffer 'a' has left the staging group"):
            group.flush(request)
    with pytest.raises(ValueError, match="has left"):
        group.fetch({"a": 1})
    assert list(group.fetch().wait()) == ["b"]
    assert copy.copy(a).gpu is a.gpu


@pytest.mark.parametrize("what", ["cpu", "gpu", "np"])
def test_a_tensor_that_is_deleted_takes_its_buffer_out(form, group, what):
    a, b = ints(group, a=3, b=3)
    with leaving("a", what):
        delattr(a, what)
    assert not hasattr(a, what)
    assert type(a) is load("CpuGpuBuffer", form)
    b.np[:] = 1
    group.flush()
    assert b.gpu.tolist() == [1] * 3
    if what != "np":
        with pytest.raises(AttributeError):
            a.copy_to_gpu()


def test_the_same_tensor_again_changes_nothing(group):
    (a,) = ints(group, a=3)
    a.cpu, a.gpu, a.np = a.cpu, a.gpu, a.np
    a.something = 3
    del a.something
    with pytest.raises(AttributeError):
        del a.nothing
    a.np[:] = 1
    group.flush({"a": 3})
    assert gpus(a) == [[1] * 3]


def test_a_numpy_array_where_there_was_none(group):
    a = group.buffer("a", 3, dtype=torch.int32, with_numpy=False)
    with pytest.raises(AttributeError):
        del a.np
    with leaving("a", "np"):
        a.np = a.cpu.numpy()


MOVES = {
    "cpu.data": lambda a: setattr(a.cpu, "data", torch.full((3,), 7, dtype=torch.int32)),
    "gpu.data": lambda a: setattr(a.gpu, "data", torch.full((3,), 0, dtype=torch.int32)),
    "cpu.set_": lambda a: a.cpu.set_(torch.full((3,), 7, dtype=torch.int32)),
    "gpu.set_": lambda a: a.gpu.set_(torch.zeros(3, dtype=torch.int32)),
    "shifted": lambda a: a.cpu.set_(a.cpu.untyped_storage(), a.cpu.storage_offset() + 1, (3,)),
    "shorter": lambda a: (a.cpu.resize_(2), a.gpu.resize_(2)),
    "other type": lambda a: setattr(a.gpu, "data", torch.zeros(3, dtype=torch.float32)),
    "apart": lambda a: setattr(a.gpu, "data", torch.zeros(6, dtype=torch.int32)[::2]),
}


@pytest.mark.parametrize("way", ["flush", "copy", "step", "dict"])
@pytest.mark.parametrize("move", MOVES)
def test_a_tensor_taken_elsewhere_in_place_takes_its_buffer_out_when_it_is_used(form, group, move, way):
    a, b = ints(group, a=3, b=3)
    a.np[:], b.np[:] = 1, 2
    MOVES[move](a)
    rows = len(a.gpu)

    def use():
        if way == "copy":
            a.copy_to_gpu(rows)
        elif way == "flush":
            group.flush(rows)
        elif way == "dict":
            group.flush({"a": rows, "b": 3})
        else:
            with group.step():
                a.copy_to_gpu(rows)
                b.copy_to_gpu()

    with pytest.warns(RuntimeWarning, match="'a' leaves its staging group: its .cpu or .gpu was") as warned:
        use()
    assert len(warned) == 1
    assert a.gpu.tolist() == a.cpu.tolist()
    assert type(a) is load("CpuGpuBuffer", form)
    a.cpu.fill_(3)
    a.copy_to_gpu(1)
    assert a.gpu[0] == 3
    group.flush()
    assert b.gpu.tolist() == [2] * 3


def test_leaving_can_be_an_error(group):
    (a,) = ints(group, a=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            a.gpu = torch.zeros(3, dtype=torch.int32)
    a.cpu.fill_(2)
    assert a.copy_to_gpu().tolist() == [2] * 3
    group.flush()


# ---- steps


def test_a_step_collects_and_uploads_once_where_it_ends(group):
    a, b, c = ints(group, a=3, b=3, c=3)
    with group.step():
        a.np[:] = 1
        view = a.copy_to_gpu(1)
        whole = b.copy_to_gpu()
        assert (view._base, whole) == (a.gpu, b.gpu)
        assert a.copy_to_gpu(2).shape == (2,)
        a.copy_to_gpu(0)
        c.np[:] = 3
        a.np[:], b.np[:] = 4, 5
        assert gpus(a, b) == [[0] * 3] * 2
        assert group.stats().flushes == 0
    assert gpus(a, b, c) == [[4, 4, 0], [5] * 3, [0] * 3]
    assert (group.stats().flushes, group.stats().live_bytes) == (1, 20)
    c.copy_to_gpu(1)
    assert gpus(c) == [[3, 0, 0]]


def test_a_flush_inside_a_step_is_made_at_once(group):
    a, b = ints(group, a=3, b=3)
    with group.step():
        a.np[:] = 1
        a.copy_to_gpu(2)
        group.flush({"b": None, "a": 1})
        assert gpus(a) == [[1, 0, 0]]
    assert gpus(a, b) == [[1, 1, 0], [0] * 3]


def test_a_step_that_ends_by_an_exception_uploads_nothing(group):
    (a,) = ints(group, a=3)
    a.np[:] = 1
    with contextlib.suppress(KeyError), group.step():
        a.copy_to_gpu()
        raise KeyError
    assert gpus(a) == [[0] * 3]
    assert group.stats().flushes == 0
    with group.step():
        pass
    assert group.stats().flushes == 0
    with group.step():
        a.copy_to_gpu(1)
    assert gpus(a) == [[1, 0, 0]]


def test_steps_do_not_nest(group):
    (a,) = ints(group, a=3)
    a.np[:] = 1
    with group.step():
        a.copy_to_gpu(2)
        with pytest.raises(RuntimeError, match="is open in this thread already"), group.step():
            pass
        a.copy_to_gpu(1)
    assert gpus(a) == [[1, 1, 0]]


def test_a_step_may_be_used_again_but_ends_once(group):
    (a,) = ints(group, a=3)
    step = group.step()
    with pytest.raises(RuntimeError, match="has not begun"):
        step.__exit__(None, None, None)
    for value in (1, 2):
        with step:
            a.np[:] = value
            a.copy_to_gpu()
        assert gpus(a) == [[value] * 3]
    with pytest.raises(RuntimeError, match="or has ended already"):
        step.__exit__(None, None, None)
    with step, pytest.raises(RuntimeError, match="is open in this thread already"):
        step.__enter__()


def test_a_step_is_one_threads(group):
    a, b = ints(group, a=3, b=3)
    a.np[:], b.np[:] = 1, 2
    inside, found = threading.Barrier(2, timeout=20), []

    def other():
        with group.step():
            b.copy_to_gpu(1)
            inside.wait()
            inside.wait()
            found.append(b.gpu.tolist())
        found.append(b.gpu.tolist())

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with group.step():
        b.copy_to_gpu(2)
        a.copy_to_gpu(3)
    assert gpus(a, b) == [[1] * 3, [2, 2, 0]]
    b.np[:] = 4
    inside.wait()
    thread.join()
    assert found == [[2, 2, 0], [4, 2, 0]]

    def outside():
        a.copy_to_gpu(1)

    a.np[:] = 7
    with group.step():
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()
        assert gpus(a) == [[7, 1, 1]]  # that thread has no step
    assert gpus(a) == [[7, 1, 1]]


def test_two_groups_in_one_step(Group):
    one, other = Group("cpu"), Group("cpu")
    (a,), (b,) = ints(one, a=2), ints(other, a=2)
    a.np[:], b.np[:] = 1, 2
    with one.step(), other.step():
        a.copy_to_gpu()
        b.copy_to_gpu()
        a.np[:] = 3
    assert gpus(a, b) == [[3, 3], [2, 2]]
    with one.step():
        b.np[:] = 4
        b.copy_to_gpu()
        assert gpus(b) == [[4, 4]]


def test_a_step_in_which_a_buffer_leaves(group):
    a, b = ints(group, a=3, b=3)
    a.np[:], b.np[:] = 1, 2
    before = a.gpu
    with group.step():
        a.copy_to_gpu(2)
        b.copy_to_gpu()
        with leaving("a", "gpu"):
            a.gpu = torch.zeros(3, dtype=torch.int32)
    assert before.tolist() == [1, 1, 0]  # the view that was given is one of these
    assert gpus(a, b) == [[0] * 3, [2] * 3]


# ---- fetching


def test_fetching_on_the_cpu(group):
    a, b = ints(group, a=3, b=4)
    a.np[:], b.np[:] = 1, 2
    group.flush()
    fetched = group.fetch({"a": 2, "b": None})
    a.np[:] = 5
    group.flush()
    assert fetched.ready()
    assert fetched.wait(0) is fetched.wait() is fetched.views
    assert {name: view.tolist() for name, view in fetched.views.items()} == {"a": [1, 1], "b": [2] * 4}
    assert fetch(a).wait().tolist() == [5] * 3
    assert fetch(a, -1).wait().tolist() == [5] * 2
    assert {name: len(view) for name, view in group.fetch(1).wait().items()} == {"a": 1, "b": 1}
    assert group.fetch({}).wait() == {}
    assert fetch(a).wait().data_ptr() not in (a.cpu.data_ptr(), a.gpu.data_ptr())
    for wrong in (4, -1, {"c": 1}):
        with pytest.raises(ValueError, match=r"rows|no buffer"):
            group.fetch(wrong)
    with pytest.raises(TypeError, match="None, an int"):
        group.fetch("a")


def test_any_buffer_can_be_fetched(form):
    plain = load("CpuGpuBuffer", form)(3, dtype=torch.int32, device=CPU, pin_memory=False)
    plain.gpu.fill_(4)
    assert fetch(plain, 2).wait().tolist() == [4, 4]
    with pytest.raises(TypeError):
        fetch(plain, "2")


# ---- ends


def test_use_after_close(group):
    a, b = ints(group, a=3, b=3)
    a.np[:] = 1
    with group as entered:
        assert entered is group
        group.flush()
    for refused in (group.flush, a.copy_to_gpu, lambda: a.copy_to_gpu(1), lambda: group.flush({"a": 1})):
        with pytest.raises(RuntimeError, match="closed"):
            refused()
    step = group.step()
    with pytest.raises(RuntimeError, match="closed"), step:
        a.copy_to_gpu()
    assert gpus(a, b) == [[1] * 3, [0] * 3]
    assert a.copy_to_cpu(2).tolist() == [1, 1]
    assert group.fetch({"a": 1}).wait()["a"].tolist() == [1]
    assert group.stats().flushes == 1
    group.close()
    with leaving("a", "gpu"):
        a.gpu = torch.zeros(3, dtype=torch.int32)
    a.copy_to_gpu()
    assert gpus(a) == [[1] * 3]


def test_close_before_the_first_use(group):
    (a,) = ints(group, a=3)
    group.close()
    for refused in (group.flush, a.copy_to_gpu, lambda: a.cpu, group.freeze, group.fetch):
        with pytest.raises(RuntimeError, match="closed"):
            refused()
    assert group.stats().flushes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_may_use_a_group_on_the_cpu(group):
    (a,) = ints(group, a=3)
    group.flush()
    a.np[:] = 2
    child = os.fork()
    if not child:
        code = 1
        try:
            group.flush(2)
            a.copy_to_gpu(1)
            with group.step():
                a.copy_to_gpu(1)
            code = 0 if a.gpu.tolist() == [2, 2, 0] else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_dropped_group_is_freed(Group):
    group = Group("cpu", pin_memory=False)
    a, b = ints(group, a=3, b=3)
    group.flush()
    with group.step():
        b.copy_to_gpu()
    seen = [weakref.ref(thing) for thing in (group, a, a.cpu, b.gpu)]
    del group
    gc.collect()
    assert seen[0]() is not None  # its buffers need it
    del a, b
    gc.collect()
    assert [thing() for thing in seen] == [None] * 4


@pytest.mark.parametrize("leave", [False, True])
def test_groups_leave_nothing_behind(Group, leave):
    def use():
        group = Group("cpu", pin_memory=False)
        a, b = ints(group, a=100, b=100)
        for request in (None, 5, {"a": 3}, {"a": None, "b": 0}):
            group.flush(request)
        a.copy_to_gpu(3)
        with group.step():
            a.copy_to_gpu()
            b.copy_to_gpu(2)
        group.fetch().wait()
        for wrong in (101, "x", {"c": 1}):
            with contextlib.suppress(ValueError, TypeError):
                group.flush(wrong)
        if leave:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                a.gpu = b.gpu

    def objects():
        gc.collect()
        return len(gc.get_objects())

    for _ in range(3):
        use()
    before = objects()
    tracemalloc.start()
    try:
        use()
        gc.collect()
        memory = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            use()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - memory < 20_000
    finally:
        tracemalloc.stop()
    assert objects() - before < 50


def test_uploads_leave_nothing_behind(group):
    a, b = ints(group, a=10, b=10)
    request = {"a": 3, "b": None}

    def use():
        for _ in range(200):
            group.flush(request)
            group.flush(3)
            group.flush()
            a.copy_to_gpu(5)
            b.copy_to_gpu()
            with group.step():
                a.copy_to_gpu(4)

    use()
    tracemalloc.start()
    try:
        use()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        use()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2000
    finally:
        tracemalloc.stop()


# ---- torch's ways


@pytest.mark.parametrize("made_in", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("used_in", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_staged_buffer_is_to_torch_what_a_plain_one_is(form, Group, made_in, used_in):
    options = {"dtype": torch.float32, "device": CPU, "pin_memory": False}
    with made_in():
        plain = load("CpuGpuBuffer", form)(8, **options)
        group = Group("cpu", pin_memory=False)
        staged = group.buffer("a", 8, dtype=torch.float32)
        group.freeze()
    with used_in():
        for n in (None, 0, 3, 8, 20, -2):
            one, other = plain.copy_to_gpu(n), staged.copy_to_gpu(n)
            assert (one is plain.gpu) == (other is staged.gpu)
            for what in ("shape", "requires_grad", "is_leaf", "grad_fn"):
                assert getattr(one, what) == getattr(other, what)
            assert one.is_inference() == other.is_inference()
            assert (one._base is plain.gpu) == (other._base is staged.gpu)
            assert one._is_view() == other._is_view()
            if one._is_view():
                metas = [torch._C._autograd._get_creation_meta(view) for view in (one, other)]
                assert metas[0] == metas[1]
            assert plain.gpu._version == staged.gpu._version
            assert plain.cpu._version == staged.cpu._version
    for one, other in ((plain.cpu, staged.cpu), (plain.gpu, staged.gpu)):
        assert (other._base, other.is_inference(), other.is_contiguous()) == (None, one.is_inference(), True)


def test_uploads_change_the_versions_of_their_own_buffers(group):
    a, b, c = ints(group, a=3, b=3, c=3)
    group.flush({"a": 2})
    a.copy_to_gpu()
    with group.step():
        b.copy_to_gpu()
        b.copy_to_gpu(1)
    group.flush(0)
    assert [buffer.gpu._version for buffer in (a, b, c)] == [3, 2, 1]
    assert [buffer.cpu._version for buffer in (a, b, c)] == [0, 0, 0]


@pytest.mark.parametrize("way", ["copy", "flush", "step"])
def test_a_target_that_wants_gradients_is_refused_as_ever(group, way):
    a = group.buffer("a", 3, dtype=torch.float32)
    a.gpu.requires_grad_()
    a.np[:] = 1

    def use():
        if way == "copy":
            a.copy_to_gpu()
        elif way == "flush":
            group.flush()
        else:
            with group.step():
                a.copy_to_gpu(2)

    with pytest.raises(RuntimeError, match=r"leaf Variable that requires grad|a view of a leaf"):
        use()
    with torch.no_grad():
        use()
    assert a.gpu[0] == 1


def test_a_dispatch_mode_sees_the_copies(group):
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.append(function.__name__)
            return function(*arguments, **(keywords or {}))

    a, b = ints(group, a=3, b=3)
    a.np[:], b.np[:] = 1, 1
    with Watching():
        group.flush(2)
        a.copy_to_gpu()
    assert seen.count("copy_.default") == 3
    assert gpus(a, b) == [[1] * 3, [1, 1, 0]]
    assert (group.stats().flushes, group.stats().live_bytes) == (2, 28)


def test_a_profiler_sees_the_copies(group):
    (a,) = ints(group, a=3)
    a.np[:] = 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        group.flush()
    assert "aten::copy_" in {event.name for event in profile.events()}
    assert gpus(a) == [[1] * 3]


def test_staged_buffers_among_many(form, group):
    a, b = ints(group, a=3, b=3)
    plain = load("CpuGpuBuffer", form)(3, dtype=torch.int32, device=CPU, pin_memory=False)
    for buffer in (a, b, plain):
        buffer.np[:] = 1
    many = load("copy_to_gpu_many", form)
    views = many([a, plain, b], [1, None, 2], views=True)
    assert gpus(a, plain, b) == [[1, 0, 0], [1] * 3, [1, 1, 0]]
    assert views[0]._base is a.gpu
    with group.step():
        many([a, plain, b], 3)
        for buffer in (a, b, plain):
            buffer.np[:] = 2
    assert gpus(a, plain, b) == [[2] * 3, [1] * 3, [2] * 3]


def test_a_collection_in_the_middle_that_uploads_the_same_group(group):
    a, _ = ints(group, a=3, b=3)
    done = []

    def flush(phase, info):
        if phase == "start" and len(done) < 200:
            done.append(1)
            group.flush({"b": 2})

    thresholds = gc.get_threshold()
    gc.callbacks.append(flush)
    gc.set_threshold(1)
    try:
        for value in range(50):
            a.np[:] = value
            group.flush({"a": None})
            with group.step():
                a.copy_to_gpu(2)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(flush)
    assert done
    assert gpus(a) == [[49] * 3]


def test_threads_on_one_group(group):
    buffers = ints(group, **{str(i): 50 for i in range(4)})
    wrong = []

    def work(i):
        for value in range(300):
            buffers[i].np[:] = value
            if value % 2:
                group.flush({str(i): None})
            else:
                with group.step():
                    buffers[i].copy_to_gpu(50)
            if buffers[i].gpu.tolist() != [value] * 50:
                wrong.append((i, value))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
