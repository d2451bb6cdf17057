"""The same calls, with the caches emptied before each of them: what a call costs after other work."""

from __future__ import annotations

import dataclasses

from bench.cases import buffers, copies, data, iteration, scopes, views
from bench.cases.model import Case

#: Of the cases that are timed warm.
CHOSEN = (
    "ConstantList: x[-1]",
    "ConstantList: x[16:32]",
    "ConstantList: ConstantList(x)",
    "compute_iteration_details: N=64",
    'with record_function_or_nullcontext("x")',
    "copy_slice: 64 B, inference mode",
    "copy_slice: 4 KB, inference mode",
    "copy_to_gpu(n): 48 of 256, dropped view, inference mode",
    "copy_to_gpu_many: 16 buffers of 64-8192 ints, n=48 each",
    "tensor_data: 1 KB, contiguous",
)


def cases() -> list[Case]:
    warm = [case for table in (views, iteration, scopes, copies, buffers, data) for case in table.cases()]
    return [
        dataclasses.replace(case, id=f"cold: {case.id}", group="cold", target=None)
        for case in warm
        if case.id in CHOSEN
    ]
