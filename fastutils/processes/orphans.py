"""What ends when its parent is gone, SIGKILL included: each server by itself, and the guard for the others.

Also run as a script, by path, before anything else is imported: ``orphans.py --multiprocessing-fork ...`` is a server's
first step, ``orphans.py "fastutils: guard of PID" ...`` the guard. A server's own watch is a thread: it does not run
while C code holds the interpreter's lock, while the process is stopped, or once it has ended and left children behind.
The guard sees to that.

The parent holds the only writing end of a pipe that nobody writes to; whoever watches it reads the end of file when the
parent is gone. On Linux the parent's pidfd is watched too, in case somebody forked the parent from C and so holds a
copy of the writing end. PR_SET_PDEATHSIG would not do: it fires when the *thread* that started the child ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from typing import Any

#: How long what has lost its parent may take to end by itself after its SIGTERM.
GRACE_S = 1.0
# What the guard needs to look around, before what it looks for ends and leaves descendants of which nobody knows.
_GUARD_S = 0.3
# Between looks at the parent where nothing can be waited for.
_LOOK_S = 0.25

_is_watching = False


class _Parent:
    """The process `pid`, at whose end the descriptor `lifeline` reads the end of file."""

    def __init__(self, lifeline: int, pid: int) -> None:
        self._lifeline = lifeline
        self._pipe = self._identity()
        # If it is not the direct parent (a launcher script stands between), the pipe alone decides.
        self._pid = pid if os.getppid() == pid else None
        self._poll = select.poll()
        self._poll.register(lifeline, select.POLLIN)
        if hasattr(os, "pidfd_open") and self._pid is not None:
            with contextlib.suppress(OSError):
                self._poll.register(os.pidfd_open(pid), select.POLLIN)

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._lifeline)
        return status.st_dev, status.st_ino

    def wait(self) -> bool:
        """Block until it is gone; False if it cannot be watched any more.

        Once in the wait, this thread keeps its files even if the program closes every descriptor that it does not know.
        """
        self._poll.poll()
        while not self.is_gone():  # the descriptors were closed before the wait, so there is only looking left
            if self._pid is None:
                return False
            threading.Event().wait(_LOOK_S)
        return True

    def is_gone(self) -> bool:
        if self._pid is not None and os.getppid() != self._pid:
            return True
        try:  # the number may be another file's by now; nobody writes to the pipe, so ready means ended
            poll = select.poll()
            poll.register(self._lifeline, select.POLLIN)
            return self._identity() == self._pipe and bool(poll.poll(0))
        except OSError:
            return False


def end_with_parent(lifeline: int, parent_pid: int, group: int) -> None:
    """Start, in a child, the daemon thread that ends it when its parent is gone.

    It sends SIGTERM first, so that handlers may clean up, and kills the process with all that it started after
    GRACE_S seconds. `lifeline` is the child's own copy of the guard's descriptor; it stays open. `group` is the number
    of the guard's process group: within it, the guard comes first. A second call does nothing.
    """
    global _is_watching
    if not _is_watching:
        _is_watching = True
        parent = _Parent(lifeline, parent_pid)
        if parent.is_gone():  # and the guard perhaps, too
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=_end_with, args=(parent, group), name="fastutils-parent-watch", daemon=True).start()


def _end_with(parent: _Parent, group: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they belong to the main thread
    if parent.wait():
        if os.getpgrp() == group:
            threading.Event().wait(_GUARD_S)
        else:
            with contextlib.suppress(Exception):
                _end_descendants()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(GRACE_S)
        try:
            members = _members()
            members.kill(members.Crowd([os.getpid()]).living)
        finally:  # whatever is missing or broken by now
            os.kill(os.getpid(), signal.SIGKILL)


def _end_descendants() -> None:
    """Those of a process that has left its group: nobody else knows of them once it has ended."""
    members = _members()
    crowd = members.Crowd([os.getpid()])

    def others() -> list[Any]:
        return [member for member in crowd.living() if member.pid != os.getpid()]

    for member in others():
        members.send(member, signal.SIGTERM)
    members.wait_until_gone(others(), GRACE_S)
    members.kill(others)


def _forget() -> None:
    global _is_watching
    _is_watching = False  # the thread does not exist in the fork, whose parent is another process


os.register_at_fork(after_in_child=_forget)


def _members() -> Any:
    """`fastutils.processes.members`, which lies beside this file, whatever `sys.path` is and the package imports."""
    from importlib import util

    spec = util.spec_from_file_location("fastutils_members", os.path.join(os.path.dirname(__file__), "members.py"))
    module = util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def server(lifeline: int, parent_pid: int, group: int, tracker: int, start_data: int) -> None:
    """Join the process group `group` (0: none), watch the parent, then go on as any process that is spawned."""
    if group:
        with contextlib.suppress(OSError):  # the program leads a session already, or the group is gone with the parent
            os.setpgid(0, group)
    end_with_parent(lifeline, parent_pid, group)
    sys.modules["fastutils.processes.orphans"] = sys.modules[__name__]
    from multiprocessing import spawn

    spawn.spawn_main(tracker_fd=tracker, pipe_handle=start_data)


def guard(lifeline: int, parent_pid: int, group: int, ready: int) -> None:
    """Lead a process group, or join `group` if it is not 0; say so; and end its members when the parent is gone."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError):  # the C library's own
            signal.signal(signum, signal.SIG_IGN)  # meant for what it guards; it ends when its work is done
    os.setpgid(0, group)
    os.write(ready, str(os.getpgrp()).encode())
    os.close(ready)
    _Parent(lifeline, parent_pid).wait()
    members = _members()
    crowd = None
    with contextlib.suppress(OSError):
        crowd = members.Crowd(group=os.getpgrp, without=[os.getpid()])
    os.killpg(0, signal.SIGTERM)
    threading.Event().wait(GRACE_S)  # the whole of it: a server that has only just started joins the group meanwhile
    if crowd is not None:
        with contextlib.suppress(OSError):
            members.kill(crowd.living)
            return
    os.killpg(0, signal.SIGKILL)  # nothing can be looked up: the group is what remains


if __name__ == "__main__":
    # This file's folder comes first in the path of modules; nothing of it may stand in the way of anybody's.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    numbers = [int(argument) for argument in sys.argv[2:] if argument.isdigit()]
    (server if sys.argv[1] == "--multiprocessing-fork" else guard)(*numbers)
