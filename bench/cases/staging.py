"""StagingGroup: upstream has none, so its side makes the copies one by one. Device tensors are CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.cases.buffers import make_buffer, single
from bench.cases.model import Case, Side, Target
from bench.paired import Loop

#: int32 in each of the buffers that a step uploads.
SIZES = (64, 64, 64, 64, 256, 256, 256, 512, 512, 1024, 1024, 2048, 2048, 4096, 8192, 8192)
NAMES = tuple(f"buffer {i}" for i in range(len(SIZES)))

FLUSH = "one call that returns nothing does what upstream needs a loop of calls for, each with a view as its result"


def staged(group: Any, sizes: Sequence[int] = SIZES) -> list[Any]:
    """The buffers of `group`, laid out."""
    buffers = [group.buffer(name, rows, dtype=torch.int32) for name, rows in zip(NAMES, sizes, strict=False)]
    group.freeze()
    return buffers


def arrived(buffers: Sequence[Any], ns: Sequence[int], call: Callable[[], Any]) -> list[bool]:
    """For each buffer, whether one `call` brings its first rows, and no others', and leaves those behind alone."""
    sent = [torch.arange(len(b.cpu), dtype=torch.int32) + 10_000 * (i + 1) for i, b in enumerate(buffers)]
    for buffer, values in zip(buffers, sent, strict=True):
        buffer.cpu.copy_(values)
        # Not fill_(): over the stand-in runtime, where these are device tensors, no kernel runs.
        buffer.gpu.copy_(torch.full_like(values, -1))
    call()
    for values, n in zip(sent, ns, strict=True):
        values[n:] = -1
    return [torch.equal(buffer.gpu.cpu(), values) for buffer, values in zip(buffers, sent, strict=True)]


def uploads(ours: str, theirs: str, ns: Sequence[int], request: Any) -> Callable[[Any], Side]:
    """All buffers of a step by the statement `ours`, or `theirs` on a side that has no groups."""

    def make(helpers: Any) -> Side:
        form = getattr(helpers, "StagingGroup", None)
        if form is None:
            buffers = [make_buffer(helpers, rows) for rows in SIZES]
            loop = Loop(theirs, buffers=buffers, ns=ns, n=ns[0])
        else:
            group = form("cpu", pin_memory=False)
            buffers = staged(group)
            names = {"flush": group.flush, "step": group.step, "buffers": buffers}
            loop = Loop(ours, **names, request=request, names=NAMES, n=ns[0])

        def outcome() -> list[bool]:
            return arrived(buffers, ns, lambda: loop.run(loop.items(1)))

        return Side(loop, outcome, [True] * len(SIZES))

    return make


def one_of_group(helpers: Any, rows: int) -> Any:
    """A buffer of `rows` int32, in a group where there are any."""
    form = getattr(helpers, "StagingGroup", None)
    return make_buffer(helpers, rows) if form is None else staged(form("cpu", pin_memory=False), (rows,))[0]


def cases() -> list[Case]:
    name, inference, few = "StagingGroup", torch.inference_mode, (48,) * len(SIZES)
    half = tuple(rows // 2 for rows in SIZES)
    each, same = "for b, n in zip(buffers, ns): b.copy_to_gpu(n)", "for b in buffers: b.copy_to_gpu(n)"
    whole, asked = "for b in buffers: b.copy_to_gpu()", dict(zip(NAMES, half, strict=True))
    rows: list[tuple[str, str, str, Sequence[int], Any, float | None, str]] = [
        ("flush(n), 16 buffers, n=48 each", "flush(n)", same, few, None, 40, FLUSH),
        ("flush({name: n}), 16 buffers, half full", "flush(request)", each, half, asked, 16, FLUSH),
        ("flush(), 16 buffers, full", "flush()", each, SIZES, None, 10, FLUSH),
        ("flush(), 16 buffers, full, against copy_to_gpu()", "flush()", whole, SIZES, None, None, FLUSH),
        (
            "flush() of a new dict, 16 buffers, n=48 each",
            "flush(dict.fromkeys(names, n))",
            same,
            few,
            None,
            None,
            FLUSH,
        ),
        ("step() around 16 copies, n=48 each", f"with step():\n    {same}", same, few, None, None, ""),
    ]
    return [
        *(
            Case(
                f"StagingGroup: {label}",
                name,
                uploads(ours, theirs, ns, request),
                None if ratio is None else Target(ratio),
                inference,
                star=star,
            )
            for label, ours, theirs, ns, request, ratio, star in rows
        ),
        Case(
            "StagingGroup: one copy_to_gpu(n), 48 of 256, dropped view",
            name,
            single("buffer.copy_to_gpu(n)", 256, 48, one_of_group),
            None,
            inference,
        ),
    ]
