"""Ending processes: ask all, wait once for all, kill what remains with everything that it started."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastutils import _host
from fastutils.processes.exits import EndWatch, ProcessLike
from fastutils.processes.timeouts import Deadline

#: Grace between SIGTERM and SIGKILL where the caller names none.
DEFAULT_GRACE_S = 5.0
# Until a killed process can be collected; only one stuck in the kernel takes longer.
_REAP_S = 0.9


def lives(process: ProcessLike) -> bool:
    """Whether `process` runs and descends from this one. Zombies, closed, never started and foreign ones do not."""
    try:
        if process.pid is None or not process.is_alive():
            return False
    except (AssertionError, ValueError):  # started by another process (we are its fork), or closed
        return False
    return _host.is_descendant(process.pid)


def end_all(processes: Iterable[ProcessLike], grace_s: float, kind: str) -> None:
    """SIGTERM to all of `processes` that live, up to `grace_s` seconds for all together, then SIGKILL to the trees.

    A KeyboardInterrupt (or anything else raised by a signal handler) cuts the grace short; it is raised again after the
    kill. Returns with no zombie left, at most a second after the grace.
    """
    log = _host.logger(__name__)
    living = [process for process in processes if lives(process)]
    log.debug("[shutdown] %s: ending %d process(es) within %.1fs", kind, len(living), grace_s)
    deadline = Deadline(grace_s)
    try:
        for process in living:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        _wait_for_ends(living, deadline)
    finally:
        _kill([process for process in living if lives(process)], kind)
        _collect(living)


def _wait_for_ends(processes: Sequence[ProcessLike], deadline: Deadline) -> None:
    with EndWatch(processes) as watch:
        while watch.running and not deadline.passed:
            watch.wait(timeout=deadline.remaining())


def _kill(processes: Sequence[ProcessLike], kind: str) -> None:
    if not processes:
        return
    names = ", ".join(f"{process.name} (PID: {process.pid})" for process in processes)
    _host.logger(__name__).warning(
        "[shutdown] %s: %d process(es) did not end in time and are killed: %s", kind, len(processes), names
    )
    for process in processes:
        if process.pid is not None:
            _host.kill_process_tree(process.pid)


def _collect(processes: Sequence[ProcessLike]) -> None:
    # Also those that ended by themselves a moment ago: to the kernel they are zombies until their code is read.
    _wait_for_ends(processes, Deadline(_REAP_S))
    for process in processes:
        process.is_alive()  # has multiprocessing drop it from its list of children, and with it the descriptors


class CleanUp:
    """Runs `act(timeout, *args)` once: when called, when `owner` is collected, or at the interpreter's exit.

    At exit it runs before multiprocessing joins its children, which would wait for ever for a server. In a fork of the
    process that made it, it does nothing: the children are not the fork's. `args` must not lead to `owner`.
    """

    def __init__(self, owner: object, act: Callable[..., None], *args: Any) -> None:
        self._pid = os.getpid()
        self._act = act
        self._args = args
        self.finalizer = weakref.finalize(owner, self._run, None)
        self.finalizer.atexit = False
        # weakref's own hook may have been registered before multiprocessing's and would then come too late.
        atexit.register(self.finalizer)

    def __call__(self, timeout: float | None) -> None:
        if self.finalizer.detach() is not None:
            self._run(timeout)

    def _run(self, timeout: float | None) -> None:
        atexit.unregister(self.finalizer)
        if os.getpid() == self._pid:
            self._act(timeout, *self._args)
