"""How bytes travel: the modes, and what a runtime call and a kilobyte cost on a link."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, get_args

import torch

Mode = Literal["auto", "pack", "merge", "loop"]
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True)
class Costs:
    """Nanoseconds that a runtime call takes, and that a kilobyte takes on the link."""

    call_ns: float
    kb_ns: float


#: Kind of link -> its costs: a call's host time, which hardly depends on the link, and the bandwidth in practice.
DEFAULTS = {
    "PCIe 4.0 x16": Costs(2300, 42),  # 24 GB/s
    "PCIe 5.0 x16": Costs(2300, 19),  # 53 GB/s
    "NVLink-C2C": Costs(2300, 2.7),  # 370 GB/s
}
DEFAULT = DEFAULTS["PCIe 4.0 x16"]

_measured: dict[torch.device, Costs] = {}


def costs_of(device: torch.device) -> Costs:
    """What `calibrate` measured in this process, else the default: a byte too few is the safer mistake."""
    return _measured.get(device, DEFAULT)


@dataclass(frozen=True)
class Rules:
    """A mode, as an upload follows it."""

    pack: bool  #: buffers of one live width at one pitch become one strided copy
    gap: int  #: full neighbours are joined over so many bytes of padding; -1: never


def rules_of(mode: str, costs: Costs) -> Rules:
    """ValueError for a mode that there is not."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(map(repr, MODES))}")
    if mode == "loop":
        return Rules(pack=False, gap=-1)
    if mode == "merge":
        return Rules(pack=False, gap=2**62)
    if mode == "pack":
        return Rules(pack=True, gap=-1)
    return Rules(pack=True, gap=int(costs.call_ns / max(costs.kb_ns, 1e-9) * 1024))


def calibrate(device: torch.device | str) -> Costs:
    """Measure `device`'s link, and keep the result for the groups that this process makes from now on.

    Takes some 20 ms and blocks; the device should be idle. Both numbers are medians over several rounds, of pinned
    copies down the current stream. On the CPU, where nothing is called and nothing is padded, the defaults stay.
    """
    device = torch.empty(0, device=device).device
    if device.type == "cpu":
        return costs_of(device)
    module = torch.get_device_module(device)
    small, large = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in (64, 8 << 20))
    targets = [torch.empty_like(tensor, device=device) for tensor in (small, large)]

    def ns(source: torch.Tensor, target: torch.Tensor, copies: int) -> float:
        times = []
        for _ in range(7):
            module.synchronize(device)
            start = time.perf_counter_ns()
            for _ in range(copies):
                target.copy_(source, non_blocking=True)
            module.synchronize(device)
            times.append((time.perf_counter_ns() - start) / copies)
        return sorted(times)[len(times) // 2]

    call = ns(small, targets[0], 200)
    whole = ns(large, targets[1], 4)
    found = Costs(call, max(whole - call, 1.0) / (large.numel() / 1024))
    _measured[device] = found
    return found
