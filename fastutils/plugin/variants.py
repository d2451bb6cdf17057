"""Our helpers in the forms that different versions of vLLM want.

A builder gets upstream's module and our object, and returns what is put in the place of upstream's object of the same
name. It is called once per process, and only for a vLLM whose own form of the helper is known (see `versions`). Those
of `STAGED` are also told whether a buffer is staged where its caller says nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def as_it_is(upstream: ModuleType, ours: Any) -> Any:
    return ours


def _named_as(upstream: ModuleType, ours: Any, made: Any) -> Any:
    # Pickled by this name, it is found in processes that have the plugin and in those that do not.
    made.__module__ = upstream.__name__
    made.__name__ = made.__qualname__ = ours.__name__
    made.__doc__ = ours.__doc__
    return made


def _pins(upstream: ModuleType) -> Any:
    return inspect.signature(upstream.CpuGpuBuffer).parameters["pin_memory"].default


def buffer(upstream: ModuleType, ours: Any, staged_by_default: bool = False, staged_only_pinned: bool = False) -> Any:
    """CpuGpuBuffer with this vLLM's own answer to whether memory is pinned: it knows platforms that we do not."""

    class Buffer(ours):  # type: ignore[misc]
        def __init__(
            self,
            *size: int | torch.SymInt,
            dtype: torch.dtype,
            device: torch.device,
            pin_memory: bool = _pins(upstream),
            with_numpy: bool = True,
            staged: bool = staged_by_default,
        ) -> None:
            if staged_only_pinned:
                staged = staged and pin_memory
            super().__init__(
                *size, dtype=dtype, device=device, pin_memory=pin_memory, with_numpy=with_numpy, staged=staged
            )

    return _named_as(upstream, ours, Buffer)


def buffer_that_stages(upstream: ModuleType, ours: Any, staged_by_default: bool = False) -> Any:
    """The buffer of vLLM 0.30 and later: where memory is pinned, an unpinned ``cpu`` is copied by way of pinned memory.

    Its rows may then be changed as soon as `copy_to_gpu` has returned, so it needs no slots to be staged by default.
    """
    if not upstream.PIN_MEMORY:
        return buffer(upstream, ours, staged_by_default)
    plain: Any = buffer(upstream, ours, staged_by_default, staged_only_pinned=staged_by_default)

    class StagingBuffer(plain):  # type: ignore[misc]
        def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
            cpu = self.cpu
            if cpu.is_pinned():
                return super().copy_to_gpu(n)  # type: ignore[no-any-return]
            gpu = self.gpu
            if n is not None:
                cpu, gpu = cpu[:n], gpu[:n]
            return gpu.copy_(cpu.pin_memory(), non_blocking=True)  # type: ignore[no-any-return]

    StagingBuffer.copy_to_gpu.__doc__ = ours.copy_to_gpu.__doc__
    return _named_as(upstream, ours, StagingBuffer)


def called_as_there(upstream: ModuleType, ours: Any) -> Any:
    """A process manager that is called as this vLLM calls its own: with addresses or sockets, in its order.

    Ours knows every parameter of the known forms by its name. The default worker is whatever
    ``vllm.v1.utils.run_api_server_worker_proc`` is at the moment of the call.
    """
    signature = inspect.signature(getattr(upstream, ours.__name__).__init__)

    class Manager(ours):  # type: ignore[misc]
        def __init__(self, /, *arguments: Any, **options: Any) -> None:
            given = signature.bind(self, *arguments, **options).arguments
            del given["self"]
            if "target_server_fn" in signature.parameters and given.get("target_server_fn") is None:
                given["target_server_fn"] = upstream.run_api_server_worker_proc
            super().__init__(**given)

    Manager.__init__.__signature__ = signature  # type: ignore[attr-defined]
    return _named_as(upstream, ours, Manager)


def with_encoder_counts(upstream: ModuleType, ours: Any) -> Any:
    from fastutils.plugin import encoder_counts

    made = getattr(encoder_counts, ours.__name__)
    made.__module__ = upstream.__name__
    return made


VARIANTS: dict[str, Callable[..., Any]] = {
    "as it is": as_it_is,
    "buffer": buffer,
    "buffer that stages": buffer_that_stages,
    "called as there": called_as_there,
    "encoder counts": with_encoder_counts,
}

STAGED = frozenset({"buffer", "buffer that stages"})
