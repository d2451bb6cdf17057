"""Instruction counts and the gate: what counts, what fails, and what is said about it."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

from bench import callgrind, gate, instructions  # noqa: E402
from bench.cases import cases  # noqa: E402

FILE = """\
# callgrind format
version: 1
part: 2
desc: Trigger: Client Request: 20:ConstantList: x[5]

positions: line
events: Ir

ob=/usr/bin/python3
fl=???
fn=main
0 40
cfn=helper
calls=3 0
0 600
0 2

fn=helper
0 500
0 100
totals: 642
"""


def test_a_file_of_callgrind_is_read_without_counting_callees_twice():
    label, counted = callgrind.parse(iter(FILE.splitlines(keepends=True)))
    assert label == "20:ConstantList: x[5]"
    assert counted.total == 642
    assert counted.functions == {"main": 42, "helper": 600}


def test_a_file_without_a_mark_has_no_label():
    label, _ = callgrind.parse(iter(["desc: Trigger: Program termination\n", "fn=main\n", "0 4\n"]))
    assert label is None


PROGRAM = """
import sys
from bench.callgrind import marked
def work(count):
    for _ in range(count):
        abs(-7)
work(100)
for count in (20, 120):
    with marked(sys.argv[1], f"{count}"):
        work(count)
if len(sys.argv) > 2:
    sys.exit("ended early")
