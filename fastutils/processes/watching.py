"""Waiting until processes end: how they ended, and whether that was a failure.

Two things make this less simple than it looks. A `multiprocessing` sentinel is the end of a pipe: it fires a moment
before the exit code can be collected, fires early when the child closes descriptors that it does not know, and fires
late when a grandchild inherited the other end. And ``Process.join(timeout)`` blocks without limit once the sentinel
has fired. So pidfds (Linux 5.3) are waited on, processes without one are looked at again and again, and an exit code is
only ever read without blocking.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol

from fastutils import _host
from fastutils.processes import members
from fastutils.processes.arguments import Deadline
from fastutils.processes.child import Child, is_ready, open_pidfd

__all__ = ["wait_for_completion_or_failure"]

#: How long an ended process may take until its exit code can be read.
SETTLE_S = 1.0
_SETTLE_STEP_S = 0.002
# Between looks at a process that no pidfd announces the end of.
_BLIND_STEP_S = 0.05


class ProcessLike(Protocol):
    """What supervision needs of a process: a `multiprocessing` process or anything alike.

    A process of this package's managers has ``child`` too, a `fastutils.processes.child.Child`.
    """

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def sentinel(self) -> Any: ...
    @property
    def exitcode(self) -> int | None: ...
    def is_alive(self) -> bool: ...
    def terminate(self) -> None: ...


def explain_exit(exitcode: int | None) -> str:
    """What an exit code adds to the number itself, to be appended to a message: "" or ": killed by SIGKILL ..."."""
    if exitcode is None:
        return ": its exit code is unknown because something else in this process collected it"
    if exitcode >= 0:
        return ""
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (the kernel's out-of-memory killer sends it too: see the kernel log)" if name == "SIGKILL" else ""
    return f": killed by {name}{hint}"


def child_of(process: ProcessLike) -> Child | None:
    """The `Child` of a process of this package's managers; None for others, whatever they call ``child``."""
    child = getattr(process, "child", None)
    return child if isinstance(child, Child) else None


def is_collected_elsewhere(process: ProcessLike) -> bool:
    """Whether the exit code of `process` can never come: it is no child of this process, or no longer."""
    child = child_of(process)
    if child is not None:
        return child.has_ended() and child.lost
    if process.pid is None or not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _settled_exit_code(process: ProcessLike) -> int | None:
    """The exit code of a process that has just ended, as soon as it can be read; None if it cannot."""
    deadline = Deadline(SETTLE_S)
    while (code := process.exitcode) is None and not deadline.passed:
        # A fork server's process is not our child: its code comes through a pipe.
        if is_collected_elsewhere(process) and not _comes_by_pipe(process):
            return process.exitcode
        time.sleep(_SETTLE_STEP_S)
    return code


def _comes_by_pipe(process: ProcessLike) -> bool:
    return getattr(process, "_start_method", None) == "forkserver"


class EndWatch:
    """Waits until any of several processes has ended, or something else is ready. Used by one thread.

    A context manager: leaving it closes the descriptors that it opened, never the processes' own.
    """

    def __init__(self, processes: Iterable[ProcessLike]) -> None:
        self._running: dict[int, ProcessLike] = dict(enumerate(processes))
        self._pidfds: dict[int, int] = {}  # by position; without the blind ones
        self._opened: list[int] = []
        try:
            for position, process in self._running.items():
                descriptor = self._pidfd(process)
                if descriptor is not None:
                    self._pidfds[position] = descriptor
        except BaseException:
            self.close()
            raise

    def _pidfd(self, process: ProcessLike) -> int | None:
        child = child_of(process)
        if child is not None:
            return child.pidfd
        # Anything that merely looks like a process may carry a number that is not its own.
        if not isinstance(process, BaseProcess) or process.pid is None or process.exitcode is not None:
            return None
        descriptor = open_pidfd(process.pid)
        if descriptor is not None:
            self._opened.append(descriptor)
            if process.exitcode is not None:  # the number may have been another process's already
                return None
        return descriptor

    def __enter__(self) -> EndWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())

    @property
    def running(self) -> list[ProcessLike]:
        """The processes that have not been returned by `wait` yet."""
        return list(self._running.values())

    def forget(self, process: ProcessLike) -> None:
        """Watch `process` no longer."""
        self._running = {position: each for position, each in self._running.items() if each is not process}

    def wait(
        self, others: Sequence[Any] = (), timeout: float | None = None
    ) -> tuple[list[tuple[ProcessLike, int | None]], list[Any]]:
        """(ended processes with exit codes, those of `others` that are ready); both empty after `timeout` seconds.

        `others` are anything `multiprocessing.connection.wait` takes. Each process is returned once. Its exit code is
        None only if it was collected elsewhere. Blocks without limit when `timeout` is None.
        """
        deadline = None if timeout is None else Deadline(timeout)
        while True:
            ended = [(self._running.pop(position), code) for position, code in self._look()]
            left = 0.0 if ended else None if deadline is None else deadline.remaining()
            if any(position not in self._pidfds for position in self._running):
                left = _BLIND_STEP_S if left is None else min(left, _BLIND_STEP_S)
            waitables = [self._pidfds[position] for position in self._running if position in self._pidfds]
            ready: list[Any] = []
            if waitables or others:
                ready = connection.wait([*waitables, *others], left)
            else:
                time.sleep(left or 0.0)
            ready_others = [other for other in others if other in ready]
            if ended or ready_others or (deadline is not None and deadline.passed):
                return ended, ready_others

    def _look(self) -> Iterator[tuple[int, int | None]]:
        for position, process in list(self._running.items()):
            code = process.exitcode
            if code is not None:
                yield position, code
            elif position in self._pidfds:
                if is_ready(self._pidfds[position]):
                    yield position, _settled_exit_code(process)
            elif process.pid and is_collected_elsewhere(process) and not _exists(process):
                yield position, _settled_exit_code(process)


