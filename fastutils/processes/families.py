"""All that a process has started, and ending it: its descendants, its process group, and theirs.

Needs the standard library alone on Linux, because the guard (`fastutils.processes.guard`) uses it when nothing else can
be relied on. A process is its number *and* its start time here: numbers are given again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

_LINUX = sys.platform.startswith("linux")
# Between looks at a process that nothing announces the end of.
_LOOK_S = 0.02


class Member(NamedTuple):
    """One process as the kernel describes it. `started` has the platform's unit and only tells processes apart."""

    pid: int
    parent: int
    group: int
    session: int
    started: float
    is_zombie: bool

    @property
    def identity(self) -> tuple[int, float]:
        return self.pid, self.started


class Leader(NamedTuple):
    """A process that leads, or is about to lead, a process group of its number. Remembered beyond its end."""

    pid: int
    session: int
    started: float


def find(pid: int) -> Member | None:
    """The process `pid`, zombies included; None if there is none. Raises OSError when nothing can be looked up."""
    return _find_in_proc(pid) if _LINUX else _find_by_psutil(pid)


def leader(pid: int) -> Leader | None:
    """`pid` as a `Leader`; None if there is no such process."""
    found = find(pid)
    return None if found is None else Leader(found.pid, found.session, found.started)


def everybody() -> dict[int, Member]:
    """Every process that this one may see, by number. Raises OSError when nothing can be looked up."""
    if _LINUX:
        pids: Iterable[int] = (int(name) for name in os.listdir("/proc") if name.isdigit())
    else:
        import psutil

        pids = psutil.pids()
    return {member.pid: member for member in map(find, pids) if member is not None}


def _find_in_proc(pid: int) -> Member | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the name before it may hold anything
    state, parent, group, session = fields[:4]
    return Member(pid, int(parent), int(group), int(session), int(fields[19]), state in b"ZX")


def _find_by_psutil(pid: int) -> Member | None:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            parent = process.ppid()
        return Member(pid, parent, os.getpgid(pid), os.getsid(pid), process.create_time(), is_zombie)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


class Family:
    """What some processes have started, recognised later too, when its parents are gone or it has left their group.

    `leaders` are looked after with their descendants and the members of the groups that they lead. A group outlives
    its leader; its number is given to nobody while it has members, so a living process of that number that is not
    the leader means that the group had ended. `guests` are members that are not looked after.
    """

    def __init__(self, leaders: Iterable[Leader], guests: Collection[int] = ()) -> None:
        self._leaders = list(leaders)
        self._guests = frozenset(guests)
        self._known = {(leader.pid, leader.started) for leader in self._leaders}

    def add(self, leader: Leader) -> None:
        self._leaders.append(leader)
        self._known.add((leader.pid, leader.started))

    def living(self) -> list[Member]:
        """The members that run now, stopped ones included; zombies do not run."""
        present = everybody()
        chosen = {pid for pid, member in present.items() if member.identity in self._known}
        for leader in self._leaders:
            chosen.update(_group(present, leader))
        chosen -= self._guests
        below: dict[int, list[int]] = {}
        for member in present.values():
            below.setdefault(member.parent, []).append(member.pid)
        new = list(chosen)
        while new:
            new = [pid for parent in new for pid in below.get(parent, ()) if pid not in chosen | self._guests]
            chosen.update(new)
        self._known.update(present[pid].identity for pid in chosen)
        return [present[pid] for pid in chosen if not present[pid].is_zombie]


def _group(present: dict[int, Member], leader: Leader) -> set[int]:
    namesake = present.get(leader.pid)
    if namesake is not None and namesake.started != leader.started:
        return set()
    return {
        member.pid
        for member in present.values()
        if member.group == leader.pid and member.session == leader.session and member.started >= leader.started
    }


def send(member: Member, signum: int) -> bool:
    """Send a signal to this very process; False if it is gone, whoever has its number now.

    Raises PermissionError if it may not be signalled.
    """
    descriptor = None
    try:
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(member.pid)
        found = find(member.pid)
        if found is None or found.started != member.started:
            return False
        if descriptor is None:
            os.kill(member.pid, signum)
        else:
            signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def kill(living: Callable[[], Iterable[Member]]) -> tuple[list[Member], list[Member]]:
    """SIGKILL to all that `living` finds; returns (killed, those that may not be killed).

    All are stopped first, and looked for again until nobody new is found: a stopped process starts no others. The
    calling process may be among them; it is killed last.
    """
    found: dict[tuple[int, float], Member] = {}
    forbidden: dict[tuple[int, float], Member] = {}
    own = None

    def tell(member: Member, signum: int) -> None:
        try:
            send(member, signum)
        except PermissionError:
            forbidden[member.identity] = member

    while new := [member for member in living() if member.identity not in found]:
        for member in new:
            found[member.identity] = member
            if member.pid == os.getpid():
                own = member
            else:
                tell(member, signal.SIGSTOP)
    for member in found.values():
        if member is not own:
            tell(member, signal.SIGKILL)
    if own is not None:
        os.kill(own.pid, signal.SIGKILL)
    return [member for identity, member in found.items() if identity not in forbidden], list(forbidden.values())


def kill_tree(pid: int) -> list[Member]:
    """SIGKILL to `pid` and all that it started (see `Family`); returns those that may not be killed.

    Nothing happens if it is gone. `pid` may be the caller's own. Raises ValueError for a `pid` below 2, which names no
    ordinary process.
    """
    if pid < 2:
        raise ValueError(f"pid {pid} names no ordinary process; it is not killed")
    root = leader(pid)
    return [] if root is None else kill(Family([root]).living)[1]


def wait_until_gone(members: Iterable[Member], timeout: float) -> bool:
    """Whether all `members` end within `timeout` seconds. They need not be children of this process."""
    end = time.monotonic() + timeout
    return all(_ends(member, end) for member in members)


def _ends(member: Member, end: float) -> bool:
    descriptor = None
    try:
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(member.pid)
        while _runs(member):
            remaining = end - time.monotonic()
            if remaining <= 0:
                return False
            if descriptor is None:
                time.sleep(min(_LOOK_S, remaining))
            else:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(remaining * 1000)
        return True
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _runs(member: Member) -> bool:
    found = find(member.pid)
    return found is not None and found.started == member.started and not found.is_zombie
