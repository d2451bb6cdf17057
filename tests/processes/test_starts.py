"""Starts that fail half-way on the parent's side: one clear error, and what was started is ended."""

import argparse
import errno
import multiprocessing
import os
import resource
import signal
import socket
import threading
from multiprocessing import spawn, util

import pytest
import server_programs as programs

from fastutils import APIServerProcessManager
from fastutils.processes import guard, spawning

BIG = b"x" * (1 << 20)  # more than a pipe takes


def start(count=1, program=programs.wait_silently, sock=None, args=None):
    addresses = ["ipc:///never-bound"] * count
    return APIServerProcessManager("", sock, args, count, addresses, addresses, target_server_fn=program)


@pytest.fixture
def few_descriptors():
    """Calls what it is given with `room` descriptors left for new files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def within(room, call):
        free = []
        while len(free) <= room:  # the numbers that the next files would get
            free.append(os.dup(0))
        for descriptor in free:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], hard))
        try:
            return call()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return within


@pytest.mark.parametrize("room", range(16))
def test_no_more_descriptors(few_descriptors, room):
    with pytest.raises((RuntimeError, OSError)) as caught:
        few_descriptors(room, lambda: start(8))
    causes = [caught.value, caught.value.__cause__]
    assert errno.EMFILE in [getattr(cause, "errno", None) for cause in causes]
    assert "Too many open files" in str(caught.value)
    assert multiprocessing.active_children() == []


def test_servers_end_even_without_a_descriptor(few_descriptors, caplog):
    manager = start(3, programs.report_and_ignore_sigterm)
    manager.gather_actual_addresses(60)
    few_descriptors(0, lambda: manager.shutdown(0.1))
    assert [process.exitcode for process in manager.processes] == [-9, -9, -9]
    assert "what the processes have started cannot be looked up" in caplog.text


def test_no_interpreter(monkeypatch):
    monkeypatch.setattr(spawn, "get_executable", lambda: "/nowhere/python")
    with pytest.raises(RuntimeError, match=r"cannot start API server process ApiServer_0 \(1 of 2\): FileNotF"):
        start(2)


def test_an_interpreter_that_goes_missing_shows_as_an_end(monkeypatch):
    monkeypatch.setattr(guard.spawn, "get_executable", spawn.get_executable)
    monkeypatch.setattr(spawning, "_command", lambda *_: ["python"])
    run = util.spawnv_passfds
    monkeypatch.setattr(util, "spawnv_passfds", lambda path, *rest: run(b"/nowhere/python", *rest))
    with pytest.raises(RuntimeError, match=r"exit code 255|exited \(code=255\)"):
        start().gather_actual_addresses(60)


def test_the_third_of_eight_cannot_be_forked(monkeypatch):
    started = []

    def spawnv(*call):
        if len(started) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(run(*call))
        return started[-1]

    run = util.spawnv_passfds
    monkeypatch.setattr(util, "spawnv_passfds", spawnv)
    with pytest.raises(RuntimeError, match=r"ApiServer_2 \(3 of 8\): .*temporarily unavailable.*; the 2 started"):
        start(8)


@pytest.fixture
def first_step(monkeypatch, tmp_path):
    """Puts other lines in the place of a server's first step."""

    def put(lines):
        program = tmp_path / "first.py"
        program.write_text(lines)
        monkeypatch.setattr(spawning, "PROGRAM", str(program))

    return put


def test_a_server_that_ends_before_it_has_read_what_it_is_to_run(first_step):
    first_step("import os; os._exit(4)")
    message = r"ApiServer_0 .*it ended before it had read what it is to run: exit code 4'?\)"
    with pytest.raises(RuntimeError, match=message):
        start(args=BIG)


def test_a_server_that_closes_its_end_but_lives_on(first_step):
    first_step("import os, time; os.closerange(3, 99); time.sleep(600)")
    with pytest.raises(RuntimeError, match=r"ended before it had read what it is to run: exit code None"):
        start(args=BIG)


