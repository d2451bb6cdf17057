"""Who is in a crowd, and how it is ended."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from process_ends import all_end

from fastutils.processes import members
from fastutils.processes.members import Crowd


@pytest.fixture(params=["proc", "psutil"])
def source(request, monkeypatch):
    """Runs the test with the kernel's own tables, and as on a platform without them."""
    if request.param == "psutil":
        monkeypatch.setattr(members, "_LINUX", False)
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not members._LINUX:
        pytest.skip("this platform has no /proc")


def ended(process):
    """The exit code of a child process within 30 s."""
    return process.wait(30)


def numbers(crowd):
    return {member.pid for member in crowd.living()}


# --- who belongs to it ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_this_process_as_the_kernel_describes_it():
    own = members.find(os.getpid())
    assert own[:3] == (os.getpid(), os.getppid(), os.getpgid(0))
    assert not own.is_zombie
    assert members.everybody()[os.getpid()] == own


@pytest.mark.usefixtures("source")
def test_a_number_that_nobody_has():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert members.find(gone.pid) is None
    assert Crowd([gone.pid]).living() == []


@pytest.mark.usefixtures("source")
def test_a_name_with_brackets_and_blanks(tmp_path):
    program = tmp_path / ") S 1 1 (x"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        assert members.find(process.pid)[:3] == (process.pid, os.getpid(), os.getpgid(0))
        process.communicate()


@pytest.mark.usefixtures("source")
def test_a_zombie_is_told(tree):
    root, _ = tree
    root.kill()
    os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)
    assert members.find(root.pid).is_zombie


def test_the_numbers_of_another_namespaces_proc_are_strangers(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(OSError, match="another pid namespace"):
            members.everybody()


@pytest.mark.usefixtures("source")
def test_descendants_belong_to_it(tree):
    root, below = tree
    assert numbers(Crowd([root.pid])) == {root.pid, *(process.pid for process in below)}


@pytest.mark.usefixtures("source")
def test_who_was_seen_still_belongs_to_it_when_its_parent_is_gone(tree):
    root, below = tree
    crowd = Crowd([root.pid])
    root.kill()
    ended(root)
    assert numbers(crowd) == {process.pid for process in below}


@pytest.mark.usefixtures("source")
def test_descendants_are_told_from_strangers(tree):
    root, below = tree
    assert members.is_descendant(root.pid)
    assert members.is_descendant(below[0].pid)
    assert not members.is_descendant(os.getpid())
    assert not members.is_descendant(os.getppid())
    root.kill()
    os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)
    assert not members.is_descendant(root.pid)


def test_nobody_is_a_descendant_where_nothing_can_be_looked_up(tree, monkeypatch):
    root, _ = tree
    monkeypatch.setattr(members, "everybody", lambda: (_ for _ in ()).throw(OSError("no /proc")))
    assert not members.is_descendant(root.pid)


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
    crowd = Crowd(group=lambda: group.pid)
    end(group)
    (member,) = crowd.living()
    assert member.group == group.pid
    assert member.pid != group.pid
    assert members.kill(crowd.living) == ([member], [])
    assert members.wait_until_gone([member], 30)


def test_a_group_that_is_no_longer_certain_does_not_count(group):
    certain = [group.pid, group.pid, None]
    crowd = Crowd(group=lambda: certain.pop(0))
    assert group.pid in numbers(crowd)
    crowd._seen.clear()
    assert crowd.living() == []


def test_some_do_not_count(tree, group):
    root, below = tree
    assert numbers(Crowd([root.pid], without=[below[0].pid])) == {root.pid}
    (member,) = Crowd(group=lambda: group.pid, without=[group.pid]).living()
    assert member.parent == group.pid


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_a_signal_reaches_only_the_very_process(tree):
    root, _ = tree
    member = members.find(root.pid)
    assert not members.send(member._replace(started=member.started - 1), signal.SIGKILL)
    assert members.send(member, signal.SIGKILL)
    assert ended(root) == -signal.SIGKILL
    assert not members.send(member, signal.SIGKILL)


@pytest.mark.usefixtures("source")
def test_waiting_for_an_end(tree):
    root, _ = tree
    member = members.find(root.pid)
    assert not members.wait_until_gone([member], 0.01)
    assert members.wait_until_gone([member._replace(started=member.started - 1)], 0)
    root.kill()
    assert members.wait_until_gone([member], 30)  # a zombie has ended


# --- killing ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_the_whole_tree_is_killed(tree):
    root, below = tree
    members.kill(Crowd([root.pid]).living)
    assert root.wait(30) == -signal.SIGKILL
    assert all_end(below)


def test_a_tree_below_a_stopped_process(tree):
    root, below = tree
    below[0].suspend()
    members.kill(Crowd([root.pid]).living)
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
        members.kill(Crowd([root.pid]).living)
        assert root.wait(30) == -signal.SIGKILL
    left = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("FASTUTILS_TEST_TREE") == marker:
                left.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
    assert all_end(left)


def test_what_may_not_be_killed_is_returned(monkeypatch, tree):
    send, refused = members.send, []

    def refuse(member, signum):
        if member.pid == root.pid:
            refused.append(signum)
            raise PermissionError
        return send(member, signum)

    root, below = tree
    monkeypatch.setattr(members, "send", refuse)
    _, forbidden = members.kill(Crowd([root.pid]).living)
    assert [member.pid for member in forbidden] == [root.pid]
    assert refused == [signal.SIGSTOP, signal.SIGKILL]
    assert all_end(below)


def test_a_process_may_kill_itself_with_its_family(tree):
    program = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
from fastutils.processes import members
members.kill(members.Crowd([os.getpid()]).living)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        child = psutil.Process(int(process.stdout.readline()))
        assert ended(process) == -signal.SIGKILL
    assert all_end([child])
