"""The race detector over copies that are held back: it finds a rewrite in flight, and calls nothing else one."""

import gc
import os
import re
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from implementations import load

import fastutils
from fastutils import _select
from fastutils.tensors import races
from fastutils.tensors.races import RaceError, RaceWarning


@pytest.fixture(autouse=True)
def _nothing_is_left(runtime):
    races._uploads.clear()
    races._downloads.clear()
    yield
    runtime.undo()
    races._uploads.clear()
    races._downloads.clear()
    torch.cuda.synchronize()


@pytest.fixture
def watched(form):
    return lambda name, mode="raise": races.watch(name, load(name, form), mode)


@pytest.fixture
def copy_slice(watched):
    return watched("copy_slice")


@pytest.fixture
def make(watched):
    """A pinned buffer on a device, and a pinned source that counts from 1."""

    def buffer(*size, mode="raise", device="cuda:0", dtype=torch.int32):
        made = watched("CpuGpuBuffer", mode)(*size, dtype=dtype, device=torch.device(device), pin_memory=True)
        torch.cuda.synchronize()
        return made

    return buffer


def host(n=64, dtype=torch.int32):
    return torch.arange(1, n + 1, dtype=dtype).pin_memory()


def device(n=64, where="cuda:0", dtype=torch.int32):
    return torch.zeros(n, dtype=dtype).pin_memory().to(where)  # the stand-in runs no kernels


def issue(call, *arguments):
    return call(*arguments)


#: What a report says of the call in `issue`.
SITE = f"issued at {__file__}:{issue.__code__.co_firstlineno + 1} in issue"

#: How a copy of 5 rows is issued -> (call, how it is told).
WAYS = {
    "copy_slice": (
        lambda watched, source, target: issue(watched("copy_slice"), source, target, 5),
        "copy_slice(..., 5), of a pinned torch.int32 tensor of shape (64,)",
    ),
    "copy_slices": (
        lambda watched, source, target: issue(watched("copy_slices"), [(source, target, 5)]),
        "copy_slices([(..., 5)]), of a pinned torch.int32 tensor of shape (64,)",
    ),
    "copy_to_gpu": (
        lambda watched, source, target: issue(buffer_of(watched, source, target).copy_to_gpu, 5),
        "CpuGpuBuffer.copy_to_gpu(5), of a pinned torch.int32 tensor of shape (64,)",
    ),
    "copy_to_gpu whole": (
        lambda watched, source, target: issue(buffer_of(watched, source[:5], target[:5]).copy_to_gpu),
        "CpuGpuBuffer.copy_to_gpu(), of a pinned torch.int32 tensor of shape (5,)",
    ),
    "copy_to_gpu_many": (
        lambda watched, source, target: issue(watched("copy_to_gpu_many"), [buffer_of(watched, source, target)], 5),
        "CpuGpuBuffer.copy_to_gpu(5), of a pinned torch.int32 tensor of shape (64,)",
    ),
}


def buffer_of(watched, source, target):
    buffer = watched("CpuGpuBuffer")(1, dtype=torch.int32, device="cpu", pin_memory=False, with_numpy=False)
    buffer.cpu, buffer.gpu = source, target
    return buffer


# ---- what it finds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_rewrite_in_flight_is_found(watched, runtime, way):
    call, told = WAYS[way]
    source, target = host(), device()
    with runtime.held():
        call(watched, source, target)
        source[2:4] = -1
        with pytest.raises(RaceError) as error:
            races.check()
        races.check()  # once
    shape = "(5,)" if way == "copy_to_gpu whole" else "(64,)"
    assert str(error.value) == (
        "the source of a copy was rewritten before the copy had read it, in rows 2 to 3 of 5 (bytes 8 to 15 of 20). "
        f"The copy: {told} to a torch.int32 tensor of shape {shape} on cuda:0, {SITE}. "
        "Wait for an event recorded behind it, or for its stream, before writing there again."
    )


