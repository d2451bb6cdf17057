"""A `subprocess.Popen` with the interface of a `multiprocessing` process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import weakref
from multiprocessing import Pipe
from typing import Any

from fastutils.processes.timeouts import checked_timeout


class SubprocessTwin:
    """Wraps a running `popen`: ``name, pid, sentinel, exitcode, is_alive, terminate, kill, join``.

    ``sentinel`` is for `multiprocessing.connection.wait`: a pidfd where the kernel has them, else the end of a pipe
    that a thread closes once the process is gone. It lives as long as this object.
    """

    #: The pid belongs to a child that this object alone collects, so a pidfd may be opened for it.
    owns_pid = True

    def __init__(self, popen: subprocess.Popen[Any], name: str) -> None:
        self._popen = popen
        self.name = name
        self.pid: int = popen.pid
        self.sentinel: Any = _pidfd(popen.pid)
        if self.sentinel is None:
            self.sentinel = _ending_pipe(popen, name)
        else:
            weakref.finalize(self, os.close, self.sentinel)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def exitcode(self) -> int | None:
        """None while it runs, else its exit status; negative: the signal that killed it."""
        return self._popen.poll()

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM; nothing if it has ended."""
        self._popen.terminate()

    def kill(self) -> None:
        """Send SIGKILL; nothing if it has ended."""
        self._popen.kill()

    def join(self, timeout: float | None = None) -> None:
        """Block until it has ended, or for `timeout` seconds."""
        seconds = None if timeout is None else checked_timeout(timeout)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)


def _pidfd(pid: int) -> int | None:
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def _ending_pipe(popen: subprocess.Popen[Any], name: str) -> Any:
    reader, writer = Pipe(duplex=False)

    def close_after_end() -> None:
        try:
            popen.wait()
        finally:
            writer.close()

    threading.Thread(target=close_after_end, name=f"{name}-end", daemon=True).start()
    return reader