def _exists(process: ProcessLike) -> bool:
    if child_of(process) is not None:
        return False  # it has ended, whoever has its number
    with contextlib.suppress(OSError):
        members.everybody()
        found = members.find(process.pid or 0)
        return found is not None and not found.is_zombie
    return True  # it cannot be told


class ProcessManager(Protocol):
    """Whatever has the processes to be watched: either manager of this package, or upstream's."""

    @property
    def processes(self) -> Sequence[ProcessLike]: ...


class EngineManager(Protocol):
    """What is used of an engine manager, whether its engines are local processes or Ray actors."""

    @property
    def failed_proc_name(self) -> str | None: ...

    def monitor_engine_liveness(self) -> None: ...


class Coordinator(Protocol):
    @property
    def proc(self) -> ProcessLike: ...


def wait_for_completion_or_failure(
    api_server_manager: ProcessManager,
    engine_manager: EngineManager | None = None,
    coordinator: Coordinator | None = None,
) -> None:
    """Block until every watched process has ended, as ``vllm.v1.utils.wait_for_completion_or_failure`` does.

    Watched are ``api_server_manager.processes``, ``coordinator.proc`` and, through ``monitor_engine_liveness()`` in a
    daemon thread, the engines. Nothing is shut down here. A KeyboardInterrupt ends the wait quietly.

    Raises RuntimeError "Process NAME (PID: P) died with exit code C" (signals are named after it) for a nonzero or
    unknown exit code, "Engine core process NAME died unexpectedly." when ``failed_proc_name`` is set once the monitor
    returned, and "The engine monitor failed: ..." when the monitor itself raised. What is raised is logged first.
    """
    log = _host.logger(__name__)
    processes = list(api_server_manager.processes)
    if coordinator is not None:
        processes.append(coordinator.proc)
    try:
        log.info("Waiting for API servers to complete ...")
        with EndWatch(processes) as watch, _engine_watch(engine_manager) as engines:
            _wait_for_all(watch, engines)
    except KeyboardInterrupt:
        log.info("Received KeyboardInterrupt, shutting down API servers...")
    except Exception as error:
        log.exception("Exception occurred while running API servers: %s", str(error))
        raise


class _EngineWatch:
    """An engine manager's monitor in a thread of its own, and the pipe that ends when the monitor has."""

    def __init__(self, manager: EngineManager) -> None:
        self.manager = manager
        self.error: BaseException | None = None
        # Each end has one closer: the thread closes the writing end, the waiter the reading end. Upstream's thread
        # closes both, and an engine's death then reaches the waiter as "handle is closed".
        self.reader, self._writer = Pipe(duplex=False)
        threading.Thread(target=self._run, name="fastutils-engine-monitor", daemon=True).start()

    def _run(self) -> None:
        try:
            self.manager.monitor_engine_liveness()
        except BaseException as error:
            self.error = error
        finally:
            self._writer.close()

    def raise_failure(self) -> None:
        if self.error is not None:
            raise RuntimeError(f"The engine monitor failed: {self.error!r}") from self.error
        name = self.manager.failed_proc_name
        if name is not None:
            raise RuntimeError(f"Engine core process {name} died unexpectedly.")


@contextlib.contextmanager
def _engine_watch(manager: EngineManager | None) -> Iterator[_EngineWatch | None]:
    if manager is None:
        yield None
        return
    watch = _EngineWatch(manager)
    try:
        yield watch
    finally:
        watch.reader.close()


def _wait_for_all(watch: EndWatch, engines: _EngineWatch | None) -> None:
    monitors: list[Connection] = [] if engines is None else [engines.reader]
    while watch.running or monitors:
        ended, finished = watch.wait(monitors)
        for process, code in ended:
            if code != 0:
                raise RuntimeError(
                    f"Process {process.name} (PID: {process.pid}) died with exit code {code}{explain_exit(code)}"
                )
        if engines is not None:
            engines.raise_failure()
        if finished:
            monitors.clear()
