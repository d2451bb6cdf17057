"""What a child's own watch of its parent cannot see to, the guard does."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from process_ends import all_end

import fastutils
from fastutils.processes import guard as guard_module
from fastutils.processes.guard import Guard
from fastutils.processes.spawning import start_program

HEAD = """
import argparse, os, signal, socket, sys, threading, time
sys.path.insert(0, {folder!r})
import server_programs as programs, faults
from fastutils import APIServerProcessManager, RustFrontendProcessManager

def start(program, args=None, count=1):
    addresses = ["ipc:///a"] * count
    manager = APIServerProcessManager("", None, args, count, addresses, addresses, target_server_fn=program)
    return manager

def tell(*pids):
    print(*pids, flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def killed_parent(tmp_path, guards_end):
    """Runs a parent's program, which writes pids and waits, and kills it; the processes with these pids."""
    started = []

    def run(program, **variables):
        script = tmp_path / "parent.py"
        head = HEAD.format(folder=str(Path(__file__).parent))
        script.write_text(head + textwrap.dedent(program))
        package = os.path.dirname(os.path.dirname(fastutils.__file__))
        environment = {**os.environ, "PYTHONPATH": package, **variables}
        with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as parent:
            started.extend(psutil.Process(int(pid)) for pid in parent.stdout.readline().split())
            assert started
            parent.kill()
        return started

    yield run
    for process in started:
        if process.is_running():
            process.kill()


def test_a_server_that_holds_the_interpreters_lock(killed_parent):
    servers = killed_parent("""
        if __name__ == "__main__":
            args = argparse.Namespace(who=0, phase="gather", fault="holds the interpreter's lock")
            manager = start(faults.serve, args)
            tell(manager.processes[0].pid)
    """)
    assert all_end(servers)


def test_a_server_that_is_stopped(killed_parent):
    servers = killed_parent("""
        if __name__ == "__main__":
            manager = start(programs.report_and_wait)
            manager.gather_actual_addresses(60)
            os.kill(manager.processes[0].pid, signal.SIGSTOP)
            os.waitid(os.P_PID, manager.processes[0].pid, os.WSTOPPED)
            tell(manager.processes[0].pid)
    """)
    assert all_end(servers)


def test_the_stubborn_child_of_a_server_that_ends_when_asked(killed_parent):
    processes = killed_parent("""
        if __name__ == "__main__":
            manager = start(programs.report_from_stubborn_grandchild_but_listen)
            (grandchild,) = manager.gather_actual_addresses(60)[1]
            tell(manager.processes[0].pid, grandchild)
    """)
    assert len(processes) == 2
    assert all_end(processes)


@pytest.mark.parametrize("who", ["the child", "the server"])
def test_a_child_in_another_session(killed_parent, who):
    processes = killed_parent(f"""
        if __name__ == "__main__":
            manager = start(programs.report_from_another_session, args={who!r})
            (child,) = manager.gather_actual_addresses(60)[1]
            tell(manager.processes[0].pid, child)
    """)
    assert len(processes) == 2
    assert all_end(processes)


def test_a_server_that_still_imports_its_parents_main_module(killed_parent):
    servers = killed_parent("""
        if __name__ == "__mp_main__":
            print(os.getpid(), flush=True)
            threading.Event().wait()
        if __name__ == "__main__":
            from fastutils.processes import guard
            guard.Guard.group = None  # its own watch is enough
            manager = start(programs.report_and_wait)
            threading.Event().wait()
    """)
    assert all_end(servers)


@pytest.mark.parametrize("at_sigterm", ["", "exit 0"])
def test_a_frontend_with_all_that_it_started(killed_parent, tmp_path, at_sigterm):
    frontend, pipe = tmp_path / "frontend", tmp_path / "pipe"
    os.mkfifo(pipe)
    start = f"setsid sleep 600 &\necho $$ $! >{pipe}"
    frontend.write_text(f"#!/bin/sh\ntrap '{at_sigterm}' TERM\n{start}\nwait\nsleep 600\n")
    frontend.chmod(0o755)
    processes = killed_parent(
        f"""
        if __name__ == "__main__":
            listener = socket.create_server(("127.0.0.1", 0))
            manager = RustFrontendProcessManager({str(frontend)!r}, listener, argparse.Namespace(), "a", "b", 0, 1)
            tell(open({str(pipe)!r}).read().strip())
    """
    )
    assert len(processes) == 2
    assert all_end(processes)


# --- the guard itself -------------------------------------------------------------------------------------------------


def test_a_guard_that_has_nothing_to_do_ends_with_its_parent(killed_parent):
    guards = killed_parent("""
        from fastutils.processes.guard import Guard
        tell(Guard().group)
    """)
    assert all_end(guards)


def test_the_guard_leads_a_group_and_does_not_listen_to_signals():
    guard = Guard()
    process = psutil.Process(guard.group)
    assert guard.pids == [guard.group] == [os.getpgid(guard.group)]
    assert f"fastutils: guard of {os.getpid()}" in process.cmdline()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTSTP):
        process.send_signal(signum)
    assert process.is_running()
    guard.close()
    guard.close()
    assert guard.group is None
    assert not process.is_running()


