"""The copies of one engine step, collected."""

from __future__ import annotations

from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING

from fastutils.tensors.staging.slabs import NOT_ASKED

if TYPE_CHECKING:
    from fastutils.tensors.staging.group import StagingGroup


class Step:
    """``with group.step():`` collects this thread's uploads, and makes them one where it ends."""

    __slots__ = ("_group", "_thread")

    def __init__(self, group: StagingGroup) -> None:
        self._group = group
        self._thread: int | None = None

    def __enter__(self) -> Step:
        slabs = self._group._laid_out().slabs
        thread = get_ident()
        if thread in self._group._steps:
            raise RuntimeError("a step of this staging group is open in this thread already: one ends before the next")
        self._group._steps[thread] = [NOT_ASKED] * len(slabs.specs)
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread is None:
            raise RuntimeError("this step has not begun, or has ended already")
        thread, self._thread = self._thread, None
        collected = self._group._steps.pop(thread)
        if kind is None and collected.count(NOT_ASKED) < len(collected):
            self._group._laid_out().send(collected)
