"""What earlier runs found: one file of JSON lines per machine and interpreter in history/, one line per run.

Run as a program it prints how a case's ratio went from commit to commit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import results, table

FOLDER = Path(__file__).with_name("history")


def line(document: dict[str, Any], when: datetime.datetime) -> dict[str, Any]:
    """The part of a run's document that is kept: environment, floor, and per case both times, ratio and interval."""
    return {
        "date": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "environment": document["environment"],
        "noise_floor": document["noise_floor"],
        "cases": {
            entry["id"]: [round(entry[key], 4) for key in ("upstream_ns", "ours_ns", "ratio", "low", "high")]
            for entry in document["cases"]
            if not entry["error"]
        },
    }


def add(document: dict[str, Any], folder: Path | None = None) -> Path:
    """Add the run to the file of its machine; returns that file."""
    folder = folder or FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{results.machine_name(document['environment'])}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line(document, datetime.datetime.now(datetime.timezone.utc))) + "\n")
    return path


def runs(path: Path) -> Iterator[dict[str, Any]]:
    """The runs in one file, the oldest first."""
    with path.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, start=1):
            try:
                found = json.loads(text)
                assert isinstance(found["cases"], dict)
            except (ValueError, KeyError, AssertionError, TypeError) as error:
                raise results.Unreadable(f"{path.name}, line {number}: {type(error).__name__}: {error}") from error
            yield found


def render(found: list[dict[str, Any]], text: str) -> str:
    """Ratio per case and run, for the cases that contain `text`; the runs from left to right."""
    names = [
        name for name in dict.fromkeys(name for run in found for name in run["cases"]) if text.lower() in name.lower()
    ]
    titles = ["case", *(run["environment"]["commit"].split()[0] for run in found)]
    rows = [
        [name, *(f"{run['cases'][name][2]:.2f}x" if name in run["cases"] else "" for run in found)] for name in names
    ]
    return table.render(titles, rows)


def main(arguments: list[str] | None = None, folder: Path | None = None) -> int:
    """Print the recorded ratios. Exit status 0, or 1 where nothing is recorded."""
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__.splitlines()[0])
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases whose id contains TEXT")
    parser.add_argument("--last", type=int, default=8, metavar="N", help="only the N newest runs (default 8)")
    chosen = parser.parse_args(arguments)
    files = sorted((folder or FOLDER).glob("*.jsonl"))
    for path in files:
        print(f"{path.stem}\n\n{render(list(runs(path))[-chosen.last :], chosen.k)}\n")
    if not files:
        print("no run is recorded: python -m bench.micro --record adds one", file=sys.stderr)
    return int(not files)


if __name__ == "__main__":
    sys.exit(main())