"""


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
    try:
        callgrind.valgrind()
        return callgrind.build_marks(tmp_path_factory.mktemp("marks"))
    except callgrind.Unavailable as error:
        pytest.skip(str(error))


def environment():
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": "0"}


def test_only_what_is_marked_is_counted_and_every_run_counts_the_same(marks, tmp_path):
    counts = []
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        counts.append(callgrind.run([sys.executable, "-S", "-c", PROGRAM, str(marks)], folder, environment()))
    one, two = counts
    assert set(one) == set(two) == {"20", "120"}
    # A call of abs() takes some hundred instructions; starting an interpreter takes some ten millions.
    assert 20 * 100 < one["120"].total - one["20"].total < 1000 * 100
    # Where the heap lies differs from run to run, and with it a call's count by a per cent or two.
    assert one["120"].total - one["20"].total == pytest.approx(two["120"].total - two["20"].total, rel=0.05)


def test_a_program_that_fails_is_no_count(marks, tmp_path):
    with pytest.raises(callgrind.Failed, match=r"status 1 under valgrind:[^$]*ended early"):
        callgrind.run([sys.executable, "-S", "-c", PROGRAM, str(marks), "fail"], tmp_path, environment())


def test_without_valgrind_the_message_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "valgrind" else f"/usr/bin/{name}")
    assert instructions.main(["-k", "x[5]"]) == 2
    assert "apt-get install valgrind" in capsys.readouterr().err


def test_without_the_headers_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(callgrind, "SOURCE", tmp_path / "marks.c")
    callgrind.SOURCE.write_text("#include <valgrind/no_such_header.h>\n")
    with pytest.raises(callgrind.Unavailable, match=r"needs valgrind's headers[^$]*no_such_header"):
        callgrind.build_marks(tmp_path)


def counted(total, **functions):
    return callgrind.Counted(total, functions or {"f": total})


def test_the_cost_of_a_pass_is_a_difference_without_the_loop_and_the_heap():
    (case,) = [case for case in cases() if case.id == "ConstantList: x[5]"]
    name = case.id
    found = {
        f"20:{name}": counted(0, f=1000, g=50, _int_malloc=700),
        f"120:{name}": counted(0, f=6000, g=50, _int_malloc=900),
        f"20-:{name}": counted(100),
        f"120-:{name}": counted(600),
    }
    counts = instructions._difference(found, case)
    assert counts.total == 50 - 5
    assert counts.functions == {"f": 50}
    del found[f"20-:{name}"]
    with pytest.raises(callgrind.Failed, match=r"no counts for '20-:ConstantList: x\[5\]'"):
        instructions._difference(found, case)


def test_what_is_counted_is_on_one_thread_and_every_helper_has_a_case():
    chosen = instructions.selected()
    assert not any(case.parallel for case in chosen)
    assert {case.helper for case in chosen} == {case.helper for case in cases()}
    assert instructions.interpreter().startswith(f"{sys.implementation.name}-{sys.version.split()[0]}-")


def document(torch="2.13.0", **totals):
    def entry(upstream, ours, functions):
        return {"upstream": upstream, "fastutils": ours, "functions": functions}

    return {"environment": {"torch": torch}, "cases": {name: entry(*values) for name, values in totals.items()}}


def test_the_gate_fails_on_more_instructions_and_says_which():
    before = document(a=(1000, 300, {"subscript": 200, "decref": 50}), b=(1000, 100, {}))
    after = document(a=(1000, 330, {"subscript": 230, "decref": 50}), b=(1000, 101, {}))
    text, passed = gate.report(before, after, Path("x.json"))
    assert not passed
    (row,) = [line for line in text.splitlines() if line.startswith("a ")]
    assert row.split()[1:] == ["300", "330", "+10.0%", "+0.0%", "FAILED", "+30", "subscript"]
    assert "GATE FAILED: 1 of 2 cases" in text
    assert "make bench-baseline" in text
    assert "Upstream's form moved" not in text


def test_the_gate_passes_fewer_instructions_and_single_ones():
    before = document(a=(1000, 300, {}), b=(1000, 100, {}))
    text, passed = gate.report(before, document(a=(1000, 200, {}), b=(1000, 103, {})), Path("x.json"))
    assert passed
    assert "-33.3%" in text
    assert "Gate passed: none of 2 cases" in text


def test_the_gate_tells_a_change_of_the_surroundings():
    before, after = document(a=(1000, 300, {})), document(torch="2.14.1", a=(1100, 345, {}))
    text, passed = gate.report(before, after, Path("x.json"))
    assert not passed
    assert "torch: 2.13.0 -> 2.14.1" in text
    assert "look at the surroundings first" in text


def test_the_gate_passes_what_moves_both_sides_alike():
    before, after = document(a=(1000, 300, {})), document(a=(1012, 304, {}))
    text, passed = gate.report(before, after, Path("x.json"))
    assert passed
    assert "+1.3%" in text
    fewer = document(a=(900, 304, {}))  # that upstream's form takes fewer excuses nothing
    assert not gate.report(before, fewer, Path("x.json"))[1]


def test_the_gate_names_cases_that_came_and_went():
    text, passed = gate.report(document(a=(9, 9, {})), document(b=(9, 9, {})), Path("x.json"))
    assert passed
    assert "No longer counted: a" in text
    assert "Not in the baseline, so not compared: b" in text


@pytest.fixture
def counts(monkeypatch):
    """What the gate counts, without valgrind: the test sets it."""
    found = {"a": {"upstream": instructions.Counts(1000), "fastutils": instructions.Counts(100)}}
    monkeypatch.setattr(instructions, "count", lambda text="": found)
    monkeypatch.setattr(instructions, "facts", lambda: {"torch": "2.13.0"})
    return found


def test_without_a_baseline_there_is_nothing_to_compare_and_that_is_said(capsys, tmp_path, counts):
    assert gate.main([], tmp_path) == 0
    assert "No baseline is committed for this interpreter (" in capsys.readouterr().out


def test_the_baseline_is_written_compared_and_refreshed(capsys, tmp_path, counts):
    assert gate.main(["--update"], tmp_path) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == f"{instructions.interpreter()}.json"
    assert gate.main([], tmp_path) == 0
    counts["a"]["fastutils"] = instructions.Counts(120)
    assert gate.main([], tmp_path) == 1
    assert gate.main(["-k", "a"], tmp_path) == 1
    capsys.readouterr()
    assert gate.main(["--update"], tmp_path) == 0
    assert "+20.0%" in capsys.readouterr().out
    assert json.loads(path.read_text())["cases"]["a"]["fastutils"] == 120
    assert gate.main([], tmp_path) == 0


def test_a_part_is_no_baseline(capsys, tmp_path):
    with pytest.raises(SystemExit):
        gate.main(["--update", "-k", "a"], tmp_path)
    assert "--update goes without -k" in capsys.readouterr().err


def test_a_gate_that_cannot_count_does_not_pass(capsys, tmp_path, counts, monkeypatch):
    gate.main(["--update"], tmp_path)

    def broken(text=""):
        raise callgrind.Failed("the program ended with status 139 under valgrind:")

    monkeypatch.setattr(instructions, "count", broken)
    assert gate.main([], tmp_path) == 2
    assert "status 139" in capsys.readouterr().err


def test_committed_baselines_hold_the_cases_that_are_counted():
    ids = {case.id for case in instructions.selected()}
    for path in gate.FOLDER.glob("*.json"):
        found = json.loads(path.read_text())
        assert set(found["cases"]) == ids, f"{path.name}: make bench-baseline refreshes it"
