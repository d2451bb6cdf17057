"""The table of cases: each gives the right result on both sides, and each notices a helper that does not."""

import contextlib
import dataclasses
import json
import math
import sys
import types
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

import fastutils  # noqa: E402
from bench import cases as table_of_cases  # noqa: E402
from bench import micro, upstream  # noqa: E402
from bench.cases import Target  # noqa: E402
from bench.paired import Verdict  # noqa: E402

CASES = table_of_cases.cases()
SMALL = [case for case in CASES if "16 MB" not in case.id and "64 MB" not in case.id]
TINY = micro.Settings(rounds=2, builds=2, sample_ns=1_000, budget_ns=1)


class BrokenList:
    """Wrong in every operation, and no Sequence."""

    def __init__(self, x):
        self._x = list(x[1:-1])

    def __getitem__(self, item):
        return self._x[item]

    def __len__(self):
        return len(self._x)

    def __contains__(self, item):
        return item < 0

    def __iter__(self):
        return iter(self._x)

    def index(self, item):
        return self._x.index(item)

    def count(self, item):
        return self._x.count(item) + 1

    def copy(self):
        return self._x.copy()


class BrokenBuffer(upstream.CpuGpuBuffer):
    """Copies nothing and returns what it should."""

    def copy_to_gpu(self, n=None):
        return None if self.gpu is self.cpu else self.gpu if n is None else self.gpu[:n]

    def copy_to_cpu(self, n=None):
        return self.cpu[:n]


def broken_details(scheduler_output):
    found = upstream.compute_iteration_details(scheduler_output)
    return upstream.IterationDetails(*(getattr(found, name) + 1 for name in table_of_cases.COUNTS))


BROKEN = types.SimpleNamespace(
    ConstantList=BrokenList,
    CpuGpuBuffer=BrokenBuffer,
    copy_slice=lambda from_tensor, to_tensor, length: to_tensor[:length],
    copy_to_gpu_many=lambda buffers, ns: None,
    tensor_data=lambda tensor: memoryview(bytes(tensor.nbytes)),
    compute_iteration_details=broken_details,
    record_function_or_nullcontext=lambda name: contextlib.nullcontext("another"),
)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_a_case_gives_the_right_result_on_both_sides(case):
    for helpers in (upstream, fastutils):
        side = case.make(helpers)
        with case.mode():
            for _ in range(2):
                assert side.outcome() == side.expected


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_a_case_notices_a_broken_helper_and_gives_no_number(case, monkeypatch):
    monkeypatch.setattr(micro, "steady", lambda one_core: contextlib.nullcontext())  # its gc.collect() takes longest
    found = micro.run_case(case, BROKEN, TINY)
    assert found.verdict is None
    assert found.error.startswith("INCORRECT: fastutils ")
    assert found.met == ""


def test_huge_cases_are_built_less_often():
    made = []
    (case,) = [case for case in CASES if case.id == "copy_slice: 64 B, grad mode"]

    def make(helpers):
        made.append(helpers)
        return case.make(helpers)

    for builds, expected in ((1 << 10, TINY.builds), (1, 1)):
        made.clear()
        found = micro.run_case(dataclasses.replace(case, make=make, builds=builds), fastutils, TINY)
        assert made == [upstream, fastutils] * expected
        assert found.verdict is not None


def test_ids_are_unique_and_helpers_are_public_names():
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.helper for case in CASES} - {"copy_to_gpu_many"} <= set(fastutils.__all__)


def test_a_run_prints_and_writes_each_case(capsys, tmp_path):
    file = tmp_path / "micro.json"
    assert micro.main(["-k", ": N=", "--json", str(file)], settings=TINY) == 0
    printed = capsys.readouterr().out
    selected = [case.id for case in CASES if ": N=" in case.id]
    assert all(f"\n{case_id} " in printed for case_id in selected)
    assert "noise floor" in printed
    written = json.loads(file.read_text())
    assert [row["id"] for row in written["cases"]] == selected
    assert all(row["correct"] and row["low"] <= row["ratio"] <= row["high"] for row in written["cases"])
    assert written["environment"]["forms"]["compute_iteration_details"]