def test_a_server_that_never_reads_what_it_is_to_run(first_step, monkeypatch):
    first_step("import time; time.sleep(600)")
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "1")
    with pytest.raises(RuntimeError, match=r"ApiServer_0 .*it did not read what it is to run within 1s"):
        start(args=BIG)


def test_an_interrupt_while_a_server_does_not_read(first_step):
    first_step(f"import os, time; os.kill({os.getpid()}, 2); time.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        start(2, args=BIG)


def test_an_interrupt_between_two_starts():
    class Interrupts:
        copies = 0

        def __reduce__(self):
            self.copies += 1
            if self.copies == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return argparse.Namespace, ()

    with pytest.raises(KeyboardInterrupt):
        start(3, args=Interrupts())


def test_big_arguments_arrive():
    manager = start(program=programs.report_and_exit, args=BIG)
    manager.gather_actual_addresses(60)
    manager.processes[0].join(60)
    assert manager.processes[0].exitcode == 0
    manager.shutdown()


def test_a_socket_may_be_passed_twice():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        manager = start(2, programs.report_and_exit, listener, argparse.Namespace(sock=listener))
        manager.gather_actual_addresses(60)
        manager.shutdown()


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("127.0.0.1:80", ValueError, "'127.0.0.1:80' is not of the form tcp://host:port"),
        ("tcp://127.0.0.1", ValueError, "not of the form tcp://host:port"),
        ("tcp://:80", ValueError, "not of the form tcp://host:port"),
        ("tcp://1:2:3:80", ValueError, "IPv6 host in brackets"),
        ("tcp://127.0.0.1:65536", ValueError, r"the port of .* is not in 0\.\.65535"),
        ("tcp://127.0.0.1:-1", ValueError, r"the port of .* is not in 0\.\.65535"),
        ("tcp://127.0.0.1:http", ValueError, r"the port of .* is not in 0\.\.65535"),
        ("inproc://here", ValueError, "reaches nobody outside its own process"),
        ("ipc://", ValueError, "must take 1 to 107 bytes"),
        ("ipc://" + "a" * 108, ValueError, "must take 1 to 107 bytes"),
        ("", ValueError, "not of the form"),
        (None, TypeError, "must be a string such as"),
        (b"tcp://127.0.0.1:0", TypeError, "must be a string such as"),
    ],
)
def test_addresses_that_no_server_could_bind(address, error, message):
    good = "tcp://127.0.0.1:0"
    for inputs, outputs, name in ([good, address], [good] * 2, "input"), ([good] * 2, [good, address], "output"):
        with pytest.raises(error, match=rf"^{name}_addresses\[1\]:? .*{message}"):
            APIServerProcessManager("", None, None, 2, inputs, outputs, target_server_fn=programs.wait_silently)


@pytest.mark.parametrize("address", ["tcp://[::1]:0", "tcp://*:*", "tcp://eth0:5555", "ipc:///x", "ws://127.0.0.1:1"])
def test_addresses_that_a_server_may_be_able_to_bind(address):
    manager = APIServerProcessManager("", None, None, 1, [address], [address], target_server_fn=programs.wait_silently)
    manager.shutdown(0)


def test_64_servers_at_once():
    manager = start(64, programs.report_and_wait)
    inputs, _ = manager.gather_actual_addresses(120)
    assert len(inputs) == 64
    assert len({process.pid for process in manager.processes}) == 64
    manager.shutdown(60)
    assert [process.exitcode for process in manager.processes] == [-signal.SIGTERM] * 64


def test_a_start_in_another_thread():
    managers = []
    thread = threading.Thread(target=lambda: managers.append(start(2, programs.report_and_wait)))
    thread.start()
    thread.join()
    # The end of the thread that started them is not the end of their parent.
    managers[0].gather_actual_addresses(60)
    assert all(process.is_alive() for process in managers[0].processes)
    thread = threading.Thread(target=managers[0].shutdown)
    thread.start()
    thread.join()
    assert [process.exitcode for process in managers[0].processes] == [-signal.SIGTERM] * 2
