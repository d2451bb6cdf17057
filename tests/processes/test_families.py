"""Families of processes: who belongs to one, and how it is ended."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from process_ends import all_end

from fastutils.processes import families


@pytest.fixture(params=["proc", "psutil"])
def source(request, monkeypatch):
    """Runs the test with the kernel's own tables, and as on a platform without them."""
    if request.param == "psutil":
        monkeypatch.setattr(families, "_LINUX", False)
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not families._LINUX:
        pytest.skip("this platform has no /proc")


def ended(process):
    """The exit code of a child process within 30 s."""
    return process.wait(30)


# --- who belongs to it ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_this_process_as_the_kernel_describes_it():
    own = families.find(os.getpid())
    assert own[:4] == (os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0))
    assert not own.is_zombie
    assert families.everybody()[os.getpid()] == own
    assert families.leader(os.getpid()) == (own.pid, own.session, own.started)


@pytest.mark.usefixtures("source")
def test_a_number_that_nobody_has():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert families.find(gone.pid) is None
    assert families.leader(gone.pid) is None


@pytest.mark.usefixtures("source")
def test_a_name_with_brackets_and_blanks(tmp_path):
    program = tmp_path / ") S 1 1 (x"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        assert families.find(process.pid)[:3] == (process.pid, os.getpid(), os.getpgid(0))
        process.communicate()


@pytest.mark.usefixtures("source")
def test_a_zombie_is_told(tree):
    root, _ = tree
    root.kill()
    os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)
    assert families.find(root.pid).is_zombie


@pytest.mark.usefixtures("source")
def test_descendants_belong_to_it(tree):
    root, below = tree
    family = families.Family([families.leader(root.pid)])
    assert {member.pid for member in family.living()} == {root.pid, *(process.pid for process in below)}


@pytest.mark.usefixtures("source")
def test_who_was_seen_still_belongs_to_it_when_its_parent_is_gone(tree):
    root, below = tree
    family = families.Family([families.leader(root.pid)])
    family.living()
    root.kill()
    ended(root)
    assert {member.pid for member in family.living()} == {process.pid for process in below}


GROUP = """
import os, signal, sys
if os.fork() == 0:
    signal.pause()
print(flush=True)
sys.stdin.read()
"""


def end(root):
    root.stdin.close()
    ended(root)


@pytest.fixture
def group():
    """A process that leads a group with one other member."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", GROUP], **options) as root:
        root.stdout.readline()
        yield root
        end(root)
        try:
            os.killpg(root.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


@pytest.mark.usefixtures("source")
def test_a_group_outlives_its_leader(group):
    family = families.Family([families.leader(group.pid)])
    end(group)
    (member,) = family.living()
    assert member.group == group.pid
    assert member.pid != group.pid
    assert families.kill(family.living) == ([member], [])
    assert families.wait_until_gone([member], 30)


def test_a_stranger_with_the_leaders_number_has_another_group(group):
    real = families.leader(group.pid)
    assert families.Family([real._replace(started=real.started - 1)]).living() == []


def test_members_of_another_session_or_older_than_the_leader_are_strangers(group):
    real = families.leader(group.pid)
    end(group)
    assert families.Family([real._replace(session=real.session + 1)]).living() == []
    assert families.Family([real._replace(started=real.started + 1e9)]).living() == []
    assert len(families.Family([real]).living()) == 1


def test_guests_are_not_looked_after(tree):
    root, below = tree
    family = families.Family([families.leader(root.pid)], guests=[below[0].pid])
    assert [member.pid for member in family.living()] == [root.pid]


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_a_signal_reaches_only_the_very_process(tree):
    root, _ = tree
    member = families.find(root.pid)
    assert not families.send(member._replace(started=member.started - 1), signal.SIGKILL)
    assert families.send(member, signal.SIGKILL)
    assert ended(root) == -signal.SIGKILL
    assert not families.send(member, signal.SIGKILL)


@pytest.mark.usefixtures("source")
def test_waiting_for_an_end(tree):
    root, _ = tree
    member = families.find(root.pid)
    assert not families.wait_until_gone([member], 0.01)
    assert families.wait_until_gone([member._replace(started=member.started - 1)], 0)
    root.kill()
    assert families.wait_until_gone([member], 30)  # a zombie has ended


# --- killing ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_the_whole_tree_is_killed(tree):
    root, below = tree
    families.kill_tree(root.pid)
    assert root.wait(30) == -signal.SIGKILL
    assert all_end(below)


def test_a_tree_below_a_stopped_process(tree):
    root, below = tree
    below[0].suspend()
    families.kill_tree(root.pid)
    assert root.wait(30) == -signal.SIGKILL
    assert all_end(below)


FORKS = """
import os, time
print(flush=True)
for _ in range(300):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""


def test_a_process_that_keeps_starting_others_leaves_none(monkeypatch):
    monkeypatch.setenv("FASTUTILS_TEST_TREE", marker := os.urandom(8).hex())
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True) as root:
        root.stdout.readline()
        families.kill_tree(root.pid)
        assert root.wait(30) == -signal.SIGKILL
    left = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("FASTUTILS_TEST_TREE") == marker:
                left.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
    assert all_end(left)


def test_a_process_that_is_gone_is_left_alone():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    families.kill_tree(gone.pid)


@pytest.mark.parametrize("pid", [1, 0, -1])
def test_numbers_that_mean_a_group_or_the_first_process_are_refused(pid):
    with pytest.raises(ValueError, match=f"pid {pid} names no ordinary process"):
        families.kill_tree(pid)


def test_what_may_not_be_killed_is_returned(monkeypatch, tree):
    send, refused = families.send, []

    def refuse(member, signum):
        if member.pid == root.pid:
            refused.append(signum)
            raise PermissionError
        return send(member, signum)

    root, below = tree
    monkeypatch.setattr(families, "send", refuse)
    assert [member.pid for member in families.kill_tree(root.pid)] == [root.pid]
    assert refused == [signal.SIGSTOP, signal.SIGKILL]
    assert all_end(below)


def test_a_process_may_kill_itself_with_its_family(tree):
    program = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
from fastutils.processes import families
families.kill_tree(os.getpid())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        child = psutil.Process(int(process.stdout.readline()))
        assert ended(process) == -signal.SIGKILL
    assert all_end([child])
