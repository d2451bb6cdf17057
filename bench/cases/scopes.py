"""record_function_or_nullcontext."""

from __future__ import annotations

from typing import Any

from bench.cases.model import Case, Side, Target
from bench.paired import Loop


def scope(enter: Any, yields: bool = True) -> Side:
    """``with enter(name): pass``. Upstream's no-op yields the name; what does not (`yields`) is compared with that."""

    def outcome() -> Any:
        with enter("schedule: allocate_slots") as entered:
            return entered if yields else "schedule: allocate_slots"

    return Side(Loop('with enter("x"): pass', enter=enter), outcome, "schedule: allocate_slots")


def cases() -> list[Case]:
    name = "record_function_or_nullcontext"
    made = lambda helpers: scope(helpers.record_function_or_nullcontext)  # noqa: E731
    return [Case(f'with {name}("x")', name, made, Target(5), note="scopes off")]
