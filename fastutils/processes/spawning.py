"""Starting servers and programs so that they are never lost: neither by their parent nor without one.

Four things differ from how `multiprocessing` spawns. A server's first step, before it imports anything of its parent's,
is to join its manager's process group and to watch its parent (`fastutils.processes.orphans`). One that ends before it
has read what it is to run is collected, where multiprocessing forgets its pid. Handing over what it is to run has a
deadline. And no descriptor that it inherits has the number of a standard stream.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import Pipe, popen_spawn_posix, process, resource_tracker, spawn, util
from multiprocessing.context import SpawnProcess, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

from fastutils import _host
from fastutils.processes.arguments import Deadline, checked_timeout
from fastutils.processes.child import Child
from fastutils.processes.guard import PROGRAM, Guard, above_standard, may_write_to_the_terminal, pipe
from fastutils.processes.interrupts import Interruptions
from fastutils.processes.orphans import end_with_parent
from fastutils.processes.watching import SETTLE_S, explain_exit


class ServerProcess(SpawnProcess):
    """A spawned process that joins the guard's process group, watches its parent, and then runs ``target(*args)``.

    `start` returns when all that it is to run was handed over. It raises RuntimeError if the process ended before, or
    did not take it within ``VLLM_ENGINE_READY_TIMEOUT_S``, and whatever pickling raises; nothing is left of it then.
    """

    def __init__(self, guard: Guard, name: str, target: Callable[..., object], args: tuple[Any, ...]) -> None:
        super().__init__(target=target, name=name, args=args)
        self.lifeline = guard.lifeline
        self.group = guard.group or 0

    def run(self) -> None:
        end_with_parent(self.lifeline, os.getppid(), self.group)  # done already, unless the program is a frozen one
        super().run()

    @staticmethod
    def _Popen(process_obj: Any) -> popen_spawn_posix.Popen:
        return _Popen(process_obj)

    @property
    def child(self) -> Child | None:
        """The process that runs; None before `start` and after `close`."""
        popen: Any = getattr(self, "_popen", None)
        return None if popen is None else popen.child

    def is_alive(self) -> bool:
        alive = super().is_alive()
        if alive and self.child is not None and self.child.lost:
            process._children.discard(self)  # type: ignore[attr-defined]  # as multiprocessing does with a known code
            return False
        return alive


class _Popen(popen_spawn_posix.Popen):
    _fds: list[int]
    child: Child

    def _launch(self, process_obj: Any) -> None:
        self._copies: list[int] = []
        data = io.BytesIO()
        try:
            set_spawning_popen(self)
            try:
                for item in (spawn.get_preparation_data(process_obj.name), process_obj):
                    ForkingPickler(data, None).dump(item)
            finally:
                set_spawning_popen(None)
            with Interruptions() as interruptions:
                writer = self._spawn(process_obj)
                # Of bytes: the collector crashes over a BytesIO with a view of it (Python 3.12).
                self._hand_over(memoryview(data.getvalue()), writer, interruptions)
        except BaseException:
            self._discard()
            raise
        finally:
            _close_all(self._copies)

    def duplicate_for_child(self, fd: int) -> int:
        inherited = above_standard(fd)
        if inherited != fd:
            self._copies.append(inherited)
        self._fds.append(inherited)
        return inherited

    def _spawn(self, server: ServerProcess) -> int:
        """Start the process; the descriptor that takes what it is to run."""
        tracker = self.duplicate_for_child(resource_tracker.getfd())  # type: ignore[arg-type]
        # The ends of two pipes: one that ends with the child, one for what it is to run.
        mine: list[int] = []
        # The writer stays open: in the child, it is what multiprocessing.parent_process() waits on.
        self.finalizer = util.Finalize(self, _close_all, [mine])
        self.sentinel, child_alive = pipe()
        self._copies.append(child_alive)
        mine.append(self.sentinel)
        start_data, writer = pipe()
        self._copies.append(start_data)
        mine.append(writer)
        command = _command(server, tracker, start_data)
        # Without duplicates, which multiprocessing would stumble over: an argument may hold a socket twice.
        descriptors = [*{*self._fds, server.lifeline, *self._copies}]
        with may_write_to_the_terminal():
            self.pid = util.spawnv_passfds(os.fsencode(spawn.get_executable()), command, descriptors)
        self.child = Child(self.pid)
        weakref.finalize(self, self.child.close).atexit = False
        return writer

    def _hand_over(self, data: memoryview, writer: int, interruptions: Interruptions) -> None:
        seconds = _host.env("VLLM_ENGINE_READY_TIMEOUT_S")
        deadline = Deadline(seconds)
        os.set_blocking(writer, False)
        poll = select.poll()
        poll.register(writer, select.POLLOUT)
        for descriptor in interruptions.waitables:
            poll.register(descriptor, select.POLLIN)
        _close_all(self._copies)  # a child that has ended must show as a broken pipe
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
                code = self.child.wait(SETTLE_S)
                raise RuntimeError(
                    f"it ended before it had read what it is to run: exit code {code}{explain_exit(code)}"
                ) from None

    def _discard(self) -> None:
        if hasattr(self, "child"):
            self.child.send(signal.SIGKILL)
            self.child.wait(SETTLE_S)
        if self.finalizer is not None:
            self.close()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        self.returncode = self.child.poll() if flag == os.WNOHANG else self.child.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self.returncode = self.child.wait(timeout)
        return self.returncode

    def _send_signal(self, sig: int) -> None:
        self.child.send(sig)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _command(server: ServerProcess, tracker: int, start_data: int) -> list[Any]:
    if getattr(sys, "frozen", False):
        return spawn.get_command_line(tracker_fd=tracker, pipe_handle=start_data)
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    numbers = server.lifeline, os.getpid(), server.group, tracker, start_data
    return [spawn.get_executable(), *flags, PROGRAM, "--multiprocessing-fork", *map(str, numbers)]


class ProgramProcess:
    """A started program with the interface of a `multiprocessing` process: ``name, pid, sentinel, exitcode, is_alive,
    terminate, kill, join``.

    ``sentinel`` is for `multiprocessing.connection.wait`: a pidfd where the kernel has them, else the end of a pipe
    that a thread closes once the process is gone. It lives as long as this object. ``exitcode`` stays None if something
    else in this process has collected it: a clean end is only one that was seen.
    """

    def __init__(self, popen: subprocess.Popen[Any], name: str) -> None:
        popen.returncode = 0  # it is the Child that collects it
        self.name = name
        self.pid: int = popen.pid
        self.child = Child(popen.pid)
        weakref.finalize(self, self.child.close).atexit = False
        self.sentinel: Any = self.child.pidfd
        if self.sentinel is None:
            self.sentinel = _ending_pipe(self.child, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} pid={self.pid} exitcode={self.exitcode}>"

    @property
    def exitcode(self) -> int | None:
        """None while it runs, else its exit status; negative: the signal that killed it."""
        return self.child.poll()

    def is_alive(self) -> bool:
        return not self.child.has_ended()

    def terminate(self) -> None:
        """Send SIGTERM; nothing if it has ended."""
        self.child.send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL; nothing if it has ended."""
        self.child.send(signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Block until it has ended, or for `timeout` seconds."""
        self.child.wait(None if timeout is None else checked_timeout(timeout))


def _ending_pipe(child: Child, name: str) -> Any:
    reader, writer = Pipe(duplex=False)

    def close_after_end() -> None:
        try:
            child.wait()
        finally:
            writer.close()

    threading.Thread(target=close_after_end, name=f"{name}-end", daemon=True).start()
    return reader


def start_program(command: Sequence[str], name: str, descriptors: Sequence[int], guard: Guard) -> ProgramProcess:
    """Run `command` in the guard's process group, with `descriptors` inherited. Raises OSError if it cannot be run."""
    placement: dict[str, Any] = {}
    if guard.group is not None and sys.version_info >= (3, 11):
        placement["process_group"] = guard.group
    elif guard.group is not None:  # what runs in the fork there is one system call, which needs no lock
        placement["preexec_fn"] = functools.partial(os.setpgid, 0, guard.group)
    with may_write_to_the_terminal(), contextlib.ExitStack() as undo:
        popen = subprocess.Popen(command, pass_fds=descriptors, **placement)
        undo.callback(lambda: popen.kill())
        process = ProgramProcess(popen, name)
        undo.pop_all()
    return process
