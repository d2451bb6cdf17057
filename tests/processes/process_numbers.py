"""Choosing the number of the next process. Runs in programs of their own too: nothing heavy is imported here."""

import os
import signal

LAST = "/proc/sys/kernel/ns_last_pid"


def can_be_chosen():
    """Whether this process may set the number that was given last; it is written as it is."""
    try:
        with open(LAST, "r+") as file:
            file.write(file.read())
    except OSError:
        return False
    return True


def take(pid, start, tries=200):
    """`start()`, a function that starts a process and returns its number, called until this is `pid`; else None.

    What gets another number, because someone else on this machine was faster, is killed and collected at once.
    """
    for _ in range(tries):
        with open(LAST, "w") as file:
            file.write(str(pid - 1))
        got = start()
        if got == pid:
            return pid
        os.kill(got, signal.SIGKILL)
        os.waitpid(got, 0)
    return None


def state(pid):
    """The kernel's letter for the state of this process, None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def runs(pid):
    return state(pid) not in (None, "Z", "X")