@pytest.mark.usefixtures("announcement")
def test_a_program_joins_its_group():
    guard = Guard()
    program = "import os, sys; print(os.getpgid(0), os.getpid(), flush=True); sys.exit(3)"
    with contextlib.closing(guard), open(os.devnull) as nothing:
        reader, writer = os.pipe()
        command = [sys.executable, "-c", f"import os; os.dup2({writer}, 1); {program}"]
        process = start_program(command, "Program", [writer, nothing.fileno()], guard)
        os.close(writer)
        with open(reader) as lines:
            assert lines.read() == f"{guard.group} {process.pid}\n"
        process.join(60)
        assert process.exitcode == 3


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_guard_that_is_killed_is_replaced_once(caplog):
    guard = Guard()
    first = guard.group
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: len(guard.pids) == 2 and caplog.records)
    second = guard.pids[1]
    assert caplog.records[0].getMessage().endswith(f"(PID: {first}) has ended; now it is PID {second}")
    assert guard.group == first == os.getpgid(second)  # the dead one still holds the number
    os.kill(second, signal.SIGKILL)
    wait_for(lambda: len(caplog.records) == 2)
    assert f"(PID: {second}) has ended; and is not started again" in caplog.text
    assert guard.group == first
    guard.close()
    assert guard.group is None
    assert len(caplog.records) == 2


def test_a_guard_whose_end_is_collected_elsewhere_gets_another_group(caplog):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        guard = Guard()
        first = guard.group
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: caplog.records)
        assert guard.group == guard.pids[1] == os.getpgid(guard.pids[1]) != first
        guard.close()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_guard_that_cannot_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: "/bin/false")
    with pytest.raises(RuntimeError, match=r"/bin/false \(PID: \d+\), did not start"):
        Guard()


@pytest.mark.parametrize("fails", ["spawn", "thread"])
def test_a_guard_that_fails_half_way_leaves_nothing(monkeypatch, fails):
    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    if fails == "spawn":
        monkeypatch.setattr(guard_module, "Popen", refuse)
    else:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Guard()


def test_behind_a_launcher_its_group_is_still_the_one_that_it_leads(monkeypatch, tmp_path):
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    launcher.chmod(0o755)
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: str(launcher))
    guard = Guard()
    with contextlib.closing(guard):
        assert guard.group not in (None, guard.pids[0])
        assert os.getpgid(guard.group) == guard.group
    assert all_end([psutil.Process(guard._number)] if psutil.pid_exists(guard._number) else [])


def test_a_frozen_program_has_none(monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    guard = Guard()
    assert (guard.group, guard.pids) == (None, [])
    assert "a frozen program is not started again as a guard" in caplog.text
    guard.close()
