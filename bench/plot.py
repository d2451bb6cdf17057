"""Draws a run as SVG: all ratios with their intervals, and for each scaling family the cost per item.

Written out by hand, so that nothing has to be installed. The drawings have no background; their colours change with the
reader's light or dark scheme, and can be read on both where a viewer does not ask for it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench import results

DOCS = Path(__file__).resolve().parents[1] / "docs"

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #768390 }
  text.ours, text.upstream { stroke: none }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #8c959f; stroke-opacity: .35; stroke-width: 1 }
  .one { stroke: #8c959f; stroke-width: 1.5 }
  .ours { stroke: #0969da; fill: #0969da }
  .loss { stroke: #bc4c00; fill: #bc4c00 }
  .upstream { stroke: #8250df; fill: #8250df }
  .upstream.line, .ours.line { fill: none; stroke-width: 2 }
  .interval { stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #9da7b3 }
    .ours { stroke: #58a6ff; fill: #58a6ff }
    .loss { stroke: #f0883e; fill: #f0883e }
    .upstream { stroke: #bc8cff; fill: #bc8cff }
    text.ours, text.upstream { stroke: none }
  }
"""

Entry = dict[str, Any]


def _document(width: int, height: int, title: str, body: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<text class="title" x="12" y="22">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, anchor: str = "start", cls: str = "") -> str:
    attributes = f' class="{cls}"' if cls else ""
    return f'<text{attributes} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, cls: str) -> str:
    return f'<line class="{cls}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


class Log:
    """A logarithmic axis from `low` to `high`, drawn between `start` and `end`."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high if high > low else low * 2
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, steps: Sequence[float] = (1, 2, 5)) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        found = [value for value in every if self.low <= value <= self.high]
        return found if len(found) < 12 or len(steps) == 1 else self.ticks((1,))


def ratios(entries: Sequence[Entry], title: str) -> str:
    """One row for each case: a dot at the ratio, a bar for its interval, on a logarithmic axis with a line at 1."""
    entries = [entry for entry in entries if not entry["error"]]
    left, right, row, top = 430, 60, 19, 56
    width, height = 900, top + row * len(entries) + 34
    if not entries:
        return _document(width, 60, title, [_text(12, 44, "nothing was measured")])
    low = min(0.8, *(entry["low"] for entry in entries))
    axis = Log(max(low, 0.05), max(1.25, *(entry["high"] for entry in entries)) * 1.05, left, width - right)
    bottom = top + row * len(entries)
    body = []
    for tick in axis.ticks():
        body.append(_line(axis(tick), top - 10, axis(tick), bottom, "one" if tick == 1 else "grid"))
        body.append(_text(axis(tick), bottom + 16, f"{tick:g}x", "middle"))
    for index, entry in enumerate(entries):
        y = top + row * index + 4
        cls = "loss" if entry["high"] < 1 else "ours"
        star = " *" if entry["star"] else ""
        body.append(_text(left - 10, y + 4, entry["id"] + star, "end"))
        body.append(_line(axis(entry["low"]), y, axis(entry["high"]), y, f"{cls} interval"))
        body.append(f'<circle class="{cls}" cx="{axis(entry["ratio"]):.1f}" cy="{y:.1f}" r="4"/>')
        body.append(_text(axis(entry["high"]) + 8, y + 4, f"{entry['ratio']:.3g}x"))
    body.append(_text(12, 40, "times as fast as upstream's form, with 95 % interval; right of 1 is faster"))
    return _document(width, height, title, body)


def family(entries: Sequence[Entry]) -> str:
    """The cost per item of both sides against the size, both axes logarithmic."""
    entries = [entry for entry in entries if not entry["error"] and min(entry["upstream_ns"], entry["ours_ns"]) > 0]
    facts = entries[0]["family"]
    width, height, left, right, top, bottom = 640, 360, 70, 120, 56, 310
    values = {
        side: [(entry["family"]["at"], entry[key] / entry["family"]["items"]) for entry in entries]
        for side, key in (("upstream", "upstream_ns"), ("ours", "ours_ns"))
    }
    costs = [cost for points in values.values() for _, cost in points]
    xs = [entry["family"]["at"] for entry in entries]
    across = Log(min(xs), max(xs), left, width - right)
    up = Log(min(costs) / 1.3, max(costs) * 1.3, bottom, top)
    body = []
    for tick in up.ticks():
        body.append(_line(left, up(tick), width - right, up(tick), "grid"))
        body.append(_text(left - 8, up(tick) + 4, _ns(tick), "end"))
    labelled = xs if len(xs) <= 7 else xs[::2]
    for at in labelled:
        body.append(_line(across(at), bottom, across(at), bottom + 5, "one"))
        body.append(_text(across(at), bottom + 20, _at(at, facts["axis"]), "middle"))
    for side, points in values.items():
        path = " ".join(f"{across(at):.1f},{up(cost):.1f}" for at, cost in points)
        body.append(f'<polyline class="{side} line" points="{path}"/>')
        body += [f'<circle class="{side}" cx="{across(at):.1f}" cy="{up(cost):.1f}" r="3.5"/>' for at, cost in points]
        name = "fastutils" if side == "ours" else "upstream's form"
        body.append(_text(width - right + 10, up(points[-1][1]) + (12 if side == "ours" else -4), name, cls=side))
    body.append(_text(12, 40, f"time per {facts['unit']}"))
    body.append(_text((left + width - right) / 2, bottom + 40, facts["axis"], "middle"))
    return _document(width, height, facts["name"], body)


def _ns(value: float) -> str:
    for unit, name in ((1e6, "ms"), (1e3, "µs")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g} ns"


def _at(value: int, axis: str) -> str:
    if "bytes" in axis:
        for shift, name in ((20, "MB"), (10, "KB")):
            if value >= 1 << shift:
                return f"{value >> shift} {name}"
        return f"{value} B"
    return str(value)


def file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + ".svg"


def drawings(document: dict[str, Any]) -> dict[str, str]:
    """File name -> SVG: one of all the helpers' cases, one for each scaling family."""
    found = {}
    settled = [entry for entry in document["cases"] if not (entry["parallel"] and document["unsettled"])]
    helpers = [entry for entry in settled if entry["group"] == "helpers"]
    if helpers:
        found["helpers.svg"] = ratios(helpers, "fastutils against upstream's form, call by call")
    families: dict[str, list[Entry]] = {}
    for entry in settled:
        if entry["family"]:
            families.setdefault(entry["family"]["name"], []).append(entry)
    for name, entries in families.items():
        if sum(not entry["error"] and min(entry["upstream_ns"], entry["ours_ns"]) > 0 for entry in entries) > 1:
            found[file_name(name)] = family(entries)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Draw a run. Exit status 0, or 2 if the file cannot be understood."""
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description=__doc__.splitlines()[0])
    parser.add_argument("result", help="a JSON file of python -m bench.micro")
    parser.add_argument("--out", default=str(DOCS), metavar="FOLDER", help="where the SVG files go (default: docs/)")
    chosen = parser.parse_args(arguments)
    try:
        found = drawings(results.read(chosen.result))
    except results.Unreadable as error:
        print(error, file=sys.stderr)
        return 2
    folder = Path(chosen.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in found.items():
        (folder / name).write_text(drawing, encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
