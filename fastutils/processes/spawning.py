"""Starting a server in a fresh interpreter so that it is never lost: neither by its parent nor without one.

Three things differ from how `multiprocessing` spawns. The child watches its parent, and leads a process group, before
it imports the parent's main module, which may take many seconds. A child that ends before it has read what it is to run
is collected, where multiprocessing forgets its pid. And handing over what it is to run has a deadline.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import popen_spawn_posix, resource_tracker, spawn, util
from multiprocessing.context import SpawnProcess, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

from fastutils import _host
from fastutils.processes import families
from fastutils.processes.death_pipe import Lifeline, end_with_parent
from fastutils.processes.exits import SETTLE_S, SETTLE_STEP_S, explain_exit
from fastutils.processes.interrupts import Interruptions
from fastutils.processes.timeouts import Deadline

#: Parent's folder of the package: where a child finds it before it knows its parent's module path.
_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_FIRST_LINES = (
    "import sys; sys.path.insert(0, {folder!r}); from fastutils.processes import first_steps; del sys.path[0]; "
    "first_steps.main({lifeline}, {parent}, {tracker}, {start_data})"
)


class WatchedTarget:
    """What a spawned process runs: `target` with `args`, loaded only once the parent is watched.

    The real target and its arguments travel as a pickle inside the pickle, so that unpickling *this* in the child
    imports nothing of the user's.
    """

    def __init__(self, lifeline: Lifeline, target: Callable[..., object], *args: Any) -> None:
        self.lifeline = lifeline.reader
        self._parent_pid = os.getpid()
        self._call: Any = (target, args)

    def __getstate__(self) -> dict[str, Any]:
        # Called while multiprocessing spawns, which is when sockets and pipes may be pickled.
        return {**self.__dict__, "_call": bytes(ForkingPickler.dumps(self._call))}

    def __call__(self) -> None:
        end_with_parent(self.lifeline, self._parent_pid)  # done already, unless the executable is a frozen one
        target, args = pickle.loads(self._call)
        self._call = None  # not a second reference to what the target may want to free
        target(*args)


class ServerProcess(SpawnProcess):
    """A spawned process that runs a `WatchedTarget` and leads a process group of its own.

    `leader` tells the group from others once it is started; None if it could not be looked up.
    """

    leader: families.Leader | None = None

    @staticmethod
    def _Popen(process_obj: Any) -> popen_spawn_posix.Popen:
        return _Popen(process_obj)

    def start(self) -> None:
        """Start it; returns when all that it is to run was handed over.

        Raises RuntimeError if it ended before or did not take it within ``VLLM_ENGINE_READY_TIMEOUT_S``, and whatever
        pickling raises; nothing is left of it then.
        """
        super().start()
        with contextlib.suppress(OSError):
            self.leader = families.leader(self.pid or 0)  # its own number still, as nobody has collected it


class _Popen(popen_spawn_posix.Popen):
    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        data = io.BytesIO()
        set_spawning_popen(self)
        try:
            for item in (spawn.get_preparation_data(process_obj.name), process_obj):
                ForkingPickler(data, None).dump(item)
        finally:
            set_spawning_popen(None)
        with Interruptions() as interruptions:
            try:
                writer = self._spawn(process_obj._target.lifeline)
                self._hand_over(data.getbuffer(), writer, interruptions)
            except BaseException:
                self._discard()
                raise

    def _spawn(self, lifeline: int) -> int:
        """Start the process; the descriptor that takes what it is to run."""
        tracker: int = resource_tracker.getfd()  # type: ignore[assignment]
        # The ends of two pipes: one that ends with the child, one for what it is to run.
        mine: list[int] = []
        theirs: list[int] = []
        try:
            self.sentinel, child_alive = os.pipe()
            theirs.append(child_alive)
            mine.append(self.sentinel)
            start_data, writer = os.pipe()
            theirs.append(start_data)
            mine.append(writer)
            # Without duplicates, which multiprocessing would stumble over: an argument may hold a socket twice.
            descriptors = [*{*self._fds, lifeline, tracker, *theirs}]
            command = _command(lifeline, tracker, start_data)
            self.pid = util.spawnv_passfds(os.fsencode(spawn.get_executable()), command, descriptors)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
            # The writer stays open: in the child, it is what multiprocessing.parent_process() waits on.
            self.finalizer = util.Finalize(self, _close_all, [mine])
        return writer

    def _hand_over(self, data: memoryview, writer: int, interruptions: Interruptions) -> None:
        seconds = _host.env("VLLM_ENGINE_READY_TIMEOUT_S")
        deadline = Deadline(seconds)
        os.set_blocking(writer, False)
        poll = select.poll()
        poll.register(writer, select.POLLOUT)
        for descriptor in interruptions.waitables:
            poll.register(descriptor, select.POLLIN)
        while data:
            try:
                data = data[os.write(writer, data) :]
            except BlockingIOError:
                poll.poll(deadline.remaining() * 1000)
                if interruptions.error is not None:
                    raise interruptions.error from None
                if deadline.passed:
                    raise RuntimeError(f"it did not read what it is to run within {seconds}s") from None
            except BrokenPipeError:
                code = self._settled_code()
                raise RuntimeError(
                    f"it ended before it had read what it is to run: exit code {code}{explain_exit(code)}"
                ) from None

    def _settled_code(self) -> int | None:
        deadline = Deadline(SETTLE_S)
        while self.poll() is None and not deadline.passed:
            time.sleep(SETTLE_STEP_S)
        return self.returncode

    def _discard(self) -> None:
        if hasattr(self, "pid"):
            if self.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
            self._settled_code()
        if hasattr(self, "finalizer"):
            self.close()


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _command(lifeline: int, tracker: int, start_data: int) -> list[Any]:
    if getattr(sys, "frozen", False):
        return spawn.get_command_line(tracker_fd=tracker, pipe_handle=start_data)
    program = _FIRST_LINES.format(
        folder=_FOLDER, lifeline=lifeline, parent=os.getpid(), tracker=tracker, start_data=start_data
    )
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [spawn.get_executable(), *flags, "-c", program, "--multiprocessing-fork"]
