"""A host tensor and its device twin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from fastutils import _host

if TYPE_CHECKING:
    import numpy as np


class _PinningAvailable:
    """The default of `pin_memory`: looks like the bool it stands for, but asks the driver only when it is needed.

    Upstream evaluates its default while its module is imported. Asking then would start the CUDA driver in a process
    that may still want to fork, so the answer is looked up at the first buffer (or the first look at the signature)
    and kept from then on.
    """

    __slots__ = ("_answer",)

    def __bool__(self) -> bool:
        try:
            return self._answer
        except AttributeError:
            self._answer: bool = _host.is_pin_memory_available()
            return self._answer

    def __repr__(self) -> str:
        return repr(bool(self))

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __hash__(self) -> int:
        return hash(bool(self))


_PINNING_AVAILABLE: Any = _PinningAvailable()


def check_numpy_has(dtype: torch.dtype) -> None:
    """ValueError for the one type that upstream refuses by name."""
    if dtype == torch.bfloat16:
        raise ValueError("NumPy has no bfloat16: make this CpuGpuBuffer with with_numpy=False")


class CpuGpuBuffer:
    """A zeroed host tensor and a zeroed twin on `device`, for state that is filled on the host and used on the device.

    ``cpu`` is the host tensor (page-locked if `pin_memory`), ``gpu`` its twin, ``np`` a NumPy array over the memory of
    ``cpu`` (absent with ``with_numpy=False``, the only way for torch.bfloat16: NumPy has no such type, ValueError).
    All three are plain attributes and may be replaced; the copies read them afresh on every call. The tensors are
    ordinary ones even where the buffer is made in inference mode. `pin_memory` defaults to whether pinning is
    available on this machine, looked up once.

    ``staged=True`` (not upstream's) makes ``copy_to_gpu`` snapshot the rows, which may then be rewritten as soon as it
    returns; ``fastutils.StagingGroup`` does so for many buffers at once.

    Upstream: ``vllm.v1.utils.CpuGpuBuffer``.
    """

    cpu: torch.Tensor
    gpu: torch.Tensor
    np: np.ndarray[Any, Any]

    _staging_module = "fastutils.tensors.staging"

    def __init__(
        self,
        *size: int | torch.SymInt,
        dtype: torch.dtype,
        device: torch.device,
        pin_memory: bool = _PINNING_AVAILABLE,
        with_numpy: bool = True,
        staged: bool = False,
    ) -> None:
        if pin_memory is _PINNING_AVAILABLE:
            pin_memory = bool(pin_memory)
        if staged:
            group_class = importlib.import_module(self._staging_module).StagingGroup
            group = group_class(device, pin_memory=pin_memory)
            group._adopt(self, "staged", size, dtype, with_numpy)
            group.freeze()
            return
        with torch.inference_mode(False):
            self.cpu = torch.zeros(*size, dtype=dtype, device="cpu", pin_memory=pin_memory)
            self.gpu = torch.zeros_like(self.cpu, device=device)
            if with_numpy:
                check_numpy_has(dtype)
                self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Copy all rows, or the first `n`, from ``cpu`` to ``gpu`` without blocking.

        Returns ``gpu`` itself (`n` is None) or the view ``gpu[:n]``. `n` follows slice rules. The host memory must not
        be changed before the copy has run on the current stream.
        """
        if n is None:
            return self.gpu.copy_(self.cpu, non_blocking=True)
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)

    def copy_to_cpu(self, n: int | None = None) -> torch.Tensor:
        """Copy all rows, or the first `n`, from ``gpu`` to ``cpu`` without blocking.

        Returns ``cpu`` itself (`n` is None) or the view ``cpu[:n]``. Synchronize with the current stream before
        reading it (or ``np``): until then it may hold old or half-written rows.
        """
        if n is None:
            return self.cpu.copy_(self.gpu, non_blocking=True)
        return self.cpu[:n].copy_(self.gpu[:n], non_blocking=True)


CpuGpuBuffer.__module__ = "fastutils"  # where both forms are pickled from
