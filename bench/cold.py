"""Times single calls, with the caches emptied before each: what a call costs after the engine has done other work."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bench.paired import Clock, Loop, Rounds

#: More than the last-level cache of most machines, in bytes.
LARGEST_CACHE = 96 << 20
WARM_UP = 64


class Flush:
    """Empties the caches by writing to more memory than they hold; most of the branch history goes with it."""

    def __init__(self, size: int = LARGEST_CACHE) -> None:
        self._memory = np.zeros(size // 8, dtype=np.int64)

    def __call__(self) -> None:
        self._memory += 1


def measure_cold(
    upstream: Loop, ours: Loop, *, rounds: int, flush: Callable[[], None], clock: Clock = time.perf_counter_ns
) -> Rounds:
    """One call of each side in the order A B - - B A per round, `flush` before each; ns per call, the loop's taken off.

    A first call of another kind is not part of it: both sides have run before.
    """
    for loop in (upstream, ours):
        loop.run(loop.items(WARM_UP))
    result = Rounds([], [], [])
    for index in range(rounds):
        first, second = (upstream, ours) if index % 2 == 0 else (ours, upstream)
        times = []
        for loop, empty in (
            (first, False),
            (second, False),
            (first, True),
            (second, True),
            (second, False),
            (first, False),
        ):
            items = loop.items(1)
            run = loop.run_empty if empty else loop.run
            flush()
            start = clock()
            run(items)
            times.append((clock() - start) / len(items))
        loop_ns = (times[2] + times[3]) / 2
        one, other = (times[0] + times[5]) / 2 - loop_ns, (times[1] + times[4]) / 2 - loop_ns
        result.upstream.append(one if first is upstream else other)
        result.ours.append(other if first is upstream else one)
        result.loop.append(loop_ns)
    return result
