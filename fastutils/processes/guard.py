"""The parent's side of the guard, in whose process group a manager's servers run, and which ends them after its death.

The group is what tells a manager's processes from strangers: its number is given to nobody else while the guard, even
a dead one, has not been collected, which happens when everything else is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import spawn

# By name: a test that puts something else in the place of `subprocess.Popen` means the frontend, not the guard.
from subprocess import DEVNULL, Popen

from fastutils import _host
from fastutils.processes.child import Child, is_ready

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "orphans.py")
# Nothing of the environment or of site-packages may delay it or go wrong in it; only on Linux can it do without psutil.
_FLAGS = ("-I", "-S") if sys.platform.startswith("linux") else ("-I",)
#: How long a guard may take to say that it is there.
_READY_S = 60.0

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def above_standard(descriptor: int) -> int:
    """`descriptor` itself, or, for a standard stream's number, a copy that is none, for the caller to close.

    What is handed to a child as 0, 1 or 2 is overwritten. They are free where a daemon has closed its standard streams.
    """
    return descriptor if descriptor > 2 else fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _moved(descriptor: int) -> int:
    try:
        return above_standard(descriptor)
    finally:
        if descriptor <= 2:
            os.close(descriptor)


def pipe() -> tuple[int, int]:
    """(reading end, writing end), neither of which is a standard stream's number."""
    reader, writer = os.pipe()
    try:
        reader = _moved(reader)
        return reader, _moved(writer)
    except BaseException:
        os.close(reader)
        raise


@contextlib.contextmanager
def may_write_to_the_terminal() -> Iterator[None]:
    """What is started meanwhile is not stopped when it writes to the terminal from the background (``stty tostop``)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Guard:
    """A running guard (see `fastutils.processes.orphans`), one for each manager. If it ends early, another takes over.

    ``lifeline`` is the descriptor by which children see the end of this process, `group` the number of the process
    group that they are to join. Raises OSError if the interpreter cannot be started, RuntimeError if it ends at once.
    A frozen program cannot be run as another one: it has no guard, and what it starts has only its own watch.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._children: list[Child] = []
        self._watch: threading.Thread | None = None
        self._number = 0
        self.lifeline, self._writer = pipe()
        _guards.add(self)
        try:
            if getattr(sys, "frozen", False):
                _host.logger(__name__).debug(
                    "a frozen program is not started again as a guard: servers watch their parent themselves"
                )
                return
            self._start()
            if hasattr(os, "waitid"):
                watch = threading.Thread(target=self._replace, name="fastutils-guard-watch", daemon=True)
                watch.start()
                self._watch = watch
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        ready, writer = pipe()
        try:
            command = [spawn.get_executable(), *_FLAGS, PROGRAM, f"fastutils: guard of {self._owner}"]
            numbers = self.lifeline, self._owner, self._number, writer
            popen = Popen(
                [*command, *map(str, numbers)], stdin=DEVNULL, stdout=DEVNULL, pass_fds=(self.lifeline, writer)
            )
            popen.returncode = 0  # it is the Child that collects it
            self._children.append(Child(popen.pid))
            os.close(writer)
            writer = -1
            group = os.read(ready, 32) if is_ready(ready, _READY_S) else b""
            if not group:
                raise RuntimeError(
                    f"the guard of the server processes, {spawn.get_executable()} (PID: {popen.pid}), did not start"
                )
            self._number = int(group)  # not its pid, if a launcher stands between
        finally:
            os.close(ready)
            if writer >= 0:
                os.close(writer)

    def _replace(self) -> None:
        first = self._children[0]
        first.wait_without_collecting()
        with self._lock:
            if self._closed:
                return
            try:
                if self.group is None:  # somebody collected it, and its number may be a stranger's
                    self._number = 0
                self._start()
            except (OSError, RuntimeError) as error:
                self._tell(first, f"and no other could be started: {error}")
                return
        second = self._children[-1]
        self._tell(first, f"now it is PID {second.pid}")
        second.wait_without_collecting()
        if not self._closed:
            self._tell(
                second, "and is not started again: a server that does not run may outlive a parent that is killed"
            )

    def _tell(self, ended: Child, what: str) -> None:
        _host.logger(__name__).warning("the guard of the server processes (PID: %d) has ended; %s", ended.pid, what)

    @property
    def pids(self) -> list[int]:
        """The numbers of the guard itself, and of the one before it."""
        return [child.pid for child in self._children]

    @property
    def group(self) -> int | None:
        """The number of the group, None while there is no guard that holds it: it could be a stranger's then."""
        return self._number if self._number and any(child.is_held() for child in self._children) else None

    def close(self) -> None:
        """End the guard itself; what it looked after must have ended. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for child in self._children:
            child.send(signal.SIGKILL)
            child.wait()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join()  # it waits for the same, by descriptors that must not be others' meanwhile
        for child in self._children:
            child.close()
        self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._writer)
        os.close(self.lifeline)

    def leave_to_the_parent(self) -> None:
        """In a fork of the process that owns it."""
        if not self._closed:
            self._closed = True
            self._close_pipe()


def _close_copies() -> None:
    # A forked sibling would otherwise keep the writing ends open after the parent's death.
    for guard in list(_guards):
        guard.leave_to_the_parent()


os.register_at_fork(after_in_child=_close_copies)
