"""Who is in a process group and who descends from whom, and ending them.

Needs the standard library alone on Linux: `fastutils.processes.orphans` uses it where nothing else can be relied on.
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
    started: float
    is_zombie: bool

    @property
    def identity(self) -> tuple[int, float]:
        return self.pid, self.started


def everybody() -> dict[int, Member]:
    """Every process that this one may see, by number. Raises OSError when nothing can be looked up."""
    if not _LINUX:
        import psutil

        return _by_number(psutil.pids())
    # In a pid namespace of our own without a /proc of its own, its numbers are those of strangers.
    if os.readlink("/proc/self") != str(os.getpid()):
        raise OSError("/proc belongs to another pid namespace")
    return _by_number(int(name) for name in os.listdir("/proc") if name.isdigit())


def _by_number(pids: Iterable[int]) -> dict[int, Member]:
    return {member.pid: member for member in map(find, pids) if member is not None}


def find(pid: int) -> Member | None:
    """The process `pid`, zombies included; None if there is none. To be used where `everybody` did not raise."""
    return _find_in_proc(pid) if _LINUX else _find_by_psutil(pid)


def _find_in_proc(pid: int) -> Member | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return Member(pid, int(fields[1]), int(fields[2]), int(fields[19]), fields[0] in b"ZX")


def _find_by_psutil(pid: int) -> Member | None:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return Member(pid, process.ppid(), os.getpgid(pid), process.create_time(), is_zombie)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def _below(present: dict[int, Member], chosen: set[int], without: Collection[int] = ()) -> None:
    children: dict[int, list[int]] = {}
    for member in present.values():
        children.setdefault(member.parent, []).append(member.pid)
    new = list(chosen)
    while new:
        new = [pid for parent in new for pid in children.get(parent, ()) if pid not in chosen and pid not in without]
        chosen.update(new)


def is_descendant(pid: int) -> bool:
    """Whether `pid` is a running child of this process, or a child's child and so on. False if that cannot be told."""
    with contextlib.suppress(OSError):
        present = everybody()
        chosen = {os.getpid()}
        _below(present, chosen)
        return pid in chosen and pid != os.getpid() and not present[pid].is_zombie
    return False


class Crowd:
    """The members of a process group, some `roots`, and the descendants of them all; once seen, they stay in it.

    `group` gives the group's number each time it is looked at; None: it is not ours for certain. `roots` are numbers
    that are certain now, of children that nobody has collected. `without` are numbers that do not count.
    Raises OSError when nothing can be looked up.
    """

    def __init__(
        self,
        roots: Collection[int] = (),
        group: Callable[[], int | None] = lambda: None,
        without: Collection[int] = (),
    ) -> None:
        self._group = group
        self._without = without
        present = everybody()
        self._seen = {present[pid].identity for pid in roots if pid in present}
        self.look()

    def look(self) -> list[Member]:
        """All that are in it now, zombies too."""
        present = everybody()
        group = self._group()
        chosen = {
            member.pid
            for member in present.values()
            if member.identity in self._seen or (group is not None and member.group == group)
        }
        chosen.difference_update(self._without)
        _below(present, chosen, self._without)
        members = [present[pid] for pid in chosen]
        self._seen.update(member.identity for member in members)
        return members

    def living(self) -> list[Member]:
        """Those that run, stopped ones included."""
        return [member for member in self.look() if not member.is_zombie]


def send(member: Member, signum: int) -> bool:
    """Send a signal to this very process; False if it is gone, whoever has its number now.

    Raises PermissionError if it may not be signalled.
    """
    descriptor = None
    try:
        if hasattr(os, "pidfd_open"):
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

    def tell(member: Member, signum: int) -> None:
        try:
            send(member, signum)
        except PermissionError:
            forbidden[member.identity] = member

    own = os.getpid()
    while new := [member for member in living() if member.identity not in found]:
        for member in new:
            found[member.identity] = member
            if member.pid != own:
                tell(member, signal.SIGSTOP)
    for member in found.values():
        if member.pid != own:
            tell(member, signal.SIGKILL)
    if any(member.pid == own for member in found.values()):
        os.kill(own, signal.SIGKILL)
    return [member for identity, member in found.items() if identity not in forbidden], list(forbidden.values())


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
