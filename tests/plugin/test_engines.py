"""FASTUTILS_VLLM_GUARD_ENGINES: engines end with their parent, and nobody else does."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import engine_parents
import psutil
import pytest
from process_ends import all_end

import fastutils
from fastutils import plugin
from fastutils.plugin import engines, switch
from fastutils.processes import members

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this platform has no pidfd")

MARKER = "FASTUTILS_TEST_ENGINES"
#: Within which nothing may be left, and within which something else would have ended if it were to.
LIMIT_S = 3
WAIT_S = 2


def marked(value):
    """All living processes that the test started, at any depth."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARKER) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
def parent(tmp_path):
    """Starts a parent; its process, the engine's, those that the engine reports, and the program's own two."""
    engine_parents.write(tmp_path)
    running = []

    def start(kind, method="spawn", switched="1", **variables):
        script = Path(__file__).with_name("engine_parents.py")
        package = os.path.dirname(os.path.dirname(fastutils.__file__))
        path = os.pathsep.join([package, str(tmp_path)])
        environment = {**os.environ, "PYTHONPATH": path, MARKER: str(tmp_path), "FASTUTILS_VLLM": "0", **variables}
        if switched is not None:
            environment[switch.GUARD_VARIABLE] = switched
        command = [sys.executable, script, tmp_path, method, kind]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        running.append(process)
        parts = process.stdout.readline().split("|")
        found = [[psutil.Process(int(pid)) for pid in part.split()] for part in parts]
        return SimpleNamespace(process=process, engine=found[0][0], reported=found[1], own=found[2])

    yield start
    for process in marked(str(tmp_path)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for process in running:
        process.stdout.close()
        process.wait()
    assert all_end(marked(str(tmp_path)))


def comes_true(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def guards(of):
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in of.children() if any("engine_guard.py" in word for word in child.cmdline())]
    return []


METHODS = ["spawn", "fork", "forkserver"]


@pytest.mark.parametrize("method", METHODS)
def test_an_engine_ends_with_its_parent_and_takes_along_what_it_started(parent, method):
    started = parent("stubborn", method)
    (guard,) = guards(psutil.Process(started.process.pid))
    started.process.kill()
    assert all_end([started.engine, *started.reported, guard], LIMIT_S)
    threading.Event().wait(WAIT_S)
    assert all(process.is_running() for process in started.own)


@pytest.mark.parametrize("kind", ["stopped", "locked"])
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_an_engine_that_cannot_watch(parent, method, kind):
    started = parent(kind, method)
    if kind == "stopped":
        comes_true(lambda: started.engine.status() == psutil.STATUS_STOPPED)
    started.process.kill()
    assert all_end([started.engine, *started.reported], LIMIT_S)


def test_an_engine_is_asked_first(parent, tmp_path):
    started = parent("polite", REPORT=str(tmp_path / "report"))
    started.process.kill()
    assert all_end([started.engine, *started.reported], LIMIT_S)
    assert (tmp_path / "report").read_text() == "asked"


def test_an_engine_that_has_left_the_session_lives(parent):
    started = parent("moved")
    (guard,) = guards(psutil.Process(started.process.pid))
    started.process.kill()
    assert all_end([guard], LIMIT_S)
    assert started.engine.is_running()


def test_a_daemon_that_an_engine_has_made_lives(parent):
    started = parent("doubly_forked")
    started.process.kill()
    assert all_end([started.engine], LIMIT_S)
    (daemon,) = started.reported
    assert daemon.is_running()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_worker_ends_with_an_engine_that_is_killed(parent, method):
    started = parent("with_worker", method)
    assert started.engine not in started.reported
    started.engine.kill()
    assert all_end(started.reported, LIMIT_S)
    assert started.process.poll() is None


@pytest.mark.parametrize("switched", [None, "0", "nonsense"])
def test_without_the_switch_nothing_happens(parent, switched):
    started = parent("stubborn", switched=switched)
    assert guards(psutil.Process(started.process.pid)) == []
    started.process.kill()
    threading.Event().wait(WAIT_S)
    assert all(process.is_running() for process in [started.engine, *started.reported, *started.own])


def test_the_guard_does_not_listen_to_signals(parent):
    started = parent("stubborn")
    (guard,) = guards(psutil.Process(started.process.pid))
    assert os.getsid(guard.pid) == guard.pid
    comes_true(lambda: ignores(guard.pid, signal.SIGQUIT))  # nothing else tells that it is set up
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        guard.send_signal(signum)
    started.process.kill()
    assert all_end([started.engine, guard], LIMIT_S)


def ignores(pid, signum):
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (signum - 1) & 1)


# --- the guard by itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def sleepers():
    """Starts processes that wait; all are killed after the test."""
    running = []

    def start():
        running.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running_guard(parent, *lines):
    """A guard that watches `parent` and was told `lines`; and the pipe's writing end."""
    reader, writer = os.pipe()
    watched = os.pidfd_open(parent.pid)
    command = [sys.executable, "-I", "-S", engines._PROGRAM, str(reader), str(watched)]
    with subprocess.Popen(command, pass_fds=(reader, watched)) as guard, open(writer, "w") as told:
        os.close(reader)
        os.close(watched)
        told.writelines(" ".join(map(str, line.values())) + "\n" for line in lines)
        told.flush()
        yield guard, told
        guard.kill()


def line_of(process):
    return {
        "pid": process.pid,
        "session": os.getsid(process.pid),
        "started": members.find(process.pid).started,
    }


