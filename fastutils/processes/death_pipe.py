"""Children that end with their parent, however it went: SIGKILL included.

The parent holds the only writing end of a pipe that nobody writes to; each child watches the reading end, which reports
the end of file when the last writing end is gone. On Linux the child watches the parent's pidfd too, in case somebody
forked the parent from C and so holds a copy of the writing end. PR_SET_PDEATHSIG would not do: it fires when the
*thread* that started the child ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from fastutils import _host

#: How long an orphaned child may take to end by itself after its SIGTERM.
ORPHAN_GRACE_S = 1.0
# Between looks at the parent where nothing can be waited for.
_LOOK_S = 0.25

_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


class Lifeline:
    """The parent's side: children watch `.reader` and end when `.close()` was called or this process is gone."""

    def __init__(self) -> None:
        self.reader, self._writer = multiprocessing.get_context("spawn").Pipe(duplex=False)
        _lifelines.add(self)

    def close(self) -> None:
        """Close both ends; children that still run then end. Idempotent."""
        self.reader.close()
        self._writer.close()


def _close_copies() -> None:
    # A forked sibling would otherwise keep the writing ends open after the parent's death.
    for lifeline in list(_lifelines):
        lifeline.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


class WatchedTarget:
    """A target for a spawned process that watches its parent before the real target is even imported.

    The real target and its arguments travel as a pickle inside the pickle, so that unpickling *this* in the child
    imports nothing of the user's.
    """

    def __init__(self, lifeline: Lifeline, target: Callable[..., object], *args: Any) -> None:
        self._lifeline = lifeline.reader
        self._parent_pid = os.getpid()
        self._call: Any = (target, args)

    def __getstate__(self) -> dict[str, Any]:
        # Called while multiprocessing spawns, which is when sockets and pipes may be pickled.
        return {**self.__dict__, "_call": bytes(ForkingPickler.dumps(self._call))}

    def __call__(self) -> None:
        end_with_parent(self._lifeline, self._parent_pid)
        target, args = pickle.loads(self._call)
        self._call = None  # not a second reference to what the target may want to free
        target(*args)


def end_with_parent(reader: Connection, parent_pid: int) -> None:
    """Start, in a child, the daemon thread that ends it when `reader` ends or the process `parent_pid` is gone.

    It sends SIGTERM first, so that handlers may clean up, and kills the process with all its descendants after
    ORPHAN_GRACE_S seconds.
    """
    watch = _ParentWatch(reader, parent_pid)
    threading.Thread(target=watch.run, name="fastutils-parent-watch", daemon=True).start()


class _ParentWatch:
    def __init__(self, reader: Connection, parent_pid: int) -> None:
        self._reader = reader
        self._pipe = self._identity()
        # If the parent is not the direct one (a launcher script stands between), the pipe alone decides.
        self._parent_pid = parent_pid if os.getppid() == parent_pid else None
        self._waitables: list[Any] = [reader]
        if hasattr(os, "pidfd_open") and self._parent_pid is not None:
            with contextlib.suppress(OSError):
                self._waitables.append(os.pidfd_open(parent_pid))

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._reader.fileno())
        return status.st_dev, status.st_ino

    def run(self) -> None:
        # Signals belong to the main thread, and must not make this one enter the wait anew: once in it, it keeps its
        # files even if the target closes every descriptor that it does not know.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        connection.wait(self._waitables)
        if not self._parent_is_gone():
            # The target closed the descriptors before this thread came to wait, so there is only looking left.
            while not self._is_orphan():
                if self._parent_pid is None:
                    return
                threading.Event().wait(_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(ORPHAN_GRACE_S)
        _host.kill_process_tree(os.getpid())

    def _is_orphan(self) -> bool:
        return self._parent_pid is not None and os.getppid() != self._parent_pid

    def _parent_is_gone(self) -> bool:
        if self._is_orphan():
            return True
        try:  # the number may be another file's by now; nobody writes to the pipe, so ready means ended
            return self._identity() == self._pipe and bool(connection.wait([self._reader], 0))
        except OSError:
            return False
