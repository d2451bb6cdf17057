"""Compares two pieces of code on a machine that is not quiet.

One *round* times both sides and the empty loop in the order A B - - B A (the next round: B A - - A B), so that
whatever drifts during a round falls on both sides alike. A round gives one time for each side, loop cost subtracted,
and one log ratio; the verdict is the median over the rounds with a bootstrap interval. Garbage collection is off and
the thread stays on one core while rounds run.

Where code and objects happen to lie in memory moves a time of 20 ns by some per cent, for as long as they lie there: no
number of rounds averages that out. So both sides are built several times, and the bootstrap draws builds, then rounds.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import math
import os
import resource
import textwrap
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Clock = Callable[[], int]  # nanoseconds, monotonic

#: Below this a time cannot be told from the loop around it.
RESOLUTION_NS = 0.05
MOST_ITERATIONS = 1 << 20
RESAMPLES = 1000
_THREAD = getattr(resource, "RUSAGE_THREAD", None)  # Linux and FreeBSD have it


class Incorrect(Exception):
    """The two sides do not give the same result, or give the wrong one: there is nothing to time."""


@functools.lru_cache(maxsize=256)
def _code(each: str, statement: str, names: tuple[str, ...]) -> types.CodeType:
    source = f"def loop({', '.join([*names, '_items'])}):\n    for {each} in _items:\n"
    namespace: dict[str, Any] = {}
    exec(compile(source + textwrap.indent(statement, " " * 8) + "\n", "<timed loop>", "exec"), namespace)
    code: types.CodeType = namespace["loop"].__code__
    return code


def _compile(each: str, statement: str, names: tuple[str, ...]) -> Callable[..., None]:
    # A code object of its own: the interpreter specialises bytecode in place, so two sides that shared one would
    # undo each other's specialisation.
    return types.FunctionType(_code(each, statement, names).replace(), {"__builtins__": builtins})


class Loop:
    """``for EACH in items: STATEMENT`` as one compiled function, its `names` being local variables.

    `items` makes the items of `count` passes; it runs outside the timed region. By default a pass is one item
    that the statement does not use. ``longer`` multiplies the length of a sample.
    """

    def __init__(
        self,
        statement: str,
        *,
        each: str = "_",
        items: Callable[[int], Sequence[Any]] | None = None,
        **names: Any,
    ) -> None:
        self.statement, self.names = statement, names
        self.items = items or _blank_items
        self.longer = 1
        self.run = functools.partial(_compile(each, statement, tuple(names)), *names.values())
        self.run_empty = functools.partial(_compile(each, "pass", ()))


def _blank_items(count: int) -> Sequence[None]:
    return [None] * count


@dataclass(frozen=True)
class Rounds:
    """What the rounds measured, in ns per item: one entry per round, the cost of the loop already taken off."""

    upstream: list[float]
    ours: list[float]
    loop: list[float]


@dataclass(frozen=True)
class Verdict:
    """Median times in ns and how many times faster ours is (median of the log ratios), with its 95 % interval."""

    upstream_ns: float
    ours_ns: float
    difference_ns: float
    loop_ns: float
    ratio: float
    low: float
    high: float
    rounds: int
    resolved: bool  #: False if either side cannot be told from the loop around it: the ratio is then a bound


def calibrate(loop: Loop, sample_ns: int, clock: Clock) -> int:
    """How many passes make one sample of `loop` last at least about `sample_ns`; it also warms the code up.

    The shortest of three counts: a single one may be long because something else had the core.
    """

    def lasts(count: int) -> int:
        items = loop.items(count)
        start = clock()
        loop.run(items)
        return clock() - start

    sample_ns *= loop.longer
    count = 1
    while True:
        elapsed = lasts(count)
        for _ in range(2):
            if elapsed >= sample_ns // 16:
                elapsed = min(elapsed, lasts(count))
        if elapsed >= sample_ns or count >= MOST_ITERATIONS:
            return count
        if elapsed >= sample_ns // 4:
            return min(MOST_ITERATIONS, math.ceil(count * sample_ns / elapsed))
        count *= 4 if elapsed < sample_ns // 16 else 2


def involuntary_switches() -> int:
    """How often the system has taken the core away from this thread; 0 where it does not tell."""
    return resource.getrusage(_THREAD).ru_nivcsw if _THREAD is not None else 0


def measure(
    upstream: Loop,
    ours: Loop,
    *,
    rounds: int,
    sample_ns: int,
    clock: Clock = time.perf_counter_ns,
    budget_ns: int | None = None,
    fewest: int = 7,
    switches: Callable[[], int] = involuntary_switches,
) -> Rounds:
    """Run up to `rounds` rounds; stop after `budget_ns` once there are `fewest`. Samples last about `sample_ns`.

    A round during which something else had the core (`switches` counts it) is run again, at most as often as there
    are rounds: one such round costs as much as thirty others and says nothing.
    """
    passes = {upstream: calibrate(upstream, sample_ns, clock), ours: calibrate(ours, sample_ns, clock)}
    result = Rounds([], [], [])
    begun = clock()
    repeats = rounds
    while (index := len(result.loop)) < rounds:
        if budget_ns is not None and index >= fewest and clock() - begun > budget_ns:
            break
        first, second = (upstream, ours) if index % 2 == 0 else (ours, upstream)
        switched = switches()
        one, other, loop = _round(first, second, passes, clock)
        if switches() != switched and repeats:
            repeats -= 1
            continue
        result.upstream.append(one if first is upstream else other)
        result.ours.append(other if first is upstream else one)
        result.loop.append(loop)
    return result


def _round(first: Loop, second: Loop, passes: dict[Loop, int], clock: Clock) -> tuple[float, float, float]:
    """Times per item of `first` and `second`, the loop's taken off, and the loop's own."""
    # Everything is made beforehand; the sides may not share items, since a call may leave its traces in them.
    opening, closing = first.items(passes[first]), first.items(passes[first])
    inner, outer = second.items(passes[second]), second.items(passes[second])
    t0 = clock()
    first.run(opening)
    t1 = clock()
    second.run(inner)
    t2 = clock()
    first.run_empty(opening)
    second.run_empty(outer)
    t3 = clock()
    second.run(outer)
    t4 = clock()
    first.run(closing)
    t5 = clock()
    loop = (t3 - t2) / (len(opening) + len(outer))
    one = (t1 - t0 + t5 - t4) / (len(opening) + len(closing)) - loop
    other = (t2 - t1 + t4 - t3) / (len(inner) + len(outer)) - loop
    return one, other, loop


def judge(*builds: Rounds) -> Verdict:
    """The medians over the rounds of all `builds`, and the interval of their ratio."""
    before = np.concatenate([rounds.upstream for rounds in builds])
    after = np.concatenate([rounds.ours for rounds in builds])
    loop = np.concatenate([rounds.loop for rounds in builds])
    logs = np.log(np.maximum(before, RESOLUTION_NS) / np.maximum(after, RESOLUTION_NS))
    ends = np.cumsum([len(rounds.upstream) for rounds in builds])
    low, high = bootstrap_interval(np.split(logs, ends[:-1]))
    upstream_ns, ours_ns = float(np.median(before)), float(np.median(after))
    return Verdict(
        upstream_ns=upstream_ns,
        ours_ns=ours_ns,
        difference_ns=float(np.median(before - after)),
        loop_ns=float(np.median(loop)),
        ratio=math.exp(float(np.median(logs))),
        low=math.exp(low),
        high=math.exp(high),
        rounds=len(logs),
        resolved=min(upstream_ns, ours_ns) > RESOLUTION_NS,
    )


def bootstrap_interval(groups: Sequence[np.ndarray], resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 95 % percentile interval of the median of all values: groups are drawn anew, then the values within each.

    The same numbers always give the same interval.
    """
    rng = np.random.default_rng(0)
    medians = np.empty(resamples)
    for i in range(resamples):
        drawn = [groups[g] for g in rng.integers(len(groups), size=len(groups))]
        medians[i] = np.median(
            np.concatenate([values[rng.integers(len(values), size=len(values))] for values in drawn])
        )
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


@contextlib.contextmanager
def steady(one_core: bool = True) -> Iterator[int | None]:
    """Garbage collection off and, where the system allows it, this thread on one core; yields that core or None."""
    was_enabled = gc.isenabled()
    cores = os.sched_getaffinity(0) if one_core and hasattr(os, "sched_getaffinity") else set()
    core = max(cores, default=None)
    if core is not None:
        try:
            os.sched_setaffinity(0, {core})
        except OSError:  # a container may forbid it
            core = None
    gc.collect()
    gc.disable()
    try:
        yield core
    finally:
        if was_enabled:
            gc.enable()
        if core is not None:
            os.sched_setaffinity(0, cores)
