"""Signals that arrive while something is shut down: the handlers run, and the clean-up is finished all the same."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import server_programs as programs
from process_ends import all_end

import fastutils
from fastutils import APIServerProcessManager, shutdown
from fastutils.processes import ending


@pytest.fixture
def handler():
    """Installs a handler of a signal for the test."""
    before = {}

    def install(signum, function):
        before.setdefault(signum, signal.getsignal(signum))
        signal.signal(signum, function)

    yield install
    for signum, function in before.items():
        signal.signal(signum, function)


# --- while shutting down ----------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """Not InterruptedError, which selectors take for a reason to wait again."""


def stubborn_servers(count):
    addresses = ["ipc:///never-bound"] * count
    program = programs.report_and_ignore_sigterm
    manager = APIServerProcessManager("", None, None, count, addresses, addresses, target_server_fn=program)
    manager.gather_actual_addresses(60)
    return manager


def is_within(frame, function):
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


def send_again_and_again(signum, until):
    """Sends the signal to this process, over and over until the event is set."""

    def send():
        while not until.wait(0.01):
            os.kill(os.getpid(), signum)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call", ["manager", "function"])
def test_neither_ctrl_c_nor_a_second_sigterm_leaves_anything_behind(handler, signum, call):
    manager = stubborn_servers(2)
    until = threading.Event()
    count = []

    def interrupt(signum, frame):
        if is_within(frame, ending._Rest.end) or (not count and is_within(frame, ending._ends)):
            count.append(signum)  # neither the test itself nor the steps between two tries are to be interrupted
            raise Interrupted(len(count))

    handler(signum, interrupt)
    sender = send_again_and_again(signum, until)
    try:
        with pytest.raises(Interrupted, match=r"^1$"):  # at the end, and 600 s were cut short
            manager.shutdown(600) if call == "manager" else shutdown(manager.processes, 600)
    finally:
        until.set()
        sender.join()
    assert [process.exitcode for process in manager.processes] == [-9, -9]
    assert len(count) > 1
    manager.shutdown()


def test_a_shutdown_from_a_handler_while_shutting_down(handler):
    manager = stubborn_servers(1)
    handler(signal.SIGUSR1, lambda signum, frame: shutdown(manager.processes, 0))
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    manager.shutdown(600)  # not that long: the handler has ended them
    assert manager.processes[0].exitcode == -9


ENDING = """
import os, sys, threading
sys.path.insert(0, {folder!r})
import server_programs as programs
from fastutils import APIServerProcessManager

if __name__ == "__main__":
    addresses = ["ipc:///a"] * 2
    program = programs.report_and_ignore_sigterm
    manager = APIServerProcessManager("", None, None, 2, addresses, addresses, target_server_fn=program)
    manager.gather_actual_addresses(60)
    print(*[process.pid for process in manager.processes], flush=True)
    sys.stdin.readline()
    {ending}
"""


@pytest.mark.parametrize("ending", ["pass", "del manager", "raise SystemExit(2)", "manager.shutdown(0.5)"])
def test_ctrl_c_while_the_parent_ends(tmp_path, guards_end, ending):
    script = tmp_path / "parent.py"
    script.write_text(ENDING.format(folder=str(Path(__file__).parent), ending=ending))
    package = os.path.dirname(os.path.dirname(fastutils.__file__))
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": package}
    with subprocess.Popen([sys.executable, script], env=environment, **options) as parent:
        servers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.stdin.write("go\n")
        parent.stdin.flush()
        while parent.poll() is None:
            parent.send_signal(signal.SIGINT)
            threading.Event().wait(0.05)
        assert all_end(servers)
        assert len(servers) == 2
