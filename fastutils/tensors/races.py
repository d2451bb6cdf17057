"""``FASTUTILS_DEBUG_RACES=warn`` or ``raise``: finds pinned memory that is rewritten before its copy has read it.

Where the switch is on, `fastutils._select` has the copies wrapped by `watch`; nothing else imports this module. A
wrapped copy from pinned memory to a device leaves a record: the bytes as they were once it was issued, and an event
behind it. `check`, with which every wrapped call begins, looks at all records. Bytes that differ, and after that an
event that is still pending, are a race. Once the event is reached nothing can be said any more, and the record goes.

There is no lock for which a finaliser could wait in vain: what is found is told by whoever takes its record away.
"""

from __future__ import annotations

import ctypes
import operator
import os
import sys
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from types import FrameType
from typing import Any, NamedTuple

import torch

from fastutils.tensors import buffer as _buffer_twin
from fastutils.tensors import copy as _copy_twin

#: How many copies are kept in mind; the oldest is dropped for one more.
MOST_RECORDS = 128

#: Up to this size all bytes of a copy are kept, beyond it only a checksum of each of its parts.
MOST_BYTES_KEPT = 1 << 20

_PART = 1 << 16


class RaceWarning(RuntimeWarning):
    """Pinned memory was rewritten before its copy had read it."""


class RaceError(RuntimeError):
    """Pinned memory was rewritten before its copy had read it. One line for each such copy."""


class Counts(NamedTuple):
    """What happened in this process. Kept without a lock: where threads copy at once, a few may be missing."""

    watched: int  #: copies of which a record was made
    in_flight: int  #: those of which there still is one
    dropped: int  #: those whose record had to make room
    races: int


