"""Host time of one staged upload to a device, against upstream's copies one by one and against copy_to_gpu_many.

Needs a device: a GPU, or the stand-in runtime of tests/fakecuda, on which a copy is a memcpy and an event is free, so
that what is left of a time is the work around the runtime's calls. Every call is timed by itself, the device
synchronized before it; the sides take turns (cold.py). A time never fails the run; a wrong byte does.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench import environment, recording, table, upstream
from bench.cases.model import Target
from bench.cases.staging import NAMES, SIZES, arrived, staged
from bench.cold import measure_cold
from bench.paired import Clock, Incorrect, Loop, Verdict, judge, steady
from bench.replay import buffer_calls
from bench.staged import make_staged, requests

N = 48
ROUNDS = 400
COPIES = "for b in buffers: b.copy_to_gpu(n)"
FAKE = Path(__file__).resolve().parents[1] / "tests" / "fakecuda" / "fake.py"


def stand_in() -> Any:
    """The stand-in runtime's controls, or None where the runtime is a real one."""
    if not FAKE.is_file():
        return None
    spec = importlib.util.spec_from_file_location("fakecuda_controls", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module.loaded()


@dataclass(frozen=True)
class Way:
    """One way to upload all buffers: the loop that is timed, and the buffers that it uploads."""

    name: str
    loop: Loop
    buffers: Sequence[Any]

    def check(self) -> None:
        """Incorrect if a call brings anything but the first N rows of each buffer."""
        found = arrived(self.buffers, [N] * len(SIZES), lambda: self.loop.run(self.loop.items(1)))
        if not all(found):
            raise Incorrect(f"{self.name} is wrong in the buffers {[i for i, right in enumerate(found) if not right]}")


def ways(ours: Any) -> tuple[dict[str, Way], Any]:
    """Every way by its key, each with buffers of its own, and the group of the staged ones."""
    plain = {"dtype": torch.int32, "device": torch.device("cuda"), "pin_memory": True}
    one_by_one, many = ([side.CpuGpuBuffer(rows, **plain) for rows in SIZES] for side in (upstream, ours))
    group = ours.StagingGroup("cuda")
    buffers = staged(group)
    ns = [N] * len(SIZES)
    made = {
        "upstream": Way("upstream's loop", Loop(COPIES, buffers=one_by_one, n=N), one_by_one),
        "many": Way("copy_to_gpu_many", Loop("f(buffers, ns)", f=ours.copy_to_gpu_many, buffers=many, ns=ns), many),
        "flush": Way("flush(n)", Loop("flush(n)", flush=group.flush, n=N), buffers),
        "dict": Way(
            "flush() of a new dict",
            Loop("flush(dict.fromkeys(names, n))", flush=group.flush, names=NAMES, n=N),
            buffers,
        ),
        "step": Way(
            "step() around the copies",
            Loop(f"with step():\n    {COPIES}", step=group.step, buffers=buffers, n=N),
            buffers,
        ),
    }
    return made, group


#: What is compared with what, and what the ratio is meant to be.
COMPARED: tuple[tuple[str, str, Target | None], ...] = (
    ("upstream", "flush", Target(8)),
    ("many", "flush", Target(2)),
    ("upstream", "many", None),
    ("upstream", "dict", None),
    ("upstream", "step", None),
)


def runtime_calls(made: dict[str, Way], group: Any, fake: Any) -> dict[str, int]:
    """Copies that each way asks of the runtime: counted by the stand-in, else known of the form or the group."""
    found = {}
    for key, way in made.items():
        torch.cuda.synchronize()
        before = fake.calls() if fake else group.stats().runtime_calls
        way.loop.run(way.loop.items(1))
        after = fake.calls() if fake else group.stats().runtime_calls
        found[key] = after - before if fake or key not in ("upstream", "many") else len(SIZES)
    return found


@dataclass(frozen=True)
class Recorded:
    """The buffer copies of a recorded trace, through one group on the device: means over its steps."""

    trace: str
    steps: int
    copies: float
    runtime_calls: float
    live_bytes: float
    bytes_moved: float


def replayed(trace: str, ours: Any) -> Recorded:
    """Upload what the steps of `trace` uploaded, and have the group count."""
    steps = list(recording.steps(trace))
    group = ours.StagingGroup("cuda")
    kept = [make_staged(group, key) for key in dict.fromkeys(key for step in steps for key, _ in buffer_calls(step))]
    for request in requests(steps):
        group.flush(request)
        torch.cuda.synchronize()
    found = group.stats()
    assert kept
    of = len(steps)
    copies = sum(len(step.copy_to_gpu) for step in steps) / of
    return Recorded(trace, of, copies, found.runtime_calls / of, found.live_bytes / of, found.bytes_moved / of)


def measure(made: dict[str, Way], rounds: int, clock: Clock) -> Iterator[tuple[str, str, Target | None, Verdict]]:
    """The verdict of each comparison. Incorrect if a way is wrong, before its timing or after it."""
    with steady(), torch.inference_mode():
        for one, other, target in COMPARED:
            for key in (one, other):
                made[key].check()
            found = measure_cold(
                made[one].loop, made[other].loop, rounds=rounds, flush=torch.cuda.synchronize, clock=clock
            )
            for key in (one, other):
                made[key].check()
            yield one, other, target, judge(found)


def main(arguments: list[str] | None = None, ours: Any = None, clock: Clock = time.perf_counter_ns) -> int:
    """Measure and print. Exit status 0, 1 if a way is wrong, 2 without a device.

    `ours` replaces fastutils.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.staging_host", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each comparison ({ROUNDS})")
    parser.add_argument("--json", metavar="FILE", help="also write everything to FILE")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            "There is no device: neither a GPU nor the stand-in runtime. tests/fakecuda/README.md says how that is "
            "loaded; without a device python -m bench.micro -k staging times groups on the CPU.",
            file=sys.stderr,
        )
        return 2
    if ours is None:
        import fastutils as ours
    fake = stand_in()
    facts = {
        **environment.facts(),
        "runtime": "the STAND-IN of tests/fakecuda: no GPU took part, a copy is a memcpy and an event is free"
        if fake
        else f"CUDA {torch.version.cuda} on {torch.cuda.get_device_name()}",
        "upstream": "upstream's form (bench/upstream.py: plain Python of the same behaviour)",
    }
    quiet: Callable[[], contextlib.AbstractContextManager[Any]] = fake.quiet if fake else contextlib.nullcontext
    try:
        with quiet():
            made, group = ways(ours)
            verdicts = list(measure(made, chosen.rounds, clock))
            calls = runtime_calls(made, group, fake)
            traces = [replayed(trace, ours) for trace in recording.available()]
    except Incorrect as error:
        print(f"incorrect: {error}\nNo number is printed.", file=sys.stderr)
        return 1
    print(environment.header(facts, environment.forms(["StagingGroup", "copy_to_gpu_many"]), None))
    print(f"\nHost time of one upload of {len(SIZES)} buffers of {min(SIZES)}-{max(SIZES)} int32, {N} rows each\n")
    print(render(made, verdicts, calls))
    counted = (
        "as the runtime counted them" if fake else "the group's own count; upstream's form makes one for each copy"
    )
    print(f"\nruntime calls: copies asked of the runtime for one upload, {counted}.")
    print("\nThe buffer copies of the recorded engine steps by one group, mean per step\n")
    print(render_traces(traces))
    if chosen.json:
        document = {
            "environment": facts,
            "stand_in": fake is not None,
            "rounds": chosen.rounds,
            "runtime_calls": calls,
            "compared": [
                {"before": one, "after": other, "target": target and str(target), **asdict(verdict)}
                for one, other, target, verdict in verdicts
            ],
            "traces": [asdict(found) for found in traces],
        }
        Path(chosen.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def render(
    made: dict[str, Way], verdicts: Sequence[tuple[str, str, Target | None, Verdict]], calls: dict[str, int]
) -> str:
    rows = []
    for one, other, target, verdict in verdicts:
        name = f"{made[other].name} against {made[one].name}"
        times = [table.number(time / 1e3) for time in (verdict.upstream_ns, verdict.ours_ns)]
        ratio = [f"{verdict.ratio:.2f}x", table.interval(verdict.low, verdict.high)]
        counts = f"{calls[one]} -> {calls[other]}"
        rows.append([name, *times, *ratio, str(target or ""), target.judge(verdict) if target else "", counts])
    titles = ["", "before µs", "after µs", "ratio", "95 % interval", "target", "target met", "runtime calls"]
    return table.render(titles, rows)


def render_traces(traces: Sequence[Recorded]) -> str:
    rows = [
        [
            found.trace,
            str(found.steps),
            f"{found.copies:.1f}",
            f"{found.runtime_calls:.2f}",
            f"{found.live_bytes:,.0f}",
            f"{found.bytes_moved:,.0f}",
        ]
        for found in traces
    ]
    titles = ["trace", "steps", "copies before", "runtime calls staged", "live bytes", "bytes moved"]
    return table.render(titles, rows)


if __name__ == "__main__":
    sys.exit(main())
