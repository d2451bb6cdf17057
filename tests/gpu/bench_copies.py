"""Host time of a copy to the device: torch's form, ours, and raw cudaMemcpyAsync from C, in one interleaved run.

    python tests/gpu/bench_copies.py RESULT.json

Times are nanoseconds of host time per call, medians over rounds in which the forms take turns. "idle": the device has
nothing to do when a batch of calls begins; "backlogged": it is busy with a long kernel, and the calls only queue.
"""

import ctypes
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fastutils.tensors import _copy, runtime

SIZES = [64, 256, 1024, 4096, 16384, 65536]  # bytes
BATCH, ROUNDS = 100, 25
BUSY = 60_000_000  # cycles; longer than a batch takes to be queued
MANY = 16

RAW = """
#include <stddef.h>
#include <stdint.h>
#include <time.h>
typedef int (*copy)(void *, const void *, size_t, int, void *);
int64_t time_copies(copy function, void *to, const void *from, size_t bytes, void *stream, int count) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int i = 0; i < count; ++i) function(to, from, bytes, 1, stream);
  clock_gettime(CLOCK_MONOTONIC, &b);
  return (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec);
}
"""


def raw_timer():
    folder = tempfile.mkdtemp()
    source, library = Path(folder, "raw.c"), Path(folder, "raw.so")
    source.write_text(RAW)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    function = ctypes.CDLL(str(library)).time_copies
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int]
    return function


def timed(call, count):
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    return time.perf_counter_ns() - start


def forms(nbytes, time_raw):
    """Name -> a function that makes `count` copies and returns how long the host took."""
    n = nbytes // 4
    buffer = _copy.CpuGpuBuffer(n, dtype=torch.int32, device="cuda", pin_memory=True)
    buffers = [_copy.CpuGpuBuffer(n, dtype=torch.int32, device="cuda", pin_memory=True) for _ in range(MANY)]
    counts = [n] * MANY
    host, device = buffer.cpu, buffer.gpu
    memcpy = runtime.load().runtime.functions[0]
    stream = torch.cuda.current_stream().cuda_stream

    def torch_many():
        for one in buffers:
            one.gpu[:n].copy_(one.cpu[:n], non_blocking=True)

    calls = {
        "torch slice": lambda: device[:n].copy_(host[:n], non_blocking=True),
        "copy_slice": lambda: _copy.copy_slice(host, device, n),
        "copy_to_gpu(n)": lambda: buffer.copy_to_gpu(n),
        "torch whole": lambda: device.copy_(host, non_blocking=True),
        "copy_to_gpu()": lambda: buffer.copy_to_gpu(),
    }
    table = {name: lambda count, call=call: timed(call, count) for name, call in calls.items()}
    table["C cudaMemcpyAsync"] = lambda count: time_raw(
        memcpy, device.data_ptr(), host.data_ptr(), nbytes, stream, count
    )
    for name, call in (
        (f"torch {MANY} buffers", torch_many),
        (f"copy_to_gpu_many {MANY}", lambda: _copy.copy_to_gpu_many(buffers, counts)),
    ):
        table[name] = lambda count, call=call: timed(call, max(1, count // MANY)) * (count / max(1, count // MANY))
    return table


def measure():
    time_raw = raw_timer()
    rows = []
    nothing = statistics.median(timed(lambda: None, BATCH) for _ in range(ROUNDS)) / BATCH
    for nbytes in SIZES:
        with torch.inference_mode():
            table = forms(nbytes, time_raw)
            for queue in ("idle", "backlogged"):
                times = {name: [] for name in table}
                for turn in range(ROUNDS + 2):
                    names = list(table) if turn % 2 else list(table)[::-1]
                    for name in names:
                        torch.cuda.synchronize()
                        if queue == "backlogged":
                            torch.cuda._sleep(BUSY)
                        spent = table[name](BATCH) / BATCH
                        if turn >= 2:
                            times[name].append(spent - (0 if name.startswith("C ") else nothing))
                    torch.cuda.synchronize()
                rows.append(
                    {
                        "bytes": nbytes,
                        "queue": queue,
                        "median_ns": {name: round(statistics.median(t), 1) for name, t in times.items()},
                        "quartiles_ns": {
                            name: [round(q, 1) for q in statistics.quantiles(t, n=4)] for name, t in times.items()
                        },
                    }
                )
    return rows


def machine():
    bridge = runtime.load()
    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "runtime": bridge.runtime.library,
        "bridge": bridge.path.name,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
    }


def processor():
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")


def main(result):
    facts, rows = machine(), measure()
    Path(result).write_text(json.dumps({"machine": facts, "batch": BATCH, "rounds": ROUNDS, "rows": rows}, indent=1))
    print(f"{facts['gpu']}, torch {facts['torch']}, Python {facts['python']}, {facts['processor']}")
    print(f"host ns per call, median of {ROUNDS} rounds of {BATCH} calls; the {MANY} buffers: per round of {MANY}")
    names = list(rows[0]["median_ns"])
    width = max(map(len, names)) + 2
    print(" " * 22 + "".join(f"{name:>{width}}" for name in names))
    for row in rows:
        print(
            f"{row['bytes']:>8} B  {row['queue']:<10}"
            + "".join(f"{row['median_ns'][name]:>{width}.0f}" for name in names)
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
