"""tensor_data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.cases.model import Case, Side, Target, builds_of, bytes_of
from bench.paired import Loop


def floats(*shape: int) -> torch.Tensor:
    """Always the same random numbers."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def read_by(build: Callable[[], torch.Tensor]) -> Callable[[Any], Side]:
    """tensor_data of what `build` gives."""

    def make(helpers: Any) -> Side:
        tensor = build()
        read = helpers.tensor_data
        expected = bytes_of(tensor.contiguous()).tobytes()
        return Side(Loop("read(tensor)", read=read, tensor=tensor), lambda: bytes(read(tensor)), expected)

    return make


def cases() -> list[Case]:
    rows: list[tuple[str, Callable[[], torch.Tensor], float, bool, int]] = [
        ("1 KB, contiguous", lambda: floats(256), 18, False, 99),
        ("1 KB bfloat16, contiguous", lambda: floats(512).bfloat16(), 18, False, 99),
        ("64 MB, contiguous", lambda: floats(16 << 20), 18, False, builds_of(64 << 20)),
        ("1 KB, not contiguous", lambda: floats(16, 16).T, 2.5, False, 99),
        ("4 KB, every other", lambda: floats(2048)[::2], 2.5, False, 99),
        ("1 MB, not contiguous", lambda: floats(512, 512).T, 0.95, True, 99),
    ]
    mode = torch.inference_mode
    return [
        Case(f"tensor_data: {label}", "tensor_data", read_by(build), Target(ratio), mode, parallel, builds)
        for label, build, ratio, parallel, builds in rows
    ]
