"""Where the buffers of a group lie in its slabs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch


@dataclass(frozen=True)
class Spec:
    """What was asked of one buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    with_numpy: bool

    @property
    def rows(self) -> int:
        """How many `n` may ask for; a scalar counts as one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True)
class Place:
    """Where a buffer lies in the slab on the host as in that on the device, in bytes."""

    offset: int
    capacity: int
    pitch: int  #: the capacity and the padding behind it


def lay_out(specs: Sequence[Spec], alignment: int) -> tuple[list[int], list[Place], int]:
    """The specs' indices in the order in which their buffers lie, their places in that order, and the slab's bytes.

    Buffers of one capacity and one width of a row are neighbours at one pitch: those whose live rows one strided copy
    can upload (`torch_bridge_staging.h`). Big ones come last, so that what is full lies together.
    """

    def pitch(spec: Spec) -> int:
        capacity = spec.rows * spec.row_bytes
        return -(-capacity // alignment) * alignment

    order = sorted(range(len(specs)), key=lambda i: (pitch(specs[i]), specs[i].row_bytes))
    places, offset = [], 0
    for i in order:
        places.append(Place(offset, specs[i].rows * specs[i].row_bytes, pitch(specs[i])))
        offset += places[-1].pitch
    return order, places, offset
