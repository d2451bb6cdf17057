"""Random sequences of faults and calls: whatever happens in whatever order, each call ends, and nothing is left."""

import argparse
import contextlib
import os
import random
import signal
import threading
import time
from multiprocessing import Pipe

import faults
import pytest

from fastutils import APIServerProcessManager, shutdown

SEQUENCES = 200
THREADS = 4
#: Beyond its own time limit a call may take this long, on a machine that is busy with other things.
SLACK_S = 20.0
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT, signal.SIGSEGV, signal.SIGHUP)
#: What no sequence may end with: the rest is what the calls promise to raise.
EXPECTED = (
    "Timed out after",
    "exited (code=",
    "closed its address pipe",
    "the API servers were shut down before",
    "cannot start API server process",
)


class Sequence:
    """One sequence, the same each time for the same seed as far as the servers' own timing lets it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.done = [f"seed {seed}"]
        count = self.random.randint(1, 3)
        self.gate, self.opener = Pipe(duplex=False)
        args = argparse.Namespace(
            who=self.random.randrange(4),  # sometimes nobody
            fault=self.random.choice(list(faults.FAULTS)),
            phase=self.random.choice(faults.PHASES[1:]),
            gate=self.gate,
        )
        self.done.append(f"{count} servers, {args.who}: {args.fault}, {args.phase}")
        addresses = ["ipc:///never-bound"] * count
        self.manager = APIServerProcessManager(
            "", None, args, count, addresses, addresses, target_server_fn=faults.serve
        )
        self.processes = list(self.manager.processes)

    def run(self):
        calls = [self.gather, self.gather, self.signal, self.open_gate, self.shutdown_some, self.shutdown, self.wait]
        with self.gate, self.opener:
            for _ in range(self.random.randint(1, 5)):
                self.timed(self.random.choice(calls))
            self.timed(self.random.choice([self.shutdown, self.forget]))
        assert all(process.exitcode is not None for process in self.processes), self.done

    def timed(self, call):
        began = time.monotonic()
        self.done.append(call.__name__)
        try:
            call()
        except RuntimeError as error:
            if not any(text in str(error) for text in EXPECTED):
                raise
        assert time.monotonic() - began < SLACK_S, self.done

    def gather(self):
        self.manager.gather_actual_addresses(self.random.uniform(0, 0.5))

    def signal(self):
        process = self.random.choice(self.processes)
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, self.random.choice(SIGNALS))

    def open_gate(self):
        self.opener.send("now")

    def shutdown_some(self):
        shutdown(self.random.sample(self.processes, self.random.randint(0, len(self.processes))), 0.1)

    def shutdown(self):
        self.manager.shutdown(self.random.uniform(0, 0.3))

    def wait(self):
        self.random.choice(self.processes).join(0.01)

    def forget(self):
        self.manager = None  # with the default grace


@pytest.mark.parametrize("part", range(THREADS))
def test_sequences(part):
    failures = []

    def run(seeds):
        for seed in seeds:
            try:
                Sequence(seed).run()
            except BaseException as error:
                failures.append((seed, repr(error)))

    own = range(part, SEQUENCES, THREADS)
    threads = [threading.Thread(target=run, args=(own[half::2],)) for half in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
