"""What a case is: both sides, the result they must give, what ours is meant to reach."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.paired import Loop, Verdict

#: A ratio whose whole interval lies below this is a loss; nearer to 1 a shared machine cannot tell.
NOT_SLOWER = 0.98

#: In the order of the report. `cold` cases are timed call by call, with the caches emptied in between.
GROUPS = ("helpers", "peers", "scaling", "cold")


@dataclass(frozen=True)
class Target:
    """What a case is meant to reach: times faster, and at most so many ns more than upstream."""

    ratio: float | None = None
    overhead_ns: float | None = None
    not_slower: bool = False

    def __str__(self) -> str:
        if self.not_slower:
            return "not slower"
        parts = [f">={self.ratio:g}x"] if self.ratio is not None else []
        return ", ".join(parts + ([f"<={self.overhead_ns:g} ns more"] if self.overhead_ns is not None else []))

    def judge(self, verdict: Verdict) -> str:
        """``met`` or ``not met``; with a ``~`` where the interval holds the other answer too."""
        if self.not_slower:
            return "met" if verdict.high >= NOT_SLOWER else "not met"
        met, sure = True, True
        if self.ratio is not None:
            met = verdict.ratio >= self.ratio
            sure = not verdict.low <= self.ratio <= verdict.high
        if self.overhead_ns is not None:
            met = met and -verdict.difference_ns <= self.overhead_ns
        return ("met" if met else "not met") + ("" if sure else " ~")


@dataclass(frozen=True)
class Side:
    """One side of a case: the loop to time, what one pass gives, and what it should give.

    `outcome` runs the same call once on fresh contents. `expected` is computed without the code under test.
    `close` ends what the side has started.
    """

    loop: Loop
    outcome: Callable[[], Any]
    expected: Any
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Peer:
    """What another library offers for a part of the job. `make` may raise ImportError: then the case has no number."""

    name: str
    make: Callable[[], Side]


@dataclass(frozen=True)
class Family:
    """One point of a scaling family: cases of one `name` differ in `at` only. A call handles `items` of `unit`."""

    name: str
    at: int
    axis: str
    items: int = 1
    unit: str = "call"


@dataclass(frozen=True)
class Case:
    """`make(helpers)` builds a side from anything that has the helpers as attributes.

    The other side is made from the baseline, or is the `peer`. `parallel` cases may use every core: torch copies large
    tensors with several threads. `builds` bounds how often both sides are built, where the memory of all of them would
    add up. On the `same_path` both sides end in the same code of PyTorch's, and a ratio of 1 is all there is to reach.
    `star` says why the two sides do not do the same work.
    """

    id: str
    helper: str
    make: Callable[[Any], Side]
    target: Target | None = None
    mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    parallel: bool = False
    builds: int = 1 << 10
    note: str = ""
    group: str = "helpers"
    same_path: bool = False
    star: str = ""
    peer: Peer | None = None
    family: Family | None = None

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(f"{self.id}: no group {self.group!r}; there are: {', '.join(GROUPS)}")
        if (self.group == "peers") != (self.peer is not None) or (self.group == "scaling") != (self.family is not None):
            raise ValueError(f"{self.id}: a peer belongs to the group peers, a family to scaling, and to no other")

    def sides(self, baseline: Any, ours: Any) -> tuple[Side, Side]:
        """The other side and ours, both new."""
        return (self.make(baseline) if self.peer is None else self.peer.make()), self.make(ours)


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a contiguous tensor, writable."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def size(count: int) -> str:
    """`count` bytes in words."""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def builds_of(count: int) -> int:
    """How many builds of tensors of `count` bytes may lie in memory together: 256 MB of them, four in each."""
    return max(1, (256 << 20) // (4 * count))
