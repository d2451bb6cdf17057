"""An application whose children are collected by somebody else. Run as ``collecting_application.py HOW WHAT ...``.

HOW: "ordinary" (nobody else does), "ignored" (SIGCHLD is, so the kernel does) or "thread" (one collects every child).
WHAT: "shutdown COUNT" of servers, or a "frontend FOLDER CODE" or "server CODE" that ends by itself.
"""

import logging
import os
import signal
import sys
import threading
import time

import plain_servers
from application_side import frontend, say, servers


def collect_every_child():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.001)


def shut_down(count):
    manager = servers(plain_servers.wait, int(count))
    manager.gather_actual_addresses(300)
    began = time.monotonic()
    manager.shutdown(60)
    say({"seconds": time.monotonic() - began, "alive": [p.name for p in manager.processes if p.is_alive()]})


def end_by_itself(manager):
    from fastutils import wait_for_completion_or_failure

    logging.disable()  # the expected error is logged, too
    process = manager.processes[0]
    try:
        wait_for_completion_or_failure(manager)
        error = None
    except RuntimeError as caught:
        error = str(caught)
    began = time.monotonic()
    process.join(60)
    seconds = time.monotonic() - began
    manager.shutdown()
    say({"error": error, "exitcode": process.exitcode, "is_alive": process.is_alive(), "join took": seconds})


def main(how, what, *more):
    if how == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    elif how == "thread":
        threading.Thread(target=collect_every_child, daemon=True).start()
    if what == "shutdown":
        shut_down(*more)
    elif what == "frontend":
        folder, code = more
        # It waits, so that the manager is complete whoever is faster.
        end_by_itself(frontend(os.path.join(folder, "frontend"), f"sleep 0.3; exit {code}"))
    else:
        end_by_itself(servers(plain_servers.exit_with, args=int(more[0])))
    os._exit(0)  # multiprocessing would wait for children whose codes it cannot get


if __name__ == "__main__":
    main(*sys.argv[1:])
