"""The compiled form of StagingGroup against the Python form: the same requests have the same outcome."""

import types
import warnings
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from implementations import load

NAMES = ["a", "b", "c", "d", "e"]
SHAPES = [(3,), (3,), (24,), (24,), (24, 2), (65,), (), (0,), (5, 0), (2, 3), (300, 300)]
DTYPES = [torch.int32, torch.int64, torch.uint8, torch.float32, torch.bool, torch.float16]
SPECS = st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=5)

INDEX = st.integers(0, 4)
SMALL = st.integers(0, 5)
COUNTS = st.one_of(
    SMALL,
    SMALL,
    st.integers(-2, 70),
    st.none(),
    st.booleans(),
    SMALL.map(np.int64),
    SMALL.map(np.uint8),
    st.sampled_from([2**40, 2**80, -(2**70), "2", 1.5, [1], (), b"x"]),
)
DICTS = st.dictionaries(
    st.sampled_from([*NAMES, *NAMES, "z", 1, None]), st.one_of(SMALL, st.none(), COUNTS), max_size=4
)
REQUESTS = st.one_of(COUNTS, DICTS, DICTS.map(OrderedDict), DICTS.map(types.MappingProxyType))
SLICES = st.one_of(
    st.none(), st.integers(-3, 70), st.booleans(), SMALL.map(np.int64), st.sampled_from(["1", 2.0, 2**70])
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), INDEX, st.integers(0, 1)),
        st.tuples(st.just("flush"), REQUESTS),
        st.tuples(st.just("flush"), REQUESTS),
        st.tuples(st.just("copy"), INDEX, SLICES),
        st.tuples(st.just("step"), st.lists(st.tuples(INDEX, SLICES), max_size=4), st.booleans()),
        st.tuples(st.just("fetch"), REQUESTS),
        st.tuples(st.just("mode"), st.sampled_from(["auto", "pack", "merge", "loop", "none"])),
        st.tuples(st.just("replace"), INDEX, st.sampled_from(["cpu", "gpu", "np"])),
        st.tuples(st.just("move"), INDEX, st.sampled_from(["cpu", "gpu"])),
        st.tuples(st.just("shrink"), INDEX),
        st.tuples(st.just("reset")),
        st.tuples(st.just("late"), SPECS),
    ),
    max_size=12,
)


def bytes_of(tensor):
    plain = tensor.detach().cpu().contiguous()
    return bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b""


class Run:
    """What one form makes of the operations."""

    def __init__(self, form, device, specs):
        self.device = device
        self.group = load("StagingGroup", form)(device, pin_memory=device != "cpu", slots=1, max_slots=3)
        self.buffers = [
            self.group.buffer(name, shape, dtype=dtype) for name, (shape, dtype) in zip(NAMES, specs, strict=False)
        ]
        self.number = 0

    def buffer(self, i):
        return self.buffers[i % len(self.buffers)]

    def write(self, i, value):
        self.number += 1
        self.buffer(i).cpu.fill_((self.number % 50) * value)

    def flush(self, request):
        return self.group.flush(request)

    def copy(self, i, n):
        return self.view(self.buffer(i), self.buffer(i).copy_to_gpu(n))

    def view(self, buffer, view):
        return view is buffer.gpu, view._base is buffer.gpu, tuple(view.shape)

    def step(self, copies, fails):
        found = []
        with self.group.step():
            for i, n in copies:
                found.append(self.view(self.buffer(i), self.buffer(i).copy_to_gpu(n)))
                self.write(i, 1)
            if fails:
                raise KeyError("made up")
        return found

    def fetch(self, request):
        views = self.group.fetch(request).wait()
        return {name: (tuple(view.shape), bytes_of(view)) for name, view in views.items()}

    def mode(self, mode):
        self.group.mode = mode

    def replace(self, i, what):
        tensor = getattr(self.buffer(i), what)
        setattr(self.buffer(i), what, tensor.copy() if what == "np" else self.clone(tensor))

    def clone(self, tensor):
        return tensor.detach().cpu().clone().to(tensor.device)  # the stand-in device runs no kernels

    def move(self, i, what):
        tensor = getattr(self.buffer(i), what)
        tensor.data = self.clone(tensor)

    def shrink(self, i):
        for tensor in (self.buffer(i).cpu, self.buffer(i).gpu):
            if tensor.dim():
                tensor.resize_(tensor.shape[0] // 2, *tensor.shape[1:])

    def reset(self):
        self.group.stats(reset=True)

    def late(self, specs):
        self.group.buffer("late", specs[0][0], dtype=specs[0][1])
        self.group.flush()

    def outcome(self, operation):
        name, *arguments = operation
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                result = getattr(self, name)(*arguments)
            except Exception as error:
                result = type(error), str(error)
        return result, [(warning.category, str(warning.message)) for warning in warned], self.facts()

    def facts(self):
        stats = self.group.stats()
        found = [stats.flushes, stats.live_bytes]
        if self.device == "cpu":
            found += [stats.runtime_calls, stats.bytes_moved, stats.waits, stats.slots, stats.peak_slots]
        for buffer in self.buffers:
            if "gpu" in vars(buffer):
                for tensor in (buffer.gpu, buffer.cpu):
                    found += [bytes_of(tensor), tuple(tensor.shape), tensor._version, tensor._base]
                found.append(buffer.np.tolist() if "np" in vars(buffer) else None)
            found += [sorted(vars(buffer)), type(buffer).__name__]
        return found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@settings(max_examples=150)
@given(specs=SPECS, operations=OPERATIONS)
def test_the_same_requests_have_the_same_outcome(device, specs, operations):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no device")
    compiled = Run("compiled", device, specs)
    with mock.patch.dict("os.environ", FASTUTILS_NO_EXTENSIONS="1"):  # its buffers are Python's, too
        python = Run("python", device, specs)
    for operation in operations:
        assert compiled.outcome(operation) == python.outcome(operation), operation
