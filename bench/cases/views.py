"""ConstantList."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.cases.model import Case, Side, Target
from bench.paired import Loop

#: Above the interpreter's small ints, so that equal ones need not be identical.
TOKENS = list(range(1000, 1300))
DEEP = int("1256")  # equal to the 257th token and not the same object


def on(x: Any, statement: str, expected: Any, like: Callable[[Any], Any] = lambda found: found, **names: Any) -> Side:
    """`statement` on anything called ``x``; `like` makes of the result what is expected."""
    given = {"x": x, **names}
    return Side(Loop(statement, **given), lambda: like(eval(statement, dict(given))), expected)


def iteration(x: Any) -> Side:
    """Every item of ``x``."""
    return Side(Loop("for _ in x: pass", x=x), lambda: [token for token in x], TOKENS)  # noqa: C416


def cases() -> list[Case]:
    def on_view(statement: str, expected: Any, **names: Any) -> Callable[[Any], Side]:
        return lambda helpers: on(helpers.ConstantList(TOKENS), statement, expected, **names)

    def construction(helpers: Any) -> Side:
        make = helpers.ConstantList
        return Side(Loop("make(tokens)", make=make, tokens=TOKENS), lambda: make(TOKENS)._x is TOKENS, True)

    rows: list[tuple[str, Callable[[Any], Side], Target | None, bool]] = [
        ("x[5]", on_view("x[5]", 1005), Target(4), False),
        ("x[-1]", on_view("x[-1]", 1299), Target(4.5), False),
        ("len(x)", on_view("len(x)", 300), Target(3.2), False),
        ("value in x, first", on_view("value in x", True, value=TOKENS[0]), Target(4.5), False),
        ("value in x, 256 deep", on_view("value in x", True, value=DEEP), Target(3), False),
        ("value in x, absent", on_view("value in x", False, value=-7), None, False),
        ("x.index(value), 256 deep", on_view("x.index(value)", 256, value=DEEP), Target(3), False),
        ("x.count(value)", on_view("x.count(value)", 1, value=DEEP), None, False),
        ("ConstantList(x)", construction, Target(3), False),
        ("x[16:32]", on_view("x[16:32]", TOKENS[16:32]), Target(1.6), False),
        ("x[16:144]", on_view("x[16:144]", TOKENS[16:144]), Target(not_slower=True), False),
        ("list(x)", on_view("list(x)", TOKENS), Target(not_slower=True), False),
        ("for _ in x", lambda helpers: iteration(helpers.ConstantList(TOKENS)), Target(not_slower=True), True),
        ("x.copy()", on_view("x.copy()", TOKENS), Target(not_slower=True), False),
        ("isinstance(x, Sequence)", on_view("isinstance(x, kind)", True, kind=Sequence), Target(not_slower=True), True),
    ]
    return [
        Case(f"ConstantList: {label}", "ConstantList", make, target, same_path=path)
        for label, make, target, path in rows
    ]
