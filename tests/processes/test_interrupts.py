"""Signals that arrive while something is shut down: the handlers run, and the clean-up is finished all the same."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import server_programs as programs
from process_ends import all_end

import fastutils
from fastutils import APIServerProcessManager, shutdown
from fastutils.processes import interrupts
from fastutils.processes.interrupts import Interruptions


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


class Interrupted(Exception):
    """Not InterruptedError, which selectors take for a reason to wait again."""


def raising(error):
    def handle(signum, frame):
        raise error

    return handle


def test_what_a_handler_raises_comes_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt), Interruptions() as interruptions:  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append(type(interruptions.error))
        signal.raise_signal(signal.SIGINT)
        done.append("still here")
    assert done == [KeyboardInterrupt, "still here"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_of_several_counts(handler):
    handler(signal.SIGTERM, raising(SystemExit(3)))
    handler(signal.SIGALRM, raising(TimeoutError("too late")))
    with pytest.raises(TimeoutError), Interruptions():  # noqa: PT012
        for signum in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(signum)


def test_a_handler_that_raises_nothing_runs_at_once(handler):
    seen = []
    handler(signal.SIGUSR1, lambda signum, frame: seen.append((signum, frame is not None)))
    with Interruptions() as interruptions:
        signal.raise_signal(signal.SIGUSR1)
        assert seen == [(signal.SIGUSR1, True)]
        assert interruptions.error is None


def test_an_error_of_the_operation_is_the_cause():
    def operation():
        with Interruptions():
            signal.raise_signal(signal.SIGINT)
            raise LookupError("of the operation")

    with pytest.raises(KeyboardInterrupt) as caught:
        operation()
    assert isinstance(caught.value.__cause__, LookupError)


def test_nested_ones_leave_it_to_the_outermost():
    done = []
    with pytest.raises(KeyboardInterrupt), Interruptions() as outer:  # noqa: PT012
        with Interruptions() as inner:
            assert inner is outer
            signal.raise_signal(signal.SIGINT)
        done.append("after the inner one")
    assert done == ["after the inner one"]


def test_a_handler_that_is_installed_meanwhile_stays(handler):
    def mine(signum, frame):
        return None

    handler(signal.SIGUSR1, lambda signum, frame: None)
    with Interruptions():
        signal.signal(signal.SIGUSR1, mine)
    assert signal.getsignal(signal.SIGUSR1) is mine


def test_other_threads_are_none_of_its_business():
    seen = []

    def run():
        with Interruptions() as interruptions:
            seen.append((interruptions.waitables, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [([], signal.default_int_handler)]


def is_restarted(signum):
    """Whether a read that the signal comes into goes on afterwards: it then ends with what is written to the pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # in a process of its own: a read that fails is repeated by Python itself, so C's is asked
        code = 2
        try:
            import ctypes

            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            timer = threading.Timer(
                0.2, lambda: (os.kill(os.getpid(), signum), time.sleep(0.2), os.write(writer, b"x"))
            )
            timer.start()
            libc = ctypes.CDLL(None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signum])
            code = 0 if libc.read(reader, ctypes.create_string_buffer(1), 1) == 1 else 1
        finally:
            os._exit(code)
    os.close(reader)
    os.close(writer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("restart", [True, False])
def test_whether_system_calls_are_restarted_stays(handler, restart):
    handler(signal.SIGUSR1, lambda signum, frame: None)
    signal.siginterrupt(signal.SIGUSR1, not restart)
    assert is_restarted(signal.SIGUSR1) is restart
    with Interruptions():
        assert is_restarted(signal.SIGUSR1) is restart
    assert is_restarted(signal.SIGUSR1) is restart


def test_nothing_stays_installed_if_its_first_step_is_interrupted(handler, monkeypatch):
    handler(signal.SIGUSR1, raising(Interrupted()))
    before = {signum: signal.getsignal(signum) for signum in signal.valid_signals()}
    exchange, steps = interrupts._exchange, []

    def interrupted(signum, function):
        exchange(signum, function)
        steps.append(signum)
        if len(steps) == 1:
            interrupts.signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(interrupts, "_exchange", interrupted)
    with pytest.raises(Interrupted), Interruptions():
        pytest.fail("entered")
    assert {signum: signal.getsignal(signum) for signum in signal.valid_signals()} == before
    assert interrupts._active is None


def test_a_fork_within_one_does_not_inherit_it():
    with Interruptions():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


# --- while shutting down ----------------------------------------------------------------------------------------------


def stubborn_servers(count):
    addresses = ["ipc:///never-bound"] * count
    program = programs.report_and_ignore_sigterm
    manager = APIServerProcessManager("", None, None, count, addresses, addresses, target_server_fn=program)
    manager.gather_actual_addresses(60)
    return manager


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
        if interrupts._active is not None:  # the test itself is not to be interrupted
            count.append(signum)
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
