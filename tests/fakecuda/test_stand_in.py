"""The stand-in itself: what it copies and when, what it holds back and counts, and what it can be told to refuse."""

import ctypes
import mmap
import os

import pytest
from fake import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    INVALID_DIRECTION,
    INVALID_PITCH,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    MEMORY_ALLOCATION,
    NOT_READY,
    SONAME,
)

ANY_DIRECTION = 4
FRESH = 0xA5  # what the stand-in fills new memory with
MAX_PITCH = 2**31 - 1

Pointer, Size, Int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
SIGNATURES = {
    "cudaDeviceSynchronize": (),
    "cudaEventCreate": (Pointer,),
    "cudaEventDestroy": (Pointer,),
    "cudaEventQuery": (Pointer,),
    "cudaEventRecord": (Pointer, Pointer),
    "cudaEventSynchronize": (Pointer,),
    "cudaFree": (Pointer,),
    "cudaFreeHost": (Pointer,),
    "cudaGetLastError": (),
    "cudaHostAlloc": (Pointer, Size, Int),
    "cudaMalloc": (Pointer, Size),
    "cudaMemcpy2DAsync": (Pointer, Size, Pointer, Size, Size, Size, Int, Pointer),
    "cudaMemcpyAsync": (Pointer, Pointer, Size, Int, Pointer),
    "cudaMemcpyPeerAsync": (Pointer, Int, Pointer, Int, Size, Pointer),
    "cudaMemsetAsync": (Pointer, Int, Size, Pointer),
    "cudaSetDevice": (Int,),
    "cudaStreamCreate": (Pointer,),
    "cudaStreamDestroy": (Pointer,),
    "cudaStreamQuery": (Pointer,),
    "cudaStreamSynchronize": (Pointer,),
    "cudaStreamWaitEvent": (Pointer, Pointer, Int),
}


class Cuda:
    """The runtime's functions, and what is to be freed after the test."""

    def __init__(self):
        # PyDLL keeps the GIL during a call, CDLL does not.
        self.libraries = [kind(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY) for kind in (ctypes.CDLL, ctypes.PyDLL)]
        for library in self.libraries:
            for name, arguments in SIGNATURES.items():
                getattr(library, name).argtypes = arguments
        self.made = []

    def error_of(self, name, *arguments, gil=False):
        return getattr(self.libraries[gil], f"cuda{name}")(*arguments)

    def __call__(self, name, *arguments, gil=False):
        assert self.error_of(name, *arguments, gil=gil) == 0

    def make(self, name, free, *arguments):
        made = ctypes.c_void_p()
        self(name, ctypes.byref(made), *arguments)
        self.made.append((free, made.value))
        return made.value

    def device(self, size=64):
        return self.make("Malloc", "Free", size)

    def pinned(self, data):
        block = self.make("HostAlloc", "FreeHost", len(data), 0)
        ctypes.memmove(block, data, len(data))
        return block

    def stream(self):
        return self.make("StreamCreate", "StreamDestroy")

    def event(self):
        return self.make("EventCreate", "EventDestroy")

    def clean(self):
        self("SetDevice", 0)
        for free, made in reversed(self.made):
            self(free, made)
        self.error_of("GetLastError")  # not to be reported to torch in another test


@pytest.fixture
def cuda(runtime):
    functions = Cuda()
    yield functions
    functions.clean()


DATA = bytes(range(64))
SOURCES = ["pinned", "pageable", "device"]


def source_of(cuda, where):
    """DATA in memory of that sort: its address, and what keeps it alive."""
    if where == "pageable":
        buffer = ctypes.create_string_buffer(DATA, len(DATA))
        return ctypes.addressof(buffer), buffer
    if where == "pinned":
        return cuda.pinned(DATA), None
    block = cuda.device()
    ctypes.memmove(block, DATA, len(DATA))
    return block, None


def read(address, size=1):
    return ctypes.string_at(address, size)


# ---- copies of rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exact", "any"])
@pytest.mark.parametrize("where", SOURCES)
def test_rows_are_copied_at_their_pitches_and_nothing_between_them(runtime, cuda, where, kind):
    target, stream = cuda.device(), cuda.stream()
    source, _alive = source_of(cuda, where)
    direction = DEVICE_TO_DEVICE if where == "device" else HOST_TO_DEVICE
    direction = ANY_DIRECTION if kind == "any" else direction
    cuda("Memcpy2DAsync", target, 16, source, 20, 5, 3, direction, stream)
    gap = bytes([FRESH]) * 11
    assert read(target, 64) == DATA[:5] + gap + DATA[20:25] + gap + DATA[40:45] + gap + bytes([FRESH]) * 16
    (copy,) = runtime.copies()
    assert (copy.to, copy.source, copy.bytes, copy.kind) == (target, source, 15, direction)
    assert (copy.height, copy.to_pitch, copy.from_pitch) == (3, 16, 20)
    assert (copy.stream, copy.device, copy.gil) == (stream, 0, False)


