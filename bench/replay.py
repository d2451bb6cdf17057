"""Turns a recorded step into work for both sides: what to call with what, and how to tell that it was right."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.paired import Incorrect, Loop
from bench.recording import Step, TraceError

#: How long the token lists are: the traces say which operations ran, not how long the lists were.
TOKENS = 256

#: The fields of the result that the traces recorded.
COUNTS = ("num_ctx_requests", "num_ctx_tokens", "num_generation_requests", "num_generation_tokens")

#: Public name -> its rows in the table. Operations of ConstantList are listed in OPERATIONS.
HELPERS = (
    "record_function_or_nullcontext",
    "ConstantList",
    "compute_iteration_details",
    "CpuGpuBuffer",
    "copy_slice",
    "tensor_data",
)


#: A buffer of a trace: its dtype, its shape, and the how manieth of these in its step it is.
Key = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True)
class Work:
    """One row of the table in one step: `calls` calls, as a loop for each side over the same inputs.

    `check` runs both sides once and raises Incorrect if one of them is wrong. `mode` is the context to time in.
    """

    row: str
    helper: str
    calls: int
    upstream: Loop
    ours: Loop
    check: Callable[[], None]
    mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


@dataclass(frozen=True)
class _Operation:
    """An operation on a view: the timed `statement` on ``item``, and a function of view and list that must agree."""

    label: str
    statement: str
    of_view: Callable[[Any, Any], Any]
    of_list: Callable[[list[int]], Any]


def _same(statement: str, label: str, function: Callable[[Any], Any]) -> _Operation:
    return _Operation(label, statement, lambda view, _: function(view), function)


def _operation(name: str) -> _Operation:
    """The operation that a trace calls `name`. Which item it was is not recorded: here it is the newest token."""
    kind, _, detail = name.partition(":")
    if kind == "getitem_slice" and detail.isdigit() and int(detail) <= TOKENS:
        start = TOKENS - int(detail)
        return _same(f"item[{start}:{TOKENS}]", f"x[a:a+{detail}]", lambda x: x[start:TOKENS])
    operations = {
        "getitem_int": _same("item[-1]", "x[-1]", lambda x: x[-1]),
        "__init__": _Operation("ConstantList(x)", "make(item)", lambda _, made: id(made._x), id),
        "__len__": _same("len(item)", "len(x)", len),
        "__iter__": _same("for _ in item: pass", "for _ in x", list),
        "__reversed__": _same("for _ in reversed(item): pass", "for _ in reversed(x)", lambda x: list(reversed(x))),
        "__contains__": _same("last in item", "value in x", lambda x: TOKENS - 1 in x),
        "index": _same("item.index(last)", "x.index(value)", lambda x: x.index(TOKENS - 1)),
        "count": _same("item.count(last)", "x.count(value)", lambda x: x.count(TOKENS - 1)),
        "copy": _same("item.copy()", "x.copy()", lambda x: x.copy()),
    }
    try:
        return operations[kind]
    except KeyError:
        raise TraceError(f"no way to replay the list operation {name!r}; known: {', '.join(operations)}") from None


class Replay:
    """Both sides of one trace, with the state that lives longer than a step: token lists, buffers, tensors.

    `upstream` and `ours` are anything that has the helpers as attributes. `wanted` tells which helpers take part.
    Device tensors are CPU tensors of their own, so that the benchmark runs anywhere: a copy is a memcpy.
    """

    def __init__(self, upstream: Any, ours: Any, wanted: Sequence[str] = HELPERS) -> None:
        self.sides = (upstream, ours)
        self.wanted = set(wanted)
        self._tokens: dict[str, list[int]] = {}
        self._views: dict[str, tuple[Any, Any]] = {}
        self._buffers: dict[Key, tuple[Any, Any]] = {}
        self._last_n: dict[Key, int | None] = {}
        self._pairs: dict[Key, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._random = np.random.default_rng(0)

    def works(self, step: Step) -> Iterator[Work]:
        """The step's work, row by row."""
        makers = {
            "record_function_or_nullcontext": self._scopes,
            "ConstantList": self._lists,
            "compute_iteration_details": self._details,
            "CpuGpuBuffer": self._buffer_copies,
            "copy_slice": self._slice_copies,
            "tensor_data": self._tensor_bytes,
        }
        for helper, make in makers.items():
            if helper in self.wanted:
                yield from make(step)

    def _scopes(self, step: Step) -> Iterator[Work]:
        names = [name for name, times in step.scopes.items() for _ in range(times)]
        if not names:
            return
        enter = [side.record_function_or_nullcontext for side in self.sides]

        def check() -> None:
            for who, function in zip(WHO, enter, strict=True):
                for name in step.scopes:
                    with function(name) as entered:
                        _expect(step, f"{who}: the scope {name!r} yields", entered, name)

        statement = "with scope(item): pass"
        loops = [Loop(statement, each="item", items=_repeated(names), scope=function) for function in enter]
        yield Work("with record_function_or_nullcontext(name)", HELPERS[0], len(names), loops[0], loops[1], check)

    def _lists(self, step: Step) -> Iterator[Work]:
        make = [side.ConstantList for side in self.sides]
        for name, times in step.list_ops.items():
            operation = _operation(name)
            requests = list(itertools.islice(itertools.cycle(step.requests), times))
            lists = [self._list(req_id) for req_id in requests]
            views = [self._view(req_id) for req_id in requests]

            def check(operation: _Operation = operation, requests: list[str] = requests) -> None:
                for req_id in requests[: len(step.requests)]:
                    expected = operation.of_list(self._list(req_id))
                    for who, maker, view in zip(WHO, make, self._view(req_id), strict=True):
                        found = operation.of_view(view, maker(self._list(req_id)))
                        _expect(step, f"{who}: {operation.label} gives", found, expected)

            given = [lists if name == "__init__" else [view[side] for view in views] for side in range(2)]
            loops = [
                Loop(operation.statement, each="item", items=_repeated(given[side]), make=make[side], last=TOKENS - 1)
                for side in range(2)
            ]
            row = operation.label if name == "__init__" else f"ConstantList: {operation.label}"
            yield Work(row, "ConstantList", times, loops[0], loops[1], check)

    def _list(self, req_id: str) -> list[int]:
        if req_id not in self._tokens:
            self._tokens[req_id] = self._random.permutation(TOKENS).tolist()
        return self._tokens[req_id]

    def _view(self, req_id: str) -> tuple[Any, Any]:
        if req_id not in self._views:
            tokens = self._list(req_id)
            self._views[req_id] = (self.sides[0].ConstantList(tokens), self.sides[1].ConstantList(tokens))
        return self._views[req_id]

    def _details(self, step: Step) -> Iterator[Work]:
        count = [side.compute_iteration_details for side in self.sides]

        def check() -> None:
            for who, function, output in zip(WHO, count, step.scheduler_outputs(2), strict=True):
                result = function(output)
                found = tuple(getattr(result, name) for name in COUNTS)
                _expect(step, f"{who}: compute_iteration_details gives", found, step.iteration_details)

        loops = [Loop("count(item)", each="item", items=step.scheduler_outputs, count=function) for function in count]
        yield Work("compute_iteration_details", "compute_iteration_details", 1, loops[0], loops[1], check)

    def _buffer_copies(self, step: Step) -> Iterator[Work]:
        calls: list[tuple[tuple[Any, Any], int | None, int | None]] = []
        for key, n in buffer_calls(step):
            before = self._last_n.get(key)
            calls.append((self._buffer(key), n, n if before is None else before))
            self._last_n[key] = n
        for row, statement, chosen in (
            ("CpuGpuBuffer.copy_to_gpu(n)", "buffer.copy_to_gpu(n)", [call for call in calls if call[1] is not None]),
            ("CpuGpuBuffer.copy_to_gpu()", "buffer.copy_to_gpu()", [call for call in calls if call[1] is None]),
        ):
            if not chosen:
                continue

            def check(chosen: list[Any] = chosen) -> None:
                for pair, n, _ in chosen:
                    for who, buffer in zip(WHO, pair, strict=True):
                        what = f"{who}: copy_to_gpu({n}) of {buffer.cpu.dtype}{list(buffer.cpu.shape)}"
                        call = functools.partial(buffer.copy_to_gpu, n)
                        result = self._copied(step, what, buffer.cpu, buffer.gpu, n, call)
                        if n is None and result is not buffer.gpu:
                            raise Incorrect(f"{step}: {what} does not return the buffer's own device tensor")

            loops = [
                Loop(
                    statement,
                    each="buffer, n",
                    # In turn with the step before: where the engine's row count changed, it changes from call to call.
                    items=alternating(
                        [(pair[side], n) for pair, n, _ in chosen], [(pair[side], before) for pair, _, before in chosen]
                    ),
                )
                for side in range(2)
            ]
            yield Work(row, "CpuGpuBuffer", len(chosen), loops[0], loops[1], check, torch.inference_mode)

    def _buffer(self, key: Key) -> tuple[Any, Any]:
        if key not in self._buffers:
            self._buffers[key] = (make_buffer(self.sides[0], key), make_buffer(self.sides[1], key))
        return self._buffers[key]

    def _slice_copies(self, step: Step) -> Iterator[Work]:
        if not step.copy_slice:
            return
        calls: list[tuple[list[tuple[torch.Tensor, torch.Tensor]], int]] = []
        seen: dict[tuple[str, tuple[int, ...]], int] = {}
        for dtype, shape, length in step.copy_slice:
            ordinal = seen[dtype, shape] = seen.get((dtype, shape), -1) + 1
            key = (dtype, shape, ordinal)
            if key not in self._pairs:
                zeros = [torch.zeros(shape, dtype=_dtype(dtype)) for _ in range(4)]
                self._pairs[key] = [(zeros[0], zeros[1]), (zeros[2], zeros[3])]
            calls.append((self._pairs[key], length))
        copy = [side.copy_slice for side in self.sides]

        def check() -> None:
            for tensors, length in calls:
                for who, function, (source, target) in zip(WHO, copy, tensors, strict=True):
                    what = f"{who}: copy_slice of {length} rows of {source.dtype}{list(source.shape)}"
                    call = functools.partial(function, source, target, length)
                    self._copied(step, what, source, target, length, call)

        loops = [
            Loop(
                "copy(source, target, n)",
                each="source, target, n",
                items=_repeated([(*tensors[side], length) for tensors, length in calls]),
                copy=copy[side],
            )
            for side in range(2)
        ]
        yield Work("copy_slice", "copy_slice", len(calls), loops[0], loops[1], check, torch.inference_mode)

    def _copied(
        self, step: Step, what: str, source: torch.Tensor, target: torch.Tensor, n: int | None, call: Callable[[], Any]
    ) -> torch.Tensor:
        """Fill `source` afresh, clear `target`, `call`, and compare bytes: copied rows, rows left alone, the result."""
        # Random bytes, but only 0 and 1: whatever the dtype, a bool included, these are values it can hold.
        sent = self._random.integers(0, 2, _bytes(source).shape, dtype=np.uint8)
        _bytes(source)[:] = sent
        _bytes(target)[:] = 0xA5 if target.dtype != torch.bool else 0
        untouched = _bytes(target).copy()
        result: torch.Tensor = call()
        rows = source.shape[0] if n is None else len(range(source.shape[0])[:n])
        cut = sent.size // max(1, source.shape[0]) * rows
        expected = np.concatenate([sent[:cut], untouched[cut:]])
        if not np.array_equal(_bytes(target), expected):
            wrong = int(np.flatnonzero(_bytes(target) != expected)[0])
            raise Incorrect(
                f"{step}: {what}: byte {wrong} of the destination is wrong ({cut} bytes should have arrived)"
            )
        if (result.data_ptr(), result.shape) != (target.data_ptr(), target[:rows].shape):
            raise Incorrect(f"{step}: {what}: the result is not the first {rows} rows of the destination")
        return result

    def _tensor_bytes(self, step: Step) -> Iterator[Work]:
        if not step.tensor_data:
            return
        tensors = [self._tensor(*call) for call in step.tensor_data]
        data = [side.tensor_data for side in self.sides]

        def check() -> None:
            for tensor in tensors:
                expected = _bytes(tensor.contiguous()).tobytes()
                for who, function in zip(WHO, data, strict=True):
                    what = f"{who}: tensor_data of {tensor.dtype}{list(tensor.shape)} gives the tensor's bytes:"
                    _expect(step, what, bytes(function(tensor)) == expected, True)

        loops = [Loop("data(tensor)", each="tensor", items=_repeated(tensors), data=function) for function in data]
        yield Work("tensor_data", "tensor_data", len(tensors), loops[0], loops[1], check, torch.inference_mode)

    def _tensor(self, dtype: str, shape: tuple[int, ...], contiguous: bool) -> torch.Tensor:
        tensor = torch.zeros(shape if contiguous else (*shape[:-1], 2 * shape[-1]), dtype=_dtype(dtype))
        _bytes(tensor)[:] = self._random.integers(0, 2, _bytes(tensor).shape, dtype=np.uint8)
        return tensor if contiguous else tensor[..., ::2]


