"""Times every case of cases/ against upstream's form, in pairs, and says which targets are met.

An incorrect case prints no number and makes the exit status 1. A time never does.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench import aa, baseline, broken, cold, environment, first_calls, history, memory, results, show, table
from bench.cases import cases
from bench.cases.model import GROUPS, Case, Side
from bench.paired import Clock, Incorrect, Rounds, judge, measure, steady
from bench.progress import bar
from bench.results import Measured

#: Groups of cases, and the two tables that are not timed in pairs of calls.
SECTIONS = (*GROUPS, "first", "memory")


@dataclass(frozen=True)
class Settings:
    """How much is measured: `builds` of both sides, `rounds` of each; samples and the budget of a case are in ns.

    A case of very large tensors is built less often. Whatever the budget, a case has seven rounds. `cold_rounds` holds
    for each of at most three builds; `processes` is the number of pairs of fresh processes.
    """

    rounds: int = 11
    builds: int = 11
    sample_ns: int = 200_000
    budget_ns: int = 4_000_000_000
    cold_rounds: int = 7
    processes: int = 7


QUICK = Settings(rounds=5, builds=5, sample_ns=100_000, budget_ns=500_000_000, cold_rounds=2, processes=2)


def run_case(
    case: Case,
    ours: Any,
    settings: Settings,
    clock: Clock = time.perf_counter_ns,
    baseline: Any = baseline.FORM.helpers,
    flush: Callable[[], None] | None = None,
) -> Measured:
    """Check one case on both sides, time it, check it again. The sides are built anew, so nothing outlives the case."""
    if case.helper not in dir(ours):
        return Measured(case, None, f"fastutils has no {case.helper}")
    if broken.passes(case):
        return Measured(case, None, "REFUSED: its check lets a helper through that does everything wrong")
    builds: list[tuple[Side, Side]] = []
    try:
        number = min(case.builds, settings.builds, 3 if case.group == "cold" else settings.builds)
        # All are made first and kept, so that each lies elsewhere in memory, and outside the mode, as an engine's are.
        for _ in range(number):
            builds.append(case.sides(baseline, ours))
        found = []
        with steady(one_core=not case.parallel), case.mode():
            for sides in builds:
                _check(case, sides)
                if case.group == "cold":
                    found.append(_cold(sides, settings, flush or cold.Flush(), clock))
                else:
                    found.append(_warm(sides, settings, number, clock))
                _check(case, sides)
    except Incorrect as error:
        return Measured(case, None, f"INCORRECT: {error}")
    except ImportError as error:
        return Measured(case, None, f"not available: {error}")
    finally:
        for sides in builds:
            for side in sides:
                side.close()
    return Measured(case, judge(*found))


def _warm(sides: tuple[Side, Side], settings: Settings, builds: int, clock: Clock) -> Rounds:
    return measure(
        sides[0].loop,
        sides[1].loop,
        rounds=settings.rounds * settings.builds // builds,
        sample_ns=settings.sample_ns,
        budget_ns=settings.budget_ns // builds,
        fewest=math.ceil(7 / builds),
        clock=clock,
    )


def _cold(sides: tuple[Side, Side], settings: Settings, flush: Callable[[], None], clock: Clock) -> Rounds:
    return cold.measure_cold(sides[0].loop, sides[1].loop, rounds=settings.cold_rounds, flush=flush, clock=clock)


def _check(case: Case, sides: tuple[Side, Side]) -> None:
    other = "upstream's form" if case.peer is None else case.peer.name
    for who, side in zip((other, "fastutils"), sides, strict=True):
        try:
            found = side.outcome()
        except Exception as error:
            raise Incorrect(f"{who} raised {type(error).__name__}: {error}") from error
        if type(found) is not type(side.expected) or found != side.expected:
            raise Incorrect(f"{who} gives {found!r:.120}, expected {side.expected!r:.120}")
    if sides[0].expected != sides[1].expected:
        raise Incorrect(f"{other} is asked for {sides[0].expected!r:.80}, fastutils for {sides[1].expected!r:.80}")


def memory_entries(names: Iterable[str], baseline: Any, ours: Any) -> Iterator[dict[str, Any]]:
    """Memory per object on both sides, for the rows `names`."""
    sides = [memory.makers(helpers) for helpers in (baseline, ours)]
    for name in names:
        with torch.inference_mode():
            yield results.memory_entry(name, *(memory.measure(made[name]) for made in sides))


@dataclass
class Selection:
    """The rows that -k and --group leave."""

    cases: list[Case]
    first: list[str]
    memory: list[str]

    def __len__(self) -> int:
        return len(self.cases) + len(self.memory) + (1 if self.first else 0)

    def listing(self) -> str:
        rows = [[case.id, case.group, str(case.target or "")] for case in self.cases]
        rows += [[name, "first", ""] for name in self.first] + [[name, "memory", ""] for name in self.memory]
        return table.render(["case", "group", "target"], rows, left=3)


def select(text: str, groups: Sequence[str]) -> Selection:
    """What contains `text` and belongs to one of `groups`."""

    def wanted(name: str, group: str) -> bool:
        return group in groups and text.lower() in name.lower()

    return Selection(
        [case for case in cases() if wanted(case.id, case.group)],
        [name for name in first_calls.IDS if wanted(name, "first")],
        [name for name in memory.IDS if wanted(name, "memory")],
    )


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, Selection]:
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=__doc__.splitlines()[0])
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases whose id contains TEXT")
    parser.add_argument(
        "--group", action="append", choices=SECTIONS, help="only this group (may be given again; default: all)"
    )
    parser.add_argument("--list", action="store_true", help="print the ids and targets and measure nothing")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples: less than a minute")
    parser.add_argument(
        "--baseline",
        choices=baseline.CHOICES,
        default="auto",
        help="measure against upstream's form, or against an installed vLLM (default: vLLM where there is one)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write everything to FILE")
    parser.add_argument("--record", action="store_true", help="also add the run to history/")
    chosen = parser.parse_args(arguments)
    selection = select(chosen.k, chosen.group or SECTIONS)
    if not len(selection):
        parser.error(f"no case contains {chosen.k!r}; see --list")
    return chosen, selection


class Run:
    """One run of a selection: what it has found so far is in ``document`` at any moment."""

    def __init__(self, selection: Selection, against: baseline.Baseline, ours: Any, settings: Settings) -> None:
        self.selection, self.against, self.ours, self.settings = selection, against, ours, settings
        self.measured: list[Measured] = []
        helpers = {case.helper for case in selection.cases} | set(first_calls.CALLS.values() if selection.first else ())
        active = environment.forms(sorted(name for name in helpers if name in dir(ours)))
        self.document: dict[str, Any] = {
            "environment": environment.as_json({**environment.facts(), "upstream": f"{against.description}"}, active),
            "settings": asdict(settings),
            "noise": {},
            "noise_floor": None,
            "noise_in_threads": {},
            "unsettled": "",
            "verdicts": False,
            "complete": False,
            "cases": [],
            "first": [],
            "memory": [],
        }

    def measure(self) -> None:
        """Everything, with a bar over it. Ctrl-C ends it early."""
        document = self.document
        noise = aa.probes(self.settings, form=self.against.helpers)
        floor = aa.worst(noise)
        document["noise"] = {name: asdict(found) for name, found in noise.items()}
        document["noise_floor"] = asdict(floor)
        document["verdicts"] = not aa.refusal(floor)
        parallel = any(case.parallel for case in self.selection.cases)
        if parallel:
            self._probe_threads("before")
        flush = cold.Flush() if any(case.group == "cold" for case in self.selection.cases) else None
        with bar(len(self.selection), "case") as shown:
            for case in self.selection.cases:
                shown.set_description(case.group, refresh=False)
                found = run_case(case, self.ours, self.settings, baseline=self.against.helpers, flush=flush)
                self.measured.append(found)
                document["cases"].append(found.entry())
                shown.update()
            if parallel:
                self._probe_threads("after")
            for entry in memory_entries(self.selection.memory, self.against.helpers, self.ours):
                document["memory"].append(entry)
                shown.update()
            if self.selection.first:
                modules = ("vllm.v1.utils" if self.against.name == "vllm" else "bench.upstream", "fastutils")
                found_first = first_calls.run(modules, self.settings.processes)
                document["first"] = [results.first_entry(name, found_first[name]) for name in self.selection.first]
                shown.update()
        document["complete"] = True

    def _probe_threads(self, when: str) -> None:
        found = aa.probe(aa.PARALLEL, self.settings, form=self.against.helpers)
        self.document["noise_in_threads"][when] = asdict(found)
        noise = {name: environment.Noise(**found) for name, found in self.document["noise_in_threads"].items()}
        self.document["unsettled"] = aa.unsettled(noise)

    @property
    def floor(self) -> environment.Noise | None:
        found = self.document["noise_floor"]
        return None if found is None else environment.Noise(**found)


def main(arguments: list[str] | None = None, ours: Any = None, settings: Settings | None = None) -> int:
    """Run the cases and print the tables. Exit status 0, 1 if a case is incorrect, 2 if something is missing, 130 after
    Ctrl-C.

    `ours` and `settings` replace fastutils and what --quick chooses.
    """
    chosen, selection = parse(arguments)
    if chosen.list:
        print(selection.listing())
        return 0
    for variable in ("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "VLLM_NVTX_SCOPES_FOR_PROFILING"):
        os.environ.pop(variable, None)  # both sides look once, at the first scope
    try:
        against = baseline.load(chosen.baseline)
    except baseline.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    if ours is None:
        import fastutils as ours
    run = Run(selection, against, ours, settings or (QUICK if chosen.quick else Settings()))
    document = run.document
    begun = time.monotonic()
    # torch's threads inherit the affinity of this moment; later one core may be all there is.
    torch.ones(1 << 20).add_(1)
    failed = ""
    try:
        run.measure()
    except KeyboardInterrupt:
        pass
    except first_calls.Failed as error:
        failed = str(error)
    facts = {name: text for name, text in document["environment"].items() if name != "forms"}
    print(environment.header(facts, document["environment"]["forms"], run.floor))
    if why := aa.refusal(run.floor):
        print(f"\n{why}")
    for heading, text in show.sections(document):
        print(f"\n{heading}\n\n{text}")
    print()
    hopes = [found for found in run.measured if found.met and not (found.case.parallel and document["unsettled"])]
    if document["verdicts"] and hopes:
        print(
            f"{sum(found.met.startswith('met') for found in hopes)} of {len(hopes)} targets met "
            "(~ the interval holds it)."
        )
    wrong = [found for found in run.measured if found.wrong]
    if wrong:
        print(
            f"{len(wrong)} case(s) without a number: {', '.join(f'{found.case.id}: {found.error}' for found in wrong)}"
        )
    if failed:
        print(f"The first calls could not be timed: {failed}")
    elif not document["complete"]:
        print(f"INTERRUPTED: {len(run.measured)} of {len(selection.cases)} cases were done.")
    print(f"{time.monotonic() - begun:.0f} s.")
    if chosen.json:
        results.write(document, chosen.json)
    if chosen.record:
        print(f"added to {history.add(document)}")
    return 1 if wrong or failed else 0 if document["complete"] else 130


if __name__ == "__main__":
    sys.exit(main())
