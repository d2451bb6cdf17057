"""An ended process's number is given to somebody else: a shutdown does not take that one for ours."""

import os
import signal
import subprocess

import plain_servers
import process_numbers
import pytest
from application_side import frontend, servers

pytestmark = pytest.mark.skipif(
    not process_numbers.can_be_chosen(), reason="the next process's number can only be chosen by root on Linux"
)


@pytest.fixture
def strangers():
    """Starts a shell that gets this number and leads a group; all of the group are killed after the test."""
    groups = []

    def start(pid, program):
        started = []

        def spawn():
            reader, writer = os.pipe()
            with os.fdopen(reader) as output, os.fdopen(writer, "wb") as pipe:
                actions = [(os.POSIX_SPAWN_DUP2, pipe.fileno(), 1)]
                got = os.posix_spawn("/bin/sh", ["sh", "-c", program], {}, file_actions=actions, setpgroup=0)
                pipe.close()
                started[:] = [got, int(output.readline())]  # the second: what the program says
            if got != pid:
                os.killpg(got, signal.SIGKILL)  # not yet collected, so the group is its own
            return got

        if process_numbers.take(pid, spawn) is None:
            pytest.skip(f"the number {pid} was not to be had again: too much goes on here")
        groups.append(pid)
        return started[1]

    yield start
    for group in groups:
        # It is ours still: its leader is not collected, or its worker lives.
        try:
            os.killpg(group, signal.SIGKILL)
            os.waitpid(group, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


WORKER = "sleep 600 >/dev/null 2>&1 & echo $!"


@pytest.mark.parametrize("leader", ["has ended", "lives"])
@pytest.mark.parametrize("kind", ["server", "frontend"])
def test_a_job_whose_leader_has_the_number(strangers, tmp_path, kind, leader):
    if kind == "server":
        manager = servers(plain_servers.exit_with, args=0)
    else:
        manager = frontend(tmp_path / "frontend", "exit 0")
    (process,) = manager.processes
    process.join(60)
    assert process.exitcode == 0  # collected: the number is free
    worker = strangers(process.pid, WORKER if leader == "has ended" else f"{WORKER}; wait")
    if leader == "has ended":
        os.waitpid(process.pid, 0)
    manager.shutdown(0.5)
    assert process_numbers.runs(worker), "the worker of a stranger's job was ended"
    if leader == "lives":
        assert process_numbers.runs(process.pid), "a stranger was ended for its number"


@pytest.mark.parametrize("kind", ["server", "frontend"])
def test_a_child_of_ours_that_has_the_number_of_one_that_was_collected_elsewhere(strangers, tmp_path, kind):
    if kind == "server":
        manager = servers(plain_servers.exit_with, args=0)
    else:
        manager = frontend(tmp_path / "frontend", "exit 0")
    (process,) = manager.processes
    os.waitpid(process.pid, 0)  # by the application, behind the manager's back
    strangers(process.pid, "echo 0; exec sleep 600")
    manager.shutdown(0.5)
    assert process_numbers.runs(process.pid), "a child of the application was ended for its number"


def test_a_process_that_was_shut_down_twice(strangers):
    from fastutils import shutdown

    manager = servers(plain_servers.wait)
    manager.gather_actual_addresses(120)
    processes = list(manager.processes)
    shutdown(processes)
    assert processes[0].exitcode == -signal.SIGTERM
    strangers(processes[0].pid, "echo 0; exec sleep 600")
    shutdown(processes, 0)
    manager.shutdown(0)
    assert process_numbers.runs(processes[0].pid), "a stranger was ended for its number"


def test_the_number_is_really_given_again(strangers):
    with subprocess.Popen(["/bin/sh", "-c", "exit 0"]) as gone:
        pass
    strangers(gone.pid, "echo 0; exec sleep 600")
    assert process_numbers.runs(gone.pid)
