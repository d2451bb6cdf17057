"""Other ways to do a part of the job. None does all of it: every row says what is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.cases import buffers, scopes, views
from bench.cases.data import floats, read_by
from bench.cases.model import Case, Peer, Side, bytes_of
from bench.cases.views import DEEP, TOKENS
from bench.paired import Loop


def cases() -> list[Case]:
    return [*_view_cases(), *_scope_cases(), *_copy_cases(), *_data_cases()]


def _frozen() -> Any:
    from frozenlist import FrozenList

    made = FrozenList(TOKENS)
    made.freeze()
    return made


def _persistent() -> Any:
    from pyrsistent import pvector

    return pvector(TOKENS)


def _view_cases() -> list[Case]:
    copies = "holds a copy of the items, so it does not see later changes of the list"
    containers: list[tuple[str, Callable[[], Any], str]] = [
        ("list", lambda: list(TOKENS), "anyone who holds it can change it"),
        ("tuple", lambda: tuple(TOKENS), copies),
        ("frozenlist", _frozen, copies),
        ("pyrsistent.pvector", _persistent, copies),
    ]
    operations: list[tuple[str, Any, dict[str, Any]]] = [
        ("x[5]", 1005, {}),
        ("x[-1]", 1299, {}),
        ("len(x)", 300, {}),
        ("value in x", True, {"value": DEEP}),
        ("x[16:32]", TOKENS[16:32], {}),
    ]
    rows = []
    for name, build, star in containers:
        for statement, expected, names in operations:

            def peer(
                build: Callable[[], Any] = build,
                statement: str = statement,
                expected: Any = expected,
                names: dict[str, Any] = names,
            ) -> Side:
                like: Callable[[Any], Any] = list if isinstance(expected, list) else lambda found: found
                return views.on(build(), statement, expected, like, **names)

            def ours(
                helpers: Any, statement: str = statement, expected: Any = expected, names: dict[str, Any] = names
            ) -> Side:
                return views.on(helpers.ConstantList(TOKENS), statement, expected, **names)

            case = f"peer {name}: {statement}"
            rows.append(Case(case, "ConstantList", ours, group="peers", star=star, peer=Peer(name, peer)))

    def making(name: str, make: Callable[[list[int]], Any]) -> Side:
        def outcome() -> bool:
            return bool(make(TOKENS)[299] == 1299)

        return Side(Loop("make(tokens)", make=make, tokens=TOKENS), outcome, True)

    def frozen() -> Side:
        from frozenlist import FrozenList

        return making("frozenlist", FrozenList)

    def persistent() -> Side:
        from pyrsistent import pvector

        return making("pyrsistent", pvector)

    makers = [
        ("list", lambda: making("list", list)),
        ("tuple", lambda: making("tuple", tuple)),
        ("frozenlist", frozen),
        ("pyrsistent.pvector", persistent),
    ]
    star = "copies all items; a view copies none"
    for name, made in makers:
        case = f"peer {name}: made from a list"
        ours_made = lambda helpers: making("", helpers.ConstantList)  # noqa: E731
        rows.append(Case(case, "ConstantList", ours_made, group="peers", star=star, peer=Peer(name, made)))
    return rows


def _scope_cases() -> list[Case]:
    def nvtx_scope() -> Side:
        import nvtx

        return scopes.scope(nvtx.annotate, yields=False)

    def ours(helpers: Any) -> Side:
        return scopes.scope(helpers.record_function_or_nullcontext)

    on = "it is on: it records, or asks whether anybody records; ours is off"
    name = "record_function_or_nullcontext"
    return [
        Case(
            f"peer {label}: with scope",
            name,
            ours,
            group="peers",
            star=star,
            peer=Peer(label, made),
        )
        for label, made, star in (
            (
                "contextlib.nullcontext",
                lambda: scopes.scope(contextlib.nullcontext),
                "always off: it asks for no switch",
            ),
            ("torch.autograd.profiler.record_function", lambda: scopes.scope(_record_function(), yields=False), on),
            ("nvtx.annotate", nvtx_scope, on + ", and no tool is attached"),
        )
    ]


def _record_function() -> Any:
    return torch.autograd.profiler.record_function


def _copy_cases() -> list[Case]:
    rows = 48

    def pair() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)

    def side(loop: Loop, source: torch.Tensor, target: torch.Tensor, call: Callable[[], Any]) -> Side:
        def outcome() -> tuple[bool, int]:
            source.copy_(torch.arange(7, 263, dtype=torch.int32))
            target.fill_(-1)
            call()
            arrived = torch.equal(target[:rows], torch.arange(7, rows + 7, dtype=torch.int32))
            return arrived, int(target[rows])

        return Side(loop, outcome, (True, -1))

    def ours(helpers: Any) -> Side:
        source, target = pair()
        copy = helpers.copy_slice
        loop = Loop("copy(source, target, n)", copy=copy, source=source, target=target, n=rows)
        return side(loop, source, target, lambda: copy(source, target, rows))

    def copy_() -> Side:
        source, target = pair()
        one, two = source[:rows], target[:rows]
        loop = Loop("b.copy_(a, True)", a=one, b=two)
        return side(loop, source, target, lambda: two.copy_(one, non_blocking=True))

    def assigned() -> Side:
        source, target = pair()
        one, two = source.numpy(), target.numpy()

        def call() -> None:
            two[:rows] = one[:rows]

        return side(Loop("b[:n] = a[:n]", a=one, b=two, n=rows), source, target, call)

    def copyto() -> Side:
        source, target = pair()
        one, two = source.numpy()[:rows], target.numpy()[:rows]
        return side(Loop("copy(b, a)", copy=np.copyto, a=one, b=two), source, target, lambda: np.copyto(two, one))

    numpy_star = "CPU memory only; PyTorch does not hear of the write (autograd, version counter); gives no tensor"
    name, inference = "copy_slice", torch.inference_mode
    found = [
        Case(f"peer {label}", name, ours, mode=inference, group="peers", star=star, peer=Peer(label, made))
        for label, made, star in (
            ("torch copy_: 192 B", copy_, "both views were made beforehand and none is made"),
            ("numpy assignment: 192 B", assigned, numpy_star),
            ("numpy.copyto: 192 B", copyto, numpy_star + "; both views were made beforehand"),
        )
    ]
    sizes, ns = [256] * 16, [48] * 16

    def foreach() -> Side:
        from bench import upstream

        made = [buffers.make_buffer(upstream, 256) for _ in sizes]
        sources, targets = [b.cpu[:48] for b in made], [b.gpu[:48] for b in made]
        copy = torch._foreach_copy_

        def outcome() -> list[bool]:
            return [buffers.copied(b, 48, lambda: copy(targets, sources, non_blocking=True)) for b in made]

        loop = Loop("copy(targets, sources, True)", copy=copy, targets=targets, sources=sources)
        return Side(loop, outcome, [True] * 16)

    star = "all 32 views were made beforehand"
    case = "peer torch._foreach_copy_: 16 buffers, n=48"
    peer = Peer("torch._foreach_copy_", foreach)
    ours_many = buffers.several(sizes, ns)
    found.append(Case(case, "copy_to_gpu_many", ours_many, None, inference, group="peers", star=star, peer=peer))
    return found


def _data_cases() -> list[Case]:
    def exported() -> Side:
        tensor = floats(256)
        expected = bytes_of(tensor).tobytes()
        return Side(Loop("memoryview(tensor.numpy())", tensor=tensor), lambda: tensor.numpy().data.tobytes(), expected)

    def copied() -> Side:
        tensor = floats(256)
        expected = bytes_of(tensor).tobytes()
        return Side(Loop("tensor.numpy().tobytes()", tensor=tensor), lambda: tensor.numpy().tobytes(), expected)

    ours = read_by(lambda: floats(256))
    return [
        Case(f"peer {label}: 1 KB", "tensor_data", ours, group="peers", star=star, peer=Peer(label, made))
        for label, made, star in (
            (
                "memoryview(tensor.numpy())",
                exported,
                "contiguous CPU tensors of dtypes that NumPy has; not a view of bytes",
            ),
            ("tensor.numpy().tobytes()", copied, "copies; CPU tensors of dtypes that NumPy has"),
        )
    ]
