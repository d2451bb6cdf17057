"""What every test of processes has to leave behind: nothing."""

import contextlib
import gc
import glob
import multiprocessing
import os
import sys
import tempfile
import threading
import uuid
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
from applications import NAMESPACE, PACKAGE, Application, command, obstacle_to_namespaces
from process_ends import all_end

MARKER = "FASTUTILS_TEST_MARKER"


def descriptors():
    """What each open descriptor of this process leads to."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return links


def marked_processes(marker):
    """Pids of the living processes (zombies too) that were started, at any depth, by the test with this marker."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARKER) == marker:
                found.append(process.pid)
        except psutil.ZombieProcess:
            with contextlib.suppress(psutil.Error):
                if process.ppid() == os.getpid():
                    found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
    return found


def guards_without_a_parent(marker):
    """Those of a program that was killed: for a second more they see that nobody joins their group."""
    found = []
    for pid in marked_processes(marker):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            (words, *_) = [word for word in process.cmdline() if word.startswith("fastutils: guard of ")] or [""]
            if words and process.ppid() != int(words.rpartition(" ")[2]):
                found.append(process)
    return found


def files():
    """Files that this process's shared memory and sockets may leave."""
    return {
        path for folder in ("/dev/shm", tempfile.gettempdir()) for path in glob.glob(f"{folder}/pym*-{os.getpid()}-*")
    }


def pytest_collection_modifyitems(items):
    # Newer interpreters warn of every fork in a process with threads, which other tests' libraries have.
    ignore = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(ignore)


@pytest.fixture(scope="session", autouse=True)
def resource_tracker_runs():
    """Multiprocessing's own helper and shared memory stay until the interpreter's exit; they are not left by a test."""
    resource_tracker.ensure_running()
    multiprocessing.get_context("spawn").RawArray("i", 1)


@pytest.fixture
def marker(monkeypatch):
    """A unique value in the environment of everything that the test starts."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, value)
    return value


@pytest.fixture(autouse=True)
def nothing_left(marker, caplog):
    """No process, zombie, descriptor or thread may be left when the test and its garbage are gone."""
    before = descriptors(), set(threading.enumerate()), files()
    yield
    for record in caplog.get_records("call"):
        record.exc_info = None  # its frames hold the processes
    multiprocessing.active_children()  # has it drop the ended ones from its own list
    gc.collect()
    for thread in set(threading.enumerate()) - before[1]:
        thread.join(5)
    assert all_end(guards_without_a_parent(marker))
    assert marked_processes(marker) == []
    assert [t.name for t in set(threading.enumerate()) - before[1]] == []
    left = {fd: to for fd, to in descriptors().items() if before[0].get(fd) != to}
    assert left == {}
    assert files() - before[2] == set()


@pytest.fixture(params=["pidfd", "sentinel"])
def announcement(request, monkeypatch):
    """Runs the test with the kernel's process descriptors, and as on a platform without them."""
    if request.param == "sentinel":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("this platform has no pidfd")
    return request.param


@pytest.fixture
def guards_end(marker):
    """For tests that kill a parent: after them, its guards have up to 30 s to find that nothing is left to do."""
    yield
    left = []
    for pid in marked_processes(marker):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    assert all_end(left)


@pytest.fixture
def application(marker):
    """Starts a program of this folder: ``application(module, *arguments)``; see `applications.Application`.

    ``within="namespace"`` gives its process numbers a namespace of their own, in which it is the first process;
    ``within="blind namespace"`` leaves it the outer one's /proc. What is left in the end is killed, and told.
    """
    running = []

    def start(module, *arguments, within=None, python=sys.executable, **variables):
        words = command(module, *arguments, python=python)
        if within is not None:
            mount_proc = within == "namespace"
            if reason := obstacle_to_namespaces(mount_proc):
                pytest.skip(reason)
            words = [*NAMESPACE, *(["--mount-proc"] if mount_proc else []), *words]
        running.append(Application(words, {**os.environ, "PYTHONPATH": PACKAGE, **variables}))
        return running[-1]

    yield start
    for program in running:
        program.close()
    left = []
    for pid in marked_processes(marker):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    stay = [process for process in left if not all_end([process], timeout=10)]
    told = []
    for process in stay:
        with contextlib.suppress(psutil.NoSuchProcess):
            told.append(f"{process.pid}: {process.cmdline()}")
            process.kill()  # psutil's own check: never a stranger with this number
    assert all_end(stay)
    assert told == [], "the application is gone, and these outlived it"


@pytest.fixture
def short_folder(tmp_path_factory):
    """A folder whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
