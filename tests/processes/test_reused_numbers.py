"""An ended process's number is given to somebody else: a shutdown does not take that one for ours."""

import contextlib
import os
import signal
import subprocess

import plain_servers
import process_numbers
import psutil
import pytest
from application_side import frontend, servers

pytestmark = pytest.mark.skipif(
    not process_numbers.can_be_chosen(), reason="the next process's number can only be chosen by root on Linux"
)


@pytest.fixture
def strangers():
    """Starts a shell that gets this number, leads a group and says a number: its own or a worker's, which is returned.

    Both are killed after the test, by number and start time.
    """
    members = []

    def start(pid, program):
        said = []

        def spawn():
            reader, writer = os.pipe()
            with os.fdopen(reader) as output:
                actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
                got = os.posix_spawn("/bin/sh", ["sh", "-c", program], {}, file_actions=actions, setpgroup=0)
                os.close(writer)
                said[:] = [int(output.readline())]
            if got != pid:
                os.killpg(got, signal.SIGKILL)  # not yet collected, so the group is its own
            return got

        if process_numbers.take(pid, spawn) is None:
            pytest.skip(f"the number {pid} was not to be had again: too much goes on here")
        members.extend(psutil.Process(number) for number in {pid, *said})
        return said[0]

    yield start
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(member.pid, 0)


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
    strangers(process.pid, "echo $$; exec sleep 600")
    manager.shutdown(0.5)
    assert process_numbers.runs(process.pid), "a child of the application was ended for its number"


def test_a_process_that_was_shut_down_twice(strangers):
    from fastutils import shutdown

    manager = servers(plain_servers.wait)
    manager.gather_actual_addresses(120)
    processes = list(manager.processes)
    shutdown(processes)
    assert processes[0].exitcode == -signal.SIGTERM
    strangers(processes[0].pid, "echo $$; exec sleep 600")
    shutdown(processes, 0)
    manager.shutdown(0)
    assert process_numbers.runs(processes[0].pid), "a stranger was ended for its number"


def test_the_number_is_really_given_again(strangers):
    with subprocess.Popen(["/bin/sh", "-c", "exit 0"]) as gone:
        pass
    strangers(gone.pid, "echo $$; exec sleep 600")
    assert process_numbers.runs(gone.pid)
