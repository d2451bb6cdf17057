"""All that one manager starts is one process group, which is ended as a whole; who has left it on purpose has left."""

import os
import signal

import plain_servers
import psutil
import pytest
from application_side import frontend, servers
from process_ends import all_end


@pytest.fixture
def killed():
    """Remembers processes to be killed after the test; psutil looks at the start time before it does."""
    remembered = []

    def remember(pid):
        remembered.append(psutil.Process(int(pid)))
        return remembered[-1]

    yield remember
    for process in remembered:
        if process.is_running():
            process.kill()
    assert all_end(remembered)


def test_the_servers_of_a_manager_are_one_group_which_is_not_ours():
    manager = servers(plain_servers.wait, 3)
    try:
        manager.gather_actual_addresses(120)
        groups = {os.getpgid(process.pid) for process in manager.processes}
        assert len(groups) == 1, f"the servers are in {len(groups)} groups: {groups}"
        assert os.getpgrp() not in groups
    finally:
        manager.shutdown()


def test_two_managers_have_two_groups(tmp_path):
    managers = [servers(plain_servers.wait), servers(plain_servers.wait), frontend(tmp_path / "f", "exec sleep 600")]
    try:
        for manager in managers[:2]:
            manager.gather_actual_addresses(120)
        groups = {os.getpgid(manager.processes[0].pid) for manager in managers}
        assert len(groups - {os.getpgrp()}) == 3, f"groups {groups}, ours is {os.getpgrp()}"
    finally:
        for manager in managers:
            manager.shutdown()


def test_a_frontends_children_are_in_its_group(tmp_path, killed):
    os.mkfifo(tmp_path / "pipe")
    manager = frontend(tmp_path / "frontend", f"sleep 600 &\necho $! >{tmp_path / 'pipe'}\nwait")
    try:
        child = killed((tmp_path / "pipe").read_text())
        assert os.getpgid(child.pid) == os.getpgid(manager.processes[0].pid) != os.getpgrp()
    finally:
        manager.shutdown()
    assert all_end([child]), "the child has outlived its frontend's manager"


def test_a_child_that_outlives_its_server_ends_at_the_shutdown(killed):
    manager = servers(plain_servers.exit_and_leave_a_stubborn_child)
    try:
        child = killed(manager.gather_actual_addresses(120)[1][0])
        manager.processes[0].join(60)
        assert manager.processes[0].exitcode == 3
        assert child.is_running()
    finally:
        manager.shutdown(0.5)
    assert all_end([child]), "a child in its manager's group has outlived the shutdown"


def test_a_child_that_outlives_its_frontend_ends_at_the_shutdown(tmp_path, killed):
    os.mkfifo(tmp_path / "pipe")
    manager = frontend(tmp_path / "frontend", f"sleep 600 &\necho $! >{tmp_path / 'pipe'}\nexit 0")
    try:
        child = killed((tmp_path / "pipe").read_text())
        manager.processes[0].join(60)
        assert manager.processes[0].exitcode == 0
        assert child.is_running()
    finally:
        manager.shutdown()
    assert all_end([child]), "a child in its manager's group has outlived the shutdown"


@pytest.mark.parametrize("first", ["ends", "lives"])
def test_a_daemon_is_left_alone(killed, first):
    manager = servers(plain_servers.wait_with_a_daemon)
    try:
        daemon = killed(manager.gather_actual_addresses(120)[1][0])
        assert os.getsid(daemon.pid) != os.getsid(0)
        if first == "ends":
            os.kill(manager.processes[0].pid, signal.SIGKILL)
            manager.processes[0].join(60)
    finally:
        manager.shutdown()
    assert not all_end([daemon], timeout=1), "a daemon was ended that had left the group and the family"
