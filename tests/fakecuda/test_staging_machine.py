"""
Staged uploads as a state machine, on a device that is as late as it likes: what was written before an upload arrives.

The device memory of the stand-in is host memory, so it is read behind the runtime's back, and reading changes nothing.
FASTUTILS_STAGING_STEPS says how many rules are to be executed at least.
"""

import contextlib
import ctypes
import gc
import os
import random
import weakref

import fake
import pytest
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from implementations import load

from fastutils.tensors.staging import fetch

STEPS = int(os.environ.get("FASTUTILS_STAGING_STEPS", "6000"))

EQUAL = {
    "ids": ((24,), torch.int32),
    "slots": ((24,), torch.int32),
    "positions": ((24,), torch.int64),
    "weights": ((24,), torch.float32),
    "half": ((24,), torch.bfloat16),
}
MIXED = {
    "ids": ((24,), torch.int32),
    "slots": ((24,), torch.int32),
    "positions": ((24,), torch.int64),
    "lengths": ((65,), torch.uint8),
    "rows": ((7, 3), torch.int16),
    "weights": ((40, 2), torch.float32),
    "half": ((24,), torch.bfloat16),
    "nothing": ((0,), torch.int32),
    "scalar": ((), torch.float64),
}

_streams = []


def streams():
    if not _streams:
        _streams.extend([torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()])
    return _streams


class Tracked:
    """A buffer, what its host memory holds, and what its device memory may hold."""

    def __init__(self, name, buffer):
        self.name, self.buffer, self.gpu = name, buffer, buffer.gpu
        self.shape = tuple(self.gpu.shape)
        self.rows = self.shape[0] if self.shape else 1
        self.bytes = self.gpu.numel() * self.gpu.element_size()
        self.row_bytes = self.bytes // max(self.rows, 1)
        self.host = bytearray(self.bytes)
        self.states = [bytes(self.bytes)]  # after each upload that may not have run yet, and before
        self.stream = None  # the last one on which it was used: all uses are ordered

    def write(self, start, data):
        data = data[: self.bytes - start]
        self.host[start : start + len(data)] = data
        ctypes.memmove(self.buffer.cpu.data_ptr() + start, bytes(data), len(data))

    def uploaded(self, rows):
        end = rows * self.row_bytes
        self.states.append(bytes(self.host[:end]) + self.states[-1][end:])

    def on_device(self):
        return ctypes.string_at(self.gpu.data_ptr(), self.bytes) if self.bytes else b""

    def check(self, settled=False):
        """The device holds what some of the uploads, in their order, have left; all of them where it is `settled`."""
        found = self.on_device()
        states = self.states[-1:] if settled else self.states
        assert found in states, f"{self.name}: the device holds what no upload has left"
        del self.states[: len(self.states) - len(states) + states.index(found)]


INDEX = st.integers(0, 8)
COUNT = st.one_of(st.none(), st.integers(0, 70))
PICKS = st.lists(st.tuples(INDEX, COUNT), min_size=1, max_size=5)
SEED = st.integers(0, 2**20)
PROBED = st.booleans()
ORDER = st.sampled_from(["wait", "synchronize"])
WRITES = st.lists(st.tuples(INDEX, st.integers(0, 200), st.integers(1, 300), SEED), min_size=1, max_size=4)
SHAPE = {
    "specs": st.sampled_from([EQUAL, MIXED, MIXED]),
    "slots": st.tuples(st.integers(1, 2), st.integers(0, 2)),
    "alignment": st.sampled_from([16, 64, 256]),
    "mode": st.sampled_from(["auto", "pack", "merge", "loop"]),
}


