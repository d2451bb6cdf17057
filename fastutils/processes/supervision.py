"""Watching processes until all have ended or one has failed, and shutting them down."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from fastutils import _host
from fastutils.processes import termination
from fastutils.processes.exits import EndWatch, ProcessLike, explain_exit
from fastutils.processes.timeouts import checked_timeout

__all__ = ["shutdown", "wait_for_completion_or_failure"]


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

    Raises RuntimeError "Process NAME (PID: P) died with exit code C" (signals are named after it) for a nonzero exit
    code, "Engine core process NAME died unexpectedly." when ``failed_proc_name`` is set once the monitor returned,
    and "The engine monitor failed: ..." when the monitor itself raised. What is raised is logged first.
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


def shutdown(procs: Sequence[Any], timeout: float | None = None) -> None:
    """End processes, as ``vllm.v1.utils.shutdown`` does: SIGTERM to all that live, then SIGKILL to what remains.

    `procs`: `multiprocessing` processes or objects with their interface. `timeout`: seconds of grace for all of them
    together, 5 by default. What still lives then is killed with all that it started, after a warning that counts
    and names it; returns at most a second later. Processes that never started, have ended, are closed or were not
    started by this process are left alone, so a second call does nothing.

    Raises ValueError for a negative or non-finite `timeout`, before anything is sent.
    """
    grace_s = termination.DEFAULT_GRACE_S if timeout is None else checked_timeout(timeout)
    termination.end_all(procs, grace_s, "Process manager")
