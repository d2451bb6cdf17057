"""The memory of a group: one slab on the host, one on the device, and the buffers' tensors over them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fastutils.tensors.staging.layout import Spec, lay_out

NOT_ASKED = -1


class Slabs:
    """Zeroed slabs of one layout on both sides, and each buffer's tensors, in the order in which they lie.

    The tensors are no views, as those of an ordinary buffer: each has a version of its own, and none has a base.
    """

    def __init__(self, specs: Sequence[Spec], device: torch.device, alignment: int, pin_memory: bool) -> None:
        order, self.places, self.bytes = lay_out(specs, alignment)
        self.specs = [specs[i] for i in order]
        self.index = {spec.name: i for i, spec in enumerate(self.specs)}
        self.left = bytearray(len(self.specs))  #: 1 for a buffer that no longer belongs to the group
        self.on_leave: Callable[[], Callable[[str], None] | None] = lambda: None  #: whom to tell, held weakly
        with torch.inference_mode(False):
            self.host = torch.zeros(self.bytes, dtype=torch.uint8, device="cpu", pin_memory=pin_memory)
            self.device = self.host.to(device, copy=True)
            self.cpus = [self._tensor(self.host, i) for i in range(len(self.specs))]
            self.gpus = [self._tensor(self.device, i) for i in range(len(self.specs))]
        self._where = [(cpu.data_ptr(), gpu.data_ptr()) for cpu, gpu in zip(self.cpus, self.gpus, strict=True)]

    def _tensor(self, slab: torch.Tensor, i: int) -> torch.Tensor:
        spec, place = self.specs[i], self.places[i]
        # .data: a version counter of its own, or every upload would mark all of the group's tensors as changed
        return slab[place.offset : place.offset + place.capacity].view(spec.dtype).view(spec.shape).data

    def rows(self, request: Any) -> list[int]:
        """How many rows of each buffer `request` asks for; NOT_ASKED for none of it.

        `request` is None (all rows of all), a count, or a mapping of names to either. ValueError and TypeError say
        what is wrong with it.
        """
        if request is None:
            return [NOT_ASKED if left else spec.rows for spec, left in zip(self.specs, self.left, strict=True)]
        if isinstance(request, Mapping):
            rows = [NOT_ASKED] * len(self.specs)
            for name, n in request.items():
                i = self.find(name)
                rows[i] = self.specs[i].rows if n is None else self.checked(i, n)
            return rows
        return [NOT_ASKED if left else self.checked(i, request) for i, left in enumerate(self.left)]

    def find(self, name: str) -> int:
        """The place of a buffer of the group. ValueError if there is none."""
        i = self.index.get(name)
        if i is None:
            raise ValueError(f"the staging group has no buffer {name!r}; it has {', '.join(map(repr, self.index))}")
        if self.left[i]:
            raise ValueError(
                f"buffer {name!r} has left the staging group, because one of its tensors was replaced; "
                f"copy it by its own copy_to_gpu()"
            )
        return i

    def checked(self, i: int, n: Any) -> int:
        """`n` as a count of rows of buffer `i`."""
        try:
            n = operator.index(n)
        except TypeError:
            raise TypeError(
                f"a staging group's rows are asked for by None, an int, or a mapping of names to these, not {n!r}"
            ) from None
        spec = self.specs[i]
        if not 0 <= n <= spec.rows:
            raise ValueError(f"buffer {spec.name!r} has {spec.rows} rows: {n} of them cannot be copied")
        return int(n)

    def moved(self, i: int) -> bool:
        """Whether somebody took one of a buffer's tensors elsewhere in place (`.data =`, set_(), resize_())."""
        cpu, gpu, spec = self.cpus[i], self.gpus[i], self.specs[i]
        return (
            (cpu.data_ptr(), gpu.data_ptr()) != self._where[i]
            or (cpu.shape, gpu.shape) != (spec.shape, spec.shape)
            or (cpu.dtype, gpu.dtype) != (spec.dtype, spec.dtype)
            or not (cpu.is_contiguous() and gpu.is_contiguous())
        )

    def leave(self, i: int, what: str, stacklevel: int) -> None:
        """Take a buffer out of the group, with a warning that says so."""
        if self.left[i]:
            return
        self.left[i] = 1
        tell = self.on_leave()
        if tell is not None:
            tell(self.specs[i].name)
        warnings.warn(
            f"buffer {self.specs[i].name!r} leaves its staging group: its .{what} was replaced. Its own copies are "
            f"plain ones from now on, which rewriting it can overtake, and the group's leave it out.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
