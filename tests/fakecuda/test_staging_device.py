"""Staging with a device: slots, their events, calls and bytes, streams, errors, threads, memory."""

import contextlib
import ctypes
import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from fake import DEVICE_TO_HOST, HOST_TO_DEVICE, INVALID_VALUE
from implementations import load
from torch.utils._python_dispatch import TorchDispatchMode

from fastutils.tensors.staging import costs, fetch

MODES = ["auto", "pack", "merge", "loop"]


@pytest.fixture(autouse=True)
def _one_form(request, monkeypatch):
    """A group of the Python form has buffers of the Python form, as where nothing is compiled."""
    if "form" in request.fixturenames and request.getfixturevalue("form") == "python":
        monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", "1")


@pytest.fixture(autouse=True)
def _needs_the_stand_in(runtime):
    yield
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.cuda.synchronize()


def group_of(form, where="cuda:0", **options):
    return load("StagingGroup", form)(where, **{"pin_memory": True, **options})


def ints(group, *names, size=64):
    made = [group.buffer(name, size, dtype=torch.int32) for name in names]
    group.freeze()
    return made


def peek(tensor):
    """Device memory, read behind the runtime's back: nothing waits for it."""
    return (ctypes.c_int32 * tensor.numel()).from_address(tensor.data_ptr())[:]


WAYS = {
    "flush": lambda group, a, b: group.flush(64),
    "flush all": lambda group, a, b: group.flush(),
    "dict": lambda group, a, b: group.flush({"a": None, "b": 64}),
    "one by one": lambda group, a, b: (a.copy_to_gpu(64), b.copy_to_gpu()),
    "step": lambda group, a, b: in_step(group, a, b),
}


