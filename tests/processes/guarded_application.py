"""An application that has a guard, until it is killed. Run as ``guarded_application.py``.

Says its servers' numbers and what they have started; then waits for their ends as an application does. Its log goes
to standard error. With FROZEN in the environment it is a frozen program, whose executable that is: its servers' too.
"""

import logging
import multiprocessing.spawn
import os
import sys

import plain_servers
from application_side import hear, say, servers


def freeze():
    """What a tool like PyInstaller sets up; its programs take multiprocessing's command line by themselves."""
    sys.executable = os.environ["FROZEN"]
    multiprocessing.spawn.set_executable(sys.executable)
    sys.frozen = True
    multiprocessing.spawn.freeze_support()


def main():
    from fastutils import wait_for_completion_or_failure

    logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s")
    # A stubborn child of a server is the guard's business, which a frozen program has not.
    frozen = "FROZEN" in os.environ
    manager = servers(plain_servers.wait if frozen else plain_servers.wait_with_a_stubborn_child, 2)
    outputs = manager.gather_actual_addresses(120)[1]
    children = [] if frozen else [int(pid) for pid in outputs]
    say({"servers": [process.pid for process in manager.processes], "children": children})
    if hear() == "shut down":
        manager.shutdown(0.5)
        say([process.exitcode for process in manager.processes])
        os._exit(0)
    wait_for_completion_or_failure(manager)


if __name__ == "__main__":
    if "FROZEN" in os.environ:
        freeze()
    main()