class Machine(RuleBasedStateMachine):
    form = "python"
    staged = True
    executed = 0

    def __init__(self):
        super().__init__()
        self.runtime = fake.loaded()
        self.runtime.undo()
        self.runtime.library.fakecuda_hold()
        self.group = None
        self.tracked, self.orphans, self.fetches, self.arrived, self.probes = [], [], [], [], []
        self.set_stream(0)

    def teardown(self):
        try:
            if self.group is not None:
                self.settle()
                for tracked in self.tracked:
                    tracked.check(settled=True)
                self.check_what_arrived()
        finally:
            self.runtime.undo()
            torch.cuda.set_stream(streams()[0])

    # ---- parts of rules

    def set_stream(self, i):
        self.stream = streams()[i]
        torch.cuda.set_stream(self.stream)

    def count(self):
        type(self).executed += 1

    def pick(self, picks):
        """{buffer: rows}, None for all."""
        chosen = {}
        for i, n in picks:
            tracked = self.tracked[i % len(self.tracked)]
            chosen[tracked] = n if n is None else n % (tracked.rows + 1)
        return chosen

    def everywhere(self, n):
        """The same, of one request for all buffers."""
        if n is not None:
            n %= min(tracked.rows for tracked in self.tracked) + 1
        return n, dict.fromkeys(self.tracked, n)

    def order(self, used, how):
        """Uses of a buffer on several streams are one after another."""
        for other in {tracked.stream for tracked in used} - {None, self.stream}:
            if how == "wait":
                self.stream.wait_stream(other)
            else:
                other.synchronize()
        for tracked in used:
            tracked.stream = self.stream

    @contextlib.contextmanager
    def uploading(self, chosen, how, probed=False):
        """What an upload of `chosen` is told by, and what it does to the counts, as far as they tell."""
        self.order(chosen, how)
        self.runtime.reset()
        yield
        rows = {tracked: tracked.rows if n is None else n for tracked, n in chosen.items()}
        if rows:
            self.flushes += 1
        for tracked, n in rows.items():
            tracked.uploaded(n)
            self.live += n * tracked.row_bytes
        if not self.staged:
            return
        copies = self.runtime.copies()
        waits, with_gil = self.runtime.waits()
        if probed:
            self.probe(chosen)
        assert {copy.stream for copy in copies} <= {self.stream.cuda_stream}
        self.calls += len(copies)
        self.moved += sum(copy.bytes for copy in copies)
        self.waits += waits
        assert waits <= 1
        assert with_gil == 0
        stats = self.group.stats()
        counted = (stats.flushes, stats.runtime_calls, stats.live_bytes, stats.bytes_moved, stats.waits)
        assert counted == (self.flushes, self.calls, self.live, self.moved, self.waits)
        most = self.max_slots * (2 if self.met_errors else 1)  # an upload that torch had to make goes through others
        assert self.slots <= stats.slots <= stats.peak_slots <= most
        assert not waits or stats.slots >= self.max_slots

    def probe(self, chosen):
        """What a kernel behind the upload would read."""
        for tracked in chosen:
            if tracked.bytes:
                read = torch.empty_like(tracked.gpu, device="cpu", pin_memory=True)
                read.copy_(tracked.gpu, non_blocking=True)
                self.probes.append((tracked.name, read, tracked.states[-1], self.stream))

    def check_probes(self, stream=None):
        later = []
        for probe in self.probes:
            name, read, expected, issued_on = probe
            if stream not in (None, issued_on):
                later.append(probe)
            else:
                found = ctypes.string_at(read.data_ptr(), len(expected))
                assert found == expected, f"{name}: the device has read what no upload has left"
        self.probes = later

    def do_writes(self, writes):
        for i, start, length, number in writes:
            tracked = self.tracked[i % len(self.tracked)]
            if tracked.bytes:
                tracked.write(start % tracked.bytes, random.Random(number).randbytes(length))

    def settle(self):
        torch.cuda.synchronize()
        for tracked in [*self.tracked, *self.orphans]:
            tracked.check(settled=True)
        self.orphans.clear()
        self.check_probes()

    def check_what_arrived(self):
        for view, expected in self.arrived:
            assert ctypes.string_at(view.data_ptr(), len(expected)) == expected

    def make(self, specs, slots, alignment, mode):
        self.slots, self.max_slots, self.met_errors = slots[0], sum(slots), False
        self.flushes = self.calls = self.live = self.moved = self.waits = 0
        if self.staged:
            self.group = load("StagingGroup", self.form)(
                "cuda", slots=self.slots, max_slots=self.max_slots, alignment=alignment, mode=mode, pin_memory=True
            )
            made = {
                name: self.group.buffer(name, shape, dtype=dtype, with_numpy=dtype != torch.bfloat16)
                for name, (shape, dtype) in specs.items()
            }
            self.group.freeze()
        else:
            Buffer, device = load("CpuGpuBuffer", self.form), torch.device("cuda:0")
            made = {}
            for name, (shape, dtype) in specs.items():
                made[name] = Buffer(1, dtype=dtype, device="cpu", pin_memory=False, with_numpy=False)
                made[name].cpu = torch.zeros(shape, dtype=dtype).pin_memory()
                made[name].gpu = made[name].cpu.to(device)  # the stand-in runs no kernels: nothing there is zeroed
            self.group = ()
        self.tracked = [Tracked(name, buffer) for name, buffer in made.items()]

    # ---- rules

    @initialize(**SHAPE)
    def begin(self, specs, slots, alignment, mode):
        self.count()
        self.make(specs, slots, alignment, mode)

    @rule(writes=WRITES)
    def write(self, writes):
        self.count()
        self.do_writes(writes)

    @rule(picks=PICKS, how=ORDER, writes=WRITES, probed=PROBED)
    def flush_some(self, picks, how, writes, probed):
        self.count()
        chosen = self.pick(picks)
        self.do_writes(writes)
        with self.uploading(chosen, how, probed):
            if self.staged:
                self.group.flush({tracked.name: n for tracked, n in chosen.items()})
            else:
                for tracked, n in chosen.items():
                    tracked.buffer.copy_to_gpu(n)

    @rule(n=COUNT, how=ORDER, writes=WRITES, probed=PROBED)
    def flush_all(self, n, how, writes, probed):
        self.count()
        n, chosen = self.everywhere(n)
        self.do_writes(writes)
        with self.uploading(chosen, how, probed):
            if not self.staged:
                for tracked in chosen:
                    tracked.buffer.copy_to_gpu(n if tracked.shape else None)
            elif n is None:
                self.group.flush()
            else:
                self.group.flush(n)
        if not self.staged and n is not None:
            for tracked in chosen:
                tracked.check()

    @rule(i=INDEX, n=COUNT, how=ORDER, probed=PROBED)
    def copy_one(self, i, n, how, probed):
        self.count()
        ((tracked, n),) = self.pick([(i, n)]).items()
        n = n if tracked.shape else None
        with self.uploading({tracked: n}, how, probed):
            view = tracked.buffer.copy_to_gpu(n)
        assert view is tracked.gpu if n is None else view._base is tracked.gpu
        assert n is None or len(view) == n

    @precondition(lambda self: self.staged)
    @rule(picks=PICKS, how=ORDER, writes=WRITES, fails=st.sampled_from([False, False, True]), probed=PROBED)
    def step(self, picks, how, writes, fails, probed):
        self.count()
        chosen, most = [], {}
        for i, n in picks:
            ((tracked, n),) = self.pick([(i, n)]).items()
            n = n if tracked.shape else None
            chosen.append((tracked, n))
            most[tracked] = max(most.get(tracked, 0), tracked.rows if n is None else n)
        with self.uploading({} if fails else most, how, probed):
            try:
                with self.group.step():
                    for tracked, n in chosen:
                        tracked.buffer.copy_to_gpu(n)
                    self.do_writes(writes)
                    if fails:
                        raise KeyError
            except KeyError:
                assert fails
        if fails:
            assert self.runtime.copies() == []

    @precondition(lambda self: self.staged)
    @rule(
        picks=PICKS,
        how=ORDER,
        kind=st.sampled_from(["fail_next", "fail_records", "fail_events"]),
        times=st.integers(1, 3),
    )
    def flush_in_vain(self, picks, how, kind, times):
        """An upload that meets errors is made or says so; what comes after it is as ever."""
        self.count()
        chosen = self.pick(picks)
        self.order(chosen, how)
        collecting = gc.isenabled()
        gc.disable()  # torch ends the process if it fails to free pinned memory
        try:
            getattr(self.runtime, kind)(*((fake.LAUNCH_FAILURE, times) if kind == "fail_next" else (times,)))
            try:
                self.group.flush({tracked.name: n for tracked, n in chosen.items()})
            except RuntimeError as error:
                assert "made-up error" in str(error)  # noqa: PT017 - it need not be raised
                raised = True
            else:
                raised = False
        finally:
            self.runtime.library.fakecuda_fail_next(0, 0)
            self.runtime.library.fakecuda_fail_records(0, 0)
            self.runtime.library.fakecuda_fail_events(0, 0)
            if collecting:
                gc.enable()
        for tracked, n in chosen.items():
            before = tracked.states[-1]
            tracked.uploaded(tracked.rows if n is None else n)
            if raised:
                torch.cuda.synchronize()
                assert tracked.on_device() in (before, tracked.states[-1])
                tracked.states = [tracked.on_device()]
        torch.cuda.synchronize()  # nothing is left to be reported later
        for tracked in chosen:
            tracked.check(settled=True)
        stats = self.group.stats()
        self.flushes, self.calls, self.live = stats.flushes, stats.runtime_calls, stats.live_bytes
        self.moved, self.waits, self.met_errors = stats.bytes_moved, stats.waits, True

    @rule(k=st.integers(1, 12))
    def run_some(self, k):
        self.count()
        self.runtime.run_pending(k)

    @rule(i=st.integers(0, 2))
    def synchronize(self, i):
        self.count()
        stream = streams()[i]
        stream.synchronize()
        for tracked in [*self.tracked, *self.orphans]:
            if tracked.stream in (None, stream):
                tracked.check(settled=True)
        self.check_probes(stream)

    @rule()
    def run_all(self):
        self.count()
        self.settle()

    @rule(i=st.integers(0, 2))
    def switch_stream(self, i):
        self.count()
        self.set_stream(i)

    @precondition(lambda self: self.staged)
    @rule(mode=SHAPE["mode"])
    def change_mode(self, mode):
        self.count()
        self.group.mode = mode

    @rule(picks=PICKS, how=ORDER, together=st.booleans())
    def fetch_some(self, picks, how, together):
        self.count()
        chosen = {tracked: n if tracked.shape else None for tracked, n in self.pick(picks).items()}
        self.order(chosen, how)
        expected = {
            tracked.name: tracked.states[-1][: None if n is None else n * tracked.row_bytes]
            for tracked, n in chosen.items()
        }
        if together and self.staged:
            self.fetches.append((self.group.fetch({t.name: n for t, n in chosen.items()}), expected, self.stream))
        else:
            for tracked, n in chosen.items():
                found = expected[tracked.name]
                self.fetches.append((fetch(tracked.buffer, n), {"": found}, self.stream))

    @precondition(lambda self: self.fetches)
    @rule(i=st.integers(0, 30), how=st.sampled_from(["wait", "wait", "ready", "drop"]))
    def end_fetch(self, i, how):
        self.count()
        fetched, expected, stream = self.fetches.pop(i % len(self.fetches))
        if how == "drop":
            return
        if how == "wait":
            views = fetched.wait()
        else:
            if not fetched.ready():
                with pytest.raises(RuntimeError, match="ready"):
                    fetched.views  # noqa: B018
                with pytest.raises(TimeoutError):
                    fetched.wait(0)
                stream.synchronize()
            assert fetched.ready()
            views = fetched.views
        views = views if isinstance(views, dict) else {"": views}
        assert list(views) == list(expected) or {*views} == {*expected}
        self.arrived.extend((views[name], found) for name, found in expected.items() if found)
        self.check_what_arrived()
        del self.arrived[:-6]

    @rule(how=st.sampled_from(["drop", "close"]), **SHAPE)
    def another_group(self, how, specs, slots, alignment, mode):
        """What is on its way arrives, though nobody is left who sent it."""
        self.count()
        if self.staged:
            if how == "close":
                self.group.close()
                with pytest.raises(RuntimeError, match="closed"):
                    self.group.flush()
            seen = weakref.ref(self.group)
        for tracked in self.tracked:
            tracked.buffer = None
        # Torch gives device memory to others on the stream on which it was made, whichever one still writes into it.
        self.orphans += self.tracked
        self.group, self.tracked = None, []
        gc.collect()
        if self.staged:
            assert seen() is None
        self.make(specs, slots, alignment, mode)

    @invariant()
    def the_device_holds_what_uploads_left(self):
        for tracked in [*self.tracked, *self.orphans]:
            tracked.check()


