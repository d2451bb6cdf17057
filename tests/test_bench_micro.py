"""The table of cases: each gives the right result on both sides, and each notices a helper that does not."""

import contextlib
import dataclasses
import json
import math
import sys
import threading
import types
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

import fastutils  # noqa: E402
from bench import baseline, broken, micro, results, show, upstream  # noqa: E402
from bench.cases import cases  # noqa: E402
from bench.cases.model import Case, Family, Peer, Side, Target  # noqa: E402
from bench.paired import Loop, Verdict  # noqa: E402
from bench.threads import ThreadedLoop  # noqa: E402

CASES = cases()
SMALL = [
    case for case in CASES if not any(size in case.id for size in ("4 MB", "16 MB", "64 MB")) and case.group != "cold"
]
TINY = micro.Settings(rounds=2, builds=2, sample_ns=1_000, budget_ns=1, cold_rounds=1, processes=1)


@pytest.fixture(autouse=True)
def _quick_and_quiet(monkeypatch):
    """The noise of the machine that runs the tests is not their subject, and gc.collect() takes longest."""
    monkeypatch.setattr(micro.aa, "LIMIT", 1e9)
    monkeypatch.setattr(micro, "steady", lambda one_core: contextlib.nullcontext())


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_a_case_gives_the_right_result_on_both_sides(case):
    if case.peer is not None:
        pytest.importorskip({"pyrsistent.pvector": "pyrsistent", "nvtx.annotate": "nvtx"}.get(case.peer.name, "torch"))
        if case.peer.name == "frozenlist":
            pytest.importorskip("frozenlist")
    for side in case.sides(upstream, fastutils):
        with contextlib.closing(side), case.mode():
            for _ in range(2):
                assert side.outcome() == side.expected
            side.loop.run(side.loop.items(2))
            assert side.outcome() == side.expected


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_a_case_notices_a_broken_helper_and_gives_no_number(case, monkeypatch):
    assert not broken.passes(case)
    monkeypatch.setattr(broken, "passes", lambda case: False)
    found = micro.run_case(case, broken.HELPERS, TINY, flush=lambda: None)
    assert found.verdict is None
    assert found.error.startswith(("INCORRECT: fastutils ", "not available: "))
    assert found.met == ""


def test_a_fast_variant_that_is_wrong_gives_no_number():
    class Fast(upstream.ConstantList):
        def __len__(self):
            return 299

    (case,) = [case for case in CASES if case.id == "ConstantList: len(x)"]
    found = micro.run_case(case, types.SimpleNamespace(ConstantList=Fast), TINY)
    assert found.error == "INCORRECT: fastutils gives 299, expected 300"
    assert "ratio" not in found.entry()


def test_a_case_whose_check_cannot_fail_is_refused():
    def make(helpers):
        return Side(Loop("helpers"), lambda: True, True)

    case = Case("careless", "ConstantList", make, Target(2))
    found = micro.run_case(case, fastutils, TINY)
    assert found.verdict is None
    assert found.error == "REFUSED: its check lets a helper through that does everything wrong"
    assert found.wrong


def test_a_peer_must_be_asked_for_the_same():
    (case,) = [case for case in CASES if case.id == "peer tuple: x[5]"]
    other = Peer("tuple", lambda: Side(Loop("1"), lambda: 7, 7))
    found = micro.run_case(dataclasses.replace(case, peer=other), fastutils, TINY)
    assert found.error == "INCORRECT: tuple is asked for 7, fastutils for 1005"


def test_a_peer_that_is_not_installed_has_no_number():
    def missing():
        raise ImportError("No module named 'frozenlist'")

    (case,) = [case for case in CASES if case.id == "peer tuple: x[5]"]
    found = micro.run_case(dataclasses.replace(case, peer=Peer("frozenlist", missing)), fastutils, TINY)
    assert found.error == "not available: No module named 'frozenlist'"
    assert not found.wrong


def test_every_peer_says_what_is_different():
    peers = [case for case in CASES if case.group == "peers"]
    assert {case.peer.name for case in peers} >= {"list", "tuple", "frozenlist", "pyrsistent.pvector", "nvtx.annotate"}
    assert all(case.star for case in peers)


