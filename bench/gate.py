"""Compares the instructions of every case with those that are committed for this interpreter.

Exit status 1 if a case of fastutils' takes more of them than it did. Times play no part: they depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import callgrind, instructions, table

FOLDER = Path(__file__).with_name("baselines")

#: A case may take so much more, and so many instructions more (short cases move by single ones), and pass.
TOLERANCE = 0.01
SLACK = 3.0


@dataclass(frozen=True)
class Change:
    """How one case moved since the baseline was made."""

    case: str
    before: dict[str, Any]
    after: dict[str, Any]

    def _moved(self, side: str) -> float:
        return float(self.after[side]) / max(float(self.before[side]), 1.0) - 1

    @property
    def rise(self) -> float:
        """How much more fastutils' side takes: 0.02 is 2 %."""
        return self._moved("fastutils")

    @property
    def excess(self) -> float:
        """The rise beyond that of upstream's form: what the surroundings add to both sides is nobody's regression."""
        return self.rise - max(self._moved("upstream"), 0.0)

    @property
    def failed(self) -> bool:
        more = self.after["fastutils"] - self.before["fastutils"]
        return more > SLACK and self.rise > TOLERANCE and self.excess > TOLERANCE

    @property
    def control_moved(self) -> bool:
        """Whether upstream's form, which no change of fastutils touches, moved too: then the surroundings changed."""
        return (
            abs(self._moved("upstream")) > TOLERANCE and abs(self.after["upstream"] - self.before["upstream"]) > SLACK
        )

    def why(self) -> str:
        """The functions whose own instructions changed most, of those that are kept."""
        before, after = self.before["functions"], self.after["functions"]
        moved = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *after}}
        largest = sorted((name for name in moved if abs(moved[name]) >= 1), key=lambda name: -abs(moved[name]))[:3]
        return ", ".join(f"{moved[name]:+,.0f} {name[:60]}" for name in largest)


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """The changes of the cases that both documents have."""
    return [
        Change(name, before["cases"][name], after["cases"][name]) for name in after["cases"] if name in before["cases"]
    ]


def surroundings(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is different around the code: torch, compiler, libraries."""
    one, two = before["environment"], after["environment"]
    return [f"{name}: {one.get(name)} -> {two.get(name)}" for name in {**one, **two} if one.get(name) != two.get(name)]


def report(before: dict[str, Any], after: dict[str, Any], path: Path) -> tuple[str, bool]:
    """What to print, and whether the gate is passed."""
    changes = compare(before, after)
    failed = [change for change in changes if change.failed]
    noted = [change for change in changes if change.failed or abs(change.rise) > TOLERANCE]
    parts = []
    if noted:
        rows = [
            [
                change.case,
                f"{change.before['fastutils']:,.0f}",
                f"{change.after['fastutils']:,.0f}",
                f"{change.rise:+.1%}",
                f"{change._moved('upstream'):+.1%}",
                "FAILED" if change.failed else "",
                change.why(),
            ]
            for change in sorted(noted, key=lambda change: -change.rise)
        ]
        titles = ["case", "was", "is", "change", "upstream's form", "", "what moved (instructions per call)"]
        parts.append(table.render(titles, rows))
    known, now = set(before["cases"]), set(after["cases"])
    if missing := sorted(known - now):
        parts.append("No longer counted: " + ", ".join(missing))
    if new := sorted(now - known):
        parts.append("Not in the baseline, so not compared: " + ", ".join(new))
    if different := surroundings(before, after):
        parts.append("The surroundings are not those of the baseline:\n  " + "\n  ".join(different))
    if failed:
        if any(change.control_moved for change in failed):
            parts.append(
                "Upstream's form moved too, and no change of fastutils' touches that: look at the surroundings first."
            )
        parts.append(
            f"GATE FAILED: {len(failed)} of {len(changes)} cases take over {TOLERANCE:.0%} more instructions than "
            f"{path.name} says.\nIf that is meant (or the surroundings changed), refresh it with: make bench-baseline\n"
            "and say why in the commit. python -m bench.instructions -k TEXT --functions shows where they go."
        )
    else:
        parts.append(
            f"Gate passed: none of {len(changes)} cases takes over {TOLERANCE:.0%} more than {path.name} says."
        )
    return "\n\n".join(parts), not failed


def main(arguments: list[str] | None = None, folder: Path | None = None) -> int:
    """Count and compare. Exit status 0, 1 if a case takes more, 2 where it cannot be counted.

    Where no baseline is committed for this interpreter there is nothing to compare with: that is said, and passes.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__.splitlines()[0])
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases whose id contains TEXT")
    parser.add_argument("--update", action="store_true", help="write the baseline of this interpreter instead")
    chosen = parser.parse_args(arguments)
    if chosen.update and chosen.k:
        parser.error("a baseline holds every case: --update goes without -k")
    path = (folder or FOLDER) / f"{instructions.interpreter()}.json"
    if not chosen.update and not path.is_file():
        print(
            f"No baseline is committed for this interpreter ({path.name}), so there is nothing to compare with.\n"
            "make bench-baseline writes one."
        )
        return 0
    try:
        found = instructions.count(chosen.k)
        after = {"environment": instructions.facts(), "cases": instructions.as_json(found)}
    except callgrind.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    except (callgrind.Failed, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.update:
        path.parent.mkdir(exist_ok=True)
        if path.is_file():
            print(report(json.loads(path.read_text(encoding="utf-8")), after, path)[0] + "\n")
        path.write_text(json.dumps(after, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")
        return 0
    before = json.loads(path.read_text(encoding="utf-8"))
    if chosen.k:
        before["cases"] = {name: counts for name, counts in before["cases"].items() if chosen.k.lower() in name.lower()}
    text, passed = report(before, after, path)
    print(text)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
