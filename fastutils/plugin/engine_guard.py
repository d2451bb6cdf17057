"""Ends engines after the death of the process that started them, and all that they have started.

Run as a script, by path, in an interpreter without site-packages: ``engine_guard.py PIPE PARENT``. From PIPE come lines
``PID SESSION STARTED``, one for each engine; PARENT is the pidfd of their parent. An engine that has left the session
that it was started in has become a daemon on purpose, and is left alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

#: How long an engine may take to end by itself after its SIGTERM.
GRACE_S = 1.0


def main(pipe: int, parent: int) -> None:
    import members  # type: ignore[import-not-found]  # the script's own path has it

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)  # meant for what it guards; it ends when its work is done
    engines = []
    for line in _told_until_the_end(pipe, parent):
        pid, session, started = map(int, line.split())
        with contextlib.suppress(ProcessLookupError):
            found = members.find(pid)
            if found is not None and found.started == started and os.getsid(pid) == session:
                engines.append(found)
    crowd = members.Crowd([engine.pid for engine in engines])
    for engine in engines:
        with contextlib.suppress(PermissionError):
            members.send(engine, signal.SIGTERM)
            members.send(engine, signal.SIGCONT)  # a stopped one would never get to know
    members.wait_until_gone(crowd.living(), GRACE_S)
    members.kill(crowd.living)


def _told_until_the_end(pipe: int, parent: int) -> list[bytes]:
    os.set_blocking(pipe, False)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(parent, select.POLLIN)
    told = b""
    ended = False
    while not ended:
        ready = {descriptor for descriptor, _ in poll.poll()}
        ended = parent in ready
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(pipe, 65536):
                told += chunk
            if pipe in ready and not ended:
                poll.unregister(pipe)  # the parent has become another program; its engines are still its children
    return told.split(b"\n")[:-1]


if __name__ == "__main__":
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.join(package, "processes"))
    main(int(sys.argv[1]), int(sys.argv[2]))
