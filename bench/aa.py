"""Measures the same code against itself: how far from 1 a ratio lies that means nothing on this machine, right now.

Everything else prints this first, and gives no verdict where it is above LIMIT.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch

from bench import environment, table, upstream
from bench.cases import cases
from bench.environment import Noise
from bench.paired import Clock, judge, measure, steady

#: Above this a machine is too restless for a verdict.
LIMIT = 0.02

#: A short, a middle and a long one: noise is not the same for all of them.
PROBES = ("ConstantList: x[5]", "copy_slice: 64 B, grad mode", "compute_iteration_details: N=64")


def probes(settings: Any, clock: Clock = time.perf_counter_ns, form: Any = upstream) -> dict[str, Noise]:
    """The noise of each probe: `form` on both sides, built and measured as any case is."""
    chosen = {case.id: case for case in cases() if case.id in PROBES}
    found = {}
    for name in PROBES:
        case = chosen[name]
        builds = [(case.make(form), case.make(form)) for _ in range(settings.builds)]
        with steady(), case.mode():
            verdict = judge(
                *(
                    measure(one.loop, two.loop, rounds=settings.rounds, sample_ns=settings.sample_ns, clock=clock)
                    for one, two in builds
                )
            )
        found[name] = Noise(verdict.ratio, verdict.low, verdict.high)
    return found


def worst(found: dict[str, Noise]) -> Noise:
    """The probe with the highest floor."""
    return max(found.values(), key=lambda noise: noise.floor)


def refusal(noise: Noise | None) -> str:
    """Why there are no verdicts; empty where there are some."""
    if noise is None or noise.floor <= LIMIT:
        return ""
    return (
        f"NO VERDICTS: the noise floor is {noise.floor:.1%}, above {LIMIT:.0%}. Something else keeps this machine "
        "busy, or its clock changes; run again when it is quiet."
    )


def main(arguments: list[str] | None = None, settings: Any = None) -> int:
    """Print the noise floor. Exit status 0, or 1 where it is too high for verdicts."""
    from bench import micro

    parser = argparse.ArgumentParser(prog="python -m bench.aa", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    chosen = parser.parse_args(arguments)
    torch.ones(1)
    found = probes(settings or (micro.QUICK if chosen.quick else micro.Settings()))
    print(environment.header(environment.facts(), {}, worst(found)))
    rows = [
        [name, f"{noise.ratio:.4f}", f"[{noise.low:.4f}, {noise.high:.4f}]", f"{noise.floor:.2%}"]
        for name, noise in found.items()
    ]
    print("\n" + table.render(["the same code on both sides", "ratio", "95 % interval", "floor"], rows))
    if why := refusal(worst(found)):
        print(f"\n{why}")
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main())
