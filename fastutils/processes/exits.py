"""How a process ended, and waiting for that moment.

Two things make this less simple than it looks. A `multiprocessing` sentinel is the end of a pipe: it fires a moment
before the exit code can be collected, fires early when the child closes descriptors that it does not know, and fires
late when a grandchild inherited the other end. And ``Process.join(timeout)`` blocks without limit once the sentinel
has fired. So where the kernel offers process descriptors (pidfd, Linux 5.3) they are waited on, and the exit code is
only ever read without blocking.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from fastutils import _host
from fastutils.processes.timeouts import Deadline

#: How long an ended process may take until its exit code can be read.
SETTLE_S = 1.0
SETTLE_STEP_S = 0.002
# Between looks at a process that neither a pidfd nor its sentinel can announce.
_BLIND_STEP_S = 0.05


class ProcessLike(Protocol):
    """What supervision needs of a process: a `multiprocessing` process, a SubprocessTwin, or anything alike."""

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


class ProcessEnd(NamedTuple):
    """How a process ended. As text: ``ApiServer_0 (PID: 71) ended while running: exit code -11: killed by SIGSEGV``."""

    name: str
    pid: int | None
    exitcode: int | None
    phase: str  #: "starting" (before its report), "running" or "stopping" (after its SIGTERM)

    def __str__(self) -> str:
        told = f"exit code {self.exitcode}{explain_exit(self.exitcode)}"
        return f"{self.name} (PID: {self.pid}) ended while {self.phase}: {told}"


def settled_exit_code(process: ProcessLike, wait_s: float = SETTLE_S) -> int | None:
    """The exit code of a process that has just ended, waiting up to `wait_s` seconds for it to become readable.

    None: it still runs, or its status was collected elsewhere.
    """
    deadline = Deadline(wait_s)
    while True:
        code = process.exitcode
        if code is not None or deadline.passed:
            return code
        time.sleep(SETTLE_STEP_S)


def open_pidfd(process: ProcessLike) -> int | None:
    """A descriptor that turns readable when `process` ends, for the caller to close; None where none is to be had."""
    if not hasattr(os, "pidfd_open") or process.pid is None or process.exitcode is not None:
        return None
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return None  # forbidden by a sandbox, or collected a moment ago
    if process.exitcode is not None:  # the number may have been another process's already
        os.close(descriptor)
        return None
    return descriptor


class EndWatch:
    """Waits until any of several processes has ended, or something else is ready. Used by one thread.

    A context manager: leaving it closes the descriptors that it opened, never the processes' own.
    """

    def __init__(self, processes: Iterable[ProcessLike]) -> None:
        self._descriptors: dict[int, int] = {}  # position -> pidfd
        self._silent: set[int] = set()  # positions whose sentinel fired although they live
        self._processes: dict[int, ProcessLike] = dict(enumerate(processes))
        try:
            for position, process in self._processes.items():
                # Anything that merely looks like a process may carry a number that is not its own.
                if isinstance(process, BaseProcess) or getattr(process, "owns_pid", False):
                    descriptor = open_pidfd(process)
                    if descriptor is not None:
                        self._descriptors[position] = descriptor
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EndWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    @property
    def running(self) -> list[ProcessLike]:
        """The processes that have not been returned by `wait` yet."""
        return list(self._processes.values())

    def forget(self, process: ProcessLike) -> None:
        """Watch `process` no longer."""
        for position, candidate in list(self._processes.items()):
            if candidate is process:
                self._drop(position)

    def wait(
        self, others: Sequence[Any] = (), timeout: float | None = None
    ) -> tuple[list[tuple[ProcessLike, int | None]], list[Any]]:
        """(ended processes with exit codes, those of `others` that are ready); both empty after `timeout` seconds.

        `others` are anything `multiprocessing.connection.wait` takes. Each process is returned once. Its exit code is
        None only if it was collected elsewhere. Blocks without limit when `timeout` is None.
        """
        deadline = None if timeout is None else Deadline(timeout)
        while True:
            ended = self._already_ended()
            ready = self._wait_once(others, 0.0 if ended else None if deadline is None else deadline.remaining())
            for position in [p for p in list(self._processes) if self._announced(p, ready)]:
                self._collect(position, ended)
            ready_others = [other for other in others if other in ready]
            if ended or ready_others or (deadline is not None and deadline.passed):
                return ended, ready_others

    def _wait_once(self, others: Sequence[Any], timeout: float | None) -> list[Any]:
        if self._silent:
            timeout = _BLIND_STEP_S if timeout is None else min(timeout, _BLIND_STEP_S)
        waitables = [self._waitable(p) for p in self._processes if p not in self._silent]
        return list(connection.wait([*waitables, *others], timeout))

    def _waitable(self, position: int) -> Any:
        return self._descriptors[position] if position in self._descriptors else self._processes[position].sentinel

    def _announced(self, position: int, ready: list[Any]) -> bool:
        return position not in self._silent and self._waitable(position) in ready

    def _already_ended(self) -> list[tuple[ProcessLike, int | None]]:
        ended: list[tuple[ProcessLike, int | None]] = []
        for position, process in list(self._processes.items()):
            code = process.exitcode
            if code is not None:
                ended.append((process, code))
                self._drop(position)
            elif position in self._silent:  # nothing else would tell that its status was collected elsewhere
                self._collect(position, ended)
        return ended

    def _collect(self, position: int, ended: list[tuple[ProcessLike, int | None]]) -> None:
        process = self._processes[position]
        code = settled_exit_code(process, 0.0 if position in self._silent else SETTLE_S)
        if code is None and position not in self._descriptors and process.pid and _host.is_running(process.pid):
            self._silent.add(position)  # it only closed the other end of its sentinel
            return
        if code is None and position in self._silent:  # it may have ended since the first look
            code = settled_exit_code(process)
        ended.append((process, code))
        self._drop(position)

    def _drop(self, position: int) -> None:
        del self._processes[position]
        self._silent.discard(position)
        descriptor = self._descriptors.pop(position, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
