"""Shows the committed results of tests/gpu/run.sh: what the copies cost on machines that have a GPU.

A result is its ``copies.json``, committed as ``results/gpu-NAME.json``: facts of the machine and, per size and state of
the queue, the host's ns per call for each form (``median_ns``). Where the device's own time was taken (``device_ns``),
it is shown apart: the two overlap, and adding them up would mean nothing. ``staging.json``, committed as
``results/staging-NAME.json``, is of the same form: a row is a step that uploads several buffers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench import table
from bench.results import Unreadable
from bench.show import Draw

FOLDER = Path(__file__).with_name("results")
NOTHING = (
    "No result of a GPU is committed: tests/gpu/run.sh makes one, and it belongs into bench/results/gpu-NAME.json."
)


#: What times a row may have, and what they are.
KEYS = {
    "median_ns": "Host time in ns per {}:",
    "arrived_ns": "Host time in ns until everything has arrived:",
    "device_ns": "Device time in ns per {}:",
}


def load(folder: Path | None = None, kind: str = "gpu") -> list[dict[str, Any]]:
    """The committed results of the `kind` "gpu" or "staging", by file name. Unreadable names the file that is none."""
    found = []
    for path in sorted((folder or FOLDER).glob(f"{kind}-*.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            for row in result["rows"]:
                row["bytes"], row["queue"], row["median_ns"]
            str(result["machine"]["gpu"])
            if result.get("stand_in"):
                raise ValueError("it was made over the stand-in runtime, without a GPU")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unreadable(
                f"{path.name} is no result of tests/gpu/run.sh: {type(error).__name__}: {error}"
            ) from error
        found.append(result)
    return found


def machine(result: dict[str, Any]) -> str:
    """One line about the machine."""
    facts = result["machine"]
    known = [
        str(facts["gpu"]),
        *(
            f"{name} {facts[key]}"
            for key, name in (("torch", "torch"), ("cuda", "CUDA"), ("python", "Python"))
            if facts.get(key)
        ),
        *([str(facts["processor"])] if facts.get("processor") else []),
    ]
    return ", ".join(known)


def times(result: dict[str, Any], key: str, draw: Draw = table.render) -> str:
    """One table: `key` is one of KEYS."""
    rows = [row for row in result["rows"] if row.get(key)]
    names = list(dict.fromkeys(name for row in rows for name in row[key]))
    cells = [[_label(row), *(table.number(row[key][n]) if n in row[key] else "" for n in names)] for row in rows]
    return draw(["copy, device's queue", *names], cells, 1)


def _label(row: dict[str, Any]) -> str:
    several = f"{row['buffers']} x " if "buffers" in row else ""
    fill = f"{row['fill']}, " if "fill" in row else ""
    return f"{several}{row['bytes']:,} B, {fill}{row['queue']}"


def render(found: list[dict[str, Any]], draw: Draw = table.render) -> str:
    """Every result, or the line that says that there is none."""
    parts = []
    for result in found:
        parts.append(machine(result))
        of = "step" if any("buffers" in row for row in result["rows"]) else "call"
        for key, heading in KEYS.items():
            if any(row.get(key) for row in result["rows"]):
                parts.append(heading.format("copy" if (key, of) == ("device_ns", "call") else of))
                parts.append(times(result, key, draw).rstrip())
        if not any(row.get("device_ns") for row in result["rows"]):
            parts.append("Device time was not taken.")
    return "\n\n".join(parts) or NOTHING


def main(folder: Path | None = None) -> int:
    """Print the committed results. Exit status 0, or 2 if a file cannot be understood."""
    try:
        print(render(load(folder)))
        if staged := load(folder, "staging"):
            print(f"\nGroups of buffers, uploaded together:\n\n{render(staged)}")
    except Unreadable as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
