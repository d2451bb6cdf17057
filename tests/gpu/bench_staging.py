"""Uploads of many small buffers: one StagingGroup in every mode, upstream's loop, torch's foreach, and a kernel.

    python tests/gpu/bench_staging.py RESULT.json [SECONDS]

A step uploads 1 to 32 buffers of 64 B to 64 KB each, all of them full or half full. Times are per step, medians over
rounds in which the forms take turns. "idle": the device has nothing to do; host time of the call, and the time until
everything has arrived. "backlogged": a long kernel is ahead on the stream, and STEPS steps queue behind it; the host's
time for one, and the device's, which by then has nothing to wait for.

"kernel" is what engines do that have a kernel read pinned memory in place: the rows go into the next of a ring of two
pinned copies, and one kernel moves them from there. Nothing but the ring's depth keeps a row that is still to be read
from being rewritten: it is fast *and* unsafe where the host runs ahead of the device by more than that. A group waits.
It is no copy for the copy engines either: it takes its time from the other kernels.

Ends after SECONDS (200), with what was not measured named in the result.
"""

import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from bench_copies import machine

import fastutils
from fastutils.tensors import runtime

BUFFERS = [1, 2, 4, 8, 16, 32]
SIZES = [64, 1024, 8192, 65536]  # live bytes of each buffer
FILLS = {"full": 1, "half": 2}  # how many times the live bytes a buffer holds
MODES = ["loop", "merge", "pack", "auto"]
STEPS = 16  # behind a backlog; with 32 buffers they are 512 copies: a stream's queue holds about twice as many
IDLE_ROUNDS, BACKLOG_ROUNDS, WARM_UP = 21, 7, 2
BUSY = 20_000_000  # cycles; longer than the steps take to be queued
RING = 2
SECONDS = 200

#: What is asked of the results: from how many buffers on is the first faster than the second?
PAIRS = [
    ("auto", "upstream"),
    ("auto", "foreach"),
    ("auto", "kernel"),
    ("pack", "loop"),
    ("merge", "loop"),
    ("kernel", "upstream"),
]
METRICS = {
    "host, idle": ("idle", "median_ns"),
    "host, backlogged": ("backlogged", "median_ns"),
    "until arrived, idle": ("idle", "arrived_ns"),
    "device": ("backlogged", "device_ns"),
}


def stand_in():
    """The library of tests/fakecuda, on which no kernel runs and the device is never busy; None on a real runtime."""
    found, _ = runtime.find_device_runtime()
    library = None if found is None else ctypes.CDLL(found.library)
    return library if hasattr(library, "fakecuda_log") else None


class OnDevice:
    """Pinned host memory as a device tensor sees it: at the same address."""

    def __init__(self, pinned):
        self.pinned = pinned
        self.__cuda_array_interface__ = {
            "shape": tuple(pinned.shape),
            "typestr": "<i4",
            "data": (pinned.data_ptr(), False),
            "version": 3,
        }


class Form:
    """One form: `call` uploads a step, `hosts` and `devices` are its buffers' tensors."""

    def __init__(self, call, hosts, devices, by_kernel=False):
        self.call, self.hosts, self.devices, self.by_kernel = call, hosts, devices, by_kernel

    def is_right(self, n):
        """Whether a call brings the first `n` values of each buffer, and no others."""
        wanted = []
        for i, (host, device) in enumerate(zip(self.hosts, self.devices, strict=True)):
            host.copy_(torch.arange(len(host), dtype=torch.int32) + 100_000 * (i + 1))
            device.copy_(torch.full((len(host),), -1, dtype=torch.int32))
            wanted.append(torch.cat([host[:n], torch.full((len(host) - n,), -1, dtype=torch.int32)]))
        self.call()
        torch.cuda.synchronize()
        return all(torch.equal(d.cpu(), w) for d, w in zip(self.devices, wanted, strict=True))


