"""What a CpuGpuBuffer becomes when it is staged."""

from __future__ import annotations

import importlib
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from fastutils.tensors.buffer import CpuGpuBuffer

if TYPE_CHECKING:
    from fastutils.tensors.staging.group import StagingGroup

TENSORS = ("cpu", "gpu", "np")


class Membership:
    """Which buffer of which group a staged buffer is, and what it was before."""

    __slots__ = ("group", "index", "name", "plain_class", "uploads")

    def __init__(self, group: StagingGroup, name: str, plain_class: type) -> None:
        self.group = group
        self.name = name
        self.plain_class = plain_class
        self.uploads: Any = None  # from the layout on, and with it the place among its buffers
        self.index = -1

    def laid_out(self, uploads: Any, index: int) -> None:
        self.uploads, self.index = uploads, index

    def send(self, rows: int) -> None:
        """Upload, or have the step that is open in this thread upload, the first rows."""
        collected = self.group._steps.get(get_ident()) if self.group._steps else None
        if collected is None:
            self.uploads.send_one(self.index, rows)
        else:
            collected[self.index] = max(rows, collected[self.index])


class Staged(CpuGpuBuffer if TYPE_CHECKING else object):  # type: ignore[misc]
    """What comes before a CpuGpuBuffer's own methods while the buffer belongs to a group.

    ``cpu``, ``gpu`` and ``np`` are there from the group's first use on: asking for one is such a use.
    """

    _staging: Membership

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Upload all rows, or the first `n`, as they are now, from ``cpu`` to ``gpu`` without blocking.

        Returns ``gpu`` itself (`n` is None) or the view ``gpu[:n]``. `n` follows slice rules. The host memory may be
        rewritten as soon as the call returns. Inside ``with group.step()`` only the view is made: the bytes, as they
        are by then, arrive when the step ends, together with those of the group's other buffers. Captured into a
        graph, it is an ordinary copy from ``cpu``, read at every replay.
        """
        target: torch.Tensor = self.gpu
        if n is not None:
            target = target[:n]
        self._staging.send(target.shape[0] if target.dim() else 1)
        return target

    def __getattr__(self, name: str) -> Any:
        if name in TENSORS and "_staging" in self.__dict__:
            self._staging.group.freeze()
        if name in TENSORS and name in self.__dict__:  # by now: another thread or a finaliser may have come first
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        replaced = name in TENSORS and getattr(self, name, None) is not value
        super().__setattr__(name, value)
        if replaced:
            self._leave(name)  # last: it takes this class away

    def __delattr__(self, name: str) -> None:
        deleted = name in TENSORS and hasattr(self, name)
        super().__delattr__(name)
        if deleted:
            self._leave(name)

    def _leave(self, what: str) -> None:
        self._staging.group.freeze()
        self._staging.uploads.slabs.leave(self._staging.index, what, stacklevel=3)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a staged CpuGpuBuffer can be neither pickled nor copied, since its memory is its group's: "
            "take its .cpu, or a buffer that is not staged"
        )


def staged_class(cls: Any) -> Any:
    """`cls` with staged copies. What a subclass makes of copy_to_gpu() stays, and its super() is the staged one.

    Kept in `cls` itself, so that it goes when `cls` does.
    """
    if "_staged_class" in vars(cls):
        return cls._staged_class
    form = next(base for base in cls.__mro__ if base.__module__ == "fastutils" and "copy_to_gpu" in vars(base))
    if cls is form:
        staged = importlib.import_module(form._staging_module).Staged
        made = type("StagedBuffer", (staged, form), {"__module__": __name__, "__doc__": form.__doc__})
    else:
        bases = (cls, staged_class(form))
        made = type(f"Staged{cls.__name__}", bases, {"__module__": cls.__module__, "__doc__": cls.__doc__})
    cls._staged_class = made
    return made


def enter(buffer: CpuGpuBuffer, group: StagingGroup, name: str) -> None:
    """Make `buffer`, which has no tensors yet, the buffer `name` of `group`."""
    cls = type(buffer)
    buffer.__dict__["_staging"] = group._membership_class(group, name, cls)
    buffer.__class__ = staged_class(cls)


def become_plain(buffer: CpuGpuBuffer) -> None:
    """Undo `enter`: the buffer keeps its tensors."""
    buffer.__class__ = buffer.__dict__.pop("_staging").plain_class
