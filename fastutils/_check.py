"""A paired check of a few seconds: is the active form right, and what is it worth on this machine?

Each case runs the active form and its Python twin in turn (A B B A) and compares their results first; one that
differs gets no number. The full suite, with intervals and upstream's own form as the baseline, is ``make bench``.
"""

from __future__ import annotations

import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from fastutils import _select


@dataclass(frozen=True)
class Outcome:
    """One row: `note` is empty for a measured case, else why there is no number."""

    label: str
    active_ns: float = math.nan
    twin_ns: float = math.nan
    ratio: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class Case:
    """`make(helper)` returns a function without arguments; its result must be equal for both forms."""

    label: str
    name: str
    make: Callable[[Any], Callable[[], Any]]


def _view_last(helper: Any) -> Callable[[], Any]:
    view = helper(list(range(256)))
    return lambda: view[-1]


def _view_slice(helper: Any) -> Callable[[], Any]:
    view = helper(list(range(256)))
    return lambda: view[16:32]


class _CachedRequests:
    """The scheduler's record of running requests, as far as the counts need it."""

    def __init__(self, req_ids: list[str], num_output_tokens: list[int]) -> None:
        self.req_ids = req_ids
        self.num_output_tokens = num_output_tokens

    @cached_property
    def _req_id_to_num_output_tokens(self) -> dict[str, int]:
        return dict(zip(self.req_ids, self.num_output_tokens, strict=False))

    def is_context_phase(self, req_id: str) -> bool:
        return self._req_id_to_num_output_tokens.get(req_id) == 0


def _iteration(helper: Any) -> Callable[[], Any]:
    ids = [f"request-{i}" for i in range(64)]
    counts, scheduled = [i % 7 for i in range(64)], dict.fromkeys(ids, 1)

    # An engine makes both objects anew for each step, so their making is part of both times.
    def run() -> Any:
        cached = _CachedRequests(ids, counts)
        return helper(
            SimpleNamespace(scheduled_new_reqs=[], scheduled_cached_reqs=cached, num_scheduled_tokens=scheduled)
        )

    return run


def _scope(helper: Any) -> Callable[[], Any]:
    def run() -> Any:
        with helper("schedule: allocate_slots") as entered:
            return entered

    return run


def _copy_slice(helper: Any) -> Callable[[], Any]:
    import torch

    source, target = torch.arange(64), torch.zeros(64, dtype=torch.int64)

    def run() -> Any:
        return helper(source, target, 48)

    return run


def _copy_to_gpu(helper: Any) -> Callable[[], Any]:
    import torch

    buffer = helper(64, dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)
    buffer.np[:] = range(64)
    return lambda: buffer.copy_to_gpu(48)


def _tensor_data(helper: Any) -> Callable[[], Any]:
    import torch

    tensor = torch.arange(256)
    return lambda: helper(tensor)


CASES = [
    Case("ConstantList: x[-1]", "ConstantList", _view_last),
    Case("ConstantList: a slice of 16", "ConstantList", _view_slice),
    Case("compute_iteration_details: 64 requests", "compute_iteration_details", _iteration),
    Case("with record_function_or_nullcontext(name)", "record_function_or_nullcontext", _scope),
    Case("copy_slice: 48 of 64 int64", "copy_slice", _copy_slice),
    Case("CpuGpuBuffer.copy_to_gpu(48), CPU twin", "CpuGpuBuffer", _copy_to_gpu),
    Case("tensor_data: 2 KiB", "tensor_data", _tensor_data),
]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, memoryview):
        return bytes(a) == bytes(b)
    result = a == b
    return bool(result.all()) if hasattr(result, "all") else bool(result)


def _time(run: Callable[[], Any], calls: int) -> float:
    clock = time.perf_counter_ns
    repeat = range(calls)
    start = clock()
    for _ in repeat:
        run()
    return (clock() - start) / calls


def measure(case: Case, seconds: float) -> Outcome:
    """Check and time one case for about `seconds` (s)."""
    twin = getattr(importlib.import_module(_select.HOMES[case.name][0]), case.name)
    active = _select.choose(case.name)
    a, b = case.make(active.value), case.make(twin)
    if not _equal(a(), b()):
        return Outcome(case.label, note="the two forms disagree: please report this")
    if active.value is twin:
        return Outcome(case.label, note=f"the Python form serves: {active.reason}")
    calls = max(20, int(200_000 / max(_time(a, 100), 1.0)))  # about 0.2 ms a sample
    ratios: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    deadline = time.monotonic() + seconds
    while len(ratios) < 5 or time.monotonic() < deadline:
        a1, b1, b2, a2 = _time(a, calls), _time(b, calls), _time(b, calls), _time(a, calls)
        ratios.append(math.log((b1 + b2) / (a1 + a2)))
        ours.append((a1 + a2) / 2)
        theirs.append((b1 + b2) / 2)
    return Outcome(case.label, statistics.median(ours), statistics.median(theirs), math.exp(statistics.median(ratios)))


def run(seconds: float = 3.0) -> list[Outcome]:
    """Every case, together about `seconds` (s). A case whose libraries are missing says so in its note."""
    outcomes = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for case in CASES:
            try:
                outcomes.append(measure(case, seconds / len(CASES)))
            except Exception as error:  # whatever the libraries that it needs raise
                outcomes.append(Outcome(case.label, note=f"not available: {error!r}"))
    finally:
        if collecting:
            gc.enable()
    return outcomes