def in_step(group, *buffers):
    with group.step():
        for buffer in buffers:
            buffer.copy_to_gpu(64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_rows_may_be_rewritten_as_soon_as_an_upload_returns(form, runtime, way, mode):
    group = group_of(form, mode=mode)
    a, b = ints(group, "a", "b")
    with runtime.held():
        for value in (1, 2, 3):
            a.np[:], b.np[:] = value, -value
            WAYS[way](group, a, b)
            a.np[:], b.np[:] = 99, 99
        assert peek(a.gpu) == [0] * 64  # nothing has run, and nobody waited
        assert runtime.waits() == (0, 0)
        seen = []
        while runtime.run_pending():
            seen.append(peek(b.gpu)[-1])
    assert (peek(a.gpu), peek(b.gpu)) == ([3] * 64, [-3] * 64)
    assert sorted(set(seen), reverse=True) == [*range(max(seen), -4, -1)]


def test_a_slot_is_not_used_again_before_its_copies_are_done(form, runtime):
    group = group_of(form, slots=1, max_slots=1)
    (a,) = ints(group, "a")
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    with runtime.held():
        a.np[:] = 1
        with torch.cuda.stream(stream):
            group.flush()
        runtime.reset()
        with torch.cuda.stream(stream):
            a.np[:] = 2
            group.flush(10)
        assert runtime.waits() == (1, 0)  # for the first upload, without the GIL
        assert peek(a.gpu) == [1] * 64
        other.synchronize()
        assert peek(a.gpu) == [1] * 64
        stats = group.stats()
        assert (stats.waits, stats.slots, stats.peak_slots) == (1, 1, 1)
        assert stats.ns_waited > 0
    assert peek(a.gpu) == [2] * 10 + [1] * 54


@pytest.mark.parametrize("first", [0, 1])
def test_an_event_stands_for_the_stream_of_its_copies(form, runtime, first):
    """The slot of copies that wait on one stream is not free because another one is idle."""
    group = group_of(form, slots=1, max_slots=2)
    (a,) = ints(group, "a")
    streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
    with runtime.held():
        a.np[:] = 1
        with torch.cuda.stream(streams[first]):
            group.flush()
        streams[1 - first].synchronize()
        with torch.cuda.stream(streams[1 - first]):
            a.np[:] = 2
            group.flush(10)
            assert group.stats().slots == 2
            streams[1 - first].synchronize()
            assert peek(a.gpu) == [2] * 10 + [0] * 54
        streams[first].synchronize()
        assert peek(a.gpu) == [1] * 64


def test_slots_are_made_rather_than_waited_for_up_to_the_most(form, runtime):
    group = group_of(form, slots=1, max_slots=3)
    (a,) = ints(group, "a")
    assert group.stats().slots == 1
    with runtime.held():
        for n, (slots, waits) in enumerate([(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)]):
            a.np[:] = n
            group.flush()
            stats = group.stats()
            assert (stats.slots, stats.waits) == (slots, waits)
        assert runtime.waits() == (2, 0)
    assert peek(a.gpu) == [4] * 64


def test_slots_whose_copies_are_done_are_used_again(form, runtime):
    group = group_of(form, slots=2, max_slots=8)
    (a,) = ints(group, "a")
    blocks = runtime.pinned_blocks()
    runtime.reset()
    for n in range(50):
        a.np[:] = n
        group.flush()
        assert peek(a.gpu) == [n] * 64
    assert (group.stats().slots, group.stats().waits) == (2, 0)
    assert len({copy.source for copy in runtime.copies()}) == 2
    assert runtime.pinned_blocks() == blocks


def test_the_slot_whose_copies_are_done_is_found_behind_others(form, runtime):
    group = group_of(form, slots=2, max_slots=2)
    ints(group, "a")
    late, early = torch.cuda.Stream(), torch.cuda.Stream()
    with runtime.held():
        with torch.cuda.stream(late):
            group.flush()
        with torch.cuda.stream(early):
            group.flush()
            early.synchronize()
            runtime.reset()
            group.flush()
        assert runtime.waits() == (0, 0)


# ---- calls and bytes

SIXTEEN = [("narrow", torch.int32), ("wide", torch.int64)]


def sixteen(form, mode):
    group = group_of(form, mode=mode)
    buffers = {
        f"{kind} {i}": group.buffer(f"{kind} {i}", 1000, dtype=dtype) for i in range(8) for kind, dtype in SIXTEEN
    }
    group.freeze()
    for i, buffer in enumerate(buffers.values()):
        buffer.np[:] = range(i, i + 1000)
    return group, buffers


CALLS = {  # (some rows, all rows)
    ("compiled", "auto"): (2, 1),
    ("compiled", "pack"): (2, 2),
    ("compiled", "merge"): (16, 1),
    ("compiled", "loop"): (16, 16),
    ("python", "auto"): (16, 1),  # torch has no copy of many rows at a pitch
    ("python", "pack"): (16, 16),
    ("python", "merge"): (16, 1),
    ("python", "loop"): (16, 16),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_calls_of_sixteen_buffers_of_one_capacity(form, runtime, mode):
    group, buffers = sixteen(form, mode)
    some, full = CALLS[form, mode]
    versions = [buffer.gpu._version for buffer in buffers.values()]
    runtime.reset()
    group.flush(100)
    assert len(runtime.copies()) == runtime.calls() == some
    assert {(copy.kind, copy.device, copy.gil) for copy in runtime.copies()} == {(HOST_TO_DEVICE, 0, False)}
    assert sum(copy.bytes for copy in runtime.copies()) == 8 * 400 + 8 * 800  # only the rows asked for
    stats = group.stats(reset=True)
    assert (stats.flushes, stats.runtime_calls) == (1, some)
    assert stats.live_bytes == stats.bytes_moved == 8 * 400 + 8 * 800
    for i, buffer in enumerate(buffers.values()):
        assert buffer.gpu.cpu().tolist() == [*range(i, i + 100)] + [0] * 900
    runtime.reset()
    group.flush()
    assert len(runtime.copies()) == full
    live, padding = 8 * 4000 + 8 * 8000, 8 * 96 + 7 * 192
    moved = sum(copy.bytes for copy in runtime.copies())
    assert moved == live + (padding if full == 1 else 0)
    stats = group.stats()
    assert (stats.flushes, stats.runtime_calls, stats.live_bytes, stats.bytes_moved) == (1, full, live, moved)
    for i, buffer in enumerate(buffers.values()):
        assert buffer.gpu.cpu().tolist() == [*range(i, i + 1000)]
    assert [buffer.gpu._version for buffer in buffers.values()] == [version + 2 for version in versions]
    assert not any(copy.gil for copy in runtime.copies())


def test_a_strided_copy_has_the_pitch_of_the_places(runtime):
    group, buffers = sixteen("compiled", "pack")
    runtime.reset()
    group.flush(100)
    narrow, wide = sorted(runtime.copies(), key=lambda copy: copy.bytes)
    assert (narrow.height, narrow.to_pitch, narrow.from_pitch) == (8, 4096, 400)
    assert (wide.height, wide.to_pitch, wide.from_pitch) == (8, 8192, 800)
    assert narrow.to == buffers["narrow 0"].gpu.data_ptr()


@pytest.mark.parametrize("mode", ["auto", "merge"])
def test_only_full_neighbours_are_merged(form, runtime, mode):
    group = group_of(form, mode=mode)
    sizes = {"a": 100, "b": 200, "c": 300, "d": 400}
    buffers = {name: group.buffer(name, size, dtype=torch.int32) for name, size in sizes.items()}
    group.freeze()
    for request, calls in [
        ({"a": None, "b": None, "c": None, "d": None}, 1),
        ({"a": None, "c": None}, 2),  # b lies between
        ({"a": None, "b": None, "c": 299, "d": None}, 3),
        ({"a": 99, "b": None, "c": None}, 2),
        ({"d": None, "c": 300}, 1),
        ({"a": None, "b": 0, "c": None}, 2),
    ]:
        for buffer in buffers.values():
            buffer.np[:] = -1
        group.flush()
        for buffer in buffers.values():
            buffer.np[:] = 7
        runtime.reset()
        group.flush(request)
        assert len(runtime.copies()) == calls, request
        for name, size in sizes.items():
            n = request.get(name, 0)
            n = size if n is None else n
            assert peek(buffers[name].gpu) == [7] * n + [-1] * (size - n), (request, name)


def test_padding_that_costs_more_than_a_call_is_not_moved(form, runtime, monkeypatch):
    monkeypatch.setattr(costs, "_measured", {torch.device("cuda:0"): costs.Costs(call_ns=1000, kb_ns=1024)})
    for padding, calls in [(1000, 1), (1004, 2)]:  # a byte costs a nanosecond
        group = group_of(form, alignment=4096)
        group.buffer("a", 4096 - padding, dtype=torch.uint8)
        group.buffer("b", 4096, dtype=torch.uint8)
        runtime.reset()
        group.flush()
        assert runtime.calls() - 1 == calls, padding  # the first one made the slab
        group.mode = "merge"
        runtime.reset()
        group.flush()
        assert runtime.calls() == 1


def test_a_mode_may_change_at_any_time(form, runtime):
    group = group_of(form, mode="loop")
    ints(group, "a", "b", "c")
    for mode, calls in [("loop", 3), ("merge", 1), ("loop", 3), ("auto", 1)]:
        group.mode = mode
        assert group.mode == mode
        runtime.reset()
        group.flush()
        assert runtime.calls() == calls
    with pytest.raises(ValueError, match="mode 'fast' is none of 'auto', 'pack', 'merge', 'loop'"):
        group.mode = "fast"
    assert group.mode == "auto"


def test_calibrating_measures_the_link(form, runtime, monkeypatch):
    monkeypatch.setattr(costs, "_measured", {})
    group = group_of(form)
    ints(group, "a", "b")
    with runtime.quiet():
        found = group.calibrate()
    assert found.call_ns > 0
    assert found.kb_ns > 0
    assert costs.costs_of(group.device) == found
    assert group.mode == "auto"
    group.flush()


def test_nothing_is_called_for_nothing(form, runtime):
    group = group_of(form, slots=1, max_slots=1)
    a = group.buffer("a", 64, dtype=torch.int32)
    scalar = group.buffer("scalar", (), dtype=torch.float32)
    empty = group.buffer("empty", 0, 5, dtype=torch.int64)
    group.freeze()
    with runtime.held():
        a.copy_to_gpu()
        before = [buffer.gpu._version for buffer in (a, scalar, empty)]
        runtime.reset()
        group.flush(0)
        group.flush({})
        group.flush({"empty": None, "a": 0})
        empty.copy_to_gpu()
        a.copy_to_gpu(0)
        with group.step():
            pass
        with group.step():
            a.copy_to_gpu(0)
        assert runtime.copies() == []
        assert runtime.waits() == (0, 0)  # the only slot is not needed for it
    assert group.stats().runtime_calls == 1
    after = [buffer.gpu._version for buffer in (a, scalar, empty)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [4, 0, 3]


def test_neither_copies_nor_records_hold_the_gil(form, runtime):
    group = group_of(form)
    a, b = ints(group, "a", "b")
    runtime.reset()
    group.flush()
    a.copy_to_gpu(3)
    in_step(group, a, b)
    group.fetch().wait()
    assert len(runtime.copies()) == 5
    assert not any(copy.gil for copy in runtime.copies())
    assert group.stats().waits == 0
    if form == "compiled":
        runtime.reset()
        group.flush()
        a.copy_to_gpu(3)
        in_step(group, a, b)
        assert runtime.records() == (3, 0)


# ---- devices and streams


def test_the_second_device_while_the_first_is_current(form, runtime):
    group = group_of(form, "cuda:1", slots=1, max_slots=2)
    (a,) = ints(group, "a")
    assert a.gpu.device == group.device == torch.device("cuda:1")
    runtime.reset()
    with runtime.held():
        for value in (1, 2, 3):
            a.np[:] = value
            group.flush(value)
            a.np[:] = 9
        assert torch.cuda.current_device() == 0
        assert {copy.device for copy in runtime.copies()} == {1}
        torch.cuda.synchronize(0)
        assert group.stats().waits == 1
        torch.cuda.synchronize(1)
    assert peek(a.gpu)[:4] == [3, 3, 3, 0]
    assert group.fetch({"a": 2}).wait()["a"].tolist() == [3, 3]


def test_another_device_is_current_when_a_step_ends(form, runtime):
    group = group_of(form, "cuda:0")
    (a,) = ints(group, "a")
    a.np[:] = 5
    with torch.cuda.device(1):
        runtime.reset()
        in_step(group, a)
        assert [copy.device for copy in runtime.copies()] == [0]
    assert peek(a.gpu) == [5] * 64


def test_a_step_uploads_on_the_stream_where_it_ends(form, runtime):
    group = group_of(form)
    (a,) = ints(group, "a")
    stream = torch.cuda.Stream()
    runtime.reset()
    with group.step():
        a.copy_to_gpu()
        torch.cuda.set_stream(stream)
    assert [copy.stream for copy in runtime.copies()] == [stream.cuda_stream]


def test_an_upload_from_another_stream_while_one_is_pending(form, runtime):
    group = group_of(form, slots=1, max_slots=2)
    a, b = ints(group, "a", "b")
    stream = torch.cuda.Stream()
    with runtime.held():
        a.np[:], b.np[:] = 1, 1
        group.flush({"a": None})
        with torch.cuda.stream(stream):
            b.np[:] = 2
            b.copy_to_gpu()
        b.np[:] = 3
        stream.synchronize()
        assert (peek(a.gpu), peek(b.gpu)) == ([0] * 64, [2] * 64)
    assert peek(a.gpu) == [1] * 64


def test_memory_that_is_not_pinned(form, runtime):
    group = group_of(form, pin_memory=False)
    (a,) = ints(group, "a")
    assert not a.cpu.is_pinned()
    with runtime.held():
        a.np[:] = 4
        group.flush()
        a.np[:] = 5
        a.copy_to_gpu(3)
        a.np[:] = 6
    assert peek(a.gpu) == [5] * 3 + [4] * 61
    assert group.fetch(2) is not None


def test_host_memory_is_pinned_by_default(form):
    group = load("StagingGroup", form)("cuda")
    (a,) = ints(group, "a")
    assert a.cpu.is_pinned()


# ---- capture


def test_under_capture_copies_are_plain_ones_from_cpu(form, runtime):
    group = group_of(form)
    a, b = ints(group, "a", "b")
    stream = torch.cuda.Stream()
    runtime.reset()
    with torch.cuda.stream(stream), runtime.capturing():
        group.flush(10)
        a.copy_to_gpu(5)
        in_step(group, b)
    found = [(copy.source, copy.to, copy.bytes) for copy in runtime.copies()]
    one, other = ((buffer.cpu.data_ptr(), buffer.gpu.data_ptr()) for buffer in (a, b))
    assert found == [(*one, 40), (*other, 40), (*one, 20), (*other, 256)]
    assert group.stats().slots == 2


def test_a_fetch_cannot_be_captured(form, runtime):
    group = group_of(form)
    (a,) = ints(group, "a")
    with torch.cuda.stream(torch.cuda.Stream()), runtime.capturing():
        with pytest.raises(RuntimeError, match="cannot be captured"):
            group.fetch()
        with pytest.raises(RuntimeError, match="cannot be captured"):
            fetch(a)


# ---- fetching


def test_nobody_sees_rows_before_they_have_arrived(form, runtime):
    group = group_of(form)
    a, b = ints(group, "a", "b")
    with runtime.held():
        a.np[:], b.np[:] = 1, 2
        group.flush()
        fetched = group.fetch({"a": 3, "b": None})
        a.np[:] = 5
        group.flush({"a": 1})  # behind it
        assert not fetched.ready()
        with pytest.raises(RuntimeError, match="ready"):
            fetched.views  # noqa: B018
        for timeout in (0, -1, 0.002):
            with pytest.raises(TimeoutError, match="have not arrived"):
                fetched.wait(timeout)
        with pytest.raises(ValueError, match="not a number"):
            fetched.wait(float("nan"))
        assert fetched.wait() is fetched.views
        assert fetched.ready()
        assert runtime.waits()[1] == 0
    assert fetched.views["a"].tolist() == [1, 1, 1]
    assert fetched.views["b"].tolist() == [2] * 64
    assert fetched.views["a"].is_pinned()


def test_waiting_for_a_fetch_with_a_timeout(form, runtime):
    group = group_of(form)
    (a,) = ints(group, "a")
    with runtime.held():
        fetched = fetch(a, 4)
        thread = threading.Timer(0.05, lambda: runtime.run_pending(9))
        thread.start()
        assert fetched.wait(20.0).tolist() == [0] * 4
        thread.join()


def test_a_fetch_that_is_dropped_is_written_into_nobody_elses_memory(form, runtime):
    group = group_of(form)
    (a,) = ints(group, "a", size=5003)
    a.np[:] = 7
    group.flush()
    torch.cuda.synchronize()
    with runtime.held():
        fetch(a)
        gc.collect()
        usurper = torch.empty(5003, dtype=torch.int32, pin_memory=True).fill_(-1)
    assert usurper.unique().tolist() == [-1]


def test_fetches_keep_their_memory(form, runtime):
    group = group_of(form)
    (a,) = ints(group, "a")
    views = []
    for value in range(5):
        a.np[:] = value
        group.flush()
        views.append(group.fetch().wait()["a"])
    assert [view.unique().tolist() for view in views] == [[value] for value in range(5)]


def test_fetching_copies_only_the_rows_asked_for(form, runtime):
    group = group_of(form)
    a, b = ints(group, "a", "b")
    runtime.reset()
    assert {name: len(view) for name, view in group.fetch(5).wait().items()} == {"a": 5, "b": 5}
    assert len(fetch(a, -60).wait()) == 4
    assert [(copy.kind, copy.bytes) for copy in runtime.copies()] == [(DEVICE_TO_HOST, n) for n in (20, 20, 16)]
    assert {copy.source for copy in runtime.copies()} == {a.gpu.data_ptr(), b.gpu.data_ptr()}


# ---- errors


def fail_in_the_middle(runtime, after, error=INVALID_VALUE, times=1):
    """The copies after `after` others fail."""

    def count(left):
        if left == 0:
            runtime.fail_next(error, times)
        else:
            runtime.during_next_copy(lambda: count(left - 1))

    runtime.during_next_copy(lambda: count(after))


@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_error_in_the_middle_of_an_upload(form, runtime, after):
    group = group_of(form, mode="loop", slots=1, max_slots=2)
    buffers = ints(group, "a", "b", "c")
    for value, buffer in enumerate(buffers, 1):
        buffer.np[:] = value
    fail_in_the_middle(runtime, after)
    if form == "compiled":
        group.flush()  # torch makes it good
    else:
        with pytest.raises(RuntimeError, match="made-up error 1"):
            group.flush()
    torch.cuda.synchronize()  # nothing is left to be reported later
    done = 3 if form == "compiled" else after
    assert [peek(buffer.gpu)[0] for buffer in buffers] == [1, 2, 3][:done] + [0] * (3 - done)
    with runtime.held():
        for value in range(10):
            for buffer in buffers:
                buffer.np[:] = value
            group.flush()
            for buffer in buffers:
                buffer.np[:] = -1
    assert [peek(buffer.gpu)[0] for buffer in buffers] == [9, 9, 9]


def test_a_lasting_error_is_reported_by_torch_and_forgotten(form, runtime):
    group = group_of(form)
    a, b = ints(group, "a", "b")
    a.np[:] = 1
    for upload in (group.flush, a.copy_to_gpu, lambda: in_step(group, a, b), lambda: group.flush({"a": 3})):
        runtime.fail_next(INVALID_VALUE, times=99)
        with pytest.raises(RuntimeError, match="made-up error 1"):
            upload()
        runtime.fail_next(0, times=0)
        torch.cuda.synchronize()
        a.np[:] += 1
        upload()
        assert peek(a.gpu)[0] == a.np[0]


@pytest.mark.parametrize("times", [1, 2, 5])
def test_events_that_cannot_be_asked_free_no_slot(form, runtime, times):
    group = group_of(form, slots=1, max_slots=1)
    (a,) = ints(group, "a")
    with runtime.held():
        a.np[:] = 1
        group.flush()
        a.np[:] = 2
        runtime.fail_events(times)
        with contextlib.suppress(RuntimeError):
            group.flush(10)
        runtime.fail_events(0)
        a.np[:] = 3
        group.flush(5)
        a.np[:] = 4
        seen = [peek(a.gpu)]
        while runtime.run_pending():
            seen.append(peek(a.gpu))
    assert {line[20] for line in seen} <= {0, 1}  # only what the first upload had
    assert seen[-1][0] == 3
    torch.cuda.synchronize()


def test_an_event_that_could_not_be_recorded_is_recorded_later(form, runtime):
    group = group_of(form, slots=1, max_slots=2)
    (a,) = ints(group, "a")
    with runtime.held():
        a.np[:] = 1
        runtime.fail_records(1)
        with contextlib.suppress(RuntimeError):
            group.flush()
        runtime.fail_records(0)
        for value in (2, 3, 4):  # the slot is not taken for a free one
            a.np[:] = value
            group.flush(10 - value)
        a.np[:] = 5
        seen = []
        while runtime.run_pending():
            seen.append(peek(a.gpu)[20])
    assert set(seen) <= {0, 1}
    assert peek(a.gpu)[:9] == [4] * 6 + [3, 2, 1]
    torch.cuda.synchronize()


@pytest.mark.parametrize("cached", [0, 1], ids=["the slab", "a slot"])
def test_a_group_for_which_there_is_no_memory_is_laid_out_later(form, runtime, cached):
    gc.collect()
    torch._C._host_emptyCache()
    for _ in range(cached):
        torch.empty(9 << 20, dtype=torch.uint8, pin_memory=True)  # torch's cache has memory for the slab only
    group = group_of(form, slots=2)
    a = group.buffer("a", 9 << 20, dtype=torch.uint8)
    runtime.fail_allocations(1)
    with pytest.raises(RuntimeError, match="made-up error 2"):
        group.flush()
    runtime.fail_allocations(0)
    assert group.stats().slots == 0
    later = group.buffer("b", 3, dtype=torch.uint8)  # the group has not been used yet
    a.cpu[-1], later.cpu[-1] = 7, 8
    group.flush()
    assert a.gpu[-1:].cpu().tolist() == [7]
    assert later.gpu[-1:].cpu().tolist() == [8]
    assert group.stats().slots == 2


def test_a_slot_for_which_there_is_no_memory_is_made_later(form, runtime):
    gc.collect()
    torch._C._host_emptyCache()
    group = group_of(form, slots=1, max_slots=3)
    a = group.buffer("a", 9 << 20, dtype=torch.uint8)
    group.freeze()
    with runtime.held():
        a.cpu[0] = 1
        group.flush()
        a.cpu[0] = 2
        runtime.fail_allocations(1)
        with pytest.raises(RuntimeError, match="made-up error 2"):
            group.flush()
        runtime.fail_allocations(0)
        assert (group.stats().slots, group.stats().flushes) == (1, 1)
        a.cpu[0] = 3
        group.flush({"a": 1})
        assert (group.stats().slots, group.stats().flushes) == (2, 2)
        a.cpu[0] = 4
        assert ctypes.c_uint8.from_address(a.gpu.data_ptr()).value == 0
    assert ctypes.c_uint8.from_address(a.gpu.data_ptr()).value == 3


# ---- threads


def run_threads(work, count=4):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads, errors


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("max_slots", [1, 2, 8])
@pytest.mark.parametrize("together", [True, False], ids=["one group", "a group each"])
def test_threads_write_and_upload_on_streams_of_their_own(form, runtime, together, max_slots):
    options = {"slots": 1, "max_slots": max_slots}
    if together:
        groups = [group_of(form, **options)] * 4
        buffers = ints(groups[0], "0", "1", "2", "3")
    else:
        groups = [group_of(form, **options) for _ in range(4)]
        buffers = [ints(group, str(i))[0] for i, group in enumerate(groups)]

    def work(i):
        group, buffer, stream = groups[i], buffers[i], torch.cuda.Stream()
        with torch.cuda.stream(stream):
            on_their_way = []
            for value in range(1, 60):
                buffer.np[:] = value * 10 + i
                if value % 3 == 0:
                    group.flush({str(i): 64})
                elif value % 3 == 1:
                    buffer.copy_to_gpu()
                else:
                    with group.step():
                        buffer.copy_to_gpu(64)
                buffer.np[:] = -1
                on_their_way.append((fetch(buffer), value * 10 + i))
            for fetched, value in on_their_way:
                assert fetched.wait().tolist() == [value] * 64

    with runtime.held():
        threads, errors = run_threads(work)
        while any(thread.is_alive() for thread in threads):
            runtime.run_pending(3)
            time.sleep(1e-4)
        for thread in threads:
            thread.join()
    assert errors == []
    assert runtime.waits()[1] == 0
    for group in groups:
        assert group.stats().peak_slots <= max_slots
    assert [peek(buffer.gpu)[0] for buffer in buffers] == [590 + i for i in range(4)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_upload_all_of_one_group_while_its_mode_changes(form, runtime):
    group = group_of(form, slots=1, max_slots=2)
    buffers = ints(group, *map(str, range(6)))
    for buffer in buffers:
        buffer.np[:] = 3
    stop = threading.Event()

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                group.flush((None, 64, {"1": 64, "3": None})[i % 3])
                group.stats()

    threads, errors = run_threads(work, 3)
    for n in range(60):
        group.mode = MODES[n % 4]
        time.sleep(1e-3)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    torch.cuda.synchronize()
    assert [peek(buffer.gpu) for buffer in buffers] == [[3] * 64] * 6
    assert group.stats().peak_slots <= 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_are_the_first_to_use_a_group(form, runtime):
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(15):
            group = group_of(form)
            buffers = [group.buffer(str(i), 64, dtype=torch.int32) for i in range(40)]
            start = threading.Barrier(4)

            def work(i, buffers=buffers, start=start):
                start.wait()
                buffers[-1 - i].cpu.fill_(i)
                buffers[-1 - i].copy_to_gpu()

            threads, errors = run_threads(work)
            for thread in threads:
                thread.join()
            assert errors == []
            assert [peek(buffers[-1 - i].gpu) for i in range(4)] == [[i] * 64 for i in range(4)]
    finally:
        sys.setswitchinterval(switching)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_closing_while_threads_upload(form, runtime):
    group = group_of(form, slots=1, max_slots=1)
    buffers = ints(group, "0", "1", "2")
    refused = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            try:
                while True:
                    buffers[i].copy_to_gpu()
            except RuntimeError as error:
                refused.append(str(error))

    threads, errors = run_threads(work, 3)
    time.sleep(0.02)
    group.close()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert len(refused) == 3
    assert all("closed" in text for text in refused)


# ---- ends


def test_closing_with_copies_pending(form, runtime):
    group = group_of(form)
    (a,) = ints(group, "a", size=7001)
    with runtime.held():
        a.np[:] = 1
        group.flush()
        with group:
            a.np[:] = 2
            group.flush(10)
        assert group.stats().slots == 0
        for refused in (group.flush, a.copy_to_gpu, lambda: in_step(group, a), lambda: group.flush({"a": 1})):
            with pytest.raises(RuntimeError, match="closed"):
                refused()
        gc.collect()
        usurpers = [torch.empty(7001, dtype=torch.int32, pin_memory=True).fill_(-1) for _ in range(6)]
        a.np[:] = 3
    assert peek(a.gpu) == [2] * 10 + [1] * 6991
    assert all(usurper.unique().tolist() == [-1] for usurper in usurpers)
    group.close()
    assert a.copy_to_cpu(3).shape == (3,)  # the buffer keeps its tensors


def test_a_group_that_is_dropped_with_copies_pending(form, runtime):
    group = group_of(form)
    (a,) = ints(group, "a", size=9001)
    with runtime.held():
        a.np[:] = 1
        group.flush()
        on_device, seen = a.gpu, weakref.ref(group)
        del group, a
        gc.collect()
        assert seen() is None
        usurpers = [torch.empty(9001, dtype=torch.int32, pin_memory=True).fill_(-1) for _ in range(6)]
    assert peek(on_device) == [1] * 9001
    del usurpers


def counted():
    torch.cuda.synchronize()
    gc.collect()
    torch.empty(16, pin_memory=True)  # the allocator looks what has come back
    stats = torch.cuda.host_memory_stats()
    return {key: stats[key] for key in ("active_requests.current", "active_bytes.current") if key in stats}


def test_pinned_memory_is_given_back(form, runtime):
    def use():
        group = group_of(form, slots=2, max_slots=5)
        a, b = ints(group, "a", "b", size=3001)
        with runtime.held():
            for _ in range(4):
                group.flush()
            a.copy_to_gpu(5)
            in_step(group, a, b)
            fetched = group.fetch()
        fetched.wait()

    use()
    before, blocks = counted(), None
    for _ in range(5):
        use()
        blocks = blocks or runtime.pinned_blocks()
    after = counted()
    assert after == before
    assert before
    assert runtime.pinned_blocks() == blocks


PROGRAM = """
import sys, torch
sys.path[:0] = {paths!r}
import fake
from implementations import load
runtime = fake.loaded()
group = load("StagingGroup", {form!r})("cuda", slots=1, max_slots=3, pin_memory=True)
a, b = (group.buffer(name, 64, dtype=torch.int32) for name in "ab")
group.flush()
{body}
"""

ENDS = {
    "with copies pending": """
runtime.library.fakecuda_hold()
for value in (1, 2):
    a.np[:] = value
    group.flush()
fetched = group.fetch()
print("end")
""",
    "in a step": """
runtime.library.fakecuda_hold()
step = group.step()
step.__enter__()
a.copy_to_gpu()
print("end")
""",
    "in a child": """
import os, gc
group.flush()
read, write = os.pipe()
child = os.fork()
if not child:
    try:
        found = []
        for use in (group.flush, a.copy_to_gpu, lambda: group.flush({"a": 1})):
            try:
                use()
                found.append("nothing")
            except RuntimeError as error:
                found.append("fork" if "fork" in str(error) else str(error))
        del use, a, b, group
        gc.collect()
        os.write(write, repr(found).encode())
    finally:
        os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert os.read(read, 1000) == b"['fork', 'fork', 'fork']"
a.np[:] = 3
group.flush()
assert a.gpu.cpu().tolist() == [3] * 64
print("end")
""",
}


@pytest.mark.parametrize("how", ENDS)
def test_the_process_ends(form, runtime, how):
    tests = Path(__file__).resolve().parents[1]
    paths = [str(tests.parent), str(tests), str(tests / "fakecuda")]
    program = PROGRAM.format(paths=paths, form=form, body=ENDS[how])
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# ---- torch's ways


def test_a_dispatch_mode_sees_the_copies(form, runtime):
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.append(function.__name__)
            return function(*arguments, **(keywords or {}))

    group = group_of(form)
    (a,) = ints(group, "a")
    with runtime.held():
        a.np[:] = 1
        with Watching():
            group.flush()
            view = a.copy_to_gpu(3)
        a.np[:] = 2
    assert seen.count("copy_.default") >= 2
    assert peek(a.gpu) == [1] * 64
    assert view._base is a.gpu


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_a_copy_leaves_is_what_a_plain_one_leaves(form, runtime, mode):
    plain = load("CpuGpuBuffer", form)(1, dtype=torch.int32, device=torch.device("cpu"), with_numpy=False)
    plain.cpu = torch.zeros(8, dtype=torch.int32).pin_memory()
    plain.gpu = plain.cpu.to("cuda")
    with mode():
        (staged,) = ints(group_of(form), "a", size=8)
        before = [buffer.gpu._version for buffer in (plain, staged)]
        for n in (None, 0, 3, 8, 20, -2):
            one, other = plain.copy_to_gpu(n), staged.copy_to_gpu(n)
            assert (one is plain.gpu) == (other is staged.gpu)
            assert (one._base is plain.gpu) == (other._base is staged.gpu)
            assert one.shape == other.shape
            assert (one.requires_grad, one.is_inference()) == (other.requires_grad, other.is_inference())
            now = [buffer.gpu._version for buffer in (plain, staged)]
            assert now[0] - before[0] == now[1] - before[1]
    assert staged.gpu._base is None
    assert not staged.gpu.is_inference()


@pytest.mark.parametrize("several", [False, True])
def test_a_target_that_wants_gradients_is_refused_as_ever(form, runtime, several):
    group = group_of(form)
    a = group.buffer("a", 8, dtype=torch.float32)
    group.buffer("b", 8, dtype=torch.float32)
    group.freeze()
    a.np[:] = 1
    a.gpu.requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        group.flush() if several else a.copy_to_gpu()
    with torch.no_grad():
        group.flush()
    torch.cuda.synchronize()
    assert (ctypes.c_float * 8).from_address(a.gpu.data_ptr())[:] == [1.0] * 8


def test_staged_buffers_among_many(form, runtime):
    group = group_of(form)
    a, b = ints(group, "a", "b")
    with runtime.held():
        a.np[:], b.np[:] = 1, 2
        load("copy_to_gpu_many", form)([a, b], [3, None])
        a.np[:], b.np[:] = 8, 9
        with group.step():
            load("copy_to_gpu_many", form)([a, b], 5)
            a.np[:] = 7
    assert peek(a.gpu)[:6] == [7] * 5 + [0]
    assert peek(b.gpu) == [9] * 5 + [2] * 59


def test_a_buffer_staged_by_itself(form, runtime):
    buffer = load("CpuGpuBuffer", form)(
        8, 2, dtype=torch.int32, device=torch.device("cuda:0"), pin_memory=True, staged=True
    )
    with runtime.held():
        buffer.np[:] = 1
        buffer.copy_to_gpu()
        buffer.np[:] = 2
        assert buffer.copy_to_gpu(3).shape == (3, 2)
        buffer.np[:] = 9
    assert peek(buffer.gpu) == [2] * 6 + [1] * 10


def test_tensors_that_are_replaced_leave_the_group_alone(form, runtime):
    group = group_of(form)
    a, b, c = ints(group, "a", "b", "c")
    other = torch.zeros(64, dtype=torch.int32).pin_memory().to("cuda")
    with pytest.warns(RuntimeWarning, match="'b' leaves its staging group: its .gpu was replaced") as warned:
        b.gpu = other
    assert len(warned) == 1
    for buffer in (a, b, c):
        buffer.np[:] = 4
    with runtime.held():
        group.flush()
        b.copy_to_gpu(2)
        for buffer in (a, b, c):
            buffer.np[:] = 5
    assert [peek(buffer.gpu) for buffer in (a, c)] == [[4] * 64] * 2
    assert peek(other) == [5] * 2 + [0] * 62  # a plain copy, which rewriting overtakes


def test_a_buffer_that_was_taken_elsewhere_in_place_leaves_when_it_is_used(form, runtime):
    group = group_of(form)
    a, b = ints(group, "a", "b")
    old = a.gpu.detach()
    a.gpu.data = torch.zeros(64, dtype=torch.int32).pin_memory().to("cuda")
    a.np[:], b.np[:] = 1, 2
    with pytest.warns(RuntimeWarning, match="'a' leaves its staging group") as warned:
        group.flush()
    group.flush()  # a second warning would be an error
    assert len(warned) == 1
    torch.cuda.synchronize()
    assert peek(old) == [0] * 64
    assert (peek(a.gpu), peek(b.gpu)) == ([1] * 64, [2] * 64)
    with pytest.raises(ValueError, match="'a' has left the staging group"):
        group.flush({"a": 1})


def test_a_collection_in_the_middle_that_uploads_the_same_group(form, runtime):
    """A finaliser runs wherever Python likes, also while the only slot is in another upload's hands."""
    group = group_of(form, slots=1, max_slots=1)
    a, _ = ints(group, "a", "b")
    done = []

    def flush(phase, info):
        if phase == "start" and len(done) < 300:
            done.append(1)
            group.flush({"b": 5})

    thresholds = gc.get_threshold()
    gc.callbacks.append(flush)
    gc.set_threshold(1)
    try:
        for value in range(40):
            a.np[:] = value
            group.flush({"a": value})
            a.copy_to_gpu(64)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(flush)
    assert done
    torch.cuda.synchronize()
    assert peek(a.gpu) == [39] * 64


def test_another_upload_while_one_has_let_go_of_the_gil(form, runtime):
    group = group_of(form, slots=1, max_slots=2)
    (a,) = ints(group, "a")
    inner = []

    def again():
        a.np[:] = 2
        group.flush(5)
        inner.append(group.stats().slots)

    a.np[:] = 1
    runtime.during_next_copy(again)
    group.flush()
    assert inner == [2]
    torch.cuda.synchronize()
    assert peek(a.gpu) == [1] * 64  # the outer one is issued last, with what it was asked for


def test_more_buffers_than_a_round(form, runtime):
    group = group_of(form, mode="loop")
    buffers = ints(group, *map(str, range(130)))
    with runtime.held():
        for i, buffer in enumerate(buffers):
            buffer.np[:] = i
        group.flush(7)
        buffers[100].copy_to_gpu()
        in_step(group, *buffers[:3])
        group.flush({"129": 64})
        for buffer in buffers:
            buffer.np[:] = -1
    full = {0, 1, 2, 100, 129}
    for i, buffer in enumerate(buffers):
        assert peek(buffer.gpu) == [i] * 64 if i in full else [i] * 7 + [0] * 57, i
    assert group.stats().runtime_calls == 130 + 1 + 3 + 1
