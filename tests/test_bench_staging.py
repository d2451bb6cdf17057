"""The benchmarks of staged uploads: wrong groups get no number, and nothing runs without a device that needs one.

What needs a device runs over the stand-in runtime, where that is loaded (tests/fakecuda).
"""

import contextlib
import json
import sys
import types
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

import torch  # noqa: E402

import fastutils  # noqa: E402
from bench import micro, staging_host, upstream  # noqa: E402
from bench.cases import staging  # noqa: E402

CASES = staging.cases()
TINY = micro.Settings(rounds=2, builds=1, sample_ns=1_000, budget_ns=1)


@pytest.fixture
def over_the_stand_in():
    if not torch.cuda.is_available() or staging_host.stand_in() is None:
        pytest.skip("the stand-in CUDA runtime is not loaded")


@pytest.fixture
def on_gpu(monkeypatch):
    """The module of the GPU machine's benchmark."""
    pytest.importorskip("fastutils.tensors._copy")
    monkeypatch.syspath_prepend(str(CHECKOUT / "tests" / "gpu"))
    import bench_staging

    return bench_staging


def group(**methods):
    return types.SimpleNamespace(StagingGroup=type("Group", (fastutils.StagingGroup,), methods))


def ask_for_one_more(self, n=None):
    fastutils.StagingGroup.flush(self, n + 1 if isinstance(n, int) else None)


def leave_the_last_out(self, n=None):
    asked = n if isinstance(n, dict) else dict.fromkeys(staging.NAMES, n)
    fastutils.StagingGroup.flush(self, dict(list(asked.items())[:-1]))


def swap(self, n=None):
    fastutils.StagingGroup.flush(self, n)
    one, other = (self._laid_out().slabs.gpus[i] for i in (0, 1))
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


@contextlib.contextmanager
def upload_everything(self):
    with fastutils.StagingGroup.step(self):
        yield
    fastutils.StagingGroup.flush(self)


@pytest.mark.parametrize(
    ("wrong", "label"),
    [
        ({"flush": ask_for_one_more}, "flush(n)"),
        ({"flush": ask_for_one_more}, "flush({name: n})"),
        ({"flush": leave_the_last_out}, "flush(n)"),
        ({"flush": leave_the_last_out}, "flush({name: n})"),
        ({"flush": leave_the_last_out}, "flush(), 16 buffers, full"),
        ({"flush": swap}, "flush()"),
        ({"step": upload_everything}, "step()"),
    ],
)
def test_a_group_that_is_wrong_gives_no_number(wrong, label, monkeypatch):
    monkeypatch.setattr(micro, "steady", lambda one_core: contextlib.nullcontext())
    chosen = [case for case in CASES if label in case.id]
    assert chosen
    for case in chosen:
        found = micro.run_case(case, group(**wrong), TINY)
        assert found.error.startswith("INCORRECT: fastutils gives"), case.id


def test_the_baseline_makes_the_copies_one_by_one():
    for case in CASES:
        statement = case.make(upstream).loop.statement
        assert "copy_to_gpu(" in statement
        assert "flush" not in statement
        assert "step" not in statement
    asked = {str(case.target) for case in CASES if case.target}
    assert asked == {">=40x", ">=16x", ">=10x"}


def test_a_buffer_by_itself_belongs_to_a_group():
    (case,) = [case for case in CASES if "one copy" in case.id]
    loop = case.make(fastutils).loop
    assert isinstance(loop.names["buffer"], fastutils.CpuGpuBuffer)
    assert loop.names["buffer"]._staging.group.stats().flushes == 0
    loop.run(loop.items(3))
    assert loop.names["buffer"]._staging.group.stats().flushes == 3


