"""CpuGpuBuffer and copy_to_gpu_many. Device tensors are CPU tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from bench.cases.model import Case, Side, Target, builds_of, size
from bench.paired import Loop


def make_buffer(helpers: Any, rows: int) -> Any:
    """A buffer of `rows` int32."""
    return helpers.CpuGpuBuffer(rows, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)


def copied(buffer: Any, n: int | None, call: Callable[[], Any]) -> bool:
    """Whether `call` brings the first `n` rows (None: all) of fresh contents over and leaves the rest alone."""
    rows = buffer.cpu.shape[0]
    wanted = rows if n is None else len(range(rows)[:n])
    buffer.cpu.copy_(torch.arange(3, rows + 3, dtype=buffer.cpu.dtype))
    buffer.gpu.fill_(-1)
    call()
    expected = torch.arange(3, rows + 3, dtype=buffer.gpu.dtype)
    expected[wanted:] = -1
    return torch.equal(buffer.gpu, expected)


def single(statement: str, rows: int, n: int | None, maker: Callable[..., Any] = make_buffer) -> Callable[[Any], Side]:
    """One call on one buffer of `rows` int32."""

    def make(helpers: Any) -> Side:
        buffer = maker(helpers, rows)

        def call() -> Any:
            return buffer.copy_to_gpu() if n is None else buffer.copy_to_gpu(n)

        def outcome() -> tuple[bool, bool, tuple[int, ...]]:
            right = copied(buffer, n, call)
            result = call()
            return right, result.data_ptr() == buffer.gpu.data_ptr(), tuple(result.shape)

        return Side(Loop(statement, buffer=buffer, n=n), outcome, (True, True, (rows if n is None else n,)))

    return make


def several(sizes: list[int], ns: list[int]) -> Callable[[Any], Side]:
    """The first `ns` rows of buffers of `sizes` int32: one call where the side has it, else one for each buffer."""

    def make(helpers: Any) -> Side:
        buffers = [make_buffer(helpers, rows) for rows in sizes]
        many = getattr(helpers, "copy_to_gpu_many", None)

        def one_by_one() -> None:
            for buffer, n in zip(buffers, ns, strict=True):
                buffer.copy_to_gpu(n)

        call = one_by_one if many is None else lambda: many(buffers, ns)
        if many is None:
            loop = Loop("for b, n in zip(buffers, ns): b.copy_to_gpu(n)", buffers=buffers, ns=ns)
        else:
            loop = Loop("many(buffers, ns)", many=many, buffers=buffers, ns=ns)

        def outcome() -> list[bool]:
            return [copied(buffer, n, call) for buffer, n in zip(buffers, ns, strict=True)]

        return Side(loop, outcome, [True] * len(sizes))

    return make


def _to_cpu(helpers: Any) -> Side:
    buffer = make_buffer(helpers, 256)

    def outcome() -> tuple[list[int], int]:
        buffer.gpu.copy_(torch.arange(256, dtype=torch.int32))
        buffer.cpu.zero_()
        buffer.copy_to_cpu(48)
        return buffer.cpu[:48].tolist(), int(buffer.cpu[48:].sum())

    return Side(Loop("buffer.copy_to_cpu(n)", buffer=buffer, n=48), outcome, (list(range(48)), 0))


def _shared(helpers: Any) -> Side:
    buffer = make_buffer(helpers, 256)
    buffer.gpu = buffer.cpu

    def outcome() -> tuple[list[int], bool]:
        buffer.cpu.copy_(torch.arange(256, dtype=torch.int32))
        return buffer.cpu.tolist(), buffer.copy_to_gpu() is buffer.cpu

    return Side(Loop("buffer.copy_to_gpu()", buffer=buffer), outcome, (list(range(256)), True))


#: Why rows of copy_to_gpu_many carry a star.
ONE_CALL = "one call that returns nothing does what upstream needs a loop of calls for, each with a view as its result"


def cases() -> list[Case]:
    name, held, dropped = "CpuGpuBuffer", "kept = buffer.copy_to_gpu(n)", "buffer.copy_to_gpu(n)"
    inference = torch.inference_mode
    rows = []
    # Dropping a view at once is dearer on both sides: the tensor viewed is then held by its own object alone, and torch
    # exchanges references with that object whenever this begins and ends.
    for mode, label, ratio in ((contextlib.nullcontext, "grad mode", 8.5), (inference, "inference mode", 7.5)):
        fresh, gone = f"fresh view, {label}", f"dropped view, {label}"
        rows += [
            Case(f"copy_to_gpu(n): 48 of 256, {fresh}", name, single(held, 256, 48), Target(ratio), mode),
            Case(f"copy_to_gpu(n): 48 of 256, {gone}", name, single(dropped, 256, 48), Target(ratio - 1), mode),
            Case(f"copy_to_gpu(): 1 KB, {label}", name, single("buffer.copy_to_gpu()", 256, None), Target(9), mode),
        ]
    for count in (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20):
        n, parallel = count // 4, count > 64 << 10
        target = Target(7.5) if count <= 4 << 10 else Target(0.95)
        case, made = f"copy_to_gpu(n): {size(count)}, fresh view", single(held, n + 1, n)
        rows.append(Case(case, name, made, target, inference, parallel, builds_of(count), same_path=parallel))
    rows += [
        Case("copy_to_cpu(n): 48 of 256", name, _to_cpu, None, inference),
        Case("copy_to_gpu(): .gpu is .cpu", name, _shared, None, inference),
    ]
    sizes = [64 << (i % 8) for i in range(16)]
    for label, ns, ratio in (
        ("n=48 each", [48] * 16, 40.0),
        ("half full", [n // 2 for n in sizes], 16.0),
        ("full", sizes, 10.0),
    ):
        case = f"copy_to_gpu_many: 16 buffers of 64-8192 ints, {label}"
        made = several(sizes, ns)
        rows.append(Case(case, "copy_to_gpu_many", made, Target(ratio), inference, star=ONE_CALL))
    return rows
