"""What the kernel knows of this process's signal handlers, which Python does not tell: whether calls are restarted."""

import contextlib
import ctypes
import signal

SA_RESTART = 0x10000000


class _Action(ctypes.Structure):
    # As the C libraries of Linux lay it out: the handler, room for 1024 signals, the flags.
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def restarts(signum):
    """Whether a system call that this signal interrupts goes on after it."""
    action = _Action()
    if ctypes.CDLL(None).sigaction(int(signum), None, ctypes.byref(action)):
        raise OSError(f"no such signal: {signum}")
    return bool(action.flags & SA_RESTART)


def everything():
    """({number: (Python's handler, whether calls are restarted)}, the blocked signals, the wake-up descriptor)."""
    found = {}
    for signum in signal.valid_signals():
        with contextlib.suppress(OSError):  # the C library's own
            found[int(signum)] = signal.getsignal(signum), restarts(signum)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return found, signal.pthread_sigmask(signal.SIG_BLOCK, ()), wakeup
