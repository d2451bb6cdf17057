"""An application that has a guard, until it is killed. Run as ``guarded_application.py``, or with ``frozen``.

Says its servers' numbers and what they have started; then waits for their ends as an application does. Its log goes
to standard error. As a frozen program it is its own server's executable too: ``guarded_application.py frozen ...``.
"""

import logging
import multiprocessing.spawn
import os
import sys

import plain_servers
from application_side import hear, say, servers


def freeze():
    """What a tool like PyInstaller sets up; its programs take multiprocessing's command line by themselves."""
    sys.executable = os.path.join(os.environ["FROZEN_FOLDER"], "application")
    sys.frozen = True
    multiprocessing.spawn.freeze_support()


def main():
    from fastutils import wait_for_completion_or_failure

    logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s")
    manager = servers(plain_servers.wait_with_a_stubborn_child, 2)
    children = [int(pid) for pid in manager.gather_actual_addresses(120)[1]]
    say({"servers": [process.pid for process in manager.processes], "children": children})
    if hear() == "shut down":
        manager.shutdown(0.5)
        say([process.exitcode for process in manager.processes])
        os._exit(0)
    wait_for_completion_or_failure(manager)


if __name__ == "__main__":
    if "frozen" in sys.argv:
        freeze()
    main()
