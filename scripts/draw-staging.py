"""Draws docs/staging.svg: host writes and device copies on one time line, unstaged and staged.

    python scripts/draw-staging.py [FILE]

Written out by hand, as the drawings of the measurements are (`bench/plot.py`): the same bytes on every run, no
background, and colours that change with the reader's light or dark scheme.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "docs" / "staging.svg"

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #768390 }
  .title { font-size: 14px; font-weight: 600 }
  .in { text-anchor: middle; fill: #ffffff }
  .busy.in { fill: #768390 }
  .lane { stroke: #8c959f; stroke-opacity: .35 }
  .arrow { stroke: #8c959f; fill: none; stroke-width: 1.5 }
  rect.one { fill: #0969da }
  rect.two { fill: #8250df }
  rect.three { fill: #1a7f37 }
  rect.wrong { fill: #bc4c00 }
  text.wrong.note { fill: #bc4c00 }
  rect.busy { fill: #8c959f; fill-opacity: .25 }
  rect.held { fill: none; stroke-width: 1.5; stroke-dasharray: 4 3 }
  rect.held.one { stroke: #0969da }
  rect.held.two { stroke: #8250df }
  rect.held.three { stroke: #1a7f37 }
  .event { stroke: #1a7f37; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text, .busy.in { fill: #9da7b3 }
    .in { fill: #ffffff }
    text.wrong.note { fill: #f0883e }
  }
"""

WIDTH, LEFT, UNIT = 860, 140, 7.0
LANE, BAR = 34, 22


@dataclass(frozen=True)
class Bar:
    """Something that goes on in a lane from `start` to `end`."""

    lane: int
    start: float
    end: float
    text: str
    cls: str


@dataclass(frozen=True)
class Event:
    """The moment at which the stream has come to an event."""

    lane: int
    at: float


@dataclass(frozen=True)
class Arrow:
    """From `start` in one lane to `end` in another."""

    from_lane: int
    start: float
    to_lane: int
    end: float


@dataclass(frozen=True)
class Panel:
    title: str
    lanes: tuple[str, ...]
    things: tuple[Bar | Event | Arrow, ...]  #: drawn in this order
    note: str
    note_cls: str = ""


UNSTAGED = Panel(
    "Unstaged: a copy reads .cpu when the stream gets to it",
    (".np, on the host", "the stream"),
    (
        Bar(1, 0, 40, "an earlier step's kernels", "busy"),
        Bar(0, 2, 16, "step 1", "one"),
        Bar(0, 22, 36, "step 2", "two"),
        Bar(1, 40, 52, "copies step 2", "wrong"),
        Bar(1, 52, 70, "kernels of step 1", "wrong"),
        Bar(1, 70, 82, "copies step 2", "two"),
        Bar(1, 82, 100, "kernels of step 2", "busy"),
        Arrow(0, 17, 1, 40),
        Arrow(0, 37, 1, 70),
    ),
    "The arrows begin where copy_to_gpu() returned. When the first copy runs, step 1's numbers are gone, and it "
    "computes with step 2's.",
    "wrong note",
)

STAGED = Panel(
    "Staged: a copy reads a slot, and a slot is used again when its event is reached",
    (".np, on the host", "slot A", "slot B", "the stream"),
    (
        Bar(3, 0, 40, "an earlier step's kernels", "busy"),
        Bar(0, 2, 16, "step 1", "one"),
        Bar(1, 16.5, 52, "snapshot of step 1", "held one"),
        Bar(0, 22, 36, "step 2", "two"),
        Bar(2, 36.5, 82, "snapshot of step 2", "held two"),
        Bar(0, 46, 60, "step 3", "three"),
        Bar(1, 60.5, 100, "snapshot of step 3", "held three"),
        Bar(3, 40, 52, "copies 1", "one"),
        Bar(3, 52, 70, "kernels of step 1", "busy"),
        Bar(3, 70, 82, "copies 2", "two"),
        Bar(3, 82, 100, "kernels of step 2", "busy"),
        Arrow(1, 40, 3, 40),
        Arrow(2, 70, 3, 70),
        Event(3, 52),
        Event(3, 82),
    ),
    "copy_to_gpu(), flush() or the step's end took the snapshot. Slot A is free at the first event (green), and step 3 "
    "takes it.",
)


def _x(time: float) -> float:
    return LEFT + time * UNIT


def _drawn(panel: Panel, top: float) -> Iterator[str]:
    def y(lane: int) -> float:
        return top + 22 + lane * LANE

    yield f'<text class="title" x="12" y="{top + 6:g}">{escape(panel.title)}</text>'
    for lane, name in enumerate(panel.lanes):
        base = y(lane) + BAR
        yield f'<text x="12" y="{base - 7:g}">{escape(name)}</text>'
        yield f'<line class="lane" x1="{LEFT:g}" y1="{base:g}" x2="{_x(100):g}" y2="{base:g}"/>'
    for thing in panel.things:
        if isinstance(thing, Bar):
            left, width = _x(thing.start), (thing.end - thing.start) * UNIT
            high = y(thing.lane)
            yield f'<rect class="{thing.cls}" x="{left:g}" y="{high:g}" width="{width:g}" height="{BAR}" rx="2"/>'
            inside = "in busy" if thing.cls.startswith(("held", "busy")) else "in"
            yield f'<text class="{inside}" x="{left + width / 2:g}" y="{high + 15:g}">{escape(thing.text)}</text>'
        elif isinstance(thing, Event):
            x, high = _x(thing.at), y(thing.lane)
            yield f'<line class="event" x1="{x:g}" y1="{high - 5:g}" x2="{x:g}" y2="{high + BAR + 5:g}"/>'
        else:
            start, end = y(thing.from_lane) + BAR, y(thing.to_lane)
            yield (
                f'<path class="arrow" d="M{_x(thing.start):g} {start:g}L{_x(thing.end):g} {end:g}"'
                ' marker-end="url(#tip)"/>'
            )
    note = y(len(panel.lanes)) + 6
    cls = f' class="{panel.note_cls}"' if panel.note_cls else ""
    yield f'<text{cls} x="12" y="{note:g}">{escape(panel.note)}</text>'


def draw() -> str:
    """The drawing, as text."""
    body, top = [], 18.0
    for panel in (UNSTAGED, STAGED):
        body += _drawn(panel, top)
        top += 22 + LANE * len(panel.lanes) + 40
    title = "Host writes and device copies, unstaged and staged; time runs to the right"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:g}" width="{WIDTH}" height="{top:g}" '
            'role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#8c959f"/></marker></defs>',
            *body,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET).write_text(draw(), encoding="utf-8")
