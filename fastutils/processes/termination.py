"""Ending processes: ask all, wait once for all, kill what remains with everything that it started."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastutils import _host
from fastutils.processes import families
from fastutils.processes.exits import EndWatch, ProcessEnd, ProcessLike
from fastutils.processes.interrupts import Interruptions
from fastutils.processes.timeouts import Deadline

#: Grace between SIGTERM and SIGKILL where the caller names none.
DEFAULT_GRACE_S = 5.0
# Until a killed process can be collected; only one stuck in the kernel takes longer.
_REAP_S = 0.9
# A wait for processes that are not children cannot be for an interruption as well.
_LOOK_AT_INTERRUPTIONS_S = 0.1


def lives(process: ProcessLike) -> bool:
    """Whether `process` runs and descends from this one. Zombies, closed, never started and foreign ones do not."""
    try:
        pid = process.pid
        if pid is None or not process.is_alive():
            return False
    except (AssertionError, ValueError):  # started by another process (we are its fork), or closed
        return False
    # A number whose end somebody else has collected may be a stranger's by now; that of our child is not.
    if hasattr(os, "waitid"):
        try:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except OSError:
            pass  # not a child of ours
    return _host.is_descendant(pid)


def end_all(
    processes: Iterable[ProcessLike],
    grace_s: float,
    kind: str,
    leaders: Iterable[families.Leader] = (),
    guests: Sequence[int] = (),
) -> None:
    """SIGTERM to all of `processes` that live, up to `grace_s` seconds for all together, then SIGKILL to the rest.

    To the rest belongs everything that they have started: their descendants, also those that have left their process
    group, and the groups that they lead, without `guests` (numbers). `leaders` tells of groups whose leader may have
    ended before. What was started by a process that has ended gets SIGTERM too, and the rest of the grace.

    What a signal's handler raises cuts the grace short, and is raised again when everything is done: neither a second
    SIGTERM nor Ctrl-C leaves anything behind. Returns with no zombie left, at most a second after the grace.
    """
    with Interruptions() as interruptions:
        _end_all(processes, Deadline(grace_s), kind, leaders, guests, interruptions)


def _end_all(
    processes: Iterable[ProcessLike],
    deadline: Deadline,
    kind: str,
    leaders: Iterable[families.Leader],
    guests: Sequence[int],
    interruptions: Interruptions,
) -> None:
    log = _host.logger(__name__)
    living = [process for process in processes if lives(process)]
    log.debug("[shutdown] %s: ending %d process(es) within %.1fs", kind, len(living), deadline.seconds)
    family = _family_of(living, leaders, guests)
    try:
        for process in living:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
                if process.pid and lives(process):
                    os.kill(process.pid, signal.SIGCONT)  # a stopped one would never get to know
        for process, code in _wait_for_ends(living, deadline, interruptions):
            log.debug("[shutdown] %s", ProcessEnd(process.name, process.pid, code, "stopping"))
        _ask_the_orphaned(living, family, deadline, interruptions)
    finally:
        _kill([process for process in living if lives(process)], family, kind)
        _collect(living)


def _family_of(
    living: Iterable[ProcessLike], leaders: Iterable[families.Leader], guests: Sequence[int]
) -> families.Family | None:
    try:
        known = list(leaders)
        pids = {leader.pid for leader in known}
        for process in living:
            leader = families.leader(process.pid) if process.pid and process.pid not in pids else None
            known += [] if leader is None else [leader]
        family = families.Family(known, guests)
        family.living()
    except OSError as error:
        # Out of descriptors, say. The processes themselves can be ended all the same.
        log = _host.logger(__name__)
        log.warning(
            "[shutdown] what the processes have started cannot be looked up, so it is not ended: %s", str(error)
        )
        return None
    return family


def _wait_for_ends(
    processes: Sequence[ProcessLike], deadline: Deadline, interruptions: Interruptions | None = None
) -> list[tuple[ProcessLike, int | None]]:
    ends = []
    with EndWatch(processes) as watch:
        while watch.running and not deadline.passed:
            if interruptions is not None and interruptions.error is not None:
                break
            waitables = () if interruptions is None else interruptions.waitables
            ends += watch.wait(waitables, timeout=deadline.remaining())[0]
    return ends


def _ask_the_orphaned(
    processes: Sequence[ProcessLike],
    family: families.Family | None,
    deadline: Deadline,
    interruptions: Interruptions,
) -> None:
    if family is None or deadline.passed or interruptions.error is not None:
        return
    with contextlib.suppress(OSError):
        left = family.living()
        for member in left:
            with contextlib.suppress(PermissionError):
                families.send(member, signal.SIGTERM)
                families.send(member, signal.SIGCONT)
        while left and not deadline.passed and interruptions.error is None:
            families.wait_until_gone(left, min(deadline.remaining(), _LOOK_AT_INTERRUPTIONS_S))
            left = family.living()


def _kill(processes: Sequence[ProcessLike], family: families.Family | None, kind: str) -> None:
    log = _host.logger(__name__)
    own = {process.pid for process in processes}
    others: list[str] = []
    try:
        if family is not None:
            killed, forbidden = families.kill(family.living)
            others = [str(member.pid) for member in killed if member.pid not in own]
            for member in forbidden:
                log.warning("[shutdown] %s: no permission to kill the process %d", kind, member.pid)
    except OSError as error:
        log.warning("[shutdown] %s: what the processes have started cannot be looked up: %s", kind, str(error))
    for process in processes:
        if process.pid is not None and lives(process):  # nothing could be looked up, or it is dying still
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGKILL)
                os.kill(process.pid, signal.SIGKILL)
    if processes or others:
        names = ", ".join(f"{process.name} (PID: {process.pid})" for process in processes) or "none of ours"
        started = f"; what they had started too: PIDs {', '.join(others)}" if others else ""
        log.warning(
            "[shutdown] %s: %d process(es) did not end in time and are killed: %s%s",
            *(kind, len(processes), names, started),
        )


def _collect(processes: Sequence[ProcessLike]) -> None:
    # Also those that ended by themselves a moment ago: to the kernel they are zombies until their code is read.
    _wait_for_ends(processes, Deadline(_REAP_S))
    for process in processes:
        process.is_alive()  # has multiprocessing drop it from its list of children, and with it the descriptors


class CleanUp:
    """Runs `act(timeout, *args)` once: when called, when `owner` is collected, or at the interpreter's exit.

    At exit it runs before multiprocessing joins its children, which would wait for ever for a server. In a fork of the
    process that made it, it does nothing: the children are not the fork's. `args` must not lead to `owner`.
    """

    def __init__(self, owner: object, act: Callable[..., None], *args: Any) -> None:
        self._pid = os.getpid()
        self._act = act
        self._args = args
        self.finalizer = weakref.finalize(owner, self._run, None)
        self.finalizer.atexit = False
        # weakref's own hook may have been registered before multiprocessing's and would then come too late.
        atexit.register(self.finalizer)

    def __call__(self, timeout: float | None) -> None:
        with Interruptions():  # nothing may come between the decision that this is the one time, and the doing
            if self.finalizer.detach() is not None:
                self._run(timeout)

    def _run(self, timeout: float | None) -> None:
        atexit.unregister(self.finalizer)
        if os.getpid() == self._pid:
            self._act(timeout, *self._args)
