"""wait_for_completion_or_failure and shutdown."""

import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest
import server_programs as programs

from fastutils import shutdown, wait_for_completion_or_failure
from fastutils.processes import ending, members, watching
from fastutils.processes.spawning import ProgramProcess
from fastutils.processes.watching import EndWatch

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def child_process(code, name="Worker", context=FORK):
    """A started process that will end with `code` on its own."""
    process = context.Process(target=os._exit, args=(code,), name=name)
    process.start()
    return process


@pytest.fixture
def processes():
    """A list whose processes are killed after the test."""
    started = []
    yield started
    while started:
        process = started.pop()
        process.kill()
        process.join()


def managing(*processes):
    return SimpleNamespace(processes=list(processes))


class Engines:
    """An engine manager of nothing but the two members that supervision uses."""

    def __init__(self, failed=None, error=None, release=None):
        self.failed_proc_name = None
        self._failed = failed
        self._error = error
        self._release = release or threading.Event()

    def monitor_engine_liveness(self):
        assert self._release.wait(60)
        if self._error is not None:
            raise self._error
        self.failed_proc_name = self._failed

    def end(self):
        self._release.set()
        return self


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("announcement")
def test_a_clean_exit_is_never_taken_for_a_failure():
    # Upstream reads the exit code when the sentinel fires, often before it is there: "died with exit code None".
    for _ in range(30):
        wait_for_completion_or_failure(managing(child_process(0), child_process(0)))


@pytest.mark.usefixtures("announcement")
@pytest.mark.parametrize("delay", [1, 40])
def test_an_exit_code_that_comes_late_is_waited_for(processes, delay):
    process = child_process(0)
    processes.append(process)

    class Late:
        """The process, whose exit code shows only after some looks at it."""

        name, pid, sentinel = process.name, process.pid, process.sentinel
        looks = 0

        @property
        def exitcode(self):
            self.looks += 1
            return process.exitcode if self.looks > delay else None

    wait_for_completion_or_failure(managing(Late()))


@pytest.mark.usefixtures("announcement")
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda p: None, "died with exit code 3"),
        (lambda p: p.terminate(), "died with exit code -15: killed by SIGTERM"),
        (
            lambda p: p.kill(),
            "died with exit code -9: killed by SIGKILL (the kernel's out-of-memory killer sends it",
        ),
    ],
)
def test_a_failure_is_named(processes, end, message, caplog):
    released, release = FORK.Pipe(duplex=False)
    process = FORK.Process(target=programs.die_when_told, args=(released, 3), name="Worker_7")
    process.start()
    other = FORK.Process(target=programs.wait_for_ever)
    other.start()
    processes += [process, other]
    with released, release:
        end(process)
        if process.exitcode is None:
            release.send(None)
        with pytest.raises(RuntimeError, match=re.escape(f"Process Worker_7 (PID: {process.pid}) {message}")):
            wait_for_completion_or_failure(managing(other, process))
    assert other.is_alive()  # ending the others is the caller's decision
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [
        record.getMessage().startswith("Exception occurred while running API servers: Process") for record in errors
    ] == [True]


def test_the_coordinator_is_watched(processes):
    processes.append(child_process(4, name="Coordinator"))
    with pytest.raises(RuntimeError, match=r"Process Coordinator .* died with exit code 4"):
        wait_for_completion_or_failure(managing(), coordinator=SimpleNamespace(proc=processes[0]))


def test_nothing_to_watch():
    wait_for_completion_or_failure(managing())


def test_an_exit_code_collected_by_somebody_else_is_no_success(processes):
    process = child_process(0, name="Stolen")
    os.waitpid(process.pid, 0)
    with pytest.raises(RuntimeError, match=r"Process Stolen .* exit code None: its exit code is unknown because"):
        wait_for_completion_or_failure(managing(process))
    process._popen.returncode = 0  # or multiprocessing keeps it among its children for ever


def start_closing_everything(processes):
    """A running process that has closed all its descriptors, the other end of its sentinel among them."""
    ready, tell = FORK.Pipe(duplex=False)

    def close_all_but(keep):
        os.dup2(keep.fileno(), 3)
        os.closerange(4, 1024)
        os.write(3, b"x")
        signal.pause()

    process = FORK.Process(target=close_all_but, args=(tell,), name="Closer")
    process.start()
    processes.append(process)
    tell.close()
    os.read(ready.fileno(), 1)
    ready.close()
    return process


@pytest.mark.usefixtures("announcement")
def test_a_process_that_closes_its_sentinel_is_watched_on(processes):
    process = start_closing_everything(processes)
    with EndWatch([process]) as watch:
        assert watch.wait(timeout=0) == ([], [])
        process.kill()
        assert watch.wait() == ([(process, -9)], [])


