"""An application to which orphans are given: the first process of a namespace, or a subreaper.

Run as ``reaping_application.py KIND``, KIND one of the servers of `KINDS`. Says which children are zombies after the
shutdown, and whether a child of its own, which had ended before, was left for it to collect.
"""

import ctypes
import os
import subprocess
import sys

import plain_servers
import process_numbers
from application_side import say, servers

PR_SET_CHILD_SUBREAPER = 36
KINDS = {
    "a server with a child": plain_servers.wait_with_a_stubborn_child,
    "a child of an ended server": plain_servers.exit_and_leave_a_stubborn_child,
}


def children():
    """Numbers of all processes whose parent this one is, zombies too."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                        found.append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def main(kind):
    if os.getpid() != 1:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    own = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    manager = servers(KINDS[kind], 2)
    stubborn = [int(pid) for pid in manager.gather_actual_addresses(120)[1]]
    if kind == "a child of an ended server":
        for process in manager.processes:
            process.join(60)
    manager.shutdown(0.5)
    found = children()
    zombies = [pid for pid in found if process_numbers.state(pid) == "Z" and pid != own.pid]
    alive = [pid for pid in stubborn if process_numbers.runs(pid)]
    codes = [process.exitcode for process in manager.processes]
    say({"zombies": zombies, "alive": alive, "own": own.wait(), "codes": codes})
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
