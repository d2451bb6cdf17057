"""Replays recorded engine steps: what the helpers cost a step in upstream's form and in fastutils'.

Every step's calls are rebuilt from the trace, checked, and timed in pairs (paired.py), one helper after the other.
An incorrect result prints no number: the run ends with an error and exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench import baseline, environment, recording, table, upstream
from bench.paired import Clock, Incorrect, Rounds, measure, steady
from bench.progress import bar
from bench.recording import Step, TraceError
from bench.replay import HELPERS, Replay, Work
from bench.staged import StagedCopies, StagedWork
from bench.totals import Recorded, Row, Summary, as_json, over, share, summarise


@dataclass(frozen=True)
class Settings:
    """How much is measured. Samples are in ns; every `stride`-th step of a trace is replayed."""

    rounds: int = 15
    sample_ns: int = 150_000
    stride: int = 1


QUICK = Settings(rounds=7, sample_ns=80_000, stride=8)


def replay_step(
    replay: Replay,
    step: Step,
    into: Recorded,
    settings: Settings,
    clock: Clock,
    staged: StagedCopies | None = None,
) -> None:
    """Check and time one step. Raises Incorrect, before and after the timing, if a result is wrong."""
    measured: list[tuple[Work, Rounds]] = []
    together = staged and staged.work(step)
    for work in replay.works(step):
        with work.mode():
            work.check()
            rounds = measure(
                work.upstream, work.ours, rounds=settings.rounds, sample_ns=settings.sample_ns, clock=clock
            )
            work.check()  # again: by now whatever a form keeps between calls is in place
        measured.append((work, rounds))
    if together:
        by_step, by_flush = time_staged(together, settings, clock)
        into.staged.step.add(step.index, 1, by_step)
        into.staged.flush.add(step.index, 1, by_flush)
        into.staged.copies += together.copies
        into.staged.flushes += together.flushes
    for work, rounds in measured:  # a step that was interrupted half-way does not count
        into.rows.setdefault(work.row, Row(work.helper)).add(step.index, work.calls, rounds)
    into.requests[step.index] = len(step.num_scheduled_tokens)


def time_staged(work: StagedWork, settings: Settings, clock: Clock) -> tuple[Rounds, Rounds]:
    """A step's buffer copies by step(), against upstream's form, and by flush(), against fastutils' one by one."""
    before, after, step, flush = work.ways
    with torch.inference_mode():
        work.check()
        by_step, by_flush = (
            measure(one, other, rounds=settings.rounds, sample_ns=settings.sample_ns, clock=clock)
            for one, other in ((before, step), (after, flush))
        )
        work.check()
    return by_step, by_flush


def is_staged(ours: Any, wanted: Iterable[str]) -> bool:
    """Whether the buffer copies are also made by a StagingGroup."""
    return "CpuGpuBuffer" in wanted and hasattr(ours, "StagingGroup")


def run(
    traces: Iterable[str],
    sides: tuple[Any, Any],
    settings: Settings,
    *,
    wanted: Iterable[str] = HELPERS,
    progress: Callable[[list[Step]], Iterable[Step]] = iter,
    clock: Clock = time.perf_counter_ns,
) -> Iterator[Recorded]:
    """Replay each trace; yields what was measured of it. On Ctrl-C the last one is marked as not complete."""
    wanted = tuple(wanted)
    for trace in traces:
        steps = list(recording.steps(trace))[:: settings.stride]
        replay = Replay(*sides, wanted)
        staged = StagedCopies(*sides, steps) if is_staged(sides[1], wanted) else None
        result = Recorded(trace)
        try:
            for step in progress(steps):
                replay_step(replay, step, result, settings, clock, staged)
            result.complete = True
        except KeyboardInterrupt:
            yield result
            return
        yield result


