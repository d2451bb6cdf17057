"""Servers do not outlive a parent that is killed, and a parent that ends takes them along."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from process_ends import all_end

import fastutils

PARENT = """
import os, sys, threading, weakref
{first}
from multiprocessing import resource_tracker
sys.path.insert(0, {folder!r})
import server_programs as programs
from fastutils import APIServerProcessManager

if __name__ == "__main__":
    {before}
    addresses = ["ipc:///a", "ipc:///b"]
    manager = APIServerProcessManager("", None, None, 2, addresses, addresses, target_server_fn=programs.{program})
    {gather}
    # Multiprocessing's own helper ends with its parent too, but not at once.
    print(resource_tracker._resource_tracker._pid, *[process.pid for process in manager.processes], flush=True)
    {after}
"""


@pytest.fixture
def run_parent(tmp_path, guards_end):
    """Starts a parent whose servers run `program`; it writes their pids and goes on with `after`.

    Returns (the running parent, its servers as psutil's processes). All are killed after the test.
    """
    started, parents = [], []

    def run(program, after, before="", gather="manager.gather_actual_addresses(60)", first=""):
        script = tmp_path / "parent.py"
        folder = str(Path(__file__).parent)
        script.write_text(
            PARENT.format(folder=folder, program=program, after=after, before=before, gather=gather, first=first)
        )
        parent = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(fastutils.__file__))},
        )
        started.append(parent)
        parents.append(parent)
        line = parent.stdout.readline()
        assert line, "the parent failed to start its servers"
        for pid in line.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                started.append(psutil.Process(int(pid)))
        return parent, [process for process in started if str(process.pid) in line.split()[1:]]

    yield run
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for parent in parents:
        parent.stdout.close()
        parent.wait()
    assert all_end([process for process in started if process not in parents])


@pytest.mark.parametrize("program", ["report_and_wait", "report_and_ignore_sigterm"])
def test_servers_end_with_a_parent_that_is_killed(run_parent, program):
    parent, servers = run_parent(program, "threading.Event().wait()")
    assert all(server.is_running() for server in servers)
    parent.kill()
    parent.wait()
    assert all_end(servers)


def test_servers_that_have_not_reached_their_program_end_too(run_parent):
    parent, servers = run_parent("wait_silently", "os.kill(os.getpid(), 9)", gather="")
    parent.wait()
    assert all_end(servers)


def test_what_a_server_started_ends_too(run_parent):
    after = "print(*manager.gather_actual_addresses(1)[1], flush=True); threading.Event().wait()"
    parent, servers = run_parent("report_from_stubborn_grandchild", after)
    grandchildren = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(grandchildren) == 2
    parent.kill()
    parent.wait()
    assert all_end([*servers, *grandchildren])


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "too late to wait"])
def test_a_target_that_closes_all_descriptors_is_neither_ended_nor_left_behind(run_parent, late):
    before = LATE_WATCH.strip() if late else ""
    after = "threading.Event().wait()"
    parent, servers = run_parent("close_everything_and_wait", after, before, gather=GATHER_NOTHING.strip())
    assert all(server.is_running() for server in servers)
    parent.kill()
    parent.wait()
    assert all_end(servers)


GATHER_NOTHING = """
    try:
        manager.gather_actual_addresses(60)
    except RuntimeError as error:
        assert "closed its address pipe" in str(error), error
"""
# Servers that the guard does not know.
WITHOUT_GUARD = """
    from fastutils.processes import guard, spawning
    guard.Guard.group = None
"""
LATE_WATCH = f"""{WITHOUT_GUARD}
    spawning.PROGRAM = {str(Path(__file__).with_name("late_watch.py"))!r}
"""


# A parent that is not the direct one is not watched through the kernel.
WITH_THE_PIPE_ALONE = f"""{WITHOUT_GUARD}
    command = spawning._command
    spawning._command = lambda *call: [each if each != str(os.getpid()) else "0" for each in command(*call)]
"""
FORK = """
    sibling = os.fork()
    if not sibling:
        threading.Event().wait()
    print(sibling, flush=True)
    threading.Event().wait()
"""


def test_a_forked_sibling_does_not_keep_the_servers_alive(run_parent):
    # It inherits every descriptor of the parent, the writing end of the death pipe among them.
    parent, servers = run_parent("report_and_wait", FORK.strip(), WITH_THE_PIPE_ALONE.strip())
    sibling = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    assert all_end(servers)
    sibling.kill()
    assert all_end([sibling])


# weakref's own exit hook is then older than multiprocessing's and would run too late.
EARLY_FINALIZER = """
class Thing: pass
thing = Thing()
weakref.finalize(thing, int)
"""


@pytest.mark.parametrize(
    ("after", "first", "code"), [("pass", "", 0), ("sys.exit(3)", "", 3), ("pass", EARLY_FINALIZER, 0)]
)
def test_a_parent_that_ends_without_a_shutdown_ends_its_servers(run_parent, after, first, code):
    parent, servers = run_parent("report_and_wait", after, first=first)
    assert parent.wait(60) == code
    assert all_end(servers)