LOOKS = {
    "copy_slice": lambda watched, buffer: watched("copy_slice")(torch.ones(2), torch.zeros(2), 1),
    "copy_slices": lambda watched, buffer: watched("copy_slices")([(torch.ones(2), torch.zeros(2), 1)]),
    "copy_to_gpu": lambda watched, buffer: buffer.copy_to_gpu(1),
    "copy_to_cpu": lambda watched, buffer: buffer.copy_to_cpu(1),
    "copy_to_gpu_many": lambda watched, buffer: watched("copy_to_gpu_many")([]),
    "check": lambda watched, buffer: races.check(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_comes_next_notices(watched, make, runtime, look):
    first, second = make(8), make(8)
    with runtime.held():
        first.copy_to_gpu(3)
        first.np[2] = 9
        runtime.reset()
        with pytest.raises(RaceError, match=r"in row 2 of 3 \(bytes 8 to 8 of 12\)"):
            LOOKS[look](watched, second)
        assert runtime.copies() == []  # the call that notices does nothing else


def test_rows_of_several_columns(make, runtime):
    buffer = make(8, 3)
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.np[4, 1] = 1 << 8
        with pytest.raises(RaceError, match=r"in row 4 of 8 \(bytes 53 to 53 of 96\)"):
            races.check()


def test_a_tensor_without_dimensions(make, runtime):
    buffer = make(())
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.cpu.fill_(3)
        with pytest.raises(RaceError, match=r"in row 0 of 1 \(bytes 0 to 0 of 4\)"):
            races.check()


@pytest.mark.parametrize(
    ("size", "place"), [(1 << 20, "in row 100000"), ((1 << 20) + 1, "somewhere in rows 65536 to 131071")]
)
def test_of_a_large_copy_only_the_part_is_known(copy_slice, runtime, size, place):
    source = torch.zeros(size, dtype=torch.uint8).pin_memory()
    target = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    with runtime.held():
        copy_slice(source, target, size)
        source[100_000] = 1
        with pytest.raises(RaceError, match=f"before the copy had read it, {place} of {size} "):
            races.check()


@pytest.mark.parametrize("n", [np.int64(5), np.uint8(5), True + 4])
def test_any_whole_number_is_a_count(copy_slice, runtime, n):
    source, target = host(), device()
    with runtime.held():
        copy_slice(source, target, n)
        source[5:] = 0
        races.check()
        source[4] = 0
        with pytest.raises(RaceError, match=r"copy_slice\(\.\.\., 5\)"):
            races.check()


def test_another_type_is_converted_on_the_device(copy_slice, runtime):
    source, target = host(dtype=torch.int64), device()
    with runtime.held():
        copy_slice(source, target, 5)
        source[0] = 7
        with pytest.raises(RaceError, match=r"row 0 of 5 .* pinned torch\.int64 .* torch\.int32 .* on cuda:0"):
            races.check()


def test_two_copies_in_flight_of_one_source_are_two_races(make, runtime):
    buffer = make(8, mode="warn")
    with runtime.held():
        buffer.copy_to_gpu(4)
        buffer.copy_to_gpu(2)
        before = races.counts()
        buffer.np[1:3] = 5
        with pytest.warns(RaceWarning) as told:
            races.check()
        assert [str(one.message).partition(". The")[0].partition("it, ")[2] for one in told] == [
            "in rows 1 to 2 of 4 (bytes 4 to 8 of 16)",
            "in row 1 of 2 (bytes 4 to 4 of 8)",
        ]
        assert races.counts().races == before.races + 2
        races.check()


def test_one_error_names_all(make, runtime):
    first, second = make(4), make(5)
    with runtime.held():
        first.copy_to_gpu()
        second.copy_to_gpu()
        first.np[:] = second.np[:] = 1
        with pytest.raises(RaceError) as told:
            races.check()
    assert [f"shape ({n},) to" in line for n, line in zip((4, 5), str(told.value).splitlines(), strict=True)] == [
        True
    ] * 2


def test_a_warning_points_at_the_call_that_notices(make, runtime):
    buffer = make(4, mode="warn")
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.np[:] = 1
        with pytest.warns(RaceWarning) as told:
            view = issue(buffer.copy_to_gpu, 2)  # which is made all the same
        assert (told[0].filename, told[0].lineno) == (__file__, issue.__code__.co_firstlineno + 1)
    assert view.tolist() == [1, 1]


def test_a_later_copy_of_the_same_call_may_be_what_rewrites(watched, runtime):
    one, other, pinned = torch.ones(4), torch.zeros(4), torch.zeros(4).pin_memory()
    targets = [device(4, dtype=torch.float32) for _ in range(2)]
    with runtime.held(), pytest.raises(RaceError, match="copy_slices"):
        watched("copy_slices")([(one, pinned, 4), (pinned, targets[0], 4), (other, pinned, 4), (pinned, targets[1], 4)])


def test_streams_are_told_apart(copy_slice, runtime):
    sources, targets, streams = [host(), host()], [device(), device()], [torch.cuda.Stream(), torch.cuda.Stream()]
    with runtime.held():
        for source, target, stream in zip(sources, targets, streams, strict=True):
            with torch.cuda.stream(stream):
                copy_slice(source, target, 5)
        streams[0].synchronize()
        sources[0].zero_()
        races.check()
        sources[1].zero_()
        with pytest.raises(RaceError) as told:
            races.check()
    assert len(str(told.value).splitlines()) == 1


def test_another_device_than_the_current_one(make, runtime):
    buffer = make(4, device="cuda:1")
    with runtime.held():
        buffer.copy_to_gpu()
        torch.cuda.synchronize("cuda:0")
        buffer.np[:] = 1
        with pytest.raises(RaceError, match="on cuda:1"):
            races.check()
        buffer.copy_to_gpu()
        torch.cuda.synchronize("cuda:1")
        buffer.np[:] = 2
        races.check()


def test_whose_copies_are_watched_is_told_by_the_class(make, watched, runtime):
    class Positions(watched("CpuGpuBuffer")):
        pass

    positions = Positions(4, dtype=torch.int32, device=torch.device("cuda:0"), pin_memory=True)
    with runtime.held():
        positions.copy_to_gpu(2)
        positions.np[0] = 1
        with pytest.raises(RaceError, match=r"Positions\.copy_to_gpu\(2\)"):
            races.check()


# ---- what is no race ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", ["itself", "an event", "its stream"])
def test_a_source_may_be_used_again_once_the_copy_has_run(watched, runtime, way, by):
    source, target = host(), device()
    before = races.counts()
    with runtime.held():
        for round in range(3):
            WAYS[way][0](watched, source, target)
            if by == "an event":
                event = torch.cuda.Event()
                event.record()
                event.synchronize()
            elif by == "its stream":
                torch.cuda.current_stream().synchronize()
            else:
                runtime.run_pending(9)
            source.fill_(round)
    races.check()
    assert races.counts().watched == before.watched + 3
    assert (races.counts().in_flight, races.counts().races) == (0, before.races)


def test_the_same_bytes_again_are_no_race(make, runtime):
    buffer = make(4)
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.np[:] = 1
        buffer.np[:] = 0
        races.check()
        assert races.counts().in_flight == 1
        buffer.np[3] = 1
        with pytest.raises(RaceError):  # the record was kept, and still holds
            races.check()


def test_other_rows_may_be_written(make, runtime):
    buffer = make(8)
    with runtime.held():
        buffer.copy_to_gpu(3)
        buffer.np[3:] = 1
        races.check()


def test_a_copy_that_ends_while_it_is_looked_at_proves_nothing(make, runtime, monkeypatch):
    buffer, read = make(4), races._Memory.read
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.np[:] = 1
        found = []

        def read_and_end(memory):
            found.append(read(memory))
            runtime.release()
            return found[0]

        monkeypatch.setattr(races._Memory, "read", read_and_end)
        races.check()
        assert len(found) == 1
        assert races.counts().in_flight == 0


def test_what_is_written_before_the_copy_is_issued_is_copied(make, runtime):
    """By another thread, say, after the call began."""
    buffer = make(3007)
    with runtime.held():
        runtime.during_next_copy(lambda: buffer.np.fill(4))
        buffer.copy_to_gpu()
        races.check()
    assert buffer.gpu.cpu().unique().tolist() == [4]


def test_the_device_may_write_the_source_before_the_copy_reads_it(watched, make, runtime):
    """In order, on one stream. Nothing in the process tells such a write from the host's, but that we issued it."""
    buffer, other = make(8), make(8)
    filled = host(8).to("cuda:0")
    for there, back in (
        (lambda: buffer.copy_to_cpu(), lambda: buffer.copy_to_gpu()),
        (lambda: watched("copy_slice")(filled, buffer.cpu, 5), lambda: watched("copy_slice")(buffer.cpu, other.gpu, 7)),
        (
            lambda: watched("copy_slice")(filled, buffer.cpu, torch.tensor(5)),
            lambda: watched("copy_slices")([(buffer.cpu, other.gpu, 7)]),
        ),
    ):
        buffer.np[:] = 0
        buffer.gpu = filled
        with runtime.held():
            there()
            back()
            assert buffer.np[0] == 0
            runtime.run_pending(1)
            assert buffer.np[0] == 1
            assert runtime.pending()
            races.check()
        races.check()
    assert len(races._downloads) == 1  # those before were seen to be over


def test_once_the_device_has_written_it_copies_are_watched_again(make, runtime):
    buffer = make(8)
    buffer.copy_to_cpu()
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.np[:] += 1
        with pytest.raises(RaceError):
            races.check()


def test_what_the_device_writes_elsewhere_is_no_matter(make, runtime):
    below, between, above = sorted((make(8) for _ in range(3)), key=lambda buffer: buffer.cpu.data_ptr())
    with runtime.held():
        below.copy_to_cpu()
        above.copy_to_cpu()
        between.copy_to_gpu()
        between.np[:] = 2
        with pytest.raises(RaceError):
            races.check()


def test_a_freed_source_stays_until_its_copy_has_run(copy_slice, runtime):
    source, target = host(3011), device(3011)
    address, alive = source.data_ptr(), weakref.ref(source.untyped_storage())
    with runtime.held():
        copy_slice(source, target, 3011)
        del source
        gc.collect()
        assert races._uploads[0].memory.start == address
        usurper = torch.empty(3011, dtype=torch.int32, pin_memory=True).fill_(-1)
        assert usurper.data_ptr() != address
        races.check()
    races.check()
    gc.collect()
    assert not races._uploads
    assert alive() is None
    assert target.cpu().tolist() == [*range(1, 3012)]


def test_a_source_that_was_given_other_memory_is_no_matter_any_more(copy_slice, runtime):
    source, target = torch.empty(64, dtype=torch.int32, pin_memory=True).fill_(1), device(64)
    with runtime.held():
        copy_slice(source, target, 64)
        source.resize_(100_000).zero_()
        races.check()
        assert races.counts().in_flight == 0


def test_a_source_that_is_given_other_memory_by_the_copy(copy_slice, runtime):
    source, target, kept = host(64), device(64), []
    with runtime.held():

        def swap():
            kept.append(source.clone())
            source.data = host(64)

        runtime.during_next_copy(swap)
        copy_slice(source, target, 64)
        assert races.counts().in_flight == 0


# ---- what is not watched -----------------------------------------------------------------------------------------


UNWATCHED = {
    "pageable": lambda: (torch.arange(8), device(8, dtype=torch.int64), 8),
    "within a device": lambda: (device(8), device(8), 8),
    "between devices": lambda: (device(8), device(8, "cuda:1"), 8),
    "to the host": lambda: (device(8), host(8), 8),
    "on the host": lambda: (host(8), host(8), 8),
    "no rows": lambda: (host(8), device(8), 0),
    "strided": lambda: (host(16)[::2], device(8), 8),
    "spread": lambda: (host(1), device(8), 8),
    "a subclass": lambda: (torch.nn.Parameter(host(8), requires_grad=False), device(8), 8),
}


@pytest.mark.parametrize("case", UNWATCHED)
def test_what_the_copy_reads_at_once_or_never(copy_slice, runtime, case):
    before = races.counts()
    source, target, n = UNWATCHED[case]()
    with runtime.held():
        view = copy_slice(source, target, n)
        if case in ("strided", "spread"):  # torch gathers them before it returns, and this is why they are left out
            expected = source[:n].expand_as(view).tolist()
            source.zero_()
            races.check()
            runtime.release()
            assert view.cpu().tolist() == expected
    assert races.counts() == before


def test_under_capture_nothing_is_recorded_and_no_event_is_asked(make, runtime):
    buffer = make(8)
    with runtime.held():
        buffer.copy_to_gpu()
        before = races.counts()
        asked = []
        races._uploads.append(races._Upload(races._uploads[0].memory, torch.device("cuda:0"), Asked(asked), "this"))
        runtime.reset()
        with torch.cuda.stream(torch.cuda.Stream()), runtime.capturing():
            buffer.np[:] = 1
            buffer.copy_to_gpu(2)
            buffer.copy_to_cpu(2)
            races.check()
        assert asked == []
        assert runtime.records()[0] == 0
        assert races.counts().watched == before.watched
        with pytest.raises(RaceError):  # of the copy before
            races.check()


class Asked:
    def __init__(self, asked):
        self.asked = asked

    def query(self):
        self.asked.append(self)
        return True


@pytest.mark.parametrize("lacking", ["Event", "current_stream"])
def test_a_device_without_events(copy_slice, runtime, monkeypatch, lacking):
    before = races.counts()
    monkeypatch.delattr(torch.cuda, lacking)
    copy_slice(host(), device(), 5)
    assert races.counts() == before


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("when", ["at once", "in the middle"])
def test_an_event_that_cannot_be_asked_proves_nothing(make, runtime, monkeypatch, value, when):
    buffer, read = make(8), races._Memory.read
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.np[:] = value
        if when == "at once":
            runtime.fail_events(9)
        else:
            monkeypatch.setattr(races._Memory, "read", lambda memory: (read(memory), runtime.fail_events(9))[0])
        races.check()
        runtime.fail_events(0)
        assert races.counts().in_flight == (when == "in the middle" and value == 0)  # which asks no second time


def test_an_event_of_a_download_that_cannot_be_asked_may_be_pending(make, runtime):
    buffer = make(8)
    with runtime.held():
        buffer.copy_to_cpu()
        runtime.fail_events(9)
        buffer.copy_to_gpu()
        runtime.fail_events(0)
        assert races.counts().in_flight == 0


def test_a_copy_that_fails_is_not_watched(copy_slice, runtime):
    source, target, before = host(), device(), races.counts()
    runtime.fail_next(1, times=9)
    with pytest.raises(RuntimeError, match="made-up error"):
        copy_slice(source, target, 5)
    assert races.counts() == before


def test_a_staged_buffer_is_never_watched(watched, runtime, monkeypatch, form):
    monkeypatch.setenv("FASTUTILS_DEBUG_RACES", "raise")
    monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", "" if form == "compiled" else "1")
    group = load("StagingGroup", form)("cuda:0")
    alone = watched("CpuGpuBuffer")(8, dtype=torch.int32, device=torch.device("cuda:0"), pin_memory=True, staged=True)
    buffers = [group.buffer("a", 8, dtype=torch.int32), alone]
    group.freeze()
    torch.cuda.synchronize()
    before = races.counts()
    for buffer in buffers:
        assert isinstance(buffer, _select.choose("CpuGpuBuffer").value)
        with runtime.held():
            for round in (1, 2):
                buffer.np[:] = round
                buffer.copy_to_gpu(3)
            buffer.np[:] = 3
            races.check()
        assert buffer.gpu[:3].cpu().tolist() == [2, 2, 2]
    assert races.counts() == before


# ---- bounds, threads, forks, what runs in the middle -------------------------------------------------------------


def test_the_oldest_record_makes_room(make, runtime, monkeypatch):
    monkeypatch.setattr(races, "MOST_RECORDS", 3)
    buffers = [make(n) for n in range(1, 6)]
    before = races.counts()
    with runtime.held():
        for buffer in buffers:
            buffer.copy_to_gpu()
        assert races.counts() == (before.watched + 5, 3, before.dropped + 2, before.races)
        for buffer in buffers:
            buffer.np[:] = 1
        with pytest.raises(RaceError) as told:
            races.check()
    assert [line.partition("shape (")[2][0] for line in str(told.value).splitlines()] == ["3", "4", "5"]


def test_threads_that_wait_for_their_copies_have_no_races(copy_slice, runtime):
    errors = []

    def work(seed):
        stream, source, target = torch.cuda.Stream(), host(), device()
        try:
            with torch.cuda.stream(stream):
                for round in range(60):
                    source.fill_(seed * 100 + round)
                    copy_slice(source, target, 64)
                    stream.synchronize()
        except BaseException as error:
            errors.append(error)

    with runtime.held():
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        races.check()
    assert errors == []
    assert races.counts().in_flight == 0


def test_each_race_is_told_by_one_thread(watched, runtime):
    sources, target, told = [host() for _ in range(40)], device(), []
    copy_slice = watched("copy_slice", "raise")
    with runtime.held():
        for source in sources:
            copy_slice(source, target, 5)
        for source in sources:
            source.zero_()
        barrier = threading.Barrier(4)

        def look():
            barrier.wait()
            try:
                races.check()
            except RaceError as error:
                told.extend(str(error).splitlines())

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(told) == 40


def test_a_finaliser_that_copies_in_the_middle(make, runtime, monkeypatch):
    first, second = make(4, mode="warn"), make(5, mode="warn")
    read = races._Memory.read
    within = []

    class Last:
        def __del__(self):
            second.copy_to_gpu(1)
            within.append(races.counts().in_flight)

    kept = [Last()]

    def read_and_let_go(memory):
        kept.clear()
        return read(memory)

    with runtime.held():
        first.copy_to_gpu()
        first.np[:] = 1
        monkeypatch.setattr(races._Memory, "read", read_and_let_go)
        with pytest.warns(RaceWarning) as told:
            races.check()
        assert len(told) == 1  # by the finaliser's own look
        assert within == [1]
        second.np[:] = 1
        with pytest.warns(RaceWarning, match=r"copy_to_gpu\(1\)"):
            races.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_knows_nothing_of_its_parents_copies(make, runtime):
    buffer = make(4)
    with runtime.held():
        buffer.copy_to_gpu()
        buffer.copy_to_cpu()
        buffer.np[:] = 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                races.check()
                status = 0 if not races._uploads and not races._downloads else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with pytest.raises(RaceError):
            races.check()


def test_the_switch_alone_is_enough(runtime, monkeypatch, form):
    monkeypatch.setenv("FASTUTILS_DEBUG_RACES", "warn")
    monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", "" if form == "compiled" else "1")
    for name in _select.RACING:
        monkeypatch.delitem(vars(fastutils), name, raising=False)
    source, target = host(), device()
    with runtime.held():
        fastutils.copy_slice(source, target, 5)
        source.zero_()
        with pytest.warns(RaceWarning, match="rows 0 to 4 of 5"):
            fastutils.copy_slice(source, target, 5)
    for name in _select.RACING:
        vars(fastutils).pop(name, None)


HELD = """
import runpy
import fake
with fake.loaded().held():
    runpy.run_path("planted.py")
"""


def test_the_documented_example_prints_what_the_page_says(tmp_path):
    root = Path(__file__).parents[2]
    page = root / "docs" / "races.md"
    if not page.exists():
        pytest.skip("the page is not here")
    _, program, output = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)[:3]
    (tmp_path / "planted.py").write_text(program)
    path = os.pathsep.join(map(str, (root, Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", HELD],
        env={**os.environ, "FASTUTILS_DEBUG_RACES": "warn", "PYTHONPATH": path, "FASTUTILS_NO_EXTENSIONS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == output