def test_an_incorrect_case_prints_no_number_and_fails(capsys, tmp_path):
    file = tmp_path / "micro.json"
    ours = types.SimpleNamespace(**{name: getattr(upstream, name) for name in ("ConstantList", "copy_slice")})
    ours.ConstantList = BrokenList
    assert micro.main(["-k", "x[5]", "--json", str(file)], ours=ours, settings=TINY) == 1
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ConstantList: x[5]")]
    assert "INCORRECT: fastutils gives 1006, expected 1005" in row
    assert row.split("INCORRECT")[0].split()[-5:] == ["-"] * 5
    (written,) = json.loads(file.read_text())["cases"]
    assert written["correct"] is False
    assert "ratio" not in written


def test_a_raising_helper_is_incorrect_too():
    def explode(*_):
        raise RuntimeError("no kernel image")

    (case,) = [case for case in CASES if case.id == "copy_slice: 64 B, grad mode"]
    found = micro.run_case(case, types.SimpleNamespace(copy_slice=explode), TINY)
    assert found.error == "INCORRECT: fastutils raised RuntimeError: no kernel image"


def test_a_helper_that_fastutils_lacks_is_no_failure(capsys):
    assert micro.main(["-k", "x[5]"], ours=types.SimpleNamespace(), settings=TINY) == 0
    assert "fastutils has no ConstantList" in capsys.readouterr().out


def test_ctrl_c_prints_what_is_done(capsys, monkeypatch):
    def impatient(selected):
        yield selected[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(micro, "progress", impatient)
    assert micro.main(["-k", "ConstantList"], settings=TINY) == 130
    printed = capsys.readouterr().out
    assert "INTERRUPTED: 1 of 14 cases were done." in printed
    assert "\nConstantList: x[5] " in printed


def test_the_list_measures_nothing(capsys):
    assert micro.main(["--list", "-k", "isinstance"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["ConstantList: isinstance(x, Sequence)  not slower"]


def test_a_choice_without_a_case_is_an_error(capsys):
    with pytest.raises(SystemExit) as left:
        micro.main(["-k", "nonsense"])
    assert left.value.code == 2
    assert "see --list" in capsys.readouterr().err


def verdict(ratio, low=None, high=None, difference=0.0, resolved=True):
    return Verdict(100.0, 100.0 - difference, difference, 5.0, ratio, low or ratio, high or ratio, 21, resolved)


@pytest.mark.parametrize(
    ("target", "found", "answer"),
    [
        (Target(4), verdict(4.0), "met ~"),
        (Target(4), verdict(5.0, 4.8, 5.1), "met"),
        (Target(4), verdict(3.9, 3.8, 4.1), "not met ~"),
        (Target(4), verdict(3.0, 2.9, 3.1), "not met"),
        (Target(not_slower=True), verdict(0.99, 0.97, 0.985), "met"),
        (Target(not_slower=True), verdict(0.9, 0.8, 0.97), "not met"),
        (Target(0.95, overhead_ns=60), verdict(0.97, difference=-70.0), "not met"),
        (Target(0.95, overhead_ns=60), verdict(0.97, difference=-50.0), "met"),
        (Target(0.95, overhead_ns=60), verdict(0.94, difference=-50.0), "not met"),
    ],
)
def test_targets(target, found, answer):
    assert target.judge(found) == answer


def test_losses_and_bounds_stay_in_the_table():
    case = CASES[0]
    text = micro.render(
        [
            micro.Measured(case, verdict(0.5, 0.4, 0.6, difference=-100.0)),
            micro.Measured(case, verdict(800, resolved=False)),
        ]
    )
    loss, bound = text.splitlines()[2:]
    assert "0.50x" in loss
    assert loss.endswith("not met")
    assert ">800.00x" in bound


def test_the_baseline_loops_where_ours_makes_one_call():
    (case, *_) = [case for case in CASES if case.helper == "copy_to_gpu_many"]
    assert "for b, n in zip" in case.make(upstream).loop.statement
    assert case.make(BROKEN).loop.statement == "many(buffers, ns)"
    assert not math.isnan(case.target.ratio)
