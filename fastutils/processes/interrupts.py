"""Exceptions that signal handlers raise, held back until an operation that must not be left half-done is through.

Doing the operation in a helper thread, which handlers do not interrupt, would need less. But it hangs where the handler
that asks for it, or the collector, came while the main thread held a lock that the helper needs: that of a logger, say.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_active: Interruptions | None = None


class Interruptions:
    """While this context is open, the handlers of signals run as ever, but what they raise waits for its end.

    The first thing raised (KeyboardInterrupt, say) is raised when the context is left. Until then `error` holds it, and
    `waitables`, for `multiprocessing.connection.wait`, turn ready. Handlers that are no Python functions stay as they
    are. Does nothing outside the main thread, where no handler runs. Contexts may be nested: the outermost counts.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.waitables: list[int] = []
        self._writer = -1
        self._replaced: dict[int, tuple[Any, Any]] = {}

    def __enter__(self) -> Interruptions:
        global _active
        if threading.current_thread() is not threading.main_thread():
            return self
        if _active is not None:
            return _active
        _active = self
        try:
            for signum in signal.valid_signals():
                handler = signal.getsignal(signum)
                if callable(handler):
                    ours = self._holding_back(handler)
                    self._replaced[signum] = handler, ours
                    with contextlib.suppress(ValueError):  # a subinterpreter
                        _exchange(signum, ours)
        except BaseException:  # of a handler that is not replaced yet
            while self._replaced:
                with contextlib.suppress(BaseException):
                    self._restore()
            _active = None
            raise
        with contextlib.suppress(OSError):  # no descriptor left: then the grace is not cut short, that is all
            reader, self._writer = os.pipe()
            self.waitables.append(reader)
        return self

    def _holding_back(self, handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def hold_back(signum: int, frame: FrameType | None) -> None:
            if _active is not self:
                handler(signum, frame)
                return
            try:
                handler(signum, frame)
            except BaseException as error:
                if self.error is None:
                    self.error = error
                    if self._writer >= 0:
                        os.write(self._writer, b"!")

        return hold_back

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        global _active
        if _active is not self:
            return
        first = None
        while self._replaced:  # a handler that is restored already may raise in the middle
            try:
                self._restore()
            except BaseException as late:
                first = first or late
        _active = None
        first = self.error or first
        for descriptor in (*self.waitables, self._writer):
            if descriptor >= 0:
                os.close(descriptor)
        if first is not None:
            raise first from error

    def _restore(self) -> None:
        for signum, (handler, ours) in list(self._replaced.items()):
            if signal.getsignal(signum) is ours:  # else a handler has installed another one
                _exchange(signum, handler)
            self._replaced.pop(signum, None)


def _exchange(signum: int, handler: Any) -> None:
    """Install `handler` in the place of another one of Python's, and leave the rest as it is.

    `signal.signal` has system calls fail after a signal where `signal.siginterrupt` has had them restarted, and nothing
    in Python tells which. So what the system keeps of the signal is put back, whatever there is in it.
    """
    try:
        import ctypes

        sigaction = ctypes.CDLL(None).sigaction
    except (ImportError, OSError, AttributeError):  # an interpreter without ctypes
        signal.signal(signum, handler)
        return
    kept = ctypes.create_string_buffer(1024)  # a struct sigaction, which has some 150 bytes
    sigaction(signum, None, kept)
    signal.signal(signum, handler)
    sigaction(signum, kept, None)


def _forget() -> None:
    global _active
    _active = None  # the thread that was in the context does not exist in the fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
