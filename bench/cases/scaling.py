"""Scaling families: the same call on more requests, more bytes, more buffers, from more threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.cases import buffers, copies, iteration, views
from bench.cases.model import Case, Family, Side, builds_of, size
from bench.threads import ThreadedLoop

REQUESTS = [1 << i for i in range(13)]  # 1 to 4096
BYTES = [4 << (2 * i) for i in range(13)]  # 4 B to 64 MB
BUFFERS = [1 << i for i in range(7)]  # 1 to 64
THREADS = [1, 2, 3, 4]


def in_threads(make: Callable[[Any], Side], number: int) -> Callable[[Any], Side]:
    """What `make` makes, in `number` threads at once, each with objects of its own."""

    def made(helpers: Any) -> Side:
        sides = [make(helpers) for _ in range(number)]
        loop = ThreadedLoop([side.loop for side in sides])
        return Side(
            loop,
            lambda: [side.outcome() for side in sides],
            [side.expected for side in sides],
            loop.close,
        )

    return made


def cases() -> list[Case]:
    group, inference = "scaling", torch.inference_mode
    details, slices, many = "compute_iteration_details", "copy_slice", "copy_to_gpu_many"
    rows = []
    for n in REQUESTS:
        family = Family(f"{details} by requests", n, "requests in the step", n, "request")
        made = iteration.details(n, False)
        rows.append(Case(f"{family.name}: {n}", details, made, group=group, family=family))
    for count in BYTES:
        family = Family(f"{slices} by size", count, "bytes copied")
        parallel, bound = count > 64 << 10, builds_of(count)
        case, made = f"{family.name}: {size(count)}", copies.plain(count)
        rows.append(Case(case, slices, made, None, inference, parallel, bound, group=group, family=family))
    for number in BUFFERS:
        family = Family(f"{many} by buffers", number, "buffers of 256 int32, 48 rows each", number, "buffer")
        made = buffers.several([256] * number, [48] * number)
        star = buffers.ONE_CALL
        case = f"{family.name}: {number}"
        rows.append(Case(case, many, made, None, inference, group=group, family=family, star=star))
    for label, helper, make in (
        ("x[-1]", "ConstantList", lambda helpers: views.on(helpers.ConstantList(views.TOKENS), "x[-1]", 1299)),
        ("copy_slice of 4 KB", slices, copies.plain(4 << 10)),
        ("copy_slice of 1 MB", slices, copies.plain(1 << 20)),
    ):
        for number in THREADS:
            family = Family(f"{label} by threads", number, "threads, together")
            made = in_threads(make, number)
            case = f"{family.name}: {number}"
            rows.append(Case(case, helper, made, None, parallel=True, builds=3, group=group, family=family))
    return rows
