"""Helpers that are wrong in everything they do. A case whose check they pass has a check that cannot fail."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch

from bench import upstream
from bench.cases.model import Case
from bench.replay import COUNTS


class ConstantList:
    """Wrong in every operation, and no Sequence."""

    def __init__(self, x: list[Any]) -> None:
        self._x = list(x[1:-1])

    def __getitem__(self, item: Any) -> Any:
        return self._x[item]

    def __len__(self) -> int:
        return len(self._x)

    def __contains__(self, item: Any) -> bool:
        return bool(item < 0)

    def __iter__(self) -> Any:
        return iter(self._x)

    def index(self, item: Any) -> int:
        return self._x.index(item)

    def count(self, item: Any) -> int:
        return self._x.count(item) + 1

    def copy(self) -> list[Any]:
        return self._x.copy()


class CpuGpuBuffer(upstream.CpuGpuBuffer):
    """Copies nothing and returns what it should."""

    def copy_to_gpu(self, n: int | None = None) -> Any:
        return None if self.gpu is self.cpu else self.gpu if n is None else self.gpu[:n]

    def copy_to_cpu(self, n: int | None = None) -> Any:
        return self.cpu[:n]


class StagingGroup:
    """Its buffers copy nothing, and neither does a flush or the end of a step."""

    def __init__(self, device: Any, *, pin_memory: bool = False) -> None:
        self.device = torch.device(device)

    def buffer(self, name: str, *size: int, dtype: torch.dtype, with_numpy: bool = True) -> CpuGpuBuffer:
        return CpuGpuBuffer(*size, dtype=dtype, device=self.device, pin_memory=False, with_numpy=with_numpy)

    def freeze(self) -> None:
        pass

    def flush(self, n: Any = None) -> None:
        pass

    def step(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def compute_iteration_details(scheduler_output: Any) -> Any:
    found = upstream.compute_iteration_details(scheduler_output)
    return upstream.IterationDetails(*(getattr(found, name) + 1 for name in COUNTS))


HELPERS = types.SimpleNamespace(
    ConstantList=ConstantList,
    CpuGpuBuffer=CpuGpuBuffer,
    StagingGroup=StagingGroup,
    copy_slice=lambda from_tensor, to_tensor, length: to_tensor[:length],
    copy_to_gpu_many=lambda buffers, ns: None,
    tensor_data=lambda tensor: memoryview(bytes(tensor.nbytes)),
    compute_iteration_details=compute_iteration_details,
    record_function_or_nullcontext=lambda name: contextlib.nullcontext("another"),
)


def passes(case: Case) -> bool:
    """Whether the check of `case` lets the broken helpers through."""
    side = case.make(HELPERS)
    try:
        with case.mode():
            found = side.outcome()
    except Exception:  # whatever it is: the check has noticed
        return False
    finally:
        side.close()
    return type(found) is type(side.expected) and bool(found == side.expected)
