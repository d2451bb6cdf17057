"""The baseline: the helpers in the plain form a vLLM user runs today.

Written for this benchmark from the behaviour of ``vllm.v1.utils`` 0.25.1 and kept apart from fastutils' own Python
forms, so that tuning those can never make a ratio look better. Each helper does the work upstream does and no less:
nothing is hoisted, cached or reordered. What no case measures (error messages, ``repr``) is left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class ConstantList(Generic[T], Sequence):  # type: ignore[type-arg]
    """A read-only live view of a list: every operation is a method written in Python."""

    def __init__(self, x: list[T]) -> None:
        self._x = x

    def __getitem__(self, item: Any) -> Any:
        return self._x[item]

    def __len__(self) -> int:
        return len(self._x)

    def __contains__(self, item: Any) -> bool:
        return item in self._x

    def __iter__(self) -> Iterator[T]:
        return iter(self._x)

    def index(self, item: Any, start: int = 0, stop: int | None = None) -> int:
        return self._x.index(item, start, len(self._x) if stop is None else stop)

    def copy(self) -> list[T]:
        return self._x.copy()

    def __repr__(self) -> str:
        return f"ConstantList({self._x})"


class CpuGpuBuffer:
    """A zeroed host tensor, its twin on the device and a NumPy view of the host side."""

    def __init__(
        self, *size: int, dtype: torch.dtype, device: torch.device, pin_memory: bool, with_numpy: bool = True
    ) -> None:
        with torch.inference_mode(False):
            self.cpu = torch.zeros(*size, dtype=dtype, device="cpu", pin_memory=pin_memory)
            self.gpu = torch.zeros_like(self.cpu, device=device)
            if with_numpy:
                self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        if n is not None:
            return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)
        return self.gpu.copy_(self.cpu, non_blocking=True)

    def copy_to_cpu(self, n: int | None = None) -> torch.Tensor:
        if n is not None:
            return self.cpu[:n].copy_(self.gpu[:n], non_blocking=True)
        return self.cpu.copy_(self.gpu, non_blocking=True)


def copy_slice(from_tensor: torch.Tensor, to_tensor: torch.Tensor, length: int) -> torch.Tensor:
    return to_tensor[:length].copy_(from_tensor[:length], non_blocking=True)


def tensor_data(tensor: torch.Tensor) -> memoryview:
    flat = tensor.flatten().cpu().contiguous()
    return flat.view(torch.uint8).numpy().data


@dataclass
class IterationDetails:
    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int
    num_generation_tokens: int


def compute_iteration_details(scheduler_output: Any) -> IterationDetails:
    context = context_tokens = generation = generation_tokens = 0
    newcomers = {request.req_id for request in scheduler_output.scheduled_new_reqs}
    for req_id, tokens in scheduler_output.num_scheduled_tokens.items():
        if scheduler_output.scheduled_cached_reqs.is_context_phase(req_id) or req_id in newcomers:
            context += 1
            context_tokens += tokens
        else:
            generation += 1
            generation_tokens += tokens
    return IterationDetails(context, context_tokens, generation, generation_tokens)


_scope: Callable[[str], Any] | None = None


def record_function_or_nullcontext(name: str) -> Any:
    global _scope
    if _scope is not None:
        return _scope(name)
    chosen: Callable[[str], Any] = contextlib.nullcontext
    if int(os.environ.get("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "0")):
        chosen = torch.autograd.profiler.record_function
    elif int(os.environ.get("VLLM_NVTX_SCOPES_FOR_PROFILING", "0")):
        import nvtx

        chosen = nvtx.annotate
    _scope = chosen
    return chosen(name)
