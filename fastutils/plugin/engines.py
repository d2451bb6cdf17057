"""``FASTUTILS_VLLM_GUARD_ENGINES=1``: the processes that vLLM starts end with the process that started them.

vLLM's engine cores, workers and coordinators outlive a parent that is killed with SIGKILL. Where this is switched on, a
process that starts one of them also starts a small one that watches it (`engine_guard`), and tells it of each. It is
told by the parent because a child cannot see to it: a coordinator never loads a plugin, an engine does so only after
its imports, and whatever watches within it stands still while it is stopped or C code holds the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from subprocess import DEVNULL, Popen
from typing import Any

from fastutils.plugin import announcing, switch
from fastutils.processes import members

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine_guard.py")

_lock = threading.Lock()
_guard: _Guard | None = None
_is_on = False
_plain_start: Callable[[BaseProcess], None] | None = None


def guard_as_asked() -> None:
    """Guard what vLLM starts from here on, if the environment asks for it. Never raises; a second call does nothing."""
    global _is_on, _plain_start
    try:
        if not switch.guards_engines() or _is_on:
            return
    except ValueError as error:
        announcing.warn(f"fastutils: engines are not guarded: {error}")
        return
    if not hasattr(os, "pidfd_open"):
        announcing.warn("fastutils: engines are not guarded: that needs Linux and a Python that knows its pidfds")
        return
    _is_on = True
    if _plain_start is None:
        # Multiprocessing has no hook for it, and this is the one method that every way to start passes.
        _plain_start = BaseProcess.start
        BaseProcess.start = _start_and_guard  # type: ignore[method-assign]
    announcing.say("fastutils: the processes that vLLM starts from this one end with it")


def stop() -> None:
    """Guard nothing that starts from here on, nor what was guarded. Does nothing if nothing is guarded."""
    global _guard, _is_on, _plain_start
    _is_on = False
    if BaseProcess.start is _start_and_guard and _plain_start is not None:  # else somebody has wrapped ours
        BaseProcess.start = _plain_start  # type: ignore[method-assign,assignment]
        _plain_start = None
    with _lock:
        if _guard is not None:
            _guard.close()
            _guard = None


def _start_and_guard(self: BaseProcess) -> None:
    assert _plain_start is not None
    start = _plain_start
    guard = _running_guard() if _is_on and _is_vllms(self) else None  # before: it forgets at its start what it ran
    start(self)
    if guard is not None and self.pid is not None:
        guard.look_after(self.pid)


_start_and_guard.__doc__ = BaseProcess.start.__doc__


def _is_vllms(process: BaseProcess) -> bool:
    """Whether vLLM's code is what `process` is to run: a program's own processes are nobody's business."""
    target: Any = getattr(process, "_target", None)
    while isinstance(target, functools.partial):
        target = target.func
    homes = (getattr(thing, "__module__", None) or "" for thing in (target, type(process)))
    return any(home.partition(".")[0] == "vllm" for home in homes)


def _running_guard() -> _Guard | None:
    global _guard
    with _lock:
        if _guard is None:
            try:
                _guard = _Guard()
            except OSError as error:
                announcing.warn(f"fastutils: an engine is not guarded: its guard cannot be started: {error}")
        return _guard


class _Guard:
    """A running guard process. It ends when this process does and its work is done. OSError if it cannot be started."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        own = -1
        try:
            own = os.pidfd_open(os.getpid())
            self._popen = Popen(
                # Nothing of the environment or of site-packages may delay it or go wrong in it.
                [sys.executable or "", "-I", "-S", _PROGRAM, str(reader), str(own)],
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=(reader, own),
                start_new_session=True,  # what is meant for a terminal's or a group's processes is not meant for it
            )
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)
            if own >= 0:
                os.close(own)

    def look_after(self, pid: int) -> None:
        try:
            engine = members.find(pid)
            if engine is not None:
                os.write(self._writer, f"{pid} {os.getsid(pid)} {engine.started}\n".encode())
        except OSError as error:
            announcing.warn(f"fastutils: the engine with PID {pid} is not guarded: its guard is gone: {error}")

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        os.close(self._writer)

    def leave_to_the_parent(self) -> None:
        os.close(self._writer)
        self._popen.returncode = 0  # or it would warn here of a program that still runs


def _in_a_fork() -> None:
    # The guard is the parent's. What the fork itself starts gets one of its own.
    global _guard, _lock
    _lock = threading.Lock()
    if _guard is not None:
        with contextlib.suppress(OSError):
            _guard.leave_to_the_parent()
        _guard = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_fork)