def noise(
    wanted: Iterable[str],
    settings: Settings,
    clock: Clock = time.perf_counter_ns,
    steps: int = 20,
    form: Any = upstream,
) -> environment.Noise:
    """The baseline against itself over some steps of the first trace: what a ratio of 1 looks like here."""
    trace = list(recording.steps(recording.available()[0]))
    replay = Replay(form, form, tuple(wanted))
    result = Recorded("noise")
    for step in trace[:: max(1, len(trace) // steps)]:
        replay_step(replay, step, result, settings, clock)
    whole = summarise([result]).everything
    return environment.Noise(whole.ratio, *whole.interval)


def render(summary: Summary, active: dict[str, str]) -> str:
    """Both tables as text."""
    whole = summary.everything
    order = sorted(summary.rows, key=lambda row: HELPERS.index(summary.helpers[row]))  # stable: operations as they came
    helper_rows = [
        [
            row,
            active[summary.helpers[row]].split(" ")[0],
            f"{figures.calls:,}",
            table.number(figures.upstream / figures.calls),
            table.number(figures.ours / figures.calls),
            f"{figures.ratio:.2f}x",
            table.interval(*figures.interval),
            f"{share(figures.upstream, whole.upstream):.1%}",
            f"{share(figures.ours, whole.ours):.1%}",
        ]
        for row in order
        for figures in [summary.rows[row]]
    ]
    titles = [
        "helper",
        "form",
        "calls",
        "upstream ns",
        "fastutils ns",
        "ratio",
        "95 % interval",
        "share before",
        "after",
    ]
    trace_rows = []
    for name, figures in [*summary.traces.items(), ("all", whole)]:
        steps = summary.steps[name] if name != "all" else [s for found in summary.steps.values() for s in found]
        ratios = [over(step["before_us"], step["after_us"]) for step in steps]
        trace_rows.append(
            [
                name,
                f"{len(steps)}",
                f"{np.mean([step['requests'] for step in steps]):.0f}",
                table.number(figures.upstream / len(steps) / 1e3),
                table.number(figures.ours / len(steps) / 1e3),
                f"{figures.ratio:.2f}x",
                table.interval(*figures.interval),
                f"{np.median(ratios):.2f}x",
            ]
        )
    step_titles = ["trace", "steps", "requests", "before µs", "after µs", "ratio", "95 % interval", "median step"]
    parts = render_staged(summary) if summary.staged else []
    return "\n\n".join(
        [
            "Per call (ns), and what part of a step's helper time each one takes",
            table.render(titles, helper_rows, left=2),
            "Per engine step: everything it asks of vllm.v1.utils, mean per step",
            table.render(step_titles, trace_rows),
            *parts,
        ]
    )


def render_staged(summary: Summary) -> list[str]:
    """The heading and the table of the buffer copies made together."""
    traces = [*summary.staged.items()]
    if len(traces) > 1:
        first, *others = summary.staged.values()
        traces.append(("all", sum(others, first)))
    rows = []
    for name, found in traces:
        times, ratios = found.times(), found.against_before()
        rows.append([name, f"{found.copies / found.steps:.1f}", f"{found.flushes / found.steps:.1f}"])
        rows[-1] += [table.number(times[way] / 1e3) for way in ("before", "after", "step", "flush")]
        for way in ("step", "flush"):
            ratio, low, high = ratios[way]
            rows[-1] += [f"{ratio:.2f}x", table.interval(low, high)]
    titles = ["trace", "copies", "flushes", "before µs", "after µs", "staged, step() µs", "staged, flush() µs"]
    titles += ["step(): ratio", "95 % interval", "flush(): ratio", "95 % interval"]
    return [
        "The buffer copies of an engine step alone: one by one, and together by one StagingGroup; mean per step",
        table.render(titles, rows),
    ]


NOTES = """
Both sides run in one process, in turn (A B B A) within every step; ns and µs are medians, loop cost taken off, GC off.
The tensors of a buffer are two CPU tensors, so a copy here is a memcpy, not cudaMemcpyAsync: host cost of the call, no
device. Copies run in inference mode and their result is dropped, as in the engine. Scopes are off, as in production.
Which item and how long a list was is not recorded: x[-1] of 256 tokens is asked for."""

STAGED_NOTES = """
Staged: step() is one line around the copies that an engine makes anyway; flush() replaces them by one call with a dict,
made anew each step. After a staged upload the rows may be rewritten at once, after the others not (on a device). On the
CPU both are a memcpy for each buffer: what runtime calls they save on a device python -m bench.staging_host tells."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.step", description=__doc__.splitlines()[0])
    parser.add_argument("--trace", action="append", metavar="NAME", help="only this trace (may be given again)")
    parser.add_argument("-k", metavar="TEXT", default="", help="only helpers whose name contains TEXT")
    parser.add_argument("--quick", action="store_true", help="every 8th step, fewer rounds: some seconds")
    parser.add_argument(
        "--baseline",
        choices=baseline.CHOICES,
        default="auto",
        help="measure against upstream's form, or against an installed vLLM (default: vLLM where there is one)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write everything measured, step by step, to FILE")
    chosen = parser.parse_args(arguments)
    known = recording.available()
    if unknown := set(chosen.trace or ()) - set(known):
        parser.error(f"no such trace: {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    # What a group uploads are the copies of CpuGpuBuffers: -k staging means these.
    known_as = {helper: helper for helper in HELPERS} | {"CpuGpuBuffer": "CpuGpuBuffer StagingGroup"}
    chosen.helpers = [helper for helper, names in known_as.items() if chosen.k.lower() in names.lower()]
    if not chosen.helpers:
        parser.error(f"no helper's name contains {chosen.k!r}; there are: {', '.join(HELPERS)}")
    return chosen


def main(arguments: list[str] | None = None, ours: Any = None, settings: Settings | None = None) -> int:
    """Run the replay and print it.

    Returns the exit status: 0, 1 for an incorrect result, 2 without the baseline that was asked for, 130 after Ctrl-C.

    `ours` and `settings` replace fastutils and what --quick chooses.
    """
    chosen = parse(arguments)
    settings = settings or (QUICK if chosen.quick else Settings())
    for variable in ("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "VLLM_NVTX_SCOPES_FOR_PROFILING"):
        os.environ.pop(variable, None)  # both sides look once, at the first scope
    if ours is None:
        import fastutils as ours
    try:
        against = baseline.load(chosen.baseline)
    except baseline.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    facts = {**environment.facts(), "upstream": against.description}
    active = environment.forms([*chosen.helpers, *(["StagingGroup"] if is_staged(ours, chosen.helpers) else [])])
    results: list[Recorded] = []
    floor = None
    begun = time.monotonic()
    try:
        with steady() as core:
            facts["pinned to"] = "no core in particular" if core is None else f"core {core}"
            try:
                floor = noise(chosen.helpers, settings, form=against.helpers)
                traces = chosen.trace or recording.available()
                with progress_bar(traces, settings) as progress:
                    results.extend(
                        run(traces, (against.helpers, ours), settings, wanted=chosen.helpers, progress=progress)
                    )
            except KeyboardInterrupt:
                pass
        summary = summarise(results)
    except (Incorrect, TraceError) as error:
        print(f"{type(error).__name__.lower()}: {error}\nNo number is printed.", file=sys.stderr)
        return 1
    interrupted = len(summary.traces) < len(chosen.trace or recording.available()) or not summary.complete
    print(environment.header(facts, active, floor))
    if not summary.traces:
        print("\ninterrupted before the first step was done", file=sys.stderr)
        return 130
    print(f"\n{render(summary, active)}\n{NOTES}")
    if summary.staged:
        print(STAGED_NOTES.lstrip())
    idle = [helper for helper in chosen.helpers if helper not in summary.helpers.values()]
    if idle:
        print(f"Not called in these traces: {', '.join(idle)}.")
    if settings.stride > 1:
        print(f"Not every step: one in {settings.stride}.")
    if len(chosen.helpers) < len(HELPERS):
        print(f"Only a part of each step: -k {chosen.k}.")
    if interrupted:
        print(f"INTERRUPTED: only the {summary.step_count} steps that were done.")
    print(f"{summary.step_count} steps, every result correct, {time.monotonic() - begun:.0f} s.")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            document = {"environment": environment.as_json(facts, active), "settings": vars(settings)}
            json.dump({**document, "noise_floor": floor and vars(floor), **as_json(summary)}, file, indent=1)
            file.write("\n")
    return 130 if interrupted else 0


@contextlib.contextmanager
def progress_bar(traces: list[str], settings: Settings) -> Iterator[Callable[[list[Step]], Iterable[Step]]]:
    """Wraps the steps of each trace so that one bar advances over all of them; quiet when stderr is no terminal."""
    steps = sum(len(range(0, sum(1 for _ in recording.steps(trace)), settings.stride)) for trace in traces)
    with bar(steps, "step") as shown:

        def wrap(steps: list[Step]) -> Iterator[Step]:
            for step in steps:
                shown.set_description(step.trace, refresh=False)
                yield step
                shown.update()

        yield wrap


if __name__ == "__main__":
    sys.exit(main())
