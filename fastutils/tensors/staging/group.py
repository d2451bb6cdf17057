"""Many host buffers and their device twins, uploaded together."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import Any

import torch

from fastutils import _select
from fastutils.tensors import buffer as _buffer
from fastutils.tensors.buffer import CpuGpuBuffer
from fastutils.tensors.staging.buffer import Membership, become_plain, enter
from fastutils.tensors.staging.costs import Costs, Mode, calibrate, costs_of, rules_of
from fastutils.tensors.staging.fetching import Fetch
from fastutils.tensors.staging.layout import Spec
from fastutils.tensors.staging.slabs import NOT_ASKED, Slabs
from fastutils.tensors.staging.stats import StagingStats
from fastutils.tensors.staging.step import Step
from fastutils.tensors.staging.uploads import Uploads


class StagingGroup:
    """CpuGpuBuffers that are uploaded together, and that may be rewritten as soon as an upload was asked for.

    ::

        group = StagingGroup("cuda")
        ids = group.buffer("ids", 8192, dtype=torch.int32)
        positions = group.buffer("positions", 8192, dtype=torch.int64)
        with group.step():
            ids.np[:n] = ...
            ids.copy_to_gpu(n)
            positions.copy_to_gpu(n)
        # both are on their way, in as few copies as pay off; .np may be rewritten

    An upload snapshots the live rows into a *slot*, a pinned copy of the group's host memory, and copies them to the
    device from there, down the current stream. A slot is used again when the event behind its copies is complete; there
    are `slots` of them at first, up to `max_slots` are made rather than waited for, and only then an upload waits,
    without the GIL. Rows of ``gpu`` behind the live ones are never written.

    The buffers' memory is one slab on the host and one on `device`, with places aligned to `alignment` bytes (a power
    of two from 16 on); it is laid out at the first use. No address changes after that, so graphs may be captured over
    ``gpu``. Memory: the slab once on the device, and 1 + slots times (pinned, by `pin_memory`) on the host. A group
    may be used by several threads and streams; order on a stream is the order of calls. `mode` says how bytes travel:
    "loop", a runtime call for each buffer; "merge", full neighbours in one; "pack", buffers of one capacity and one
    live width in one strided copy; "auto", pack, and merge where the padding costs less than a call.

    On the CPU an upload copies the live rows at once, and there are no slots.
    """

    _uploads_class: type[Any] = Uploads
    _buffer_class: type[CpuGpuBuffer] = CpuGpuBuffer
    _membership_class: type[Any] = Membership

    def __init__(
        self,
        device: torch.device | str,
        *,
        slots: int = 2,
        max_slots: int = 8,
        pin_memory: bool = _buffer._PINNING_AVAILABLE,
        alignment: int = 256,
        mode: Mode = "auto",
    ) -> None:
        if not 1 <= slots <= max_slots:
            raise ValueError(
                f"slots={slots} and max_slots={max_slots}: there must be one slot, and no more than the most"
            )
        if alignment < 16 or alignment & (alignment - 1):
            raise ValueError(f"alignment={alignment} is no power of two from 16 on")
        self.device = torch.empty(0, device=device).device
        self._mode = mode
        self._rules = rules_of(mode, costs_of(self.device))
        self._slots, self._max_slots, self._alignment = slots, max_slots, alignment
        self._pin_memory = bool(pin_memory)
        if self.device.type != "cpu" and not hasattr(getattr(torch, self.device.type, None), "Event"):
            raise ValueError(f"torch has no events on {self.device}, and nothing else tells when a slot is free")
        self._specs: list[Spec] = []
        self._buffers: list[weakref.ref[CpuGpuBuffer]] = []
        self._uploads: Any = None
        self._first: dict[str, Any] = {}
        self._closed = False
        self._steps: dict[int, list[int]] = {}  # thread -> the rows of each buffer that its step has collected

    def buffer(self, name: str, *size: int | torch.SymInt, dtype: torch.dtype, with_numpy: bool = True) -> CpuGpuBuffer:
        """A zeroed CpuGpuBuffer of the group, as ``CpuGpuBuffer(*size, dtype=dtype, device=...)`` makes it.

        RuntimeError once the group has been used, ValueError for a name it has already.
        """
        cls = _select.choose("CpuGpuBuffer").value
        made: CpuGpuBuffer = object.__new__(cls if issubclass(cls, self._buffer_class) else self._buffer_class)
        self._adopt(made, name, size, dtype, with_numpy)
        return made

    def _adopt(
        self, buffer: CpuGpuBuffer, name: str, size: tuple[Any, ...], dtype: torch.dtype, with_numpy: bool
    ) -> None:
        if self._uploads is not None or self._closed:
            raise RuntimeError(
                f"buffer {name!r} comes too late: the staging group has been used, and its memory is laid out. "
                f"Make all buffers first."
            )
        if not isinstance(name, str):
            raise TypeError(f"a buffer's name is a str, not {name!r}")
        name = sys.intern(str(name))  # so that a request finds it by identity
        if any(spec.name == name for spec in self._specs):
            raise ValueError(f"the staging group has a buffer {name!r} already")
        if with_numpy:
            _buffer.check_numpy_has(dtype)
            torch.empty(0, dtype=dtype, device="cpu").numpy()  # torch's own refusal, here and not at the first use
        shape = tuple(torch.empty(*size, dtype=dtype, device="meta").shape)
        self._specs.append(Spec(name, shape, dtype, with_numpy))
        self._buffers.append(weakref.ref(buffer))
        enter(buffer, self, name)

    def freeze(self) -> None:
        """Lay the memory out now, which the first use does otherwise. No buffer can be added after that."""
        self._laid_out()

    def _laid_out(self) -> Any:
        if self._uploads is not None:
            return self._uploads
        if self._closed:
            raise RuntimeError("this staging group is closed")
        slabs = Slabs(self._specs, self.device, self._alignment, self._pin_memory)
        made = self._uploads_class(
            slabs, slots=self._slots, max_slots=self._max_slots, pin_memory=self._pin_memory, rules=self._rules
        )
        uploads = self._first.setdefault("uploads", made)  # another thread's, or a finaliser's, if that came first
        slabs = uploads.slabs
        slabs.on_leave = weakref.WeakMethod(self._left)
        for spec, found in zip(self._specs, self._buffers, strict=True):
            buffer = found()
            member = None if buffer is None else buffer.__dict__.get("_staging")
            if buffer is None or member is None:
                continue
            i = slabs.index[spec.name]
            member.laid_out(uploads, i)
            buffer.__dict__.setdefault("cpu", slabs.cpus[i])
            buffer.__dict__.setdefault("gpu", slabs.gpus[i])
            if spec.with_numpy:
                buffer.__dict__.setdefault("np", slabs.cpus[i].numpy())
        self._uploads = uploads  # last: whoever sees it finds the buffers' tensors
        return uploads

    def _left(self, name: str) -> None:
        for spec, found in zip(self._specs, self._buffers, strict=True):
            buffer = found()
            if spec.name == name and buffer is not None:
                become_plain(buffer)

    def flush(self, n: Any = None) -> None:
        """Upload the first `n` rows of every buffer, all rows (None), or what a mapping of names to these asks for.

        When it returns, the buffers' host memory may be rewritten. It blocks only where no slot is free. ValueError for
        a name that the group has not, or a count that a buffer has not rows for; nothing is uploaded then. Captured
        into a graph, it is an ordinary copy from each ``cpu``, read at every replay.
        """
        (self._uploads or self._laid_out()).flush(n)

    def step(self) -> Step:
        """A context in which this thread's ``copy_to_gpu(n)`` of the group's buffers are collected.

        They are uploaded together where it ends, each buffer as it is then and as far as it was asked for; if it ends
        by an exception, nothing is.
        """
        return Step(self)

    def fetch(self, n: Any = None) -> Fetch:
        """Copy rows back, as `flush` is told which. See `Fetch`; what it yields is a dict of names."""
        slabs = self._laid_out().slabs
        rows = slabs.rows(n)
        return Fetch(
            {
                spec.name: slabs.gpus[i][: rows[i]] if spec.shape else slabs.gpus[i]
                for i, spec in enumerate(slabs.specs)
                if rows[i] != NOT_ASKED
            },
            self._pin_memory,
        )

    def stats(self, *, reset: bool = False) -> StagingStats:
        """What was uploaded so far, and since the last `reset`."""
        return StagingStats() if self._uploads is None else self._uploads.stats(reset)

    @property
    def mode(self) -> Mode:
        """How bytes travel. May be set at any time."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._rules = rules_of(mode, costs_of(self.device))
        self._mode = mode
        if self._uploads is not None:
            self._uploads.configure(self._rules)

    def calibrate(self) -> Costs:
        """Measure the link to the device (`fastutils.tensors.staging.calibrate`), and decide by that from now on."""
        found = calibrate(self.device)
        self.mode = self._mode
        return found

    def close(self) -> None:
        """Give the slots back. The buffers keep their tensors; uploads are refused from now on."""
        self._closed = True
        if self._uploads is not None:
            self._uploads.close()

    def __enter__(self) -> StagingGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a StagingGroup can be neither pickled nor copied: its memory is this process's")


StagingGroup.__module__ = "fastutils"
