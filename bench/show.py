"""Tables of a run's document (results.py), for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import table

Entry = dict[str, Any]
Draw = Callable[[Sequence[str], Sequence[Sequence[str]], int], str]


@dataclass(frozen=True)
class Table:
    """A table and the notes below it."""

    text: str
    notes: list[str]

    def __str__(self) -> str:
        return "\n".join([self.text, *self.notes])


HEADINGS = {
    "helpers": "The helpers, each by itself",
    "peers": "Peers: what else does a part of the job (ratio above 1: fastutils is faster)",
    "scaling": "Scaling",
    "cold": "With cold caches: one call at a time, the caches emptied before each",
}


def cases(entries: Iterable[Entry], draw: Draw = table.render, verdicts: bool = True, unsettled: str = "") -> Table:
    """The table of some cases. One without a verdict shows why instead of numbers; the notes explain stars and signs.

    `unsettled`: why the numbers of parallel cases mean nothing, if they do not.
    """
    entries = list(entries)
    peers = any(entry["peer"] for entry in entries)
    titles = ["case", "target", "other ns" if peers else "upstream ns", "fastutils ns", "saved ns", "ratio"]
    titles += ["95 % interval", "target met"]
    stars: dict[str, int] = {}
    rows = []
    for entry in entries:
        label = entry["id"] + (f" ({entry['note']})" if entry["note"] else "") + (" =" if entry["same_path"] else "")
        if entry["star"]:
            label += f" *{stars.setdefault(entry['star'], len(stars) + 1)}"
        target = entry["target"] or ""
        if entry["error"]:
            rows.append([label, target, "-", "-", "-", "-", "-", entry["error"]])
            continue
        bound = "" if entry["resolved"] else ">"
        times = [table.number(entry[key]) for key in ("upstream_ns", "ours_ns", "difference_ns")]
        met = "" if not verdicts else "no verdict" if entry["parallel"] and unsettled else entry["met"] or ""
        ratio = f"{bound}{entry['ratio']:.2f}x"
        rows.append([label, target, *times, ratio, table.interval(entry["low"], entry["high"]), met])
    used = [i for i in range(len(titles)) if i not in (1, 7) or any(row[i] for row in rows)]
    text = draw([titles[i] for i in used], [[row[i] for i in used] for row in rows], 2 if 1 in used else 1)
    notes = [f"*{number} {reason}" for reason, number in stars.items()]
    if verdicts and unsettled and any(entry["parallel"] for entry in entries):
        notes.append(f"no verdict: {unsettled}")
    if any(entry["same_path"] for entry in entries):
        notes.append("= both sides end in the same code of PyTorch's or CPython's: 1 is all there is to reach")
    return Table(text, notes)


def first(entries: Iterable[Entry], draw: Draw = table.render) -> str:
    """The costs of a fresh process."""
    rows = [
        [
            entry["id"],
            table.number(entry["upstream_ns"] / 1e3),
            table.number(entry["ours_ns"] / 1e3),
            f"{entry['ratio']:.2f}x",
            table.interval(entry["low"], entry["high"]),
        ]
        for entry in entries
    ]
    return draw(["in a fresh process", "upstream µs", "fastutils µs", "ratio", "95 % interval"], rows, 1)


def memory(entries: Iterable[Entry], draw: Draw = table.render) -> str:
    """Bytes per object."""

    def cells(found: dict[str, float | None]) -> list[str]:
        native = found["native"]
        return [f"{found['python']:,.0f}", "?" if native is None else f"{native:,.0f}"]

    rows = [[entry["id"], *cells(entry["upstream"]), *cells(entry["ours"])] for entry in entries]
    titles = ["bytes per object", "upstream, Python", "C/C++", "fastutils, Python", "C/C++"]
    return draw(titles, rows, 1)


def sections(document: dict[str, Any], draw: Draw = table.render) -> list[tuple[str, Table]]:
    """Every table that the document has rows for, each with its heading."""
    found = []
    for group, heading in HEADINGS.items():
        if chosen := [entry for entry in document["cases"] if entry["group"] == group]:
            found.append((heading, cases(chosen, draw, document["verdicts"], document["unsettled"])))
    if document["first"]:
        found.append(("First calls", Table(first(document["first"], draw), [])))
    if document["memory"]:
        found.append(("Memory", Table(memory(document["memory"], draw), [])))
    return found
