"""What the plugin is worth in a real vLLM: the CPU time of an engine's decode step with it off and on.

``python -m bench.vllm_step`` with the interpreter of an environment that has vLLM and this package (``make bench-vllm``
makes one). Each measurement is a process of its own, since a process that has used one form of the helpers keeps
objects of it; processes with the plugin off and on take turns, A B B A. The engine is vLLM's CPU build with a model of
two tiny layers: the steps are short, so that the helpers' share of them is *larger* than with a real model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.paired import bootstrap_interval

ROOT = Path(__file__).parent.parent
WORKER = ROOT / "bench" / "vllm_engine" / "worker.py"
TESTS = ROOT / "tests" / "with_vllm"
START_S = 900

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def run(folder: Path, *arguments: object, plugin: str = "1") -> str:
    """The output of a program in the folder `folder`, in which nothing of this checkout can be imported by chance."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "FASTUTILS_"))}
    environment = kept | QUIET | {"HOME": str(folder), "PYTHONPATH": str(TESTS), "FASTUTILS_VLLM": plugin}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=START_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def worker(folder: Path, generations: int, *options: str, plugin: str) -> dict[str, Any]:
    output = run(folder, WORKER, folder / "model", generations, *options, plugin=plugin)
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    if bool(result["served"]) != (plugin == "1"):
        raise SystemExit(f"FASTUTILS_VLLM={plugin}, but: {result['summary']}")
    return result


def measure(folder: Path, pairs: int, generations: int) -> tuple[dict[str, float], list[dict[str, dict[str, Any]]]]:
    """Calls per step, and for each pair what the worker found with the plugin "0" (off) and "1" (on)."""
    run(folder, TESTS / "tiny_model.py", folder / "model")
    calls = worker(folder, 1, "--count", plugin="1")["calls_per_step"]
    results = []
    for index in range(pairs):
        pair = {}
        for plugin in ("0", "1") if index % 2 == 0 else ("1", "0"):
            pair[plugin] = worker(folder, generations, plugin=plugin)
            state = "on" if plugin == "1" else "off"
            step_us = pair[plugin]["step_ns"] / 1000
            print(f"  pair {index + 1}, plugin {state}: {step_us:.0f} us CPU a step", file=sys.stderr)
        results.append(pair)
    return calls, results


def helpers_ns(calls: dict[str, float], costs: dict[str, float]) -> float:
    """CPU time in ns of all helper calls of one step."""
    return sum(number * costs.get(name, 0.0) for name, number in calls.items())


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval."""
    low, high = bootstrap_interval([np.array([value]) for value in values])
    return statistics.median(values), low, high


def report(calls: dict[str, float], results: list[dict[str, dict[str, Any]]]) -> list[str]:
    lines = [
        f"{len(results)} pairs of processes, {results[0]['0']['steps']} decode steps of 64 requests each",
        f"plugin on: {results[0]['1']['summary']}",
        "",
        f"{'one call, CPU ns':34} {'calls/step':>10} {'off':>8} {'on':>8} {'ratio':>7}",
    ]
    for name in results[0]["0"]["costs_ns"]:
        off = statistics.median(pair["0"]["costs_ns"][name] for pair in results)
        on = statistics.median(pair["1"]["costs_ns"][name] for pair in results)
        lines.append(f"{name:34} {calls.get(name, 0.0):10.1f} {off:8.0f} {on:8.0f} {off / on:6.1f}x")
    lines += ["", f"{'one decode step':34} {'off':>10} {'on':>10}"]
    shares = {}
    for plugin in ("0", "1"):
        shares[plugin] = [
            100 * helpers_ns(calls, pair[plugin]["costs_ns"]) / pair[plugin]["step_ns"] for pair in results
        ]
    step = [statistics.median(pair[plugin]["step_ns"] for pair in results) / 1000 for plugin in ("0", "1")]
    spent = [
        statistics.median(helpers_ns(calls, pair[plugin]["costs_ns"]) for pair in results) / 1000
        for plugin in ("0", "1")
    ]
    lines.append(f"{'CPU time, us':34} {step[0]:10.0f} {step[1]:10.0f}")
    lines.append(f"{'of it in the helpers, us':34} {spent[0]:10.1f} {spent[1]:10.1f}")
    lines.append(f"{'their share':34} {statistics.median(shares['0']):9.2f}% {statistics.median(shares['1']):9.2f}%")
    logs = [math.log(pair["0"]["step_ns"] / pair["1"]["step_ns"]) for pair in results]
    middle, low, high = (100 * (1 - math.exp(-value)) for value in interval(logs))
    lines += [
        "",
        f"the whole step takes {middle:+.2f} % less CPU time with the plugin (95 %: {low:+.2f} to {high:+.2f})",
    ]
    expected = 100 * (spent[0] - spent[1]) / step[0]
    lines.append(f"what the helpers alone would save of it: {expected:.2f} %")
    if low < 0 < high:
        lines.append("the interval holds zero: the gain of the whole step cannot be told from noise in this run")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.vllm_step", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6, help="pairs of processes, at least 5 for an interval (6)")
    parser.add_argument("--generations", type=int, default=12, help="of 64 x 64 tokens, in each process (12)")
    parser.add_argument("--json", type=Path, help="keep every number in this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calls, results = measure(Path(folder), arguments.pairs, arguments.generations)
    if arguments.json:
        arguments.json.write_text(json.dumps({"calls_per_step": calls, "pairs": results}, indent=1))
    print("\n".join(report(calls, results)))


if __name__ == "__main__":
    main()
