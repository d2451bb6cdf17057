"""The buffer copies of a recorded step made together: by one StagingGroup, against one by one on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.cases.model import bytes_of
from bench.paired import Incorrect, Loop
from bench.recording import Step
from bench.replay import WHO, Key, alternating, buffer_calls, make_buffer

#: What the compared ways are called in messages, in the order of `StagedWork.ways`.
WAYS = (*WHO, "StagingGroup.step()", "StagingGroup.flush(dict)")

#: What a device's bytes are before a copy, except in bools, which can hold nothing but 0 and 1.
BLANK = 0xA5


@dataclass
class StagedWork:
    """All buffer copies of one step: a pass of each loop is the whole step.

    `flushes` is how many uploads the group made of them when it was last checked.
    """

    step: Step
    copies: int
    ways: tuple[Loop, Loop, Loop, Loop]
    buffers: tuple[dict[Key, Any], ...]
    asked: dict[Key, int | None]
    group: Any
    random: np.random.Generator
    flushes: int = 0

    def check(self) -> None:
        """Run every way once. Incorrect if a buffer is not what it should be, also one that this step does not copy."""
        self.flushes = 0
        for who, loop, buffers in zip(WAYS, self.ways, self.buffers, strict=True):
            sent = {key: self._fresh(key, buffer) for key, buffer in buffers.items()}
            before = self.group.stats().flushes
            loop.run(loop.items(1))
            self.flushes = max(self.flushes, self.group.stats().flushes - before)
            for key, buffer in buffers.items():
                found, expected = bytes_of(buffer.gpu), sent[key]
                if not np.array_equal(found, expected):
                    wrong = int(np.flatnonzero(found != expected)[0])
                    raise Incorrect(f"{self.step}: {who}: byte {wrong} of the buffer {_name(key)} is wrong")

    def _fresh(self, key: Key, buffer: Any) -> np.ndarray[Any, Any]:
        """Fill the host side with random bytes, blank the device side, and say what this step makes of that."""
        host, device = bytes_of(buffer.cpu), bytes_of(buffer.gpu)
        host[:] = self.random.integers(0, 2, host.shape, dtype=np.uint8)  # values that any dtype can hold
        device[:] = 0 if buffer.gpu.dtype == torch.bool else BLANK
        length = buffer.cpu.shape[0]
        rows = len(range(length)[: self.asked[key]]) if key in self.asked else 0
        cut = host.size // max(1, length) * rows
        return np.concatenate([host[:cut], device[cut:]])


class StagedCopies:
    """The buffers that the steps of one trace copy, three times over: upstream's, fastutils' plain ones, and a group's.

    A group is laid out when it is first used, so all its buffers have to be known before.
    """

    def __init__(self, upstream: Any, ours: Any, steps: Sequence[Step]) -> None:
        keys = dict.fromkeys(key for step in steps for key, _ in buffer_calls(step))
        self.group = ours.StagingGroup("cpu", pin_memory=False)
        staged = {key: make_staged(self.group, key) for key in keys}
        self.group.freeze()
        plain = ({key: make_buffer(side, key) for key in keys} for side in (upstream, ours))
        self.buffers = (*plain, staged, staged)
        self._last_n: dict[Key, int | None] = {}
        self._random = np.random.default_rng(0)

    def work(self, step: Step) -> StagedWork | None:
        """The step's copies; None where it has none."""
        these = buffer_calls(step)
        if not these:
            return None
        # As the single copies are timed: where the engine's row count changed, it changes from step to step.
        those = [(key, self._last_n.get(key, n)) for key, n in these]
        self._last_n.update(these)

        def one_by_one(statement: str, buffers: dict[Key, Any], **names: Any) -> Loop:
            now, before = ([[(buffers[key], n) for key, n in calls]] for calls in (these, those))
            return Loop(statement, each="calls", items=alternating(now, before), **names)

        copies = "for buffer, n in calls: buffer.copy_to_gpu(n)"
        named, named_before = ([[(_name(key), n) for key, n in calls]] for calls in (these, those))
        ways = (
            one_by_one(copies, self.buffers[0]),
            one_by_one(copies, self.buffers[1]),
            one_by_one(f"with step():\n    {copies}", self.buffers[2], step=self.group.step),
            # The dict is made within the time: row counts are new in every step.
            Loop("flush(dict(calls))", each="calls", items=alternating(named, named_before), flush=self.group.flush),
        )
        return StagedWork(step, len(these), ways, self.buffers, dict(these), self.group, self._random)


def make_staged(group: Any, key: Key) -> Any:
    """The buffer `key` of a group."""
    dtype, shape, _ = key
    kind = getattr(torch, dtype)
    return group.buffer(_name(key), *shape, dtype=kind, with_numpy=kind != torch.bfloat16)


def requests(steps: Iterable[Step]) -> Iterable[dict[str, int | None]]:
    """What each step asks of a group's flush."""
    for step in steps:
        yield {_name(key): n for key, n in buffer_calls(step)}


def _name(key: Key) -> str:
    dtype, shape, ordinal = key
    return f"{dtype}{list(shape)} #{ordinal}"
