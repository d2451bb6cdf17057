"""The bytes of a tensor: the Python form."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def tensor_data(tensor: torch.Tensor) -> memoryview:
    """The elements of `tensor` as a writable, one-dimensional, contiguous memoryview of unsigned bytes.

    It is the tensor's own memory if that is contiguous and on the CPU (a write through either is seen by both), else
    a contiguous CPU copy; a device tensor is waited for. Elements come in row-major order, in the machine's byte
    order. The memoryview keeps the memory alive. ``memoryview.obj.base`` is a `torch.Tensor` over the same memory.
    What has no plain bytes (sparse, meta, a lazy conjugate) raises what PyTorch raises.

    Upstream: ``vllm.v1.utils.tensor_data``, which fails for a tensor of at most one element with a stride but 1.
    """
    import torch

    flat = tensor.flatten().contiguous().cpu()
    if flat.stride() != (1,):  # none or one element, whose stride is no matter, but view() would refuse it
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8).numpy().data


tensor_data.__module__ = "fastutils"  # where both forms are pickled from
