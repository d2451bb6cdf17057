"""Tables in plain text and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def render(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns as wide as their widest cell; the first `left` of them to the left, the rest to the right."""
    _check(titles, rows)
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(titles), line(["-" * width for width in widths]), *map(line, rows)])


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The same as a Markdown table. Stars and bars are shown, not read as markup."""
    _check(titles, rows)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"

    rule = "|" + "|".join("---" if i < left else "---:" for i in range(len(titles))) + "|"
    return "\n".join([line(titles), rule, *map(line, rows)]) + "\n"


def _check(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        if len(row) != len(titles):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(titles)} columns: {row!r}")


def number(value: float) -> str:
    """A time with three significant digits or none behind the point, whichever is longer."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def interval(low: float, high: float) -> str:
    return f"[{low:.2f}, {high:.2f}]"
