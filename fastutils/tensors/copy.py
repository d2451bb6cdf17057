"""Slice copies between tensors: the Python form."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fastutils.tensors.buffer import CpuGpuBuffer


def copy_slice(from_tensor: torch.Tensor, to_tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Copy the first `length` rows of `from_tensor` to `to_tensor`, without blocking; return ``to_tensor[:length]``.

    Means exactly ``to_tensor[:length].copy_(from_tensor[:length], non_blocking=True)``: `length` follows slice rules
    (negative, zero, too large), dtypes, devices and strides may differ, shapes may broadcast, and whatever PyTorch
    raises is raised. The result is a view of `to_tensor`. Between host and device the copy may still be running on the
    current stream when the call returns: synchronize before reading a host destination.

    Upstream: ``vllm.v1.utils.copy_slice``.
    """
    return to_tensor[:length].copy_(from_tensor[:length], non_blocking=True)


def _as_triple(entry: Any, position: int, count: int) -> tuple[Any, ...]:
    # A tuple of its own, before anything is copied: torch's code may change what was given.
    triple = tuple(entry) if isinstance(entry, tuple | list) else ()
    if len(triple) != 3:
        raise TypeError(
            f"copy_slices() takes (from_tensor, to_tensor, length) triples, but entry {position} of "
            f"{count} is {entry!r:.80}"
        )
    return triple


def copy_slices(pairs: Iterable[tuple[torch.Tensor, torch.Tensor, int]], *, views: bool = False) -> Any:
    """Run `copy_slice` for each ``(from_tensor, to_tensor, length)`` of `pairs`, in order, in one call.

    Returns None, or with ``views=True`` the list of the views ``to_tensor[:length]``. Nothing is copied if an entry of
    `pairs` is not a triple (TypeError). An error of PyTorch's leaves the copies before it done and the rest undone.
    Blocks no more than `copy_slice` does.
    """
    entries = list(pairs)
    triples = [_as_triple(entry, position, len(entries)) for position, entry in enumerate(entries)]
    if views:
        return [copy_slice(*triple) for triple in triples]
    for triple in triples:
        copy_slice(*triple)
    return None


def copy_to_gpu_many(
    buffers: Iterable[CpuGpuBuffer], ns: Iterable[int | None] | int | None = None, *, views: bool = False
) -> Any:
    """Run ``buffer.copy_to_gpu(n)`` for each buffer, in order, in one call.

    `ns` holds one row count (or None for all rows) per buffer; a single int or None serves for every buffer.
    Returns None, or with ``views=True`` the list of what the single calls return. ValueError, before anything is
    copied, if `ns` and `buffers` differ in length.
    """
    several = list(buffers)
    counts: list[Any] = [ns] * len(several) if ns is None or isinstance(ns, int | Integral) else list(ns)
    if len(counts) != len(several):
        raise ValueError(
            f"copy_to_gpu_many() got {len(several)} buffers but {len(counts)} row counts; give one per buffer"
        )
    if views:
        return [buffer.copy_to_gpu(n) for buffer, n in zip(several, counts, strict=True)]
    for buffer, n in zip(several, counts, strict=True):
        buffer.copy_to_gpu(n)
    return None


for _function in (copy_slice, copy_slices, copy_to_gpu_many):
    _function.__module__ = "fastutils"  # where both forms are pickled from
