"""The guard: a small process that outlives its parent just long enough to end what the parent had started.

Run as a script, by path, in an interpreter without site-packages: ``guard.py PIPE PARENT``. PIPE is a descriptor from
which lines ``PID SESSION STARTED`` are read, one for each process to look after; it ends when the parent does, SIGKILL
included. The guard leads a process group; whatever joined it is looked after too, told or not. A child cannot do this
by itself: its own watch is a thread, which does not run while C code holds the interpreter's lock, while the process is
stopped, or once it has ended and left children behind.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

#: How long what is left may take to end by itself.
GRACE_S = 1.0


def main(pipe: int, parent_pid: int) -> None:
    import families  # type: ignore[import-not-found]  # it lies beside this script

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)  # meant for what it guards; it ends when its work is done
    own = families.leader(os.getpid())
    family = families.Family([] if own is None else [own], guests=[os.getpid()])
    for line in _told_until_the_end(pipe, parent_pid):
        pid, session, started = line.split()
        family.add(families.Leader(int(pid), int(session), float(started)))
    family.living()  # remembered, in case they leave their group
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGTERM)  # what was told of watches the parent itself
    end = time.monotonic() + GRACE_S
    while (living := family.living()) and time.monotonic() < end:
        families.wait_until_gone(living, end - time.monotonic())
    families.kill(family.living)


def _told_until_the_end(pipe: int, parent_pid: int) -> list[bytes]:
    os.set_blocking(pipe, False)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if hasattr(os, "pidfd_open") and os.getppid() == parent_pid:
        # The pipe alone would not do: a process forked from the parent by C code holds a copy of its other end.
        with contextlib.suppress(OSError):
            poll.register(os.pidfd_open(parent_pid), select.POLLIN)
    told = b""
    ended = False
    while not ended:
        ended = os.getppid() != parent_pid
        if not ended:
            poll.poll()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(pipe, 65536):
                told += chunk
            ended = True
    return told.split(b"\n")[:-1]


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    main(int(sys.argv[1]), int(sys.argv[2]))
