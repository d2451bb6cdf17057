"""The controls of the stand-in CUDA runtime, where it is loaded."""

import contextlib
import ctypes
import os
from dataclasses import dataclass

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
INVALID_VALUE, LAUNCH_FAILURE = 1, 719


class _Record(ctypes.Structure):
    _fields_ = [
        ("to", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("gil", ctypes.c_int),
    ]


@dataclass(frozen=True)
class Copy:
    """One cudaMemcpyAsync."""

    to: int
    source: int
    bytes: int
    kind: int
    stream: int
    device: int
    gil: bool


class Fake:
    def __init__(self, library):
        self.library = library

    def copies(self):
        """All asynchronous copies since the last reset()."""
        found = []
        for index in range(self.library.fakecuda_log(0, None)):
            record = _Record()
            self.library.fakecuda_log(index, ctypes.byref(record))
            values = [getattr(record, name) or 0 for name, _ in _Record._fields_]
            found.append(Copy(*values[:-1], bool(values[-1])))
        return found

    def reset(self):
        self.library.fakecuda_reset()

    def fail_next(self, error, times=1):
        self.library.fakecuda_fail_next(times, error)

    def during_next_copy(self, function):
        """Have `function` called in the middle of the next copy, as by another thread that gets the GIL then."""
        self._callback = ctypes.CFUNCTYPE(None)(function)
        self.library.fakecuda_on_copy(self._callback)

    def records(self):
        """How many events were recorded since the last reset(), and how many of them with the GIL held."""
        return self.library.fakecuda_events_recorded(), self.library.fakecuda_records_with_gil()

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


def loaded():
    """The stand-in, or None where the runtime is a real one or none at all."""
    try:
        library = ctypes.CDLL("libcudart.so.13", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    return Fake(library) if hasattr(library, "fakecuda_log") else None
