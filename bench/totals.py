"""Adds up what a replay measured: per helper, per trace, per step, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.paired import Rounds

RESAMPLES = 500


@dataclass
class Row:
    """One helper over all the steps of one trace: per step its calls and, per round, ns per *step* on both sides."""

    helper: str
    steps: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    upstream: list[list[float]] = field(default_factory=list)
    ours: list[list[float]] = field(default_factory=list)

    def add(self, step: int, calls: int, rounds: Rounds) -> None:
        self.steps.append(step)
        self.calls.append(calls)
        self.upstream.append([time * calls for time in rounds.upstream])
        self.ours.append([time * calls for time in rounds.ours])


@dataclass
class Staged:
    """The buffer copies of the steps of one trace, a whole step being one call: by step(), against upstream's, and by
    flush(), against fastutils' one by one."""

    copies: int = 0
    flushes: int = 0
    step: Row = field(default_factory=lambda: Row("StagingGroup"))
    flush: Row = field(default_factory=lambda: Row("StagingGroup"))


@dataclass
class Recorded:
    """What was measured of one trace."""

    trace: str
    rows: dict[str, Row] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)  #: step index -> requests scheduled in it
    staged: Staged = field(default_factory=Staged)
    complete: bool = False


@dataclass(frozen=True)
class Total:
    """Time of some rows over some steps, in ns, with bootstrap resamples of it."""

    calls: int
    upstream: float
    ours: float
    upstream_resampled: np.ndarray
    ours_resampled: np.ndarray

    def __add__(self, other: Total) -> Total:
        return Total(
            self.calls + other.calls,
            self.upstream + other.upstream,
            self.ours + other.ours,
            self.upstream_resampled + other.upstream_resampled,
            self.ours_resampled + other.ours_resampled,
        )

    @property
    def ratio(self) -> float:
        return float(over(self.upstream, self.ours))

    @property
    def interval(self) -> tuple[float, float]:
        return _interval(self.ratio, over(self.upstream_resampled, self.ours_resampled))


@dataclass(frozen=True)
class StagedTotal:
    """The buffer copies of some steps, made four ways, in ns: `step` is step() against upstream's form, `flush` is
    flush() against fastutils' copies one by one."""

    steps: int
    copies: int
    flushes: int
    step: Total
    flush: Total

    def __add__(self, other: StagedTotal) -> StagedTotal:
        return StagedTotal(
            self.steps + other.steps,
            self.copies + other.copies,
            self.flushes + other.flushes,
            self.step + other.step,
            self.flush + other.flush,
        )

    def times(self) -> dict[str, float]:
        """ns per step."""
        found = {
            "before": self.step.upstream,
            "after": self.flush.upstream,
            "step": self.step.ours,
            "flush": self.flush.ours,
        }
        return {way: time / self.steps for way, time in found.items()}

    def against_before(self) -> dict[str, tuple[float, float, float]]:
        """How many times faster than upstream's form each other way is, with the interval. Only step() is paired."""
        before, found = self.step, {}
        for way, time, resampled in (
            ("after", self.flush.upstream, self.flush.upstream_resampled),
            ("step", self.step.ours, self.step.ours_resampled),
            ("flush", self.flush.ours, self.flush.ours_resampled),
        ):
            ratio = float(over(before.upstream, time))
            found[way] = (ratio, *_interval(ratio, over(before.upstream_resampled, resampled)))
        return found


def _interval(ratio: float, resampled: Any) -> tuple[float, float]:
    # Few skewed rounds resampled have a median that is a little too high: only the spread of it is used.
    low, middle, high = np.percentile(resampled, [2.5, 50, 97.5])
    return float(ratio * low / middle), float(ratio * high / middle)


def over(before: Any, after: Any) -> Any:
    """A ratio of times; below a picosecond they are noise around nothing."""
    return np.maximum(before, 1e-3) / np.maximum(after, 1e-3)


def share(part: float, whole: float) -> float:
    """What `part` is of `whole`; a short run's noise may make a row's time negative, and the shares still sum to 1."""
    return part / whole if whole else 0.0


