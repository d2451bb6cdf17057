"""A child of this process that is never mistaken for another one that is given its number."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

# Between looks at a child that no descriptor tells the end of.
_LOOK_S = 0.02


def open_pidfd(pid: int) -> int | None:
    """A descriptor that turns readable when `pid` ends; None where none is to be had (macOS, sandboxes)."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def is_ready(descriptor: int, timeout: float = 0.0) -> bool:
    """Whether `descriptor` turns readable within `timeout` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


class Child:
    """Collects the exit code of the child `pid`, which nobody has collected yet, and signals it.

    ``code`` is the exit code once `poll` has seen it; negative: the signal. ``lost`` tells that something else in this
    process collected it, or that SIGCHLD is ignored: it will never be known. ``pidfd`` is None where the kernel offers
    none: whoever collects every child can then make another process look like this one.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = open_pidfd(pid)
        self.code: int | None = None
        self._is_lost = False
        self._lock = threading.RLock()  # a signal's handler may come here again

    def poll(self) -> int | None:
        """The exit code, None while it runs or if it is `lost`. Never blocks."""
        with self._lock:  # two threads that collect would take the code from each other
            if self.code is None and not self._is_lost:
                try:
                    code = self._collected()
                    self.code = code if self.code is None else self.code
                except ChildProcessError:
                    self._is_lost = True
        return self.code

    @property
    def lost(self) -> bool:
        return self._is_lost and self.code is None

    def _collected(self) -> int | None:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if pid else None
        found = self._state(os.WEXITED | os.WNOHANG)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _state(self, flags: int) -> os.waitid_result | None:
        if self.pidfd is None:
            return os.waitid(os.P_PID, self.pid, flags)
        return os.waitid(os.P_PIDFD, self.pidfd, flags)

    def has_ended(self) -> bool:
        return self.poll() is not None or self.lost

    def is_held(self) -> bool:
        """Whether its number is its own still: it runs, or waits to be collected. Collects nothing."""
        if self.code is not None or self.lost:
            return False
        if hasattr(os, "waitid"):
            try:
                self._state(os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
        return True

    def wait(self, timeout: float | None = None) -> int | None:
        """Block until it has ended, at most `timeout` seconds; as `poll` then."""
        from fastutils.processes.arguments import Deadline

        deadline = None if timeout is None else Deadline(timeout)
        while not self.has_ended() and (deadline is None or not deadline.passed):
            left = 3600.0 if deadline is None else deadline.remaining()
            if self.pidfd is None:
                threading.Event().wait(min(left, _LOOK_S))
            else:
                is_ready(self.pidfd, left)
        return self.code

    def wait_without_collecting(self) -> None:
        """Block until it has ended, and leave its code, and so its number, where they are."""
        with contextlib.suppress(ChildProcessError):
            self._state(os.WEXITED | os.WNOWAIT)

    def send(self, signum: int) -> None:
        """Send a signal; nothing if it has ended."""
        if self.has_ended():
            return
        with contextlib.suppress(ProcessLookupError):
            if self.pidfd is None:
                os.kill(self.pid, signum)
            else:
                signal.pidfd_send_signal(self.pidfd, signum)

    def close(self) -> None:
        """Close the descriptor. Idempotent; it may be called when the child has ended."""
        if self.pidfd is not None:
            self.poll()
            descriptor, self.pidfd = self.pidfd, None
            os.close(descriptor)