@pytest.fixture(autouse=True)
def _one_form(form, monkeypatch):
    """A group of the Python form has buffers of the Python form, as where nothing is compiled."""
    if form == "python":
        monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", "1")


@pytest.fixture(autouse=True)
def _quick_collections(runtime):
    gc.collect()
    gc.freeze()  # a machine collects often, and only what it made is of interest
    yield
    gc.unfreeze()


def machine(form, staged=True):
    return type("Machine", (Machine,), {"form": form, "staged": staged, "executed": 0})


def test_what_was_written_before_an_upload_arrives(form, capsys):
    found = machine(form)
    each, rounds = 50, 0
    while found.executed < STEPS:
        with_seed = seed(rounds)(found) if os.environ.get("CI") else found
        examples = max(1, min(100, (STEPS - found.executed) // each))
        run_state_machine_as_test(
            with_seed,
            settings=settings(
                max_examples=examples,
                stateful_step_count=each,
                deadline=None,
                derandomize=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
        rounds += 1
    with capsys.disabled():
        print(f" [{found.executed} rules executed in {form} form]", end="")


def test_the_machine_finds_that_plain_copies_are_overtaken(form):
    found = seed(0)(machine(form, staged=False))
    with pytest.raises(AssertionError, match="the device holds what no upload has left"):
        run_state_machine_as_test(
            found,
            settings=settings(
                max_examples=100,
                stateful_step_count=50,
                deadline=None,
                database=None,
                derandomize=False,
                report_multiple_bugs=False,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