NOTHING = Total(0, 0.0, 0.0, np.zeros(RESAMPLES), np.zeros(RESAMPLES))


def total(row: Row) -> Total:
    """The sum over the steps of the median over the rounds.

    For the interval the rounds of each step are drawn anew, both sides together: the steps are given, what varies is
    the timing.
    """
    before, after = np.asarray(row.upstream), np.asarray(row.ours)
    steps, rounds = before.shape
    rng = np.random.default_rng(0)
    resampled = np.empty((2, RESAMPLES))
    for i in range(RESAMPLES):
        drawn = rng.integers(rounds, size=(steps, rounds))
        for side, times in enumerate((before, after)):
            resampled[side, i] = np.median(np.take_along_axis(times, drawn, axis=1), axis=1).sum()
    sums = [float(np.median(times, axis=1).sum()) for times in (before, after)]
    return Total(sum(row.calls), sums[0], sums[1], resampled[0], resampled[1])


@dataclass
class Summary:
    """Totals per row and per trace, and the single steps."""

    rows: dict[str, Total]
    helpers: dict[str, str]  #: row -> public name
    traces: dict[str, Total]
    steps: dict[str, list[dict[str, float]]]
    complete: bool
    staged: dict[str, StagedTotal] = field(default_factory=dict)  #: by trace; empty where nothing was staged

    @property
    def everything(self) -> Total:
        return sum(self.traces.values(), NOTHING)

    @property
    def step_count(self) -> int:
        return sum(map(len, self.steps.values()))


def summarise(results: list[Recorded]) -> Summary:
    """Add up what was measured. Traces without a single finished step are left out."""
    summary = Summary({}, {}, {}, {}, all(result.complete for result in results))
    for result in results:
        if not result.requests:
            continue
        per_step = {index: np.zeros(2) for index in result.requests}
        summary.traces[result.trace] = NOTHING
        for name, row in result.rows.items():
            added = total(row)
            summary.rows[name] = summary.rows.get(name, NOTHING) + added
            summary.helpers[name] = row.helper
            summary.traces[result.trace] += added
            for index, before, after in zip(row.steps, row.upstream, row.ours, strict=True):
                per_step[index] += np.median(before), np.median(after)
        if (found := result.staged).copies:
            summary.staged[result.trace] = StagedTotal(
                len(found.step.steps), found.copies, found.flushes, total(found.step), total(found.flush)
            )
        summary.steps[result.trace] = [
            {"step": index, "requests": result.requests[index], "before_us": b / 1e3, "after_us": a / 1e3}
            for index, (b, a) in per_step.items()
        ]
    return summary


def as_json(summary: Summary) -> dict[str, Any]:
    def figures(value: Total, per: int) -> dict[str, Any]:
        low, high = value.interval
        before, after = value.upstream / per, value.ours / per
        return {
            "upstream_ns": before,
            "ours_ns": after,
            "difference_ns": before - after,
            "ratio": float(value.ratio),
            "low": low,
            "high": high,
        }

    def staged(value: StagedTotal) -> dict[str, Any]:
        return {
            "steps": value.steps,
            "copies_per_step": value.copies / value.steps,
            "flushes_per_step": value.flushes / value.steps,
            **{f"{way}_ns": time for way, time in value.times().items()},
            "against_before": {
                way: dict(zip(("ratio", "low", "high"), found, strict=True))
                for way, found in value.against_before().items()
            },
        }

    whole = summary.everything
    return {
        "complete": summary.complete,
        "helpers": [
            {
                "row": row,
                "helper": summary.helpers[row],
                "calls": value.calls,
                **figures(value, value.calls),
                "share_before": share(value.upstream, whole.upstream),
                "share_after": share(value.ours, whole.ours),
            }
            for row, value in summary.rows.items()
        ],
        "traces": [
            {"trace": name, "steps": len(summary.steps[name]), **figures(value, len(summary.steps[name]))}
            for name, value in summary.traces.items()
        ],
        "overall": {"steps": summary.step_count, **figures(whole, summary.step_count)},
        "steps": summary.steps,
        "staged": {name: staged(value) for name, value in summary.staged.items()},
    }
