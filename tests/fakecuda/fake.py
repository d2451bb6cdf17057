"""The controls of the stand-in CUDA runtime, where it is loaded."""

import contextlib
import ctypes
import os
from dataclasses import dataclass

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
INVALID_VALUE, MEMORY_ALLOCATION, INVALID_PITCH, INVALID_DIRECTION = 1, 2, 12, 21
NOT_READY, LAUNCH_FAILURE = 600, 719

SONAME = "libcudart.so.13"


class _Record(ctypes.Structure):
    _fields_ = [
        ("to", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("gil", ctypes.c_int),
        ("height", ctypes.c_size_t),
        ("to_pitch", ctypes.c_size_t),
        ("from_pitch", ctypes.c_size_t),
    ]


@dataclass(frozen=True)
class Copy:
    """One cudaMemcpyAsync or cudaMemcpy2DAsync: `bytes` are those of all rows, without what lies between them."""

    to: int
    source: int
    bytes: int
    kind: int
    stream: int
    device: int
    gil: bool
    height: int = 1
    to_pitch: int = 0  # of cudaMemcpyAsync, which has no pitches
    from_pitch: int = 0


class Fake:
    def __init__(self, library):
        self.library = library

    def copies(self):
        """All asynchronous copies since the last reset()."""
        found = []
        for index in range(self.library.fakecuda_log(0, None)):
            record = _Record()
            self.library.fakecuda_log(index, ctypes.byref(record))
            values = {name: getattr(record, name) or 0 for name, _ in _Record._fields_}
            found.append(Copy(**{**values, "gil": bool(record.gil)}))
        return found

    def calls(self):
        """How many asynchronous copies were issued since the last reset(), also while quiet(); refused ones too."""
        return self.library.fakecuda_copy_calls()

    def reset(self):
        self.library.fakecuda_reset()

    def undo(self):
        """Switches everything off again that was asked for here, and runs what was held back."""
        for switch in ("fail_next", "fail_records", "fail_events"):
            getattr(self.library, f"fakecuda_{switch}")(0, 0)
        for switch in ("fail_allocations", "quiet", "set_capturing"):
            getattr(self.library, f"fakecuda_{switch}")(0)
        self.library.fakecuda_on_copy(None)
        self.release()

    def fail_next(self, error, times=1):
        self.library.fakecuda_fail_next(times, error)

    def fail_allocations(self, times):
        """
        The next `times` calls of cudaHostAlloc return MEMORY_ALLOCATION.

        torch calls it only for a power of two of which its cache has no free block. After one failure it gives up: it
        empties no cache, tries no second time, and raises an AcceleratorError, not an OutOfMemoryError.
        """
        self.library.fakecuda_fail_allocations(times)

    def fail_records(self, times, error=LAUNCH_FAILURE):
        """
        The next `times` event records return `error` and leave the event as it was.

        torch's own count, too, and one kills the process: its allocator of pinned memory records an event when a block
        is freed that an asynchronous copy has used, in a destructor. Keep such tensors until undo().
        """
        self.library.fakecuda_fail_records(times, error)

    def fail_events(self, times, error=LAUNCH_FAILURE):
        """
        The next `times` queries and synchronizations of events return `error`, and wait for nothing.

        As on a device that broke down, except that all other calls go on working. Those for torch's own events count,
        too: its allocator of pinned memory queries the events of the blocks that were freed.
        """
        self.library.fakecuda_fail_events(times, error)

    def during_next_copy(self, function):
        """Have `function` called in the middle of the next copy, as by another thread that gets the GIL then."""
        self._callback = ctypes.CFUNCTYPE(None)(function)
        self.library.fakecuda_on_copy(self._callback)

    def records(self):
        """How many events were recorded since the last reset(), and how many of them with the GIL held."""
        return self.library.fakecuda_events_recorded(), self.library.fakecuda_records_with_gil()

    def waits(self):
        """
        How many synchronizations with an event, stream or device had something to wait for since the last reset(),
        and how many of these were called with the GIL held.

        Not counted: the waits inside of other calls, such as a copy to pageable memory.
        """
        return self.library.fakecuda_waits(), self.library.fakecuda_waits_with_gil()

    def queries_with_gil(self):
        """How many events were queried with the GIL held since the last reset(). torch's own queries count, too."""
        return self.library.fakecuda_queries_with_gil()

    def pinned_blocks(self):
        """How many blocks of pinned memory there are, and their bytes: also those that torch keeps in its cache."""
        size = ctypes.c_size_t()
        return self.library.fakecuda_pinned_blocks(ctypes.byref(size)), size.value

    def pending(self):
        """How many copies, memsets and event records are held back."""
        return self.library.fakecuda_pending()

    def run_pending(self, k=1):
        """Runs up to `k` of what is pending(), over all streams in the order of issue; returns how many these were."""
        return self.library.fakecuda_run_pending(k)

    def release(self):
        self.library.fakecuda_release()

    @contextlib.contextmanager
    def held(self):
        """Everything asynchronous waits, until release(), a synchronization, or the end of the block."""
        self.library.fakecuda_hold()
        try:
            yield
        finally:
            self.library.fakecuda_release()

    @contextlib.contextmanager
    def capturing(self):
        self.library.fakecuda_set_capturing(1)
        try:
            yield
        finally:
            self.library.fakecuda_set_capturing(0)

    @contextlib.contextmanager
    def quiet(self):
        """For timing: copies are made at once, unlogged, whatever is held back or was to fail."""
        self.library.fakecuda_quiet(1)
        try:
            yield
        finally:
            self.library.fakecuda_quiet(0)


def loaded():
    """The stand-in, or None where the runtime is a real one or none at all."""
    try:
        library = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    return Fake(library) if hasattr(library, "fakecuda_log") else None