def forms(count, n, capacity):
    """Name -> Form, and the group whose modes some of them are."""

    def pairs():
        hosts = [torch.zeros(capacity, dtype=torch.int32).pin_memory() for _ in range(count)]
        return hosts, [host.to("cuda") for host in hosts]

    table = {}
    hosts, devices = pairs()

    def upstream(hosts=hosts, devices=devices):
        for host, device in zip(hosts, devices, strict=True):
            device[:n].copy_(host[:n], non_blocking=True)

    table["upstream"] = Form(upstream, hosts, devices)
    hosts, devices = pairs()

    def foreach(hosts=hosts, devices=devices):
        torch._foreach_copy_([device[:n] for device in devices], [host[:n] for host in hosts], non_blocking=True)

    table["foreach"] = Form(foreach, hosts, devices)
    group = fastutils.StagingGroup("cuda", slots=STEPS + WARM_UP, max_slots=STEPS + WARM_UP)
    buffers = [group.buffer(f"buffer {i}", capacity, dtype=torch.int32) for i in range(count)]
    for mode in MODES:
        table[mode] = Form(lambda: group.flush(n), [b.cpu for b in buffers], [b.gpu for b in buffers])
    try:
        table["kernel"] = by_kernel(count, n, capacity)
    except (RuntimeError, TypeError, ValueError) as error:  # the rest is worth having without it
        print(f"no kernel on pinned memory: {error}", file=sys.stderr)
    return table, group


def by_kernel(count, n, capacity):
    host = torch.zeros(count, capacity, dtype=torch.int32).pin_memory()
    device = host.to("cuda")
    ring = [torch.zeros_like(host).pin_memory() for _ in range(RING)]
    mapped = [torch.as_tensor(OnDevice(slot), device="cuda") for slot in ring]
    rows, slots, turn = host.numpy(), [slot.numpy() for slot in ring], 0

    def call():
        nonlocal turn
        turn = (turn + 1) % RING
        np.copyto(slots[turn][:, :n], rows[:, :n])
        torch.add(mapped[turn][:, :n], 0, out=device[:, :n])

    return Form(call, list(host), list(device), by_kernel=True)


def one_idle(form):
    """Host ns of a step, and ns until it has arrived."""
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    form.call()
    returned = time.perf_counter_ns()
    torch.cuda.synchronize()
    return returned - start, time.perf_counter_ns() - start


