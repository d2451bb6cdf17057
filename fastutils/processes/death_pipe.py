"""Children that end with their parent, however it went: SIGKILL included.

The parent holds the only writing end of a pipe that nobody writes to; each child watches the reading end, which reports
the end of file when the last writing end is gone. On Linux the child watches the parent's pidfd too, in case somebody
forked the parent from C and so holds a copy of the writing end. PR_SET_PDEATHSIG would not do: it fires when the
*thread* that started the child ends. What a child's own watch cannot see to, `fastutils.processes.guard` does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import weakref

#: How long an orphaned child may take to end by itself after its SIGTERM.
ORPHAN_GRACE_S = 1.0
# Between looks at the parent where nothing can be waited for.
_LOOK_S = 0.25

_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()
_watch: _ParentWatch | None = None


class Lifeline:
    """The parent's side: children watch the descriptor `reader`, and end after `close` or when the parent is gone."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        _lifelines.add(self)

    def close(self) -> None:
        """Close both ends; children that still run then end. Idempotent."""
        for descriptor in (self.reader, self._writer):
            if descriptor >= 0:
                os.close(descriptor)
        self.reader = self._writer = -1


def _close_copies() -> None:
    # A forked sibling would otherwise keep the writing ends open after the parent's death.
    for lifeline in list(_lifelines):
        lifeline.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


def end_with_parent(reader: int, parent_pid: int) -> None:
    """Start, in a child, the daemon thread that ends it when `reader` ends or the process `parent_pid` is gone.

    It sends SIGTERM first, so that handlers may clean up, and kills the process with all that it started after
    ORPHAN_GRACE_S seconds. `reader` is the child's own copy of `Lifeline.reader`; it stays open. A second call does
    nothing.
    """
    global _watch
    if _watch is None:
        _watch = _ParentWatch(reader, parent_pid)
        threading.Thread(target=_watch.run, name="fastutils-parent-watch", daemon=True).start()


class _ParentWatch:
    def __init__(self, reader: int, parent_pid: int) -> None:
        self._reader = reader
        self._pipe = self._identity()
        # If the parent is not the direct one (a launcher script stands between), the pipe alone decides.
        self._parent_pid = parent_pid if os.getppid() == parent_pid else None
        self._poll = select.poll()
        self._poll.register(reader, select.POLLIN)
        if hasattr(os, "pidfd_open") and self._parent_pid is not None:
            with contextlib.suppress(OSError):
                self._poll.register(os.pidfd_open(parent_pid), select.POLLIN)

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._reader)
        return status.st_dev, status.st_ino

    def run(self) -> None:
        # Signals belong to the main thread, and must not make this one enter the wait anew: once in it, it keeps its
        # files even if the target closes every descriptor that it does not know.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._poll.poll()
        if not self._parent_is_gone():
            # The target closed the descriptors before this thread came to wait, so there is only looking left.
            while not self._is_orphan():
                if self._parent_pid is None:
                    return
                threading.Event().wait(_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(ORPHAN_GRACE_S)
        _kill_own_family()

    def _is_orphan(self) -> bool:
        return self._parent_pid is not None and os.getppid() != self._parent_pid

    def _parent_is_gone(self) -> bool:
        if self._is_orphan():
            return True
        try:  # the number may be another file's by now; nobody writes to the pipe, so ready means ended
            poll = select.poll()
            poll.register(self._reader, select.POLLIN)
            return self._identity() == self._pipe and bool(poll.poll(0))
        except OSError:
            return False


def _kill_own_family() -> None:
    try:
        from fastutils.processes import families

        families.kill_tree(os.getpid())
    finally:  # whatever is missing or broken by now
        os.kill(os.getpid(), signal.SIGKILL)


def is_watching() -> bool:
    """Whether this process, a child, watches its parent."""
    return _watch is not None


def _forget() -> None:
    global _watch
    _watch = None  # the thread does not exist in the fork, whose parent is another process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