def test_one_row_may_have_any_pitches_that_hold_it(runtime, cuda):
    target, source = cuda.device(), cuda.pinned(DATA)
    cuda("Memcpy2DAsync", target, MAX_PITCH, source, 9, 9, 1, HOST_TO_DEVICE, None)
    assert read(target, 10) == DATA[:9] + bytes([FRESH])
    assert [(copy.bytes, copy.height) for copy in runtime.copies()] == [(9, 1)]


def test_a_copy_without_pitches_is_logged_as_one_row(runtime, cuda):
    target, source = cuda.device(), cuda.pinned(DATA)
    cuda("MemcpyAsync", target, source, 7, HOST_TO_DEVICE, None, gil=True)
    (copy,) = runtime.copies()
    assert (copy.bytes, copy.height, copy.to_pitch, copy.from_pitch, copy.gil) == (7, 1, 0, 0, True)


@pytest.mark.parametrize(("width", "height"), [(0, 3), (4, 0)])
def test_no_rows_or_empty_ones(runtime, cuda, width, height):
    target = cuda.device()
    cuda("Memcpy2DAsync", target, 8, cuda.pinned(DATA), 8, width, height, HOST_TO_DEVICE, None)
    assert read(target, 64) == bytes([FRESH]) * 64
    assert [copy.bytes for copy in runtime.copies()] == [0]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    ("to_pitch", "from_pitch", "height", "kind", "error"),
    [
        (7, 8, 2, HOST_TO_DEVICE, INVALID_PITCH),
        (8, 7, 2, HOST_TO_DEVICE, INVALID_PITCH),
        (7, 8, 1, HOST_TO_DEVICE, INVALID_PITCH),
        (8, 0, 1, HOST_TO_DEVICE, INVALID_PITCH),
        (MAX_PITCH + 1, 8, 1, HOST_TO_DEVICE, INVALID_PITCH),
        (8, MAX_PITCH + 1, 1, HOST_TO_DEVICE, INVALID_PITCH),
        (8, 8, 2, 5, INVALID_DIRECTION),
        (8, 8, 2, -1, INVALID_DIRECTION),
    ],
)
def test_refused(runtime, cuda, to_pitch, from_pitch, height, kind, error, quiet):
    target, source = cuda.device(), cuda.pinned(DATA)
    runtime.library.fakecuda_quiet(quiet)
    assert cuda.error_of("Memcpy2DAsync", target, to_pitch, source, from_pitch, 8, height, kind, None) == error
    assert cuda.error_of("GetLastError") == error
    assert read(target, 64) == bytes([FRESH]) * 64
    assert runtime.calls() == 1


@pytest.mark.parametrize("where", SOURCES)
def test_pageable_rows_are_read_when_the_copy_is_issued_and_others_when_it_is_run(runtime, cuda, where):
    target = cuda.device()
    source, _alive = source_of(cuda, where)
    with runtime.held():
        cuda("Memcpy2DAsync", target, 4, source, 32, 2, 2, ANY_DIRECTION, None)
        ctypes.memset(source, 99, 64)
        assert read(target) == bytes([FRESH])
    expected = [0, 1, FRESH, FRESH, 32, 33] if where == "pageable" else [99, 99, FRESH, FRESH, 99, 99]
    assert list(read(target, 6)) == expected