@pytest.mark.parametrize("wrong", [{"group": "others"}, {"group": "peers"}, {"family": Family("f", 1, "bytes")}])
def test_a_case_in_the_wrong_group_is_an_error(wrong):
    with pytest.raises(ValueError, match=r"^x: "):
        Case("x", "copy_slice", lambda helpers: None, **wrong)


def test_threads_end_with_their_case():
    before = threading.active_count()
    (case,) = [case for case in CASES if case.id == "copy_slice of 4 KB by threads: 3"]
    loops = dataclasses.replace(case, make=lambda helpers: shorter(case.make(helpers)))
    assert micro.run_case(loops, fastutils, TINY).verdict is not None
    assert micro.run_case(case, broken.HELPERS, TINY).verdict is None
    assert threading.active_count() == before


def shorter(side):
    side.loop.longer = 1
    return side


def test_an_error_in_a_thread_is_raised_where_the_loop_runs():
    loop = ThreadedLoop([Loop("1 / zero", zero=0), Loop("pass")])
    with contextlib.closing(loop), pytest.raises(ZeroDivisionError):
        loop.run([None] * 4)
    loop = ThreadedLoop([Loop("seen.append(item)", each="item", seen=(seen := []), items=range)] * 3)
    with contextlib.closing(loop):
        loop.run(list(range(10)))
        loop.run_empty(list(range(10)))
    assert sorted(seen) == list(range(10))


def test_the_families_cover_their_range():
    points = {}
    for case in CASES:
        if case.family:
            points.setdefault(case.family.name, []).append(case.family.at)
    ends = {name: (found[0], found[-1]) for name, found in points.items()}
    assert ends["compute_iteration_details by requests"] == (1, 4096)
    assert ends["copy_slice by size"] == (4, 64 << 20)
    assert ends["copy_to_gpu_many by buffers"] == (1, 64)
    assert [found for name, found in points.items() if "threads" in name] == [[1, 2, 3, 4]] * 3


def test_huge_cases_are_built_less_often():
    made = []
    (case,) = [case for case in CASES if case.id == "copy_slice: 64 B, grad mode"]

    def make(helpers):
        made.append(helpers)
        return case.make(helpers)

    for builds, expected in ((1 << 10, TINY.builds), (1, 1)):
        made.clear()
        found = micro.run_case(dataclasses.replace(case, make=make, builds=builds), fastutils, TINY)
        assert made == [broken.HELPERS] + [upstream, fastutils] * expected
        assert found.verdict is not None


def test_ids_are_unique_and_helpers_are_public_names():
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.helper for case in CASES} <= set(fastutils.__all__)


def test_a_run_prints_and_writes_each_case(capsys, tmp_path):
    file = tmp_path / "micro.json"
    assert micro.main(["-k", ": N=", "--group", "helpers", "--json", str(file)], settings=TINY) == 0
    printed = capsys.readouterr().out
    selected = [case.id for case in CASES if ": N=" in case.id and case.group == "helpers"]
    assert all(f"\n{case_id} " in printed for case_id in selected)
    assert "noise floor" in printed
    written = results.read(file)
    assert [row["id"] for row in written["cases"]] == selected
    assert all(row["correct"] and row["low"] <= row["ratio"] <= row["high"] for row in written["cases"])
    assert written["environment"]["forms"]["compute_iteration_details"]
    assert written["environment"]["upstream"] == baseline.FORM.description
    assert set(written["noise"]) == set(micro.aa.PROBES)
    assert written["complete"]


def test_an_incorrect_case_prints_no_number_and_fails(capsys, tmp_path):
    file = tmp_path / "micro.json"
    ours = types.SimpleNamespace(**{name: getattr(upstream, name) for name in ("ConstantList", "copy_slice")})
    ours.ConstantList = broken.ConstantList
    arguments = ["-k", "x[5]", "--group", "helpers", "--json", str(file)]
    assert micro.main(arguments, ours=ours, settings=TINY) == 1
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
    assert micro.main(["-k", "x[5]", "--group", "helpers"], ours=types.SimpleNamespace(), settings=TINY) == 0
    assert "fastutils has no ConstantList" in capsys.readouterr().out