class _Memory:
    """The bytes that a copy of `rows` reads, and what they were when `keep` was called. Keeps their storage alive."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._storage = rows.untyped_storage()
        self._base = self._storage.data_ptr()
        self._rows = rows.shape[0] if rows.dim() else 1
        self._kept: list[Any] = []
        self.start = rows.data_ptr()
        self.size = rows.numel() * rows.element_size()

    def is_in_place(self) -> bool:
        """Whether this still is what the copy was told to read: ``resize_`` gives a storage other memory."""
        return self._storage.data_ptr() == self._base

    def keep(self) -> None:
        self._kept = self.read()

    def read(self) -> list[Any]:
        """All of its parts, or their checksums."""
        # By address, since torch no longer resizes what it has lent to NumPy.
        parts = (
            ctypes.string_at(self.start + offset, min(_PART, self.size - offset))
            for offset in range(0, self.size, _PART)
        )
        return list(parts if self.size <= MOST_BYTES_KEPT else map(zlib.crc32, parts))

    def differs(self, now: list[Any]) -> bool:
        return now != self._kept

    def where(self, now: list[Any]) -> str:
        """From which row and byte to which `now` differs from what was kept."""
        pairs = list(zip(self._kept, now, strict=True))
        wrong = [index for index, (kept, found) in enumerate(pairs) if kept != found]
        first, last = wrong[0] * _PART, min((wrong[-1] + 1) * _PART, self.size) - 1
        place = "somewhere in"
        if self.size <= MOST_BYTES_KEPT:
            place = "in"
            first += _differing(*pairs[wrong[0]])[0]
            last = wrong[-1] * _PART + _differing(*pairs[wrong[-1]])[-1]
        first_row, last_row = (byte * self._rows // self.size for byte in (first, last))
        rows = f"row {first_row}" if first_row == last_row else f"rows {first_row} to {last_row}"
        return f"{place} {rows} of {self._rows} (bytes {first} to {last} of {self.size})"


def _differing(kept: bytes, found: bytes) -> list[int]:
    return [index for index, (one, other) in enumerate(zip(kept, found, strict=True)) if one != other]


# Compared by identity: taking one out of a queue must run no code.
@dataclass(frozen=True, eq=False)
class _Upload:
    memory: _Memory
    device: torch.device
    event: Any
    what: str


@dataclass(frozen=True, eq=False)
class _Download:
    """A copy from a device that may not have written yet what lies from `start` to `end`."""

    start: int
    end: int
    event: Any


_uploads: deque[_Upload] = deque()
_downloads: deque[_Download] = deque()
_mode = "warn"
_watched = _dropped = _races = 0


def counts() -> Counts:
    """How much was watched and found so far: where nothing was watched, it means nothing that nothing was found."""
    return Counts(_watched, len(_uploads), _dropped, _races)


def check() -> None:
    """Look at all copies in flight, oldest first, and tell of those whose source was rewritten.

    Each is told of once: by a `RaceWarning` of its own, or with ``FASTUTILS_DEBUG_RACES=raise`` by one `RaceError` for
    all that are found. Does nothing while a graph is captured, when no event may be asked.
    """
    global _races
    uploads = list(_uploads)
    if not uploads or _is_capturing({upload.device for upload in uploads}):
        return
    found = []
    for upload in uploads:
        where = ""
        if not _is_reached(upload.event, if_unknown=True) and upload.memory.is_in_place():
            now = upload.memory.read()
            if not upload.memory.differs(now):
                continue
            if not _is_reached(upload.event, if_unknown=True):  # only if asked after the bytes were read
                where = upload.memory.where(now)
        if _take(_uploads, upload) and where:
            found.append(
                f"the source of a copy was rewritten before the copy had read it, {where}. The copy: {upload.what}. "
                "Wait for an event recorded behind it, or for its stream, before writing there again."
            )
    if not found:
        return
    _races += len(found)
    if _mode == "raise":
        raise RaceError("\n".join(found))
    _, distance = _caller()
    for text in found:
        warnings.warn(text, RaceWarning, stacklevel=distance)


def _take(records: deque[Any], record: Any) -> bool:
    """Take `record` out of `records`. False if somebody else has: another thread, or what ran in between."""
    try:
        records.remove(record)
    except ValueError:
        return False
    return True


def _add(records: deque[Any], record: Any) -> int:
    """Add `record`, and return how many had to go."""
    records.append(record)
    return sum(_take(records, oldest) for oldest in list(records)[:-MOST_RECORDS])


def _caller() -> tuple[FrameType, int]:
    """The nearest frame outside of this package, and how far up it is from the frame that asks."""
    frame, distance = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "fastutils":
        frame, distance = frame.f_back, distance + 1
    return frame, distance


def _event_behind(device: torch.device) -> Any:
    """An event behind all that was queued so far on the current stream of `device`. None if it has no events."""
    try:
        module = torch.get_device_module(device)
        event = module.Event()
        event.record(module.current_stream(device))
    except Exception:  # AttributeError, or whatever a device's own module raises
        return None
    return event


def _is_reached(event: Any, if_unknown: bool) -> bool:
    try:
        return bool(event.query())
    except Exception:  # the device has failed, or somebody's capture forbids the question
        return if_unknown


def _is_capturing(devices: Iterable[torch.device]) -> bool:
    """Whether this thread captures a graph, as far as the current device and `devices` show."""
    for device in devices:
        try:
            module = torch.get_device_module(device)
            ask = getattr(module, "is_current_stream_capturing", bool)
            if ask():
                return True
            with module.device(device):
                if ask():
                    return True
        except RuntimeError:  # what CUDA answers where another thread's capture forbids the question
            return True
    return False


def _device_of(source: Any, target: Any) -> torch.device | None:
    """The device, if the copy has the host on its other side. None of what is no plain tensor."""
    if type(source) is not torch.Tensor or type(target) is not torch.Tensor:
        return None
    if target.device.type == "cpu":
        return None if source.device.type == "cpu" else source.device
    return target.device if source.device.type == "cpu" else None


def _read_later(source: torch.Tensor, target: torch.Tensor, n: int | None) -> _Memory | None:
    """What a copy of the first `n` rows reads only when the device gets to it. None if it reads it at once."""
    try:
        rows, place = (source, target) if n is None else (source[:n], target[:n])
        # What is spread over a larger target torch gathers before it returns, and mostly what is not contiguous.
        if rows.layout is not torch.strided or not rows.is_contiguous() or rows.numel() != place.numel():
            return None
        if not rows.is_pinned():  # nor are no rows at all
            return None
        memory = _Memory(rows)
    except Exception:  # the copy will say what is wrong, or it is none of a plain kind
        return None
    # The device itself may be about to write it, before the copy reads it and in good order.
    pending = [download for download in list(_downloads) if not _is_reached(download.event, if_unknown=False)]
    if any(each.start < memory.start + memory.size and memory.start < each.end for each in pending):
        return None
    return memory


def _note_download(target: torch.Tensor, device: torch.device) -> None:
    storage = target.untyped_storage()
    event = _event_behind(device)
    for download in list(_downloads):
        if _is_reached(download.event, if_unknown=False):
            _take(_downloads, download)
    if event is not None:
        _add(_downloads, _Download(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), event))


def _copied(copy: Callable[[Any], Any], source: Any, target: Any, n: Any, name: str) -> Any:
    """What ``copy(n)`` returns, a copy of the first `n` rows. `check` comes before it, and its record after it."""
    device = _device_of(source, target)
    if device is not None and _is_capturing({device}):
        return copy(n)
    check()
    if device is None:
        return copy(n)
    if target.device != device:
        result = copy(n)
        _note_download(target, device)
        return result
    if isinstance(n, Integral):
        n = operator.index(n)  # asked once: a second answer might be another
    memory = _read_later(source, target, n) if n is None or type(n) is int else None
    result = copy(n)
    if memory is not None and memory.start == source.data_ptr():  # else it was given other memory meanwhile
        call = name.format("" if n is None else n)
        _note_upload(memory, device, f"{call}, of a {_shown(source)} to a {_shown(target)}")
    return result


def _note_upload(memory: _Memory, device: torch.device, what: str) -> None:
    global _watched, _dropped
    event = _event_behind(device)
    if event is None:
        return
    memory.keep()  # not before the copy was issued: until then, anybody may write there
    frame, _ = _caller()
    function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    site = f"{frame.f_code.co_filename}:{frame.f_lineno} in {function}"
    _dropped += _add(_uploads, _Upload(memory, device, event, f"{what}, issued at {site}"))
    _watched += 1


def _shown(tensor: torch.Tensor) -> str:
    described = f"{tensor.dtype} tensor of shape {tuple(tensor.shape)}"
    return f"pinned {described}" if tensor.device.type == "cpu" else f"{described} on {tensor.device}"


class _Pair:
    """The tensors of a buffer, read once, for the methods of a buffer, which ask for nothing else."""

    __slots__ = ("cpu", "gpu")

    def __init__(self, cpu: Any, gpu: Any) -> None:
        self.cpu = cpu
        self.gpu = gpu


def _stands_for(twin: Any) -> Callable[[Any], Any]:
    """Gives a wrapper the name, home, documentation and annotations of `twin`, the Python form."""

    def give(wrapper: Any) -> Any:
        for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
            setattr(wrapper, name, getattr(twin, name))
        return wrapper

    return give


def _watch_buffer(form: Any) -> Any:
    twin = _buffer_twin.CpuGpuBuffer

    @_stands_for(twin)
    class CpuGpuBuffer(form):  # type: ignore[misc]
        @_stands_for(twin.copy_to_gpu)
        def copy_to_gpu(self, n: Any = None) -> Any:
            if torch.compiler.is_compiling():
                return twin.copy_to_gpu(self, n)
            gpu, cpu = self.gpu, self.cpu
            pair, name = _Pair(cpu, gpu), f"{type(self).__name__}.copy_to_gpu({{}})"
            return _copied(lambda n: form.copy_to_gpu(pair, n), cpu, gpu, n, name)

        @_stands_for(twin.copy_to_cpu)
        def copy_to_cpu(self, n: Any = None) -> Any:
            if torch.compiler.is_compiling():
                return twin.copy_to_cpu(self, n)
            cpu, gpu = self.cpu, self.gpu
            pair = _Pair(cpu, gpu)
            return _copied(lambda n: form.copy_to_cpu(pair, n), gpu, cpu, n, "")

    return CpuGpuBuffer


def _watch_copy_slice(form: Any) -> Any:
    twin = _copy_twin.copy_slice

    @_stands_for(twin)
    def copy_slice(from_tensor: Any, to_tensor: Any, length: Any) -> Any:
        if torch.compiler.is_compiling():
            return twin(from_tensor, to_tensor, length)
        call = "copy_slice(..., {})"
        return _copied(lambda n: form(from_tensor, to_tensor, n), from_tensor, to_tensor, length, call)

    return copy_slice


def _watch_copy_slices(form: Any) -> Any:
    twin = _copy_twin.copy_slices

    def one(source: Any, target: Any, length: Any, *, views: bool) -> Any:
        call = "copy_slices([(..., {})])"
        return _copied(lambda n: form([(source, target, n)], views=views), source, target, length, call)

    @_stands_for(twin)
    def copy_slices(pairs: Any, *, views: bool = False) -> Any:
        if torch.compiler.is_compiling():
            return twin(pairs, views=views)
        entries = list(pairs)
        triples = [_copy_twin._as_triple(entry, position, len(entries)) for position, entry in enumerate(entries)]
        # Singly, since one may rewrite the source of another before it.
        done = [one(*triple, views=views) for triple in triples]
        return [made for (made,) in done] if views else None

    return copy_slices


def _watch_copy_to_gpu_many(form: Any) -> Any:
    twin = _copy_twin.copy_to_gpu_many

    @_stands_for(twin)
    def copy_to_gpu_many(buffers: Any, ns: Any = None, *, views: bool = False) -> Any:
        if torch.compiler.is_compiling():
            return twin(buffers, ns, views=views)
        check()
        return form(buffers, ns, views=views)  # which calls our buffers' own method, and that watches

    return copy_to_gpu_many


_WRAPPERS = {
    "CpuGpuBuffer": _watch_buffer,
    "copy_slice": _watch_copy_slice,
    "copy_slices": _watch_copy_slices,
    "copy_to_gpu_many": _watch_copy_to_gpu_many,
}
_wrapped: dict[Any, Any] = {}


def watch(name: str, form: Any, mode: str) -> Any:
    """The `form` of the public `name`, watched; one object for each form. `mode`, "warn" or "raise", is for all."""
    global _mode
    _mode = mode
    if form not in _wrapped:
        _wrapped[form] = _WRAPPERS[name](form)
    return _wrapped[form]


def _in_a_fork() -> None:
    # Never asked and never freed, not even when the interpreter ends: only their own process may talk to the device.
    left = (list(_uploads), list(_downloads))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
    _uploads.clear()
    _downloads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_fork)
