"""The only table of microbenchmark cases: what is timed, what must come out, and what ours is meant to reach."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.paired import Loop, Verdict
from bench.recording import CachedRequestData, NewRequestData, SchedulerOutput
from bench.replay import COUNTS

#: A ratio whose whole interval lies below this is a loss; nearer to 1 a shared machine cannot tell.
NOT_SLOWER = 0.98


@dataclass(frozen=True)
class Target:
    """What a case is meant to reach: times faster, and at most so many ns more than upstream."""

    ratio: float | None = None
    overhead_ns: float | None = None
    not_slower: bool = False

    def __str__(self) -> str:
        if self.not_slower:
            return "not slower"
        parts = [f">={self.ratio:g}x"] if self.ratio is not None else []
        return ", ".join(parts + ([f"<={self.overhead_ns:g} ns more"] if self.overhead_ns is not None else []))

    def judge(self, verdict: Verdict) -> str:
        """``met`` or ``not met``; with a ``~`` where the interval holds the other answer too."""
        if self.not_slower:
            return "met" if verdict.high >= NOT_SLOWER else "not met"
        met, sure = True, True
        if self.ratio is not None:
            met = verdict.ratio >= self.ratio
            sure = not verdict.low <= self.ratio <= verdict.high
        if self.overhead_ns is not None:
            met = met and -verdict.difference_ns <= self.overhead_ns
        return ("met" if met else "not met") + ("" if sure else " ~")


@dataclass(frozen=True)
class Side:
    """One side of a case: the loop to time, what one pass gives, and what it should give.

    `outcome` runs the same call once on fresh contents. `expected` is computed without the code under test.
    """

    loop: Loop
    outcome: Callable[[], Any]
    expected: Any


@dataclass(frozen=True)
class Case:
    """`make(helpers)` builds a side from anything that has the helpers as attributes.

    `parallel` cases may use every core: torch copies large tensors with several threads. `builds` bounds how often both
    sides are built, where the memory of all of them would add up.
    """

    id: str
    helper: str
    make: Callable[[Any], Side]
    target: Target | None = None
    mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    parallel: bool = False
    builds: int = 1 << 10
    note: str = ""


def _view_cases() -> list[Case]:
    tokens = list(range(1000, 1300))  # above the interpreter's small ints: equal ones need not be identical
    deep = int("1256")
    from collections.abc import Sequence as Abstract

    def on_view(statement: str, expected: Any, **names: Any) -> Callable[[Any], Side]:
        def make(helpers: Any) -> Side:
            given = {"x": helpers.ConstantList(tokens), **names}
            return Side(Loop(statement, **given), lambda: eval(statement, dict(given)), expected)

        return make

    def construction(helpers: Any) -> Side:
        make = helpers.ConstantList
        return Side(Loop("make(tokens)", make=make, tokens=tokens), lambda: make(tokens)._x is tokens, True)

    def iteration(helpers: Any) -> Side:
        x = helpers.ConstantList(tokens)
        return Side(Loop("for _ in x: pass", x=x), lambda: [token for token in x], tokens)  # noqa: C416

    rows: list[tuple[str, Callable[[Any], Side], Target | None]] = [
        ("x[5]", on_view("x[5]", 1005), Target(4)),
        ("x[-1]", on_view("x[-1]", 1299), Target(4.5)),
        ("len(x)", on_view("len(x)", 300), Target(3.2)),
        ("value in x, first", on_view("value in x", True, value=tokens[0]), Target(4.5)),
        ("value in x, 256 deep", on_view("value in x", True, value=deep), Target(3)),
        ("value in x, absent", on_view("value in x", False, value=-7), None),
        ("x.index(value), 256 deep", on_view("x.index(value)", 256, value=deep), Target(3)),
        ("x.count(value)", on_view("x.count(value)", 1, value=deep), None),
        ("ConstantList(x)", construction, Target(3)),
        ("x[16:32]", on_view("x[16:32]", list(range(1016, 1032))), Target(1.6)),
        ("list(x)", on_view("list(x)", tokens), Target(not_slower=True)),
        ("for _ in x", iteration, Target(not_slower=True)),
        ("x.copy()", on_view("x.copy()", tokens), Target(not_slower=True)),
        ("isinstance(x, Sequence)", on_view("isinstance(x, kind)", True, kind=Abstract), Target(not_slower=True)),
    ]
    return [Case(f"ConstantList: {label}", "ConstantList", make, target) for label, make, target in rows]


def _iteration_cases() -> list[Case]:
    def details(n: int, shuffled: bool) -> Callable[[Any], Side]:
        # An eighth of the requests is new, another eighth still in chunked prefill.
        ids = [f"req-{i}" for i in range(n)]
        new = ids[n - n // 8 :]
        cached = ids[: n - n // 8]
        outputs = [0 if i < n // 8 else 1 + i % 50 for i in range(len(cached))]
        counts = {req_id: 1 + 30 * (i < n // 8) for i, req_id in enumerate(cached)} | dict.fromkeys(new, 61)
        context = set(new) | set(cached[: n // 8])
        if shuffled:
            counts = dict(random.Random(0).sample(sorted(counts.items()), n))
        context_tokens = sum(tokens for req_id, tokens in counts.items() if req_id in context)
        newcomers = [NewRequestData(req_id) for req_id in new]
        total = sum(counts.values())
        expected = (len(context), context_tokens, n - len(context), total - context_tokens)

        def fresh(times: int) -> Sequence[SchedulerOutput]:
            return [SchedulerOutput(newcomers, CachedRequestData(cached, outputs), counts, total) for _ in range(times)]

        def make(helpers: Any) -> Side:
            count = helpers.compute_iteration_details

            def outcome() -> tuple[int, ...]:
                result = count(fresh(1)[0])
                return tuple(getattr(result, name) for name in COUNTS)

            return Side(Loop("count(item)", each="item", items=fresh, count=count), outcome, expected)

        return make

    sizes = [(1, 5), (8, 9), (64, 18), (256, 22), (1024, 22)]
    name = "compute_iteration_details"
    rows = [Case(f"{name}: N={n}", name, details(n, False), Target(ratio)) for n, ratio in sizes]
    rows += [Case(f"{name}: N={n}, another order", name, details(n, True), Target(7)) for n in (64, 256)]
    return rows


def _scope_cases() -> list[Case]:
    def scope(helpers: Any) -> Side:
        enter = helpers.record_function_or_nullcontext

        def outcome() -> Any:
            with enter("schedule: allocate_slots") as entered:
                return entered

        return Side(Loop('with enter("x"): pass', enter=enter), outcome, "schedule: allocate_slots")

    name = "record_function_or_nullcontext"
    return [Case(f'with {name}("x")', name, scope, Target(5), note="scopes off")]


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, writable."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _size(count: int) -> str:
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def _builds(count: int) -> int:
    """How many builds of tensors of `count` bytes may lie in memory together: a GiB of them, four in each."""
    return max(1, (1 << 30) // (4 * count))


def _slice_cases() -> list[Case]:
    def plain(count: int) -> Callable[[Any], Side]:
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

    cases = []
    for count in (4, 64, 1 << 10, 4 << 10):
        for mode, label in ((contextlib.nullcontext, "grad mode"), (torch.inference_mode, "inference mode")):
            name = f"copy_slice: {_size(count)}, {label}"
            cases.append(Case(name, "copy_slice", plain(count), Target(6.5), mode=mode))
    for count in (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20):
        name = f"copy_slice: {_size(count)}"
        target, parallel, builds = Target(0.95), count > 64 << 10, _builds(count)
        cases.append(Case(name, "copy_slice", plain(count), target, torch.inference_mode, parallel, builds))
    return cases + _fallback_cases()


def _fallback_cases() -> list[Case]:
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
    return [Case(f"copy_slice: {label}", "copy_slice", pair(build), target, torch.no_grad) for label, build in rows]


def _buffer_cases() -> list[Case]:
    def make_buffer(helpers: Any, size: int, dtype: torch.dtype = torch.int32) -> Any:
        return helpers.CpuGpuBuffer(size, dtype=dtype, device=torch.device("cpu"), pin_memory=False)

    def copied(buffer: Any, n: int | None, call: Callable[[], Any]) -> bool:
        """Whether `call` brings the first `n` rows (None: all) of fresh contents over and leaves the rest alone."""
        size = buffer.cpu.shape[0]
        rows = size if n is None else len(range(size)[:n])
        buffer.cpu.copy_(torch.arange(3, size + 3, dtype=buffer.cpu.dtype))
        buffer.gpu.fill_(-1)
        call()
        expected = torch.arange(3, size + 3, dtype=buffer.gpu.dtype)
        expected[rows:] = -1
        return torch.equal(buffer.gpu, expected)

    def single(statement: str, size: int, n: int | None) -> Callable[[Any], Side]:
        def make(helpers: Any) -> Side:
            buffer = make_buffer(helpers, size)

            def call() -> Any:
                return buffer.copy_to_gpu() if n is None else buffer.copy_to_gpu(n)

            def outcome() -> tuple[bool, bool, tuple[int, ...]]:
                right = copied(buffer, n, call)
                result = call()
                return right, result.data_ptr() == buffer.gpu.data_ptr(), tuple(result.shape)

            return Side(Loop(statement, buffer=buffer, n=n), outcome, (True, True, (size if n is None else n,)))

        return make

    def to_cpu(helpers: Any) -> Side:
        buffer = make_buffer(helpers, 256)

        def outcome() -> tuple[list[int], int]:
            buffer.gpu.copy_(torch.arange(256, dtype=torch.int32))
            buffer.cpu.zero_()
            buffer.copy_to_cpu(48)
            return buffer.cpu[:48].tolist(), int(buffer.cpu[48:].sum())

        return Side(Loop("buffer.copy_to_cpu(n)", buffer=buffer, n=48), outcome, (list(range(48)), 0))

    def shared(helpers: Any) -> Side:
        buffer = make_buffer(helpers, 256)
        buffer.gpu = buffer.cpu

        def outcome() -> tuple[list[int], bool]:
            buffer.cpu.copy_(torch.arange(256, dtype=torch.int32))
            return buffer.cpu.tolist(), buffer.copy_to_gpu() is buffer.cpu

        return Side(Loop("buffer.copy_to_gpu()", buffer=buffer), outcome, (list(range(256)), True))

    sizes = [64 << (i % 8) for i in range(16)]

    def sixteen(ns: list[int]) -> Callable[[Any], Side]:
        def make(helpers: Any) -> Side:
            buffers = [make_buffer(helpers, size) for size in sizes]
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

            return Side(loop, outcome, [True] * 16)

        return make

    name, held, dropped = "CpuGpuBuffer", "kept = buffer.copy_to_gpu(n)", "buffer.copy_to_gpu(n)"
    inference = torch.inference_mode
    cases = []
    for mode, label in ((contextlib.nullcontext, "grad mode"), (inference, "inference mode")):
        fresh, again = f"fresh view, {label}", f"re-used view, {label}"
        cases += [
            Case(f"copy_to_gpu(n): 48 of 256, {fresh}", name, single(held, 256, 48), Target(6.5), mode),
            Case(f"copy_to_gpu(n): 48 of 256, {again}", name, single(dropped, 256, 48), Target(25), mode),
            Case(f"copy_to_gpu(): 1 KB, {label}", name, single("buffer.copy_to_gpu()", 256, None), Target(9), mode),
        ]
    for count in (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20):
        rows, parallel = count // 4, count > 64 << 10
        target = Target(6.5) if count <= 4 << 10 else Target(0.95)
        case = f"copy_to_gpu(n): {_size(count)}, fresh view"
        made = single(held, rows + 1, rows)
        cases.append(Case(case, name, made, target, inference, parallel, _builds(count)))
    cases += [
        Case("copy_to_cpu(n): 48 of 256", name, to_cpu, None, inference),
        Case("copy_to_gpu(): .gpu is .cpu", name, shared, None, inference),
    ]
    for label, ns, ratio in (
        ("n=48 each", [48] * 16, 40.0),
        ("half full", [size // 2 for size in sizes], 16.0),
        ("full", sizes, 10.0),
    ):
        case = f"copy_to_gpu_many: 16 buffers of 64-8192 ints, {label}"
        cases.append(Case(case, "copy_to_gpu_many", sixteen(ns), Target(ratio), inference, note="16 calls in one"))
    return cases


def _data_cases() -> list[Case]:
    def data(build: Callable[[], torch.Tensor]) -> Callable[[Any], Side]:
        def make(helpers: Any) -> Side:
            tensor = build()
            read = helpers.tensor_data
            expected = _bytes(tensor.contiguous()).tobytes()
            return Side(Loop("read(tensor)", read=read, tensor=tensor), lambda: bytes(read(tensor)), expected)

        return make

    def floats(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=torch.Generator().manual_seed(0))

    rows: list[tuple[str, Callable[[], torch.Tensor], float, bool, int]] = [
        ("1 KB, contiguous", lambda: floats(256), 18, False, 99),
        ("1 KB bfloat16, contiguous", lambda: floats(512).bfloat16(), 18, False, 99),
        ("64 MB, contiguous", lambda: floats(16 << 20), 18, False, _builds(64 << 20)),
        ("1 KB, not contiguous", lambda: floats(16, 16).T, 2.5, False, 99),
        ("4 KB, every other", lambda: floats(2048)[::2], 2.5, False, 99),
        ("1 MB, not contiguous", lambda: floats(512, 512).T, 0.95, True, 99),
    ]
    return [
        Case(f"tensor_data: {label}", "tensor_data", data(build), Target(ratio), torch.inference_mode, parallel, builds)
        for label, build, ratio, parallel, builds in rows
    ]


def cases() -> list[Case]:
    """Every case, in the order of the report."""
    return [
        *_view_cases(),
        *_iteration_cases(),
        *_scope_cases(),
        *_slice_cases(),
        *_buffer_cases(),
        *_data_cases(),
    ]