def test_ctrl_c_prints_and_writes_what_is_done(capsys, monkeypatch, tmp_path):
    run_case = micro.run_case

    def impatient(case, *arguments, **named):
        if case.id == "ConstantList: x[-1]":
            raise KeyboardInterrupt
        return run_case(case, *arguments, **named)

    monkeypatch.setattr(micro, "run_case", impatient)
    arguments = ["-k", "ConstantList", "--group", "helpers", "--json", str(tmp_path / "part.json")]
    assert micro.main(arguments, settings=TINY) == 130
    printed = capsys.readouterr().out
    assert "INTERRUPTED: 1 of 15 cases were done." in printed
    assert "\nConstantList: x[5] " in printed
    assert not results.read(tmp_path / "part.json")["complete"]


def test_above_the_limit_there_are_numbers_but_no_verdicts(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(micro.aa, "LIMIT", -1)
    file = tmp_path / "noisy.json"
    assert micro.main(["-k", "x[5]", "--group", "helpers", "--json", str(file)], settings=TINY) == 0
    printed = capsys.readouterr().out
    assert "NO VERDICTS: the noise floor is" in printed
    assert "targets met" not in printed
    assert "target met" not in printed
    assert results.read(file)["verdicts"] is False


def test_memory_has_rows_of_its_own(capsys):
    assert micro.main(["--group", "memory", "-k", "ConstantList"], settings=TINY) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory: ConstantList")]
    upstream_bytes = int(row.split()[2])
    assert upstream_bytes >= sys.getsizeof(upstream.ConstantList([]))


def test_first_calls_are_made_in_fresh_processes(capsys):
    assert micro.main(["--group", "first"], settings=TINY) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in micro.first_calls.IDS)


def test_a_fresh_process_that_fails_is_reported(capsys, monkeypatch):
    monkeypatch.setattr(micro.first_calls.sys, "executable", "/bin/false")
    assert micro.main(["--group", "first"], settings=TINY) == 1
    assert "The first calls could not be timed: -m bench.first_calls" in capsys.readouterr().out


def test_cold_cases_are_flushed_before_every_call():
    flushed = []
    (case,) = [case for case in CASES if case.id == "cold: ConstantList: x[-1]"]
    found = micro.run_case(case, fastutils, TINY, flush=lambda: flushed.append(1))
    assert found.verdict.rounds == TINY.builds * TINY.cold_rounds
    assert len(flushed) == 6 * found.verdict.rounds


def test_the_list_measures_nothing(capsys):
    assert micro.main(["--list", "-k", "isinstance"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["ConstantList: isinstance(x, Sequence)  helpers  not slower"]


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
    found = show.cases(
        [
            results.Measured(case, verdict(0.5, 0.4, 0.6, difference=-100.0)).entry(),
            results.Measured(case, verdict(800, resolved=False)).entry(),
        ]
    )
    loss, bound = str(found).splitlines()[2:]
    assert "0.50x" in loss
    assert loss.endswith("not met")
    assert ">800.00x" in bound


def test_a_star_is_explained_once_below_the_table():
    starred = [case for case in CASES if case.id.startswith("peer tuple: x[")]
    lines = str(show.cases([results.Measured(case, verdict(1.1)).entry() for case in starred])).splitlines()
    assert sum(" *1 " in line for line in lines) == len(starred)
    assert lines[-1] == f"*1 {starred[0].star}"
    assert "other ns" in lines[0]


def test_the_baseline_loops_where_ours_makes_one_call():
    (case, *_) = [case for case in CASES if case.helper == "copy_to_gpu_many"]
    assert "for b, n in zip" in case.make(upstream).loop.statement
    assert case.make(broken.HELPERS).loop.statement == "many(buffers, ns)"
    assert not math.isnan(case.target.ratio)


def test_a_file_that_is_no_result_is_named(tmp_path):
    for text, message in (
        ("{", "cannot be read"),
        ("[]", "is no result"),
        ('{"cases": [], "format": 0}', "has format 0"),
    ):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(results.Unreadable, match=f"other.json {message}"):
            results.read(tmp_path / "other.json")