def some_backlogged(form, busy):
    """Host ns and device ns of a step of STEPS; None if the backlog was over before they were queued."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(busy)
    begin.record()
    start = time.perf_counter_ns()
    for _ in range(STEPS):
        form.call()
    spent = (time.perf_counter_ns() - start) / STEPS
    end.record()
    waiting = not begin.query()
    torch.cuda.synchronize()
    return (spent, begin.elapsed_time(end) * 1e6 / STEPS) if waiting else None


def spread(times):
    return [round(q) for q in statistics.quantiles(times, n=4)] if len(times) > 1 else []


def medians(times):
    return {name: round(statistics.median(found)) for name, found in times.items() if found}


def measure_cell(count, nbytes, fill, fake):
    """The two rows of a cell. RuntimeError if a form brings wrong bytes."""
    n = nbytes // 4
    table, group = forms(count, n, n * FILLS[fill])
    calls = {}

    def each(turn):
        for name in list(table) if turn % 2 else list(table)[::-1]:
            if name in MODES:
                group.mode = name
            yield name, table[name]

    for name, form in each(0):
        if not (fake and form.by_kernel) and not form.is_right(n):
            raise RuntimeError(f"{name} brings wrong bytes: {count} buffers of {nbytes} B, {fill}")
        if name in MODES:
            group.stats(reset=True)
            form.call()
            calls[name] = group.stats().runtime_calls
    host, arrived = ({name: [] for name in table} for _ in range(2))
    for turn in range(IDLE_ROUNDS + WARM_UP):
        for name, form in each(turn):
            spent, until = one_idle(form)
            if turn >= WARM_UP:
                host[name].append(spent)
                arrived[name].append(until)
    queued, device = ({name: [] for name in table} for _ in range(2))
    drained = 0
    for turn in range(0 if fake else BACKLOG_ROUNDS + 1):
        for name, form in each(turn):
            found = some_backlogged(form, BUSY)
            if found is None:
                drained += 1
            elif turn >= 1:
                queued[name].append(found[0])
                device[name].append(found[1])
    for name, form in each(0):
        if not (fake and form.by_kernel) and not form.is_right(n):
            raise RuntimeError(f"{name} brings wrong bytes later: {count} buffers of {nbytes} B, {fill}")
    cell = {"buffers": count, "bytes": nbytes, "fill": fill}
    return [
        {
            **cell,
            "queue": "idle",
            "median_ns": medians(host),
            "quartiles_ns": {name: spread(found) for name, found in host.items()},
            "arrived_ns": medians(arrived),
            "runtime_calls": calls,
        },
        {
            **cell,
            "queue": "backlogged",
            "median_ns": medians(queued),
            "quartiles_ns": {name: spread(found) for name, found in queued.items()},
            "device_ns": medians(device),
            "device_quartiles_ns": {name: spread(found) for name, found in device.items()},
            "rounds_lost": drained,
        },
    ]


def crossover(rows, one, other, metric, nbytes, fill):
    """From how many buffers on `one` is faster than `other`: "all", ">= 8", "never", or "" where nothing is known."""
    queue, key = METRICS[metric]
    faster = {
        row["buffers"]: row[key][one] < row[key][other]
        for row in rows
        if (row["queue"], row["bytes"], row["fill"]) == (queue, nbytes, fill) and {one, other} <= set(row.get(key, ()))
    }
    if not faster:
        return ""
    counts = sorted(faster)
    slower = [count for count in counts if not faster[count]]
    if not slower:
        return "all"
    above = [count for count in counts if count > slower[-1]]
    return f">= {above[0]}" if above else "never"


def print_table(titles, rows, left=1):
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for cells in [titles, *rows]:
        line = [
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        print("  ".join(line).rstrip())


def report(result):
    rows, names = result["rows"], ["upstream", "foreach", *MODES, "kernel"]
    for metric, (queue, key) in METRICS.items():
        print(f"\n{metric}: µs per step")
        chosen = [row for row in rows if row["queue"] == queue and row.get(key)]
        cells = [
            [
                f"{row['buffers']} x {row['bytes']:,} B, {row['fill']}",
                *(f"{row[key][name] / 1e3:.1f}" if name in row[key] else "-" for name in names),
            ]
            for row in chosen
        ]
        print_table(["step", *names], cells) if cells else print("not measured")
    print("\nFrom how many buffers on the first is faster than the second (of those that were measured)")
    sizes = [(nbytes, fill) for fill in FILLS for nbytes in SIZES]
    cells = [
        [f"{one} / {other}", metric, *(crossover(rows, one, other, metric, *size) or "?" for size in sizes)]
        for one, other in PAIRS
        for metric in METRICS
    ]
    print_table(["", "time", *(f"{nbytes:,} B {fill}" for nbytes, fill in sizes)], cells, left=2)
    print("\nkernel: a ring of two keeps its rows, by its depth alone: not safe where the device falls behind further.")
    if result["left_out"]:
        print(f"NOT MEASURED within {result['seconds']} s: {len(result['left_out'])} steps of {result['cells']}")


def main(path, seconds=SECONDS):
    """Measure, write and print. Exit status 0, or 1 if a form brings wrong bytes."""
    if not torch.cuda.is_available():
        print("there is no GPU", file=sys.stderr)
        return 2
    deadline = time.monotonic() + seconds
    fake = stand_in()
    facts = machine()
    if fake:
        fake.fakecuda_quiet(1)
        facts["gpu"] = "none: the stand-in runtime of tests/fakecuda"
        print("NO GPU: over the stand-in runtime kernels do nothing, and nothing below says what a device does.")
    cells = [(count, nbytes, fill) for fill in FILLS for count in BUFFERS for nbytes in SIZES]
    result = {
        "machine": facts,
        "stand_in": fake is not None,
        "steps": STEPS,
        "rounds": {"idle": IDLE_ROUNDS, "backlogged": BACKLOG_ROUNDS},
        "ring": RING,
        "seconds": seconds,
        "cells": len(cells),
        "left_out": cells,
        "rows": [],
    }
    try:
        with torch.inference_mode():
            while result["left_out"] and time.monotonic() < deadline:
                result["rows"] += measure_cell(*result["left_out"][0], fake)
                result["left_out"] = result["left_out"][1:]
                Path(path).write_text(json.dumps(result, indent=1))  # as it goes: whoever kills it keeps that
    except RuntimeError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(f"{facts['gpu']}, torch {facts['torch']}, Python {facts['python']}, {facts['processor']}")
    report(result)
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1], *map(float, sys.argv[2:])))
