"""Waiting for the ends of processes that are not the tests' own children."""

import os
import select
import time

import psutil

_pidfd_open = os.pidfd_open  # tests take it away from the code under test


def all_end(processes, timeout=30):
    """Whether all `processes` (psutil's) end within `timeout` seconds; a zombie has ended, whoever is to collect it."""
    deadline = time.monotonic() + timeout
    return all(_ends(process, deadline) for process in processes)


def _ends(process, deadline):
    try:
        descriptor = _pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.is_running():  # the number belongs to another one by now
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(deadline - time.monotonic(), 0) * 1000))
    except psutil.NoSuchProcess:
        return True
    finally:
        os.close(descriptor)