def test_nothing_behind_the_last_row_is_read(runtime, cuda):
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = Pointer
    libc.mmap.argtypes = (Pointer, Size, Int, Int, Int, ctypes.c_long)
    libc.mprotect.argtypes = (Pointer, Size, Int)
    libc.munmap.argtypes = (Pointer, Size)
    pages = libc.mmap(None, 2 * page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert libc.mprotect(pages + page, page, 0) == 0
    ctypes.memset(pages, 7, page)
    target = cuda.device()
    cuda("Memcpy2DAsync", target, 4, pages + page - 19, 16, 3, 2, HOST_TO_DEVICE, None)
    assert list(read(target, 8)) == [7, 7, 7, FRESH] * 2
    libc.munmap(pages, 2 * page)


def test_rows_for_pageable_memory_are_waited_for(runtime, cuda):
    source, stream = cuda.device(), cuda.stream()
    ctypes.memmove(source, DATA, 64)
    pageable, pinned = ctypes.create_string_buffer(8), cuda.pinned(bytes(8))
    with runtime.held():
        cuda("Memcpy2DAsync", pinned, 2, source, 16, 2, 2, DEVICE_TO_HOST, stream)
        assert runtime.pending() == 1
        cuda("Memcpy2DAsync", ctypes.addressof(pageable), 2, source, 16, 2, 2, DEVICE_TO_HOST, stream)
        assert runtime.pending() == 0
        assert runtime.waits() == (0, 0)
    assert list(pageable.raw[:4]) == list(read(pinned, 4)) == [0, 1, 16, 17]


def test_quiet_rows_are_copied_at_once_and_only_counted(runtime, cuda):
    target, source = cuda.device(), cuda.pinned(DATA)
    runtime.fail_next(INVALID_VALUE)
    with runtime.held(), runtime.quiet():
        cuda("Memcpy2DAsync", target, 4, source, 8, 2, 2, HOST_TO_DEVICE, None)
        assert list(read(target, 6)) == [0, 1, FRESH, FRESH, 8, 9]
        assert runtime.pending() == 0
    assert runtime.copies() == []
    assert runtime.calls() == 1


def test_the_next_copy_of_rows_can_fail_and_call_back(runtime, cuda):
    target, source = cuda.device(), cuda.pinned(DATA)
    called = []
    runtime.during_next_copy(lambda: called.append(runtime.calls()))
    runtime.fail_next(INVALID_VALUE)
    rows = (target, 4, source, 8, 2, 2, HOST_TO_DEVICE, None)
    assert cuda.error_of("Memcpy2DAsync", *rows) == INVALID_VALUE
    assert read(target) == bytes([FRESH])
    cuda("Memcpy2DAsync", *rows)
    assert read(target, 2) == DATA[:2]
    assert len(runtime.copies()) == 2
    assert called == [1]


def test_calls_counts_copies_of_every_sort(runtime, cuda):
    target, source = cuda.device(), cuda.pinned(DATA)
    cuda("MemcpyAsync", target, source, 4, HOST_TO_DEVICE, None)
    cuda("Memcpy2DAsync", target, 4, source, 4, 4, 2, HOST_TO_DEVICE, None)
    cuda("MemcpyPeerAsync", target, 0, target + 32, 1, 4, None)
    cuda("MemsetAsync", target, 0, 4, None)
    assert runtime.calls() == len(runtime.copies()) == 3
    runtime.reset()
    assert runtime.calls() == 0


# ---- one step after the other ----------------------------------------------------------------------------------


def upload(cuda, target, value, stream):
    """One byte, out of memory that is read at once."""
    cuda("MemcpyAsync", target, ctypes.create_string_buffer(bytes([value])), 1, HOST_TO_DEVICE, stream)


def test_steps_follow_the_order_of_issue_over_all_streams(runtime, cuda):
    target = cuda.device()
    first, second = cuda.stream(), cuda.stream()
    with runtime.held():
        for value, stream in enumerate([second, first, first, None, second]):
            upload(cuda, target, value, stream)
        cuda("MemsetAsync", target, 5, 1, first)
        assert runtime.pending() == 6
        assert read(target) == bytes([FRESH])
        for value in range(6):
            assert runtime.run_pending() == 1
            assert read(target)[0] == value
            assert runtime.pending() == 5 - value
        assert runtime.run_pending() == 0


def test_several_steps_at_once(runtime, cuda):
    target, stream = cuda.device(), cuda.stream()
    with runtime.held():
        for value in range(5):
            upload(cuda, target, value, stream)
        assert runtime.run_pending(0) == 0
        assert runtime.run_pending(2) == 2
        assert read(target)[0] == 1
        assert runtime.run_pending(99) == 3
        assert read(target)[0] == 4
        upload(cuda, target, 9, stream)  # and the queue is held as before
        assert read(target)[0] == 4
    assert read(target)[0] == 9
    assert runtime.pending() == 0


def test_a_step_waits_for_events_as_its_stream_does(runtime, cuda):
    target, other = cuda.device(), cuda.device()
    copying, waiting, event = cuda.stream(), cuda.stream(), cuda.event()
    with runtime.held():
        upload(cuda, target, 1, copying)
        cuda("EventRecord", event, copying)
        cuda("StreamWaitEvent", waiting, event, 0)
        upload(cuda, other, 2, waiting)
        upload(cuda, target, 3, copying)
        assert runtime.pending() == 4  # the wait is none of them
        assert runtime.run_pending(1) == 1
        assert cuda.error_of("EventQuery", event) == NOT_READY
        assert runtime.run_pending(1) == 1
        assert cuda.error_of("EventQuery", event) == 0
        assert read(other) == bytes([FRESH])
        assert runtime.run_pending(1) == 1
        assert (read(target)[0], read(other)[0]) == (1, 2)
        assert cuda.error_of("StreamQuery", waiting) == 0
        assert cuda.error_of("StreamQuery", copying) == NOT_READY


def test_steps_go_on_after_a_synchronization_ran_ahead(runtime, cuda):
    target, other = cuda.device(), cuda.device()
    copying, waiting, event = cuda.stream(), cuda.stream(), cuda.event()
    with runtime.held():
        upload(cuda, target, 1, copying)
        cuda("EventRecord", event, copying)
        upload(cuda, target, 2, copying)
        cuda("StreamWaitEvent", waiting, event, 0)
        upload(cuda, other, 3, waiting)
        cuda("StreamSynchronize", waiting)
        assert (read(target)[0], read(other)[0]) == (1, 3)
        assert runtime.pending() == 1
        assert runtime.run_pending(2) == 1
        assert read(target)[0] == 2


def test_a_stream_that_waits_for_what_has_happened_is_idle(runtime, cuda):
    copying, waiting, event, unrecorded = cuda.stream(), cuda.stream(), cuda.event(), cuda.event()
    with runtime.held():
        cuda("StreamWaitEvent", waiting, unrecorded, 0)
        assert cuda.error_of("StreamQuery", waiting) == 0
        cuda("EventRecord", event, copying)
        cuda("StreamWaitEvent", waiting, event, 0)
        assert cuda.error_of("StreamQuery", waiting) == NOT_READY
        assert runtime.run_pending() == 1
        assert cuda.error_of("StreamQuery", waiting) == 0
        assert runtime.run_pending() == 0
        cuda("StreamWaitEvent", waiting, event, 0)
        assert cuda.error_of("StreamQuery", waiting) == 0


def test_an_event_stands_for_its_latest_record(runtime, cuda):
    stream, event = cuda.stream(), cuda.event()
    assert cuda.error_of("EventQuery", event) == 0  # never recorded
    with runtime.held():
        cuda("EventRecord", event, stream)
        cuda("EventRecord", event, stream)
        for _ in range(2):
            assert cuda.error_of("EventQuery", event) == NOT_READY
            assert runtime.run_pending() == 1
        assert cuda.error_of("EventQuery", event) == 0


# ---- waits and queries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gil", [False, True])
@pytest.mark.parametrize("what", ["Event", "Stream", "Device"])
def test_only_real_waits_are_counted(runtime, cuda, what, gil):
    target, stream, event = cuda.device(), cuda.stream(), cuda.event()
    arguments = {"Event": (event,), "Stream": (stream,), "Device": ()}[what]

    def synchronize():
        cuda(f"{what}Synchronize", *arguments, gil=gil)

    def use():
        upload(cuda, target, 1, stream)
        cuda("EventRecord", event, stream)

    use()
    synchronize()
    with runtime.held():
        synchronize()
        assert runtime.waits() == (0, 0)
        use()
        assert runtime.waits() == (0, 0)
        synchronize()
        assert runtime.pending() == 0
        assert runtime.waits() == (1, int(gil))
        synchronize()
        use()
        runtime.run_pending(2)
        synchronize()
        assert runtime.waits() == (1, int(gil))
        use()
        synchronize()
        assert runtime.waits() == (2, 2 * gil)
    runtime.reset()
    assert runtime.waits() == (0, 0)


def test_an_event_is_waited_for_only_up_to_its_place(runtime, cuda):
    target, stream, event = cuda.device(), cuda.stream(), cuda.event()
    with runtime.held():
        upload(cuda, target, 1, stream)
        cuda("EventRecord", event, stream)
        upload(cuda, target, 2, stream)
        cuda("EventSynchronize", event)
        assert read(target)[0] == 1
        assert runtime.pending() == 1
        assert runtime.waits() == (1, 0)


def test_another_devices_work_is_not_waited_for(runtime, cuda):
    target = cuda.device()
    cuda("SetDevice", 1)
    stream = cuda.stream()
    cuda("SetDevice", 0)
    with runtime.held():
        upload(cuda, target, 1, stream)
        cuda("DeviceSynchronize")
        assert runtime.waits() == (0, 0)
        assert runtime.pending() == 1
        cuda("SetDevice", 1)
        cuda("DeviceSynchronize")
        assert runtime.waits() == (1, 0)


def test_queries_with_the_gil_are_counted(runtime, cuda):
    event = cuda.event()
    cuda("EventQuery", event)
    assert runtime.queries_with_gil() == 0
    cuda("EventQuery", event, gil=True)
    cuda("EventQuery", event, gil=True)
    assert runtime.queries_with_gil() == 2
    assert runtime.waits() == (0, 0)
    runtime.reset()
    assert runtime.queries_with_gil() == 0


# ---- refusals and memory ---------------------------------------------------------------------------------------


def test_pinned_blocks(runtime, cuda):
    count, size = runtime.pinned_blocks()
    cuda.pinned(bytes(100))
    cuda.device(1000)
    assert runtime.pinned_blocks() == (count + 1, size + 100)
    cuda.pinned(bytes(28))
    assert runtime.pinned_blocks() == (count + 2, size + 128)
    cuda("FreeHost", cuda.made.pop()[1])
    assert runtime.pinned_blocks() == (count + 1, size + 100)


def test_allocations_of_pinned_memory_can_fail(runtime, cuda):
    before = runtime.pinned_blocks()
    runtime.fail_allocations(2)
    cuda.device()
    block = ctypes.c_void_p(7)
    for _ in range(2):
        assert cuda.error_of("HostAlloc", ctypes.byref(block), 8, 0) == MEMORY_ALLOCATION
        assert cuda.error_of("GetLastError") == MEMORY_ALLOCATION
    assert block.value == 7
    assert runtime.pinned_blocks() == before
    cuda.pinned(DATA)
    runtime.fail_allocations(1)
    runtime.fail_allocations(0)
    cuda.pinned(DATA)


def test_torch_asks_for_pinned_memory_once(runtime):
    torch = pytest.importorskip("torch")
    size = 3 << 20  # a size class that nothing else here uses
    runtime.fail_allocations(1)
    with pytest.raises(RuntimeError, match="made-up error 2"):
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
    block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    runtime.fail_allocations(1)
    del block
    torch.empty(size, dtype=torch.uint8, pin_memory=True)  # out of its cache


def test_event_records_can_fail(runtime, cuda):
    stream, event = cuda.stream(), cuda.event()
    with runtime.held():
        cuda("EventRecord", event, stream)
        runtime.fail_records(1, INVALID_VALUE)
        assert cuda.error_of("EventRecord", event, stream) == INVALID_VALUE
        assert runtime.records() == (1, 0)
        assert cuda.error_of("EventQuery", event) == NOT_READY  # it still stands for its first record
        assert runtime.run_pending(9) == 1
        assert cuda.error_of("EventQuery", event) == 0
        cuda("EventRecord", event, stream)
        assert runtime.records() == (2, 0)
    runtime.fail_records(1)
    assert cuda.error_of("EventRecord", event, stream) == LAUNCH_FAILURE


def test_queries_and_synchronizations_of_events_can_fail(runtime, cuda):
    target, stream, event = cuda.device(), cuda.stream(), cuda.event()
    with runtime.held():
        upload(cuda, target, 1, stream)
        cuda("EventRecord", event, stream)
        runtime.fail_events(3)
        for name in ("EventQuery", "EventSynchronize", "EventQuery"):
            assert cuda.error_of(name, event) == LAUNCH_FAILURE
            assert cuda.error_of("GetLastError") == LAUNCH_FAILURE
        assert runtime.pending() == 2
        assert runtime.waits() == (0, 0)
        assert cuda.error_of("EventQuery", event) == NOT_READY
        cuda("EventSynchronize", event)
    runtime.fail_events(1, INVALID_VALUE)
    assert cuda.error_of("EventSynchronize", event) == INVALID_VALUE  # even of one that has happened
    assert cuda.error_of("EventSynchronize", event) == 0


def test_undo_switches_everything_off(runtime, cuda):
    target, source, event = cuda.device(), cuda.pinned(DATA), cuda.event()
    called = []
    runtime.library.fakecuda_hold()
    upload(cuda, target, 1, None)
    runtime.fail_next(INVALID_VALUE, times=9)
    runtime.fail_allocations(9)
    runtime.fail_records(9)
    runtime.fail_events(9)
    runtime.during_next_copy(lambda: called.append(1))
    runtime.library.fakecuda_quiet(1)
    runtime.library.fakecuda_set_capturing(1)
    runtime.undo()
    assert read(target)[0] == 1
    runtime.reset()
    cuda("MemcpyAsync", target, source, 4, HOST_TO_DEVICE, None)
    cuda("EventRecord", event, None)
    cuda("EventQuery", event)
    cuda.pinned(DATA)
    assert len(runtime.copies()) == 1
    assert called == []
    status = ctypes.c_int()
    assert runtime.library.cudaStreamIsCapturing(None, ctypes.byref(status)) == 0
    assert status.value == 0
