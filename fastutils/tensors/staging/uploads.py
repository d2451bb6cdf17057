"""Uploads through event-guarded slots: the Python form, by torch's own copies and events."""

from __future__ import annotations

import time
from collections import deque
from threading import get_ident
from typing import Any

import torch

from fastutils.tensors.staging import forks
from fastutils.tensors.staging.costs import Rules
from fastutils.tensors.staging.slabs import NOT_ASKED, Slabs
from fastutils.tensors.staging.stats import StagingStats


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of `device` is being captured into a graph."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):  # what is asked for is that of the current device
        return torch.cuda.is_current_stream_capturing()


class Slot:
    """A pinned copy of the slab on the host, and the event behind the last upload from it."""

    def __init__(self, slabs: Slabs, pin_memory: bool) -> None:
        with torch.inference_mode(False):
            self.memory = torch.empty(slabs.bytes, dtype=torch.uint8, device="cpu", pin_memory=pin_memory)
            self.rows = [slabs._tensor(self.memory, i) for i in range(len(slabs.specs))]
        self.copied = torch.get_device_module(slabs.device.device).Event()
        self.unguarded: Any = None  #: the stream of copies behind which the event could not be recorded

    def guard(self) -> None:
        """Have the event stand for all that the stream was given, before it is asked: also when that failed once."""
        if self.unguarded is not None:
            self.copied.record(self.unguarded)
            self.unguarded = None

    def is_free(self) -> bool:
        self.guard()
        return bool(self.copied.query())

    def wait(self) -> None:
        self.guard()
        self.copied.synchronize()