@pytest.mark.parametrize("wrong", ["started", "session"])
def test_a_number_that_is_somebody_elses_by_now(sleepers, wrong):
    parent, engine, stranger = (sleepers() for _ in range(3))
    line = line_of(stranger)
    line[wrong] -= 1
    with running_guard(parent, line_of(engine), line) as (guard, _):
        parent.kill()
        assert engine.wait(LIMIT_S) == -signal.SIGTERM
        assert guard.wait(LIMIT_S) == 0
    assert stranger.poll() is None


def test_a_parent_that_becomes_another_program_is_still_the_parent(sleepers):
    parent, engine = sleepers(), sleepers()
    with running_guard(parent, line_of(engine)) as (guard, told):
        told.close()  # as at an exec
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(WAIT_S)
        assert engine.poll() is None
        parent.kill()
        assert engine.wait(LIMIT_S) == -signal.SIGTERM
        assert guard.wait(LIMIT_S) == 0


# --- within one process -----------------------------------------------------------------------------------------------


def wait_for_ever():
    threading.Event().wait()


@pytest.fixture
def guarded(fresh_plugin, monkeypatch):
    """The plugin, loaded into this process with the switch on."""
    monkeypatch.setenv("FASTUTILS_VLLM", "0")
    monkeypatch.setenv(switch.GUARD_VARIABLE, "1")
    before = BaseProcess.start, descriptors()
    plugin.load()
    assert BaseProcess.start is not before[0]
    yield
    plugin.uninstall()
    assert BaseProcess.start is before[0]
    assert descriptors() == before[1]
    assert guards(psutil.Process()) == []


def descriptors():
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


class VllmsProcess(multiprocessing.get_context("spawn").Process):
    pass


VllmsProcess.__module__ = "vllm.v1.somewhere"


def theirs(*_):
    pass


theirs.__module__ = "vllm.v1.somewhere"


@pytest.mark.parametrize(
    ("process", "is_theirs"),
    [
        (multiprocessing.Process(target=theirs), True),
        (multiprocessing.Process(target=partial(partial(theirs, 1), 2)), True),
        (VllmsProcess(), True),
        (multiprocessing.Process(target=wait_for_ever), False),
        (multiprocessing.Process(), False),
        (multiprocessing.Process(target=print), False),
    ],
)
def test_whose_processes_are_guarded(process, is_theirs):
    assert engines._is_vllms(process) is is_theirs


@pytest.fixture
def start_here(guarded, monkeypatch):
    """Starts processes of this one that count as vLLM's; all are killed after the test."""
    monkeypatch.setattr(engines, "_is_vllms", lambda process: True)
    running = []

    def start():
        running.append(multiprocessing.get_context("fork").Process(target=wait_for_ever))
        running[-1].start()
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.join()
        process.close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_one_guard_serves_all_and_goes_with_the_plugin(start_here):
    plugin.load()  # a second time
    processes = [start_here() for _ in range(3)]
    assert len(guards(psutil.Process())) == 1
    plugin.uninstall()
    assert guards(psutil.Process()) == []
    assert all(process.is_alive() for process in processes)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("trouble", ["/nowhere/python", None, "it is gone"])
def test_an_engine_starts_whatever_becomes_of_its_guard(start_here, monkeypatch, caplog, trouble):
    if trouble == "it is gone":
        start_here()
        (guard,) = guards(psutil.Process())
        guard.kill()
        assert all_end([guard])
    else:
        monkeypatch.setattr(sys, "executable", trouble)
    assert start_here().is_alive()
    (record,) = [record for record in caplog.records if "not guarded" in record.getMessage()]
    assert record.levelname == "WARNING"


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.usefixtures("guarded")
def test_whoever_wraps_it_later_stays(monkeypatch):
    ours = BaseProcess.start
    with monkeypatch.context() as patch:
        patch.setattr(BaseProcess, "start", lambda self: ours(self))
        wrapped = BaseProcess.start
        engines.stop()
        assert BaseProcess.start is wrapped
        process = multiprocessing.get_context("fork").Process(target=theirs)
        process.start()  # it is passed on
        process.join()
        process.close()
        assert guards(psutil.Process()) == []
        engines.guard_as_asked()
        assert BaseProcess.start is wrapped


def test_where_the_kernel_has_no_pidfds(fresh_plugin, monkeypatch, caplog):
    monkeypatch.setenv("FASTUTILS_VLLM", "0")
    monkeypatch.setenv(switch.GUARD_VARIABLE, "1")
    monkeypatch.delattr(os, "pidfd_open")
    before = BaseProcess.start
    plugin.load()
    assert BaseProcess.start is before
    assert "engines are not guarded: that needs Linux" in caplog.text


# --- the switch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "wanted"), [("", False), (" ", False), ("0", False), ("off", False)])
def test_off(text, wanted):
    assert switch.guards_engines(text) is wanted


@pytest.mark.parametrize("text", ["1", "on", " 1 "])
def test_on(text):
    assert switch.guards_engines(text)


@pytest.mark.parametrize("text", ["yes", "2", "1 0", "ConstantList"])
def test_a_wrong_word_is_named_and_guards_nothing(fresh_plugin, monkeypatch, caplog, text):
    with pytest.raises(ValueError, match=rf"FASTUTILS_VLLM_GUARD_ENGINES='{text}' is neither 1 \(on\) nor 0 \(off\)"):
        switch.guards_engines(text)
    monkeypatch.setenv("FASTUTILS_VLLM", "0")
    monkeypatch.setenv(switch.GUARD_VARIABLE, text)
    before = BaseProcess.start
    plugin.load()
    assert BaseProcess.start is before
    assert f"engines are not guarded: FASTUTILS_VLLM_GUARD_ENGINES='{text}'" in caplog.text
