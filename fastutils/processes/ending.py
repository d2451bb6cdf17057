"""Ending processes: ask all, wait once for all, kill what remains with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import util
from multiprocessing.process import BaseProcess
from typing import Any

from fastutils import _host
from fastutils.processes import members
from fastutils.processes.arguments import Deadline, checked_timeout
from fastutils.processes.guard import Guard
from fastutils.processes.interrupts import Interruptions
from fastutils.processes.listeners import Listener
from fastutils.processes.members import Crowd
from fastutils.processes.watching import EndWatch, ProcessLike, child_of, explain_exit, is_collected_elsewhere

__all__ = ["shutdown"]

#: Grace between SIGTERM and SIGKILL where the caller names none.
DEFAULT_GRACE_S = 5.0
# Until a killed process can be collected; only one stuck in the kernel takes longer.
_REAP_S = 0.9
# A wait for processes that are not children cannot be for an interruption as well.
_LOOK_AT_INTERRUPTIONS_S = 0.1
# At exit, before multiprocessing joins its children, which for a server would last for ever.
_BEFORE_CHILDREN_ARE_JOINED = 100


def shutdown(procs: Sequence[Any], timeout: float | None = None) -> None:
    """End processes, as ``vllm.v1.utils.shutdown`` does: SIGTERM to all that live, then SIGKILL to what remains.

    `procs`: `multiprocessing` processes or objects with their interface. `timeout`: seconds of grace for all of them
    together, 5 by default. What still lives then is killed with all that it started, after a warning that counts
    and names it; returns at most a second later. Processes that never started, have ended, are closed or were not
    started by this process are left alone, so a second call does nothing.

    Raises ValueError for a negative or non-finite `timeout`, before anything is sent.
    """
    grace_s = DEFAULT_GRACE_S if timeout is None else checked_timeout(timeout)
    end_all(procs, grace_s, "Process manager")


def lives(process: ProcessLike) -> bool:
    """Whether `process` runs and descends from this one. Zombies, closed, never started and foreign ones do not."""
    child = child_of(process)
    try:
        if process.pid is None or not process.is_alive():
            return False
    except (AssertionError, ValueError):  # started by another process (we are its fork), or closed
        return False
    if child is not None:
        return True
    # A number whose end somebody else has collected may be a stranger's by now; that of our child is not.
    if hasattr(os, "waitid") and not is_collected_elsewhere(process):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    ours_alone = isinstance(process, BaseProcess) and getattr(process, "_start_method", "") in ("fork", "spawn")
    return not ours_alone and members.is_descendant(process.pid)


def end_all(processes: Iterable[ProcessLike], grace_s: float, kind: str, guard: Guard | None = None) -> None:
    """SIGTERM to all of `processes` that live, up to `grace_s` seconds for all together, then SIGKILL to the rest.

    To the rest belongs everything that they have started: their descendants, also those that have left their process
    group, and all of the group that `guard` holds. Of that, what a process that has ended left behind gets SIGTERM
    too, and the rest of the grace.

    What a signal's handler raises cuts the grace short, and is raised again when everything is done: neither a second
    SIGTERM nor Ctrl-C leaves anything behind. Returns with no zombie left, at most a second after the grace.
    """
    with Interruptions() as interruptions:
        _end_all(list(processes), Deadline(grace_s), kind, guard, interruptions)


def _end_all(
    processes: Sequence[ProcessLike], deadline: Deadline, kind: str, guard: Guard | None, interruptions: Interruptions
) -> None:
    log = _host.logger(__name__)
    living = [process for process in processes if lives(process)]
    log.debug("[shutdown] %s: ending %d process(es) within %.1fs", kind, len(living), deadline.seconds)
    crowd = _crowd_of(living, guard)
    try:
        for process in living:
            _ask(process)
        for process, code in _ends(living, deadline, interruptions):
            told = process.name, process.pid, code, explain_exit(code)
            log.debug("[shutdown] %s (PID: %s) ended while stopping: exit code %s%s", *told)
        if crowd is not None:
            _ask_the_others(crowd, deadline, interruptions)
    finally:
        _kill(processes, living, crowd, guard, kind)


def _ask(process: ProcessLike) -> None:
    child = child_of(process)
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        if child is not None:
            child.send(signal.SIGCONT)  # a stopped one would never get to know
        elif process.pid and lives(process):
            os.kill(process.pid, signal.SIGCONT)


def _crowd_of(living: Iterable[ProcessLike], guard: Guard | None) -> Crowd | None:
    roots = [process.pid for process in living if process.pid]
    try:
        if guard is None:
            return Crowd(roots)
        return Crowd(roots, lambda: guard.group, guard.pids)
    except OSError as error:
        # Out of descriptors, say. The processes themselves can be ended all the same.
        log = _host.logger(__name__)
        log.warning("[shutdown] what the processes have started cannot be looked up: %s", str(error))
        return None


def _ends(
    processes: Sequence[ProcessLike], deadline: Deadline, interruptions: Interruptions | None = None
) -> list[tuple[ProcessLike, int | None]]:
    ends = []
    with EndWatch(processes) as watch:
        while watch.running and not deadline.passed and (interruptions is None or interruptions.error is None):
            ends += watch.wait(() if interruptions is None else interruptions.waitables, deadline.remaining())[0]
    return ends


def _ask_the_others(crowd: Crowd, deadline: Deadline, interruptions: Interruptions) -> None:
    with contextlib.suppress(OSError):
        if deadline.passed or interruptions.error is not None:
            return
        left = crowd.living()
        for member in left:
            with contextlib.suppress(PermissionError):
                members.send(member, signal.SIGTERM)
                members.send(member, signal.SIGCONT)
        while left and not deadline.passed and interruptions.error is None:
            members.wait_until_gone(left, min(deadline.remaining(), _LOOK_AT_INTERRUPTIONS_S))
            left = crowd.living()


def _kill(
    processes: Sequence[ProcessLike], living: Sequence[ProcessLike], crowd: Crowd | None, guard: Guard | None, kind: str
) -> None:
    log = _host.logger(__name__)
    reap = Deadline(_REAP_S)
    own = set(map(_number, processes))
    late = [process for process in living if lives(process)]
    killed: list[members.Member] = []
    try:
        if crowd is None:
            _kill_without_looking(living, guard)
        else:
            killed, forbidden = members.kill(crowd.living)
            for member in forbidden:
                log.warning("[shutdown] %s: no permission to kill the process %d", kind, member.pid)
    except OSError as error:
        log.warning("[shutdown] %s: what the processes have started cannot be looked up: %s", kind, str(error))
        _kill_without_looking(living, guard)
    others = [str(member.pid) for member in killed if member.pid not in own]
    if late or others:
        names = ", ".join(f"{process.name} (PID: {process.pid})" for process in late) or "none of ours"
        started = f"; what they had started too: PIDs {', '.join(others)}" if others else ""
        log.warning(
            "[shutdown] %s: %d process(es) did not end in time and are killed: %s%s", kind, len(late), names, started
        )
    # Also those that ended by themselves a moment ago: to the kernel they are zombies until their code is read.
    _ends(living, reap)
    for process in living:
        process.is_alive()  # has multiprocessing drop it from its list of children, and with it the descriptors
    if crowd is not None:
        with contextlib.suppress(OSError):
            members.wait_until_gone(killed, reap.remaining())
            _collect_the_adopted(crowd, own)


def _number(process: ProcessLike) -> int | None:
    try:
        return process.pid
    except ValueError:  # it is closed
        return None


def _kill_without_looking(living: Iterable[ProcessLike], guard: Guard | None) -> None:
    group = None if guard is None else guard.group
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group is not None:
            os.killpg(group, signal.SIGKILL)
    for process in living:
        if process.pid is not None and lives(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


def _collect_the_adopted(crowd: Crowd, own: set[int | None]) -> None:
    """Those that became our children when their parents ended: we are a subreaper, or the first process."""
    for member in crowd.look():
        if member.is_zombie and member.parent == os.getpid() and member.pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(member.pid, os.WNOHANG)


class Resources:
    """What a manager holds besides its processes, closed when these have ended; `listeners` from the start."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.closing = contextlib.ExitStack()  # each is closed, whichever fails
        self.guard: Guard | None = None
        self._is_closed = False
        for listener in listeners:
            self.closing.callback(listener.cleanup)

    def open_guard(self) -> Guard:
        self.check()
        if self.guard is None:
            guard = Guard()
            self.closing.callback(guard.close)
            self.guard = guard
        return self.guard

    def check(self) -> None:
        """RuntimeError if they were closed meanwhile, by a signal's handler."""
        if self._is_closed:
            raise RuntimeError("the manager was shut down")

    def close(self) -> None:
        self._is_closed = True
        self.closing.close()