class Uploads:
    """Snapshots live rows and uploads the snapshot, so that the rows may be rewritten as soon as a call returns.

    A slot is used again when the event behind its copies is complete. Which slot is whose is settled by taking it out
    of a deque, so that neither threads nor a finaliser in the middle can come by one that is in use.
    """

    def __init__(self, slabs: Slabs, *, slots: int, max_slots: int, pin_memory: bool, rules: Rules) -> None:
        self.slabs = slabs
        self.device = slabs.device.device
        self.on_host = self.device.type == "cpu"
        self.pin_memory = pin_memory
        self.rules = rules
        self.closed = False
        self._generation = forks.generation[0]
        self._idle: deque[Slot] = deque()  # the one used longest ago first
        self._permits = deque(range(max_slots))  # one is taken for each slot that is made
        self._made = self._most = 0
        self._uploading: list[int] = []  # the threads that are in the middle of an upload
        self._counts = StagingStats()
        self._most_slots = max_slots
        if not self.on_host:
            for _ in range(slots):
                self._idle.append(self._another())

    def configure(self, rules: Rules) -> None:
        self.rules = rules

    def flush(self, request: Any) -> None:
        """Upload what `request` asks for (`Slabs.rows`)."""
        self.send(self.slabs.rows(request))

    def send_one(self, i: int, rows: int) -> None:
        """Upload the first rows of buffer `i`."""
        asked = [NOT_ASKED] * len(self.slabs.specs)
        asked[i] = rows
        self.send(asked)

    def send(self, rows: list[int]) -> None:
        """Upload rows[i] rows of each buffer, NOT_ASKED for none. When it returns, they may be rewritten."""
        if self.closed:
            raise RuntimeError("this staging group is closed: its buffers can no longer be uploaded")
        if not self.on_host and forks.generation[0] != self._generation:
            raise RuntimeError("this staging group was made in another process, of which this one is a fork")
        asked = [i for i, n in enumerate(rows) if n != NOT_ASKED]
        for i in asked:
            if self._live_bytes(i, rows[i]) and self.slabs.moved(i):
                self.slabs.leave(i, "cpu or .gpu", stacklevel=4)
        # Captured, copies read what .cpu holds at each replay: a slot would be another's by then.
        plainly = self.on_host or is_capturing(self.device)
        staged = [] if plainly else [i for i in asked if not self.slabs.left[i]]
        through_slot = [i for i in staged if self._live_bytes(i, rows[i])]
        if through_slot:
            self._uploading.append(get_ident())
            try:
                self._through_slot(through_slot, rows)
            finally:
                self._uploading.remove(get_ident())
        for i in asked:
            if i not in through_slot:
                self._copy(self.slabs.cpus[i], self.slabs.gpus[i], rows[i])
        if not through_slot:
            live = sum(self._live_bytes(i, rows[i]) for i in asked)
            self._count(flushes=1, live_bytes=live, bytes_moved=live)

    def _live_bytes(self, i: int, rows: int) -> int:
        return rows * self.slabs.specs[i].row_bytes

    def _copy(self, source: torch.Tensor, target: torch.Tensor, rows: int) -> None:
        if target.dim():
            target, source = target[:rows], source[:rows]
        elif not rows:
            return
        target.copy_(source, non_blocking=True)

    def _through_slot(self, asked: list[int], rows: list[int]) -> None:
        slot = self._take()
        try:
            with torch.no_grad():
                for i in asked:
                    self._copy(self.slabs.cpus[i], slot.rows[i], rows[i])
            calls, moved = 0, 0
            for first, last in self._spans(asked, rows):
                calls += 1
                begin = self.slabs.places[first].offset
                end = self.slabs.places[last].offset + self._live_bytes(last, rows[last])
                moved += end - begin
                if first == last:
                    self._copy(slot.rows[first], self.slabs.gpus[first], rows[first])
                else:
                    with torch.inference_mode(False):
                        self.slabs.device[begin:end].copy_(slot.memory[begin:end], non_blocking=True)
                    for i in asked[asked.index(first) : asked.index(last) + 1]:
                        torch.autograd.graph.increment_version(self.slabs.gpus[i])
        finally:
            slot.unguarded = torch.get_device_module(self.device).current_stream(self.device)
            try:
                slot.guard()
            finally:
                self._idle.append(slot)
        live = sum(self._live_bytes(i, rows[i]) for i in asked)
        self._count(flushes=1, runtime_calls=calls, live_bytes=live, bytes_moved=moved)

    def _spans(self, live: list[int], rows: list[int]) -> list[tuple[int, int]]:
        """The first and the last buffer of each copy: full neighbours are joined, by the rules."""
        places = self.slabs.places
        spans: list[tuple[int, int]] = []
        for i in live:
            if spans:
                last = spans[-1][1]
                gap = places[i].offset - places[last].offset - places[last].capacity
                full = rows[i] == self.slabs.specs[i].rows and rows[last] == self.slabs.specs[last].rows
                adjoining = places[last].offset + places[last].pitch == places[i].offset
                # What wants gradients is torch's to refuse, in a copy of its own.
                graded = self.slabs.gpus[i].requires_grad or self.slabs.gpus[last].requires_grad
                if full and adjoining and gap <= self.rules.gap and not graded:
                    spans[-1] = (spans[-1][0], i)
                    continue
            spans.append((i, i))
        return spans

    def _another(self) -> Slot:
        """A new slot, for a permit that is given back if there is no memory. IndexError: there are enough."""
        permit = self._permits.popleft()
        try:
            slot = Slot(self.slabs, self.pin_memory)
        except BaseException:
            self._permits.append(permit)
            raise
        self._made = self._most_slots - len(self._permits)
        self._most = max(self._most, self._made)
        return slot

    def _take(self) -> Slot:
        """A slot whose copies are done; waits for the oldest only if no more may be made."""
        for _ in range(len(self._idle)):
            try:
                slot = self._idle.popleft()
            except IndexError:
                break
            done = False
            try:
                done = slot.is_free()
            finally:
                if not done:
                    self._idle.append(slot)
            if done:
                return slot
        try:
            return self._another()
        except IndexError:
            pass
        start = time.perf_counter_ns()
        while True:
            try:
                slot = self._idle.popleft()
            except IndexError:
                if self._uploading.count(get_ident()) > 1:  # by a finaliser in the middle of one that waits for it
                    return Slot(self.slabs, self.pin_memory)
                time.sleep(1e-5)  # other threads have all of them in hand, and none keeps one for long
                continue
            try:
                slot.wait()
            except BaseException:
                self._idle.appendleft(slot)
                raise
            self._count(waits=1, ns_waited=time.perf_counter_ns() - start)
            return slot

    def _count(self, **more: int) -> None:
        # Threads may cost a count here: a lock would have to survive forks and finalisers for it.
        self._counts += StagingStats(**more)

    def stats(self, reset: bool) -> StagingStats:
        """The counts so far."""
        found = self._counts + StagingStats(slots=self._made, peak_slots=self._most)
        if reset:
            self._counts = StagingStats()
        return found

    def close(self) -> None:
        """Let go of the slots. The allocator keeps memory that is still being read."""
        self.closed = True
        self._made = 0
        self._idle.clear()
