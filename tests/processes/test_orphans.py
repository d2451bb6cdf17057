"""What a child's own watch of its parent cannot see to, the guard does."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
from process_ends import all_end

import fastutils
from fastutils.processes import families, guarding
from fastutils.processes.guarding import Guard

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


def test_a_server_that_still_imports_its_parents_main_module(killed_parent):
    servers = killed_parent("""
        if __name__ == "__mp_main__":
            print(os.getpid(), flush=True)
            threading.Event().wait()
        if __name__ == "__main__":
            from fastutils.processes import guarding
            guarding.Guard.look_after = lambda guard, leader: None  # its own watch is enough
            manager = start(programs.report_and_wait)
            threading.Event().wait()
    """)
    assert all_end(servers)


@pytest.mark.parametrize("at_sigterm", ["", "exit 0"])
@pytest.mark.parametrize("can_join", [True, False])
def test_a_frontend_with_all_that_it_started(killed_parent, tmp_path, can_join, at_sigterm):
    if can_join and not guarding._CAN_JOIN:
        pytest.skip("this Python cannot start a program in another's group")
    frontend, pipe = tmp_path / "frontend", tmp_path / "pipe"
    os.mkfifo(pipe)
    start = f"setsid sleep 600 &\necho $$ $! >{pipe}"
    frontend.write_text(f"#!/bin/sh\ntrap '{at_sigterm}' TERM\n{start}\nwait\nsleep 600\n")
    frontend.chmod(0o755)
    processes = killed_parent(
        f"""
        from fastutils.processes import guarding
        guarding._CAN_JOIN = {can_join}
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
        from fastutils.processes.guarding import Guard
        tell(Guard().pid)
    """)
    assert all_end(guards)


def test_the_guard_leads_a_group_and_does_not_listen_to_signals():
    guard = Guard()
    program = "import os, sys; print(os.getpgid(0), flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes, **guard.placement()) as guarded:
        assert int(guarded.stdout.readline()) == (guard.pid if guarding._CAN_JOIN else guarded.pid)
    process = psutil.Process(guard.pid)
    while not ignores_sigterm(guard.pid):  # not yet: nothing else tells that it is set up
        threading.Event().wait(0.01)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(signum)
    assert process.is_running()
    guard.close()
    guard.close()
    assert not process.is_running()


def ignores_sigterm(pid):
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_guard_that_was_killed_is_no_obstacle():
    guard = Guard()
    os.kill(guard.pid, signal.SIGKILL)
    os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOWAIT)
    guard.look_after(families.leader(os.getpid()))
    with subprocess.Popen([sys.executable, "-c", ""], **guard.placement()) as guarded:
        pass
    assert guarded.returncode == 0
    guard.close()
