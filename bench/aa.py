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

#: The same for cases that torch runs in several threads: they wait for each other, so one busy core slows all.
PARALLEL_LIMIT = 0.05

#: A short, a middle and a long one: noise is not the same for all of them.
PROBES = ("ConstantList: x[5]", "copy_slice: 64 B, grad mode", "compute_iteration_details: N=64")
PARALLEL = "copy_slice: 1 MB"


def probe(name: str, settings: Any, clock: Clock = time.perf_counter_ns, form: Any = upstream) -> Noise:
    """The noise of the case `name`: `form` on both sides, built and measured as any case is."""
    (case,) = [case for case in cases() if case.id == name]
    builds = [(case.make(form), case.make(form)) for _ in range(settings.builds)]
    found = []
    with steady(one_core=not case.parallel), case.mode():
        for one, two in builds:
            rounds, sample_ns = settings.rounds, settings.sample_ns
            found.append(measure(one.loop, two.loop, rounds=rounds, sample_ns=sample_ns, clock=clock))
    verdict = judge(*found)
    return Noise(verdict.ratio, verdict.low, verdict.high)


def probes(settings: Any, form: Any = upstream) -> dict[str, Noise]:
    """The noise of each of PROBES."""
    return {name: probe(name, settings, form=form) for name in PROBES}


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


def unsettled(parallel: dict[str, Noise]) -> str:
    """Why cases in several threads have no verdict; empty where they have one."""
    if not parallel or worst(parallel).floor <= PARALLEL_LIMIT:
        return ""
    return f"other work had a core: in several threads the same code gives 1 only within {worst(parallel).floor:.0%}"


def main(arguments: list[str] | None = None, settings: Any = None) -> int:
    """Print the noise floor. Exit status 0, or 1 where it is too high for verdicts."""
    from bench import micro

    parser = argparse.ArgumentParser(prog="python -m bench.aa", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    chosen = parser.parse_args(arguments)
    torch.ones(1)
    settings = settings or (micro.QUICK if chosen.quick else micro.Settings())
    found = probes(settings)
    print(environment.header(environment.facts(), {}, worst(found)))
    parallel = {f"{PARALLEL}, in several threads": probe(PARALLEL, settings)}
    rows = [
        [name, f"{noise.ratio:.4f}", f"[{noise.low:.4f}, {noise.high:.4f}]", f"{noise.floor:.2%}"]
        for name, noise in {**found, **parallel}.items()
    ]
    print("\n" + table.render(["the same code on both sides", "ratio", "95 % interval", "floor"], rows))
    why = [reason for reason in (refusal(worst(found)), unsettled(parallel)) if reason]
    if why:
        print("\n" + "\n".join(why))
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main())
