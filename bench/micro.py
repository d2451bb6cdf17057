"""Times every case of cases.py against upstream's form, in pairs, and says which targets are met.

An incorrect case prints no number and makes the exit status 1. A time never does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench import environment, table, upstream
from bench.cases import Case, Side, cases
from bench.paired import Clock, Incorrect, Loop, Verdict, judge, measure, steady
from bench.progress import bar


@dataclass(frozen=True)
class Settings:
    """How much is measured: `builds` of both sides, `rounds` of each; samples and the budget of a case are in ns.

    A case of very large tensors is built less often. Whatever the budget, a case has seven rounds.
    """

    rounds: int = 11
    builds: int = 11
    sample_ns: int = 200_000
    budget_ns: int = 4_000_000_000


QUICK = Settings(rounds=5, builds=5, sample_ns=100_000, budget_ns=1_000_000_000)


@dataclass(frozen=True)
class Measured:
    """A case with its verdict, or with the reason why there is none."""

    case: Case
    verdict: Verdict | None
    error: str = ""

    @property
    def met(self) -> str:
        if self.verdict is None or self.case.target is None:
            return ""
        return self.case.target.judge(self.verdict)


def run_case(case: Case, ours: Any, settings: Settings, clock: Clock = time.perf_counter_ns) -> Measured:
    """Check one case on both sides, time it, check it again. The sides are built anew, so nothing outlives the case."""
    if case.helper not in dir(ours):
        return Measured(case, None, f"fastutils has no {case.helper}")
    try:
        found = []
        number = min(case.builds, settings.builds)
        # All are made first and kept, so that each lies elsewhere in memory, and outside the mode, as an engine's are.
        builds = [(case.make(upstream), case.make(ours)) for _ in range(number)]
        with steady(one_core=not case.parallel), case.mode():
            for sides in builds:
                _check(sides)
                rounds = measure(
                    sides[0].loop,
                    sides[1].loop,
                    rounds=settings.rounds * settings.builds // number,
                    sample_ns=settings.sample_ns,
                    budget_ns=settings.budget_ns // number,
                    fewest=math.ceil(7 / number),
                    clock=clock,
                )
                _check(sides)
                found.append(rounds)
    except Incorrect as error:
        return Measured(case, None, f"INCORRECT: {error}")
    return Measured(case, judge(*found))


def _check(sides: tuple[Side, Side]) -> None:
    for who, side in zip(("upstream's form", "fastutils"), sides, strict=True):
        try:
            found = side.outcome()
        except Exception as error:
            raise Incorrect(f"{who} raised {type(error).__name__}: {error}") from error
        if type(found) is not type(side.expected) or found != side.expected:
            raise Incorrect(f"{who} gives {found!r:.120}, expected {side.expected!r:.120}")


def noise(settings: Settings, clock: Clock = time.perf_counter_ns) -> environment.Noise:
    """The same code on both sides: an operation as short as any that is measured."""

    def loop() -> Loop:
        return Loop("x[5]", x=upstream.ConstantList(list(range(100))))

    builds = [(loop(), loop()) for _ in range(settings.builds)]
    with steady():
        sample_ns, rounds = settings.sample_ns, settings.rounds
        found = judge(*(measure(*sides, rounds=rounds, sample_ns=sample_ns, clock=clock) for sides in builds))
    return environment.Noise(found.ratio, found.low, found.high)


def render(measured: Iterable[Measured]) -> str:
    """The table. A case without a verdict shows why instead of numbers."""
    titles = ["case", "target", "upstream ns", "fastutils ns", "saved ns", "ratio", "95 % interval", "target met"]
    rows = []
    for row in measured:
        target = "" if row.case.target is None else str(row.case.target)
        label = row.case.id + (f" ({row.case.note})" if row.case.note else "")
        if row.verdict is None:
            rows.append([label, target, "-", "-", "-", "-", "-", row.error])
            continue
        v = row.verdict
        bound = "" if v.resolved else ">"
        times = [table.number(value) for value in (v.upstream_ns, v.ours_ns, v.difference_ns)]
        rows.append([label, target, *times, f"{bound}{v.ratio:.2f}x", table.interval(v.low, v.high), row.met])
    return table.render(titles, rows, left=2)


def as_json(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    return [
        {
            "id": row.case.id,
            "helper": row.case.helper,
            "target": None if row.case.target is None else str(row.case.target),
            "met": row.met or None,
            "correct": None
            if row.verdict is None and not row.error.startswith("INCORRECT")
            else row.verdict is not None,
            "error": row.error or None,
            **({} if row.verdict is None else asdict(row.verdict)),
        }
        for row in measured
    ]


def main(arguments: list[str] | None = None, ours: Any = None, settings: Settings | None = None) -> int:
    """Run the cases and print the table. Exit status 0, 1 if a case is incorrect, 130 after Ctrl-C.

    `ours` and `settings` replace fastutils and what --quick chooses.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=__doc__.splitlines()[0])
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases whose id contains TEXT")
    parser.add_argument("--list", action="store_true", help="print the ids and targets and measure nothing")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    parser.add_argument("--json", metavar="FILE", help="also write everything to FILE")
    chosen = parser.parse_args(arguments)
    selected = [case for case in cases() if chosen.k.lower() in case.id.lower()]
    if not selected:
        parser.error(f"no case contains {chosen.k!r}; see --list")
    if chosen.list:
        print(table.render(["case", "target"], [[case.id, str(case.target or "")] for case in selected], left=2))
        return 0
    for variable in ("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "VLLM_NVTX_SCOPES_FOR_PROFILING"):
        os.environ.pop(variable, None)  # both sides look once, at the first scope
    if ours is None:
        import fastutils as ours
    settings = settings or (QUICK if chosen.quick else Settings())
    facts = environment.facts()
    active = environment.forms(sorted({case.helper for case in selected if case.helper in dir(ours)}))
    measured: list[Measured] = []
    floor = None
    begun = time.monotonic()
    torch.ones(1 << 20).add_(
        1
    )  # torch's threads inherit the affinity of this moment; later one core may be all there is
    try:
        floor = noise(settings)
        for case in progress(selected):
            measured.append(run_case(case, ours, settings))
    except KeyboardInterrupt:
        pass
    print(environment.header(facts, active, floor))
    print(f"\n{render(measured)}\n")
    hopes = [row for row in measured if row.met]
    print(f"{sum(row.met.startswith('met') for row in hopes)} of {len(hopes)} targets met (~ the interval holds it).")
    wrong = [row for row in measured if row.error.startswith("INCORRECT")]
    if wrong:
        print(f"{len(wrong)} case(s) INCORRECT, without a number: {', '.join(row.case.id for row in wrong)}")
    interrupted = len(measured) < len(selected)
    if interrupted:
        print(f"INTERRUPTED: {len(measured)} of {len(selected)} cases were done.")
    print(f"{time.monotonic() - begun:.0f} s.")
    if chosen.json:
        document = {"environment": environment.as_json(facts, active), "settings": vars(settings)}
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({**document, "noise_floor": floor and vars(floor), "cases": as_json(measured)}, file, indent=1)
            file.write("\n")
    return 1 if wrong else 130 if interrupted else 0


def progress(selected: list[Case]) -> Iterator[Case]:
    """The cases, with a bar over them; quiet when stderr is no terminal."""
    with bar(len(selected), "case") as shown:
        for case in selected:
            yield case
            shown.update()


if __name__ == "__main__":
    sys.exit(main())
