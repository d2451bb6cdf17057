"""What a fresh process pays: importing the helpers, and the first call of each.

Every sample is a process of its own (this module, run as a program), the two sides in turn. torch is imported before
the clock runs: whoever uses the helpers has it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.paired import Rounds, Verdict, judge

CHECKOUT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300

IMPORT = "first: import of the helpers"
CALLS = {
    "first call: ConstantList": "ConstantList",
    "first call: compute_iteration_details": "compute_iteration_details",
    "first call: record_function_or_nullcontext": "record_function_or_nullcontext",
    "first call: CpuGpuBuffer, copy_to_gpu": "CpuGpuBuffer",
    "first call: copy_slice": "copy_slice",
    "first call: tensor_data": "tensor_data",
}
IDS = (IMPORT, *CALLS)


class Failed(Exception):
    """A process that was to be timed did not end as it should."""


def run(
    modules: tuple[str, str], rounds: int, start: Callable[[str], dict[str, float]] | None = None
) -> dict[str, Verdict]:
    """Time both modules (upstream's, ours) in `rounds` pairs of fresh processes, A B B A; a verdict for each of IDS."""
    start = start or _child
    samples: dict[str, Rounds] = {name: Rounds([], [], []) for name in IDS}
    for index in range(rounds):
        for side in (0, 1) if index % 2 == 0 else (1, 0):
            for name, ns in start(modules[side]).items():
                (samples[name].ours if side else samples[name].upstream).append(ns)
    for found in samples.values():
        found.loop.extend([0.0] * len(found.ours))
    return {name: judge(found) for name, found in samples.items()}


def _child(module: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.first_calls", module]
    # The child finds what this process finds, wherever that came from.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, sys.path)])}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=CHECKOUT, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failed(f"{' '.join(command[1:])} ended with status {done.returncode}: {last}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _calls(helpers: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The calls, their arguments made beforehand."""
    import torch

    from bench.recording import CachedRequestData, SchedulerOutput

    tokens = list(range(256))
    source, target = torch.zeros(64), torch.zeros(64)
    output = SchedulerOutput([], CachedRequestData(["a", "b"], [0, 3]), {"a": 7, "b": 1}, 8)

    def scope() -> None:
        with helpers["record_function_or_nullcontext"]("x"):
            pass

    def buffer() -> None:
        helpers["CpuGpuBuffer"](8, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False).copy_to_gpu(5)

    return {
        "ConstantList": lambda: helpers["ConstantList"](tokens)[-1],
        "compute_iteration_details": lambda: helpers["compute_iteration_details"](output),
        "record_function_or_nullcontext": scope,
        "CpuGpuBuffer": buffer,
        "copy_slice": lambda: helpers["copy_slice"](source, target, 48),
        "tensor_data": lambda: helpers["tensor_data"](source),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """In the child: import the module that is named, call everything once, print the times in ns as JSON."""
    import numpy  # noqa: F401
    import torch

    (module,) = sys.argv[1:] if arguments is None else arguments
    torch.ones(2)[:1].copy_(torch.zeros(1))  # torch's own first call is not the helpers'
    clock = time.perf_counter_ns
    begun = clock()
    home = importlib.import_module(module)
    helpers = {name: getattr(home, name) for name in CALLS.values()}
    times: dict[str, int] = {IMPORT: clock() - begun}
    calls = _calls(helpers)
    for label, name in CALLS.items():
        call = calls[name]
        begun = clock()
        call()
        times[label] = clock() - begun
    print(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