@pytest.mark.parametrize("module", ["host", "gpu"])
def test_without_a_device_there_is_a_message(module, monkeypatch, capsys, tmp_path, on_gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "result.json"
    assert (staging_host.main(["--json", str(file)]) if module == "host" else on_gpu.main(file)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no device" in printed.err or "no GPU" in printed.err
    assert not file.exists()


def test_over_the_stand_in_that_is_said(over_the_stand_in, capsys, tmp_path):
    file = tmp_path / "host.json"
    assert staging_host.main(["--rounds", "5", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "the STAND-IN of tests/fakecuda: no GPU took part" in printed
    written = json.loads(file.read_text())
    assert written["stand_in"]
    assert written["runtime_calls"]["upstream"] == written["runtime_calls"]["many"] == 16
    assert written["runtime_calls"]["flush"] == written["runtime_calls"]["step"] < 16
    assert [found["target"] for found in written["compared"][:2]] == [">=8x", ">=2x"]
    assert [found["copies"] for found in written["traces"]] == [7, 7, 7]
    assert all(1 <= found["runtime_calls"] < 7 for found in written["traces"])


def test_over_the_stand_in_a_wrong_upload_fails(over_the_stand_in, capsys):
    ours = types.SimpleNamespace(**{name: getattr(fastutils, name) for name in ("CpuGpuBuffer", "copy_to_gpu_many")})
    ours.StagingGroup = group(flush=ask_for_one_more).StagingGroup
    assert staging_host.main(["--rounds", "2"], ours=ours) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "incorrect: flush(n) is wrong in the buffers [0, 1, 2" in printed.err


# ---- tests/gpu/bench_staging.py


def row(count, times, queue="idle", **more):
    return {"buffers": count, "bytes": 64, "fill": "full", "queue": queue, "median_ns": times, **more}


def test_a_crossover_is_the_count_from_which_on_it_is_faster(on_gpu):
    rows = [row(count, {"auto": 30, "upstream": 10 * count, "loop": 29, "pack": 31 - count}) for count in (1, 2, 4, 8)]
    asked = ("host, idle", 64, "full")
    assert on_gpu.crossover(rows, "auto", "upstream", *asked) == ">= 4"
    assert on_gpu.crossover(rows, "auto", "loop", *asked) == "never"
    assert on_gpu.crossover(rows, "loop", "auto", *asked) == "all"
    assert on_gpu.crossover(rows, "auto", "kernel", *asked) == ""
    assert on_gpu.crossover(rows, "auto", "upstream", "device", 64, "full") == ""
    rows.append(row(16, {"auto": 30, "upstream": 1}))  # an advantage that does not last is none
    assert on_gpu.crossover(rows, "auto", "upstream", *asked) == "never"


def test_the_gpu_benchmark_runs_over_the_stand_in(over_the_stand_in, on_gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(on_gpu, "BUFFERS", [1, 4])
    monkeypatch.setattr(on_gpu, "SIZES", [64])
    file = tmp_path / "staging.json"
    try:
        assert on_gpu.main(file) == 0
    finally:
        on_gpu.stand_in().fakecuda_quiet(0)
    assert capsys.readouterr().out.startswith("NO GPU")
    written = json.loads(file.read_text())
    assert written["stand_in"]
    assert written["left_out"] == []
    idle = [found for found in written["rows"] if found["queue"] == "idle"]
    assert [(found["buffers"], found["fill"]) for found in idle] == [(1, "full"), (4, "full"), (1, "half"), (4, "half")]
    assert set(idle[0]["median_ns"]) == {"upstream", "foreach", *on_gpu.MODES, "kernel"}
    assert [found["runtime_calls"]["pack"] for found in idle] == [1, 1, 1, 1]
    assert [found["runtime_calls"]["loop"] for found in idle] == [1, 4, 1, 4]


def test_the_gpu_benchmark_ends_in_time_and_says_what_is_missing(over_the_stand_in, on_gpu, capsys, tmp_path):
    ticks = iter(range(1000))
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(on_gpu.time, "monotonic", lambda: next(ticks))
            assert on_gpu.main(tmp_path / "staging.json", seconds=2) == 0
    finally:
        on_gpu.stand_in().fakecuda_quiet(0)
    assert "NOT MEASURED within 2 s: 47 steps of 48" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "staging.json").read_text())["left_out"]) == 47