@pytest.mark.usefixtures("announcement")
def test_even_if_its_exit_code_is_collected_elsewhere(processes):
    process = start_closing_everything(processes)
    with EndWatch([process]) as watch:
        assert watch.wait(timeout=0) == ([], [])
        process.kill()
        os.waitpid(process.pid, 0)
        assert watch.wait(timeout=60) == ([(process, None)], [])
    process._popen.returncode = -9


def test_an_interrupt_is_quiet(processes, caplog):
    caplog.set_level(logging.INFO)
    process = FORK.Process(target=programs.wait_for_ever)
    process.start()
    processes.append(process)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert wait_for_completion_or_failure(managing(process)) is None
    assert "Received KeyboardInterrupt" in caplog.text


# --- engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "while waiting"])
def test_the_death_of_an_engine_is_reported_as_such(processes, moment):
    # Upstream's monitor closes both ends of the pipe; its waiter then often fails with "handle is closed".
    for _ in range(30):
        engines = Engines(failed="EngineCore_0")
        process = FORK.Process(target=programs.wait_for_ever)
        process.start()
        processes.append(process)
        if moment == "before":
            engines.end()
        else:
            threading.Timer(0.001, engines.end).start()
        with pytest.raises(RuntimeError, match=r"^Engine core process EngineCore_0 died unexpectedly\.$"):
            wait_for_completion_or_failure(managing(process), engines)
        process.kill()
        process.join()


def test_engines_that_end_well_do_not_end_the_wait(processes):
    released, release = FORK.Pipe(duplex=False)
    process = FORK.Process(target=programs.die_when_told, args=(released, 6), name="Late")
    process.start()
    processes.append(process)
    with released, release:
        monitored = threading.Event()
        engines = Engines().end()
        monitor = engines.monitor_engine_liveness
        engines.monitor_engine_liveness = lambda: (monitor(), monitored.set())
        threading.Thread(target=lambda: (monitored.wait(60), release.send(None))).start()
        with pytest.raises(RuntimeError, match=r"Process Late .* exit code 6"):
            wait_for_completion_or_failure(managing(process), engines)


def test_all_ends_well():
    wait_for_completion_or_failure(managing(child_process(0)), Engines().end())


def test_a_monitor_that_fails_is_reported(processes):
    process = FORK.Process(target=programs.wait_for_ever)
    process.start()
    processes.append(process)
    error = OSError("no more descriptors")
    with pytest.raises(RuntimeError, match=r"^The engine monitor failed: OSError\('no more descriptors'\)$") as caught:
        wait_for_completion_or_failure(managing(process), Engines(error=error).end())
    assert caught.value.__cause__ is error


def test_a_monitor_that_outlives_the_wait_closes_only_its_own_end(processes):
    release = threading.Event()
    failing = child_process(2)
    processes.append(failing)
    with pytest.raises(RuntimeError, match="exit code 2"):
        wait_for_completion_or_failure(managing(failing), Engines(release=release))
    release.set()  # the fixture then finds neither the thread nor a descriptor


# --- shutdown ---------------------------------------------------------------------------------------------------------


def start_ignoring_sigterm(context, name):
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=programs.ignore_sigterm, args=(theirs,), name=name)
    process.start()
    theirs.close()
    assert mine.poll(60)
    mine.close()
    return process


@pytest.mark.usefixtures("announcement")
@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_one_deadline_for_all_and_a_count_of_the_killed(processes, context, caplog):
    stubborn = [start_ignoring_sigterm(context, f"Stubborn_{index}") for index in range(2)]
    mild = context.Process(target=programs.wait_for_ever, name="Mild")
    mild.start()
    processes += [*stubborn, mild]
    shutdown([mild, *stubborn], timeout=0.5)
    assert [process.exitcode for process in (mild, *stubborn)] == [-15, -9, -9]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "2 process(es) did not end in time and are killed: Stubborn_0 (PID: " in warning


def test_processes_of_a_fork_server_are_ended_too(processes):
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=programs.wait_for_ever)
    process.start()
    processes.append(process)
    shutdown([process], 30)
    assert process.exitcode == -15
    from multiprocessing.forkserver import _forkserver

    server = psutil.Process(_forkserver._forkserver_pid)
    os.close(_forkserver._forkserver_alive_fd)
    os.waitpid(server.pid, 0)
    _forkserver._forkserver_address = _forkserver._forkserver_alive_fd = _forkserver._forkserver_pid = None


@pytest.mark.parametrize("listens", [True, False])
def test_a_stopped_process_ends(processes, listens):
    if listens:
        process = FORK.Process(target=programs.wait_for_ever)
        process.start()
    else:
        process = start_ignoring_sigterm(FORK, "Stubborn")
    processes.append(process)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    shutdown([process], 30 if listens else 0.05)
    assert process.exitcode == (-15 if listens else -9)


