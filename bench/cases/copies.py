"""copy_slice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.cases.model import Case, Side, Target, builds_of, size
from bench.paired import Loop


def plain(count: int) -> Callable[[Any], Side]:
    """A contiguous copy of `count` bytes, all rows but the last."""
    rows = count // 4

    def make(helpers: Any) -> Side:
        source, target = (torch.zeros(rows + 1, dtype=torch.int32) for _ in range(2))
        copy = helpers.copy_slice

        def outcome() -> tuple[bool, int, tuple[int, ...]]:
            source.copy_(torch.arange(7, rows + 8, dtype=torch.int32))
            target.fill_(-1)
            result = copy(source, target, rows)
            arrived = torch.equal(target[:rows], torch.arange(7, rows + 7, dtype=torch.int32))
            return arrived and result.data_ptr() == target.data_ptr(), int(target[rows]), tuple(result.shape)

        loop = Loop("copy(source, target, n)", copy=copy, source=source, target=target, n=rows)
        return Side(loop, outcome, (True, -1, (rows,)))

    return make


def cases() -> list[Case]:
    rows = []
    for count in (4, 64, 1 << 10, 4 << 10):
        for mode, label in ((contextlib.nullcontext, "grad mode"), (torch.inference_mode, "inference mode")):
            name = f"copy_slice: {size(count)}, {label}"
            rows.append(Case(name, "copy_slice", plain(count), Target(6.5), mode=mode))
    for count in (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20):
        name = f"copy_slice: {size(count)}"
        target, parallel, builds = Target(0.95), count > 64 << 10, builds_of(count)
        made = plain(count)
        # Above 256 KB torch's own copy_, made with several threads, does the work on both sides.
        same = count > 256 << 10
        mode = torch.inference_mode
        rows.append(Case(name, "copy_slice", made, target, mode, parallel, builds, same_path=same))
    return rows + fallbacks()


def fallbacks() -> list[Case]:
    """Copies that only PyTorch's own path can make; what ours adds is finding that out."""

    def floats(*shape: int) -> torch.Tensor:
        return torch.linspace(-2, 3, int(np.prod(shape))).reshape(shape)

    def pair(build: Callable[[], tuple[torch.Tensor, torch.Tensor]], n: int = 48) -> Callable[[Any], Side]:
        def make(helpers: Any) -> Side:
            copy = helpers.copy_slice
            source, target = build()

            def outcome() -> tuple[list[Any], list[int]]:
                with torch.no_grad():
                    target.zero_()
                    result = copy(source, target, n)
                    return target.tolist(), list(result.shape)

            wanted = torch.zeros_like(target)
            wanted[:n] = source.detach()[:n].to(target.dtype).expand(wanted[:n].shape)
            loop = Loop("copy(source, target, n)", copy=copy, source=source, target=target, n=n)
            return Side(loop, outcome, (wanted.tolist(), list(wanted[:n].shape)))

        return make

    rows: list[tuple[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = [
        ("other dtype", lambda: (torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int64))),
        ("strided source", lambda: (floats(64, 2)[:, 0], torch.zeros(64))),
        ("strided target", lambda: (floats(64), torch.zeros(64, 2)[:, 0])),
        ("transposed source", lambda: (floats(8, 64).T, torch.zeros(64, 8))),
        ("broadcast source", lambda: (floats(64, 1), torch.zeros(64, 8))),
        ("conjugate view", lambda: (torch.complex(floats(64), floats(64)).conj(), torch.zeros(64, dtype=torch.cfloat))),
        ("Parameter source", lambda: (torch.nn.Parameter(floats(64)), torch.zeros(64))),
    ]
    target = Target(0.95, overhead_ns=60)
    return [
        Case(f"copy_slice: {label}", "copy_slice", pair(build), target, torch.no_grad, same_path=True)
        for label, build in rows
    ]