class Owner:
    """What owns processes, and so can be neither copied nor pickled: a copy would end them, too."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"{type(self).__name__}: a manager can be neither copied nor pickled: its processes are this process's"
        )


class Ending:
    """Has `act(timeout)` done: when called, when `owner` is collected, or at the end of the process.

    At the end it comes before multiprocessing joins its children, in this process and in one that multiprocessing
    started. It is done once; while it is being done, another call returns at once. In a fork it does nothing: the
    children are not the fork's. `act` must not lead to `owner`.
    """

    def __init__(self, owner: object, act: Callable[[float | None], None]) -> None:
        self._act = act
        self._pid = os.getpid()
        self._doing = threading.Lock()
        self.is_over = False
        self._finalizer = util.Finalize(owner, self, args=(None,), exitpriority=_BEFORE_CHILDREN_ARE_JOINED)

    def __call__(self, timeout: float | None) -> None:
        if self.is_over or os.getpid() != self._pid or not self._doing.acquire(blocking=False):
            return
        try:
            with Interruptions():
                self._act(timeout)
                self.is_over = True
                self._finalizer.cancel()
        finally:
            self._doing.release()

    def of_a_failed_start(self, error: BaseException) -> RuntimeError | None:
        """End all that was started before `error`; what is to be raised in its place, if anything."""
        was_over = self.is_over  # a signal's handler has called shutdown() meanwhile
        self.is_over = False
        self(None)
        if was_over and isinstance(error, Exception):
            return RuntimeError("the manager was shut down while it was starting its processes")
        return None