def test_the_default_grace(monkeypatch):
    seen = []
    monkeypatch.setattr(ending, "end_all", lambda processes, grace_s, kind: seen.append(grace_s))
    shutdown([])
    shutdown([], 0)
    shutdown([], timeout=7)
    assert seen == [5.0, 0.0, 7.0]


@pytest.mark.parametrize("timeout", [-0.1, float("nan"), float("inf")])
def test_an_impossible_timeout_is_refused_before_anything_is_sent(processes, timeout):
    process = FORK.Process(target=programs.wait_for_ever)
    process.start()
    processes.append(process)
    with pytest.raises(ValueError, match="is not a finite, non-negative number of seconds"):
        shutdown([process], timeout)
    assert process.is_alive()


def test_what_does_not_live_is_left_alone(processes, caplog):
    never = FORK.Process(target=programs.do_nothing)
    ended = child_process(0)
    ended.join()
    closed = child_process(0)
    closed.join()
    closed.close()
    shutdown([never, ended, closed])
    assert caplog.records == []


def test_a_stranger_with_a_recycled_number_is_neither_asked_nor_killed(processes, monkeypatch):
    # A process of ours whose end was collected elsewhere keeps the number of somebody else's process.
    asked = []
    stranger = SimpleNamespace(
        name="Gone", pid=os.getppid(), exitcode=None, is_alive=lambda: True, terminate=lambda: asked.append(1)
    )
    monkeypatch.setattr(members, "send", lambda *call: asked.append(call))
    shutdown([stranger], 0)
    assert asked == []


def test_a_zombie_is_not_alive(processes):
    process = child_process(0)
    processes.append(process)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    alike = SimpleNamespace(pid=process.pid, is_alive=lambda: True)
    assert not ending.lives(alike)


def test_an_interrupted_grace_still_ends_with_the_kill(processes):
    process = start_ignoring_sigterm(FORK, "Stubborn")
    processes.append(process)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        shutdown([process], 600)
    assert process.exitcode == -9


def test_a_second_thread_may_shut_down_the_same_processes(processes):
    workers = []
    for _ in range(4):
        process = FORK.Process(target=programs.wait_for_ever)
        process.start()
        workers.append(process)
    processes += workers
    threads = [threading.Thread(target=shutdown, args=(workers, 30)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [process.exitcode for process in workers] == [-15] * 4


# --- a program with the interface of a process ---------------------------------------------------------------------


@pytest.mark.usefixtures("announcement")
def test_a_program_as_a_process():
    program = "import sys; print(flush=True); sys.stdin.read(); sys.exit(5)"
    popen = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with popen:
        twin = ProgramProcess(popen, "Twin")
        assert (twin.name, twin.pid, twin.exitcode, twin.is_alive()) == ("Twin", popen.pid, None, True)
        assert multiprocessing.connection.wait([twin.sentinel], 0) == []
        twin.join(0.01)
        assert twin.is_alive()
        popen.stdin.close()
        assert multiprocessing.connection.wait([twin.sentinel], 60) == [twin.sentinel]
        twin.join()
        assert (twin.exitcode, twin.is_alive()) == (5, False)
        assert repr(twin) == f"<ProgramProcess name='Twin' pid={popen.pid} exitcode=5>"
        twin.terminate()
        twin.kill()
        with pytest.raises(RuntimeError, match=rf"^Process Twin \(PID: {popen.pid}\) died with exit code 5$"):
            wait_for_completion_or_failure(managing(twin))


def test_signals_are_named_where_they_have_a_name():
    assert watching.explain_exit(-11) == ": killed by SIGSEGV"
    assert watching.explain_exit(-35) == ": killed by signal 35"
    assert watching.explain_exit(1) == watching.explain_exit(0) == ""


def test_each_end_is_told_at_debug_level(processes, caplog):
    caplog.set_level(logging.DEBUG)
    process = FORK.Process(target=programs.wait_for_ever, name="Worker")
    process.start()
    processes.append(process)
    shutdown([process], 30)
    assert f"Worker (PID: {process.pid}) ended while stopping: exit code -15: killed by SIGTERM" in caplog.text


def test_what_a_process_of_somebody_elses_calls_child_is_its_own_affair(processes):
    process = FORK.Process(target=programs.wait_for_ever)
    process.start()
    processes.append(process)
    process.child = FORK.Pipe()[0]
    with EndWatch([process]) as watch:
        assert watch.wait(timeout=0) == ([], [])
    shutdown([process], 30)
    assert process.exitcode == -15
