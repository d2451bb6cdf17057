"""Memory per object: Python's own (tracemalloc) and what C++ takes beside it (glibc's count of allocated bytes)."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.recording import CachedRequestData, SchedulerOutput

COUNT = 3000


@dataclass(frozen=True)
class Bytes:
    """Bytes per object; `native` is None where the C library does not tell."""

    python: float
    native: float | None

    @property
    def total(self) -> float:
        return self.python + (self.native or 0.0)


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _allocated() -> int | None:
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # another C library, or glibc before 2.33
        return None
    mallinfo.restype = _MallInfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


def measure(make: Callable[[], Any], count: int = COUNT) -> Bytes:
    """What one object of `make` takes, as the mean over `count` that live together."""
    # These live on meanwhile: what was freed before and is kept for re-use goes to them, not to those that count.
    held = [make() for _ in range(count)]
    kept: list[Any] = [None] * count
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index in range(count):
            kept[index] = make()
        python = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
        if collecting:
            gc.enable()
    held += kept
    # A pass of its own: tracemalloc keeps its records in the memory that is counted here.
    start = _allocated()
    for index in range(count):
        kept[index] = make()
    end = _allocated()
    held.clear()
    return Bytes(python, None if start is None or end is None else max(0.0, (end - start) / count))


def makers(helpers: Any) -> dict[str, Callable[[], Any]]:
    """Row -> what makes the object. Tensors that several objects share are made here and not counted."""
    tokens = list(range(256))
    source, target = torch.zeros(64), torch.zeros(64)
    output = SchedulerOutput([], CachedRequestData(["a", "b"], [0, 3]), {"a": 7, "b": 1}, 8)
    device = torch.device("cpu")
    return {
        "memory: ConstantList": lambda: helpers.ConstantList(tokens),
        "memory: IterationDetails": lambda: helpers.compute_iteration_details(output),
        "memory: scope, off": lambda: helpers.record_function_or_nullcontext("x"),
        "memory: CpuGpuBuffer of 8 ints": lambda: helpers.CpuGpuBuffer(
            8, dtype=torch.int32, device=device, pin_memory=False
        ),
        "memory: view from copy_slice": lambda: helpers.copy_slice(source, target, 48),
        "memory: memoryview from tensor_data": lambda: helpers.tensor_data(source),
    }


IDS = (
    "memory: ConstantList",
    "memory: IterationDetails",
    "memory: scope, off",
    "memory: CpuGpuBuffer of 8 ints",
    "memory: view from copy_slice",
    "memory: memoryview from tensor_data",
)
