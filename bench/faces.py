"""Makes pytest-benchmark tests of the table of cases: what the test_*.py beside this file consist of.

For those who know pytest-benchmark: ``pytest bench/``, ``--benchmark-compare``, ``--benchmark-histogram``. Its times
include the call of a function around the statement, on both sides alike, and the two sides do not run in turn; on a
machine that others use they err by far more than paired runs do. Verdicts come from ``python -m bench.micro``.
"""

from __future__ import annotations

import builtins
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import fastutils
from bench import upstream
from bench.cases import cases
from bench.cases.model import Case
from bench.paired import Loop

SIDES = {"upstream": upstream, "fastutils": fastutils}

#: Large copies: a round of them takes too long for the many that pytest-benchmark makes.
LARGE = ("1 MB", "4 MB", "16 MB", "64 MB")


def call_of(loop: Loop, case: Case) -> Callable[[], None]:
    """The statement of `loop` as a function without arguments. A fresh item for each call has to be made in it."""
    if loop.items(1) == [None]:
        namespace: dict[str, Any] = {"__builtins__": builtins, **loop.names}
        exec("def call():\n" + textwrap.indent(loop.statement, "    "), namespace)
        return namespace["call"]  # type: ignore[no-any-return]

    def call() -> None:
        loop.run(loop.items(1))

    return call


def of(*helpers: str) -> Callable[..., None]:
    """A test for each case of `helpers` and each side; it fails if the side gives a wrong result."""
    chosen = [
        case
        for case in cases()
        if case.group == "helpers" and case.helper in helpers and not any(size in case.id for size in LARGE)
    ]

    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("case", chosen, ids=lambda case: case.id)
    def test(case: Case, side: str, benchmark: Any) -> None:
        benchmark.group = case.id
        made = case.make(SIDES[side])
        with case.mode():
            assert made.outcome() == made.expected
            benchmark(call_of(made.loop, case))
            assert made.outcome() == made.expected

    found: Callable[..., None] = test
    return found