WHO = ("upstream's form", "fastutils")


def buffer_calls(step: Step) -> list[tuple[Key, int | None]]:
    """The step's copy_to_gpu(n). Buffers of one dtype and shape in one step are different ones, and live on."""
    seen: dict[tuple[str, tuple[int, ...]], int] = {}
    calls = []
    for dtype, shape, n in step.copy_to_gpu:
        ordinal = seen[dtype, shape] = seen.get((dtype, shape), -1) + 1
        calls.append(((dtype, shape, ordinal), n))
    return calls


def make_buffer(helpers: Any, key: Key) -> Any:
    """The buffer `key`, both its tensors on the CPU."""
    dtype, shape, _ = key
    kind, device = _dtype(dtype), torch.device("cpu")
    return helpers.CpuGpuBuffer(*shape, dtype=kind, device=device, pin_memory=False, with_numpy=kind != torch.bfloat16)


def _expect(step: Step, what: str, found: Any, expected: Any) -> None:
    if type(found) is not type(expected) or found != expected:
        raise Incorrect(f"{step}: {what} {found!r:.200}, expected {expected!r:.200}")


def _repeated(items: Sequence[Any]) -> Callable[[int], Sequence[Any]]:
    kept = list(items)
    return lambda count: kept * count


def alternating(these: list[Any], those: list[Any]) -> Callable[[int], Sequence[Any]]:
    return lambda count: (these + those) * (count // 2) + these * (count % 2)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TraceError(f"torch has no dtype {name!r}")
    return dtype


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, writable."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
