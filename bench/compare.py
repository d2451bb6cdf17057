"""Compares two runs: what became slower or takes more instructions between them.

Takes two files of ``python -m bench.micro --json`` (or two of ``bench.instructions --json``). What is compared is the
ratio to upstream's form, not the time: that ran beside ours both times, so the machines need not be equally fast.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import gate, results, table

#: A case is worse if its ratio fell by more than this and the interval of the change excludes none at all.
TOLERANCE = 0.03


@dataclass(frozen=True)
class Change:
    """How the ratio of one case moved: at 0.9 fastutils lost a tenth of what it gained. With a 95 % interval."""

    case: str
    before: float
    after: float
    change: float
    low: float
    high: float
    ours_before: float
    ours_after: float

    @property
    def worse(self) -> bool:
        return self.high < 1 and self.change < 1 - TOLERANCE

    @property
    def better(self) -> bool:
        return self.low > 1 and self.change > 1 + TOLERANCE


def change(before: dict[str, Any], after: dict[str, Any]) -> Change:
    """Of two entries of one case. The runs are independent, so the squares of their half-widths (in log) add up."""

    def half(entry: dict[str, Any]) -> float:
        return (math.log(entry["high"]) - math.log(max(entry["low"], 1e-9))) / 2

    middle = math.log(after["ratio"]) - math.log(before["ratio"])
    spread = math.hypot(half(before), half(after))
    return Change(
        after["id"],
        before["ratio"],
        after["ratio"],
        math.exp(middle),
        math.exp(middle - spread),
        math.exp(middle + spread),
        before["ours_ns"],
        after["ours_ns"],
    )


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """Of the cases that have a number in both documents."""
    known = {entry["id"]: entry for entry in before["cases"] if not entry["error"]}
    return [change(known[e["id"]], e) for e in after["cases"] if not e["error"] and e["id"] in known]


def render(found: Sequence[Change], markdown: bool = False) -> str:
    rows = [
        [
            each.case,
            f"{each.before:.2f}x",
            f"{each.after:.2f}x",
            table.number(each.ours_before),
            table.number(each.ours_after),
            f"{each.change:.3f}",
            f"[{each.low:.3f}, {each.high:.3f}]",
            "worse" if each.worse else "better" if each.better else "",
        ]
        for each in found
    ]
    titles = ["case", "ratio was", "is", "ours ns was", "is", "change", "95 % interval", ""]
    return (table.markdown if markdown else table.render)(titles, rows)


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is different about the two runs, apart from load and commit."""
    one, two = before["environment"], after["environment"]
    return [
        f"{name}: {one.get(name)} -> {two.get(name)}"
        for name in one
        if name not in ("load", "commit", "forms") and one.get(name) != two.get(name)
    ]


def _instructions(path: str) -> dict[str, Any] | None:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise results.Unreadable(f"{path} cannot be read: {error}") from error
    return found if isinstance(found, dict) and isinstance(found.get("cases"), dict) else None


def main(arguments: list[str] | None = None) -> int:
    """Print what changed. Exit status 1 if something became worse, 2 if a file cannot be understood."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("before", help="the JSON file of the earlier run")
    parser.add_argument("after", help="the JSON file of the later run")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--all", action="store_true", help="print every case, not only those that changed")
    chosen = parser.parse_args(arguments)
    try:
        counted = _instructions(chosen.before), _instructions(chosen.after)
        if all(counted):
            text, passed = gate.report(counted[0], counted[1], Path(chosen.before))  # type: ignore[arg-type]
            print(text)
            return int(not passed)
        before, after = results.read(chosen.before), results.read(chosen.after)
    except results.Unreadable as error:
        print(error, file=sys.stderr)
        return 2
    found = changes(before, after)
    worse = [each for each in found if each.worse]
    shown = found if chosen.all else [each for each in found if each.worse or each.better]
    if shown:
        print(render(shown, chosen.markdown) + "\n")
    for line in differing(before, after):
        print(f"not the same in both runs: {line}")
    for document, path in ((before, chosen.before), (after, chosen.after)):
        if not document["verdicts"]:
            print(f"{path} was measured on a machine too restless for verdicts")
    gone = {entry["id"] for entry in before["cases"]} - {entry["id"] for entry in after["cases"]}
    if gone:
        print(f"not measured in the later run: {', '.join(sorted(gone))}")
    newly = [e for e in after["cases"] if e["correct"] is False]
    if newly:
        print(f"INCORRECT in the later run: {', '.join(entry['id'] for entry in newly)}")
    print(f"{len(found)} cases compared: {len(worse)} worse, {sum(each.better for each in found)} better.")
    return int(bool(worse or newly))


if __name__ == "__main__":
    sys.exit(main())
