"""Reading back from a device without a race."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from fastutils.tensors.buffer import CpuGpuBuffer
from fastutils.tensors.staging.uploads import is_capturing


class Fetch:
    """Rows on their way from a device into host memory of their own, which nobody sees before they have arrived.

    `ready` asks, `wait` waits and returns them, `views` holds them after either said so: one CPU tensor, or a dict of
    them. Nothing else writes into that memory, ever, and it lives as long as the views do.

    Source: ``cudaMemcpyAsync`` down the current stream, and an event behind it.
    """

    def __init__(self, source: torch.Tensor | dict[str, torch.Tensor], pin_memory: bool) -> None:
        several = source if isinstance(source, dict) else {"": source}
        device = next((tensor.device for tensor in several.values()), torch.device("cpu"))
        if is_capturing(device):
            raise RuntimeError("a fetch cannot be captured into a graph: its event would never tell of a replay")
        with torch.no_grad():
            arrived = {
                name: torch.empty(
                    tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pin_memory and device.type != "cpu"
                ).copy_(tensor, non_blocking=True)
                for name, tensor in several.items()
            }
        self._arrived: Any = arrived if isinstance(source, dict) else arrived[""]
        self._event: Any = None
        if device.type != "cpu":
            module = torch.get_device_module(device)
            self._event = module.Event()
            self._event.record(module.current_stream(device))
        self._done = device.type == "cpu"

    def ready(self) -> bool:
        """Whether everything has arrived. Does not block."""
        self._done = self._done or self._event.query()
        return self._done

    def wait(self, timeout: float | None = None) -> Any:
        """Block, without the GIL, until everything has arrived, and return the views.

        TimeoutError after `timeout` seconds; the fetch goes on, and may be waited for again.
        """
        if timeout is None:
            if not self._done:
                self._event.synchronize()
                self._done = True
            return self._arrived
        if math.isnan(timeout):
            raise ValueError("timeout is not a number; give seconds, or None to wait for as long as it takes")
        deadline, pause = time.monotonic() + timeout, 2e-5
        while not self.ready():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the rows have not arrived within {timeout} s")
            time.sleep(min(pause, left))
            pause = min(2 * pause, 1e-3)
        return self._arrived

    @property
    def views(self) -> Any:
        """What was fetched. RuntimeError before `ready` was true or `wait` returned."""
        if not self._done:
            raise RuntimeError("nobody has waited for this fetch yet: ask ready() or wait() before its views")
        return self._arrived


def fetch(buffer: CpuGpuBuffer, n: int | None = None) -> Fetch:
    """Copy all rows of ``buffer.gpu``, or the first `n` (slice rules), back. The `Fetch` yields one CPU tensor."""
    source = buffer.gpu if n is None else buffer.gpu[:n]
    return Fetch(source, buffer.cpu.is_pinned())
