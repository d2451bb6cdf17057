"""The parent's side of the guard, which ends children after the death of their parent."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from multiprocessing import spawn

# By name: a test that puts something else in the place of `subprocess.Popen` means the frontend, not the guard.
from subprocess import DEVNULL, Popen
from typing import Any

from fastutils.processes import families

# Nothing of the environment or of site-packages may delay it or go wrong in it; only on Linux can it do without psutil.
_FLAGS = ("-I", "-S") if sys.platform.startswith("linux") else ("-I",)
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")
# A process can be made to join another's group before its program starts; older Pythons cannot say so.
_CAN_JOIN = sys.version_info >= (3, 11)

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """A running guard process; see `fastutils.processes.guard`. One for each manager; the parent starts and ends it.

    `pid` is also the number of the process group that it leads: nobody else gets this number before `close`.
    Raises OSError if the interpreter cannot be started.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        reader, self._writer = os.pipe()
        try:
            self._popen = Popen(
                [spawn.get_executable(), *_FLAGS, _PROGRAM, str(reader), str(self._owner)],
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=(reader,),
                **({"process_group": 0} if _CAN_JOIN else {"start_new_session": True}),
            )
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)
        self.pid = self._popen.pid
        _guards.add(self)

    def look_after(self, leader: families.Leader) -> None:
        """Have it end `leader`, and all that this starts, once this process is gone."""
        with contextlib.suppress(BrokenPipeError):  # the guard is gone; the child's own watch remains
            os.write(self._writer, f"{leader.pid} {leader.session} {leader.started}\n".encode())

    def placement(self) -> dict[str, Any]:
        """Arguments for `subprocess.Popen` with which a program is looked after from before its first instruction.

        Before Python 3.11 that cannot be had: the program then leads a session, and `look_after` must follow; a parent
        that is killed in the moment between leaves it behind.
        """
        return {"process_group": self.pid} if _CAN_JOIN else {"start_new_session": True}

    def close(self) -> None:
        """End the guard itself; what it looked after must have ended. Idempotent."""
        if self._writer >= 0:
            self._popen.kill()
            self._popen.wait()
            self._forget()

    def _forget(self) -> None:
        os.close(self._writer)
        self._writer = -1

    def _leave_to_the_parent(self) -> None:
        if self._writer >= 0:
            self._forget()
            self._popen.returncode = 0  # or it would warn here of a program that still runs


def _close_copies() -> None:
    # A forked sibling would otherwise keep the pipes open after the parent's death.
    for guard in list(_guards):
        guard._leave_to_the_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
