"""A model runner's loop that is steps ahead of its device: inputs by a StagingGroup, results by fetches.

    python examples/staging.py [--steps 200] [--requests 64] [--ahead 4] [--device cuda]

Each step writes the inputs of its requests into the same host buffers, at once after the step before it was launched,
and nobody waits for the device in between. The "model" adds up each request's inputs on the device, so that every
result tells which inputs it was computed from. Results are read `--ahead` steps later; each is compared with what the
host had written for that step, and the program says how many were wrong, and what the group did.

Runs on the CPU where there is no GPU: there a copy is done when it returns, and nothing is ahead of anything.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque

import numpy as np
import torch

from fastutils import StagingGroup

BLOCKS = 4


class Runner:
    """The buffers of a runner for up to `requests` requests, and a step of it."""

    def __init__(self, requests: int, device: torch.device) -> None:
        self.group = StagingGroup(device)
        self.input_ids = self.group.buffer("input_ids", requests, dtype=torch.int32)
        self.positions = self.group.buffer("positions", requests, dtype=torch.int64)
        self.seq_lens = self.group.buffer("seq_lens", requests, dtype=torch.int32)
        self.block_table = self.group.buffer("block_table", requests, BLOCKS, dtype=torch.int32)
        self.sampled = self.group.buffer("sampled", requests, dtype=torch.int64)
        self.group.freeze()
        # Something for the device to do, or it would keep up with the host.
        self.ballast = torch.ones(1024, 1024, device=device) if device.type != "cpu" else None

    def launch(self, n: int, step: int):
        """Start one step of `n` requests. Returns the fetch of its results, and what these must be."""
        rng = np.random.default_rng(step)
        with self.group.step():
            self.input_ids.np[:n] = rng.integers(0, 32_000, n)
            self.positions.np[:n] = rng.integers(0, 4096, n)
            self.seq_lens.np[:n] = self.positions.np[:n] + 1
            self.block_table.np[:n] = rng.integers(0, 1000, (n, BLOCKS))
            inputs = [
                buffer.copy_to_gpu(n) for buffer in (self.input_ids, self.positions, self.seq_lens, self.block_table)
            ]
        self.model(inputs, self.sampled.gpu[:n])
        wanted = self.input_ids.np[:n] + self.positions.np[:n] + self.seq_lens.np[:n] + self.block_table.np[:n].sum(1)
        return self.group.fetch({"sampled": n}), wanted

    def model(self, inputs: list[torch.Tensor], sampled: torch.Tensor) -> None:
        """Adds up what it is given, into `sampled`."""
        if self.ballast is not None:
            for _ in range(4):
                torch.mm(self.ballast, self.ballast)
        input_ids, positions, seq_lens, block_table = inputs
        sampled.copy_(input_ids + positions + seq_lens + block_table.sum(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--ahead", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    runner = Runner(arguments.requests, torch.device(arguments.device))
    in_flight: deque = deque()
    wrong = 0
    with runner.group as group:
        for step in range(arguments.steps):
            in_flight.append(runner.launch(1 + step % arguments.requests, step))
            while len(in_flight) > arguments.ahead or (in_flight and step == arguments.steps - 1):
                fetch, wanted = in_flight.popleft()
                wrong += not np.array_equal(fetch.wait()["sampled"].numpy(), wanted)
        print(f"{arguments.steps} steps on {group.device}, {wrong} of them wrong")
        print(group.stats())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
