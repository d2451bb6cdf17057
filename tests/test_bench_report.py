"""What is made of results: comparisons, drawings, the report, the history, a GPU's results."""

import copy
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

from bench import compare, gpu, history, plot, report, results, show, table  # noqa: E402
from bench.cases import cases  # noqa: E402
from bench.paired import Verdict  # noqa: E402
from bench.results import Measured  # noqa: E402


def verdict(ratio=4.0, width=0.01, ours=10.0):
    return Verdict(
        ours * ratio, ours, ours * (ratio - 1), 5.0, ratio, ratio * (1 - width), ratio * (1 + width), 99, True
    )


@pytest.fixture(scope="module")
def whole():
    """A document of a whole run in which everything is four times as fast."""
    return {
        "environment": {
            "interpreter": "CPython 3.11.2, optimised",
            "compiler": "gcc",
            "torch": "2.13.0",
            "CPU": "A Processor, 2 core(s)",
            "load": "0.1",
            "commit": "abc1234",
            "upstream": "upstream's form",
            "forms": {"ConstantList": "compiled (it loads)"},
        },
        "settings": {},
        "noise": {},
        "noise_floor": {"ratio": 1.0, "low": 0.999, "high": 1.001},
        "noise_in_threads": {},
        "unsettled": "",
        "verdicts": True,
        "complete": True,
        "cases": [Measured(case, verdict()).entry() for case in cases()],
        "first": [results.first_entry("first call: copy_slice", verdict())],
        "memory": [results.memory_entry("memory: ConstantList", results.Bytes(80, None), results.Bytes(56, 3))],
    }


@pytest.fixture
def run(whole):
    return copy.deepcopy(whole)


def entry(document, name):
    return next(found for found in document["cases"] if found["id"] == name)


STEPS = {
    "complete": True,
    "traces": [
        {"trace": "mixed", "steps": 9, "upstream_ns": 9e4, "ours_ns": 1e4, "ratio": 9.0, "low": 8.9, "high": 9.1}
    ],
    "overall": {"steps": 9, "upstream_ns": 9e4, "ours_ns": 1e4, "ratio": 9.0, "low": 8.9, "high": 9.1},
}


def stored(tmp_path, document, name="micro.json"):
    results.write(document, tmp_path / name)
    return str(tmp_path / name)


# ---- compare


def test_equal_runs_compare_equal(run, tmp_path, capsys):
    path = stored(tmp_path, run)
    assert compare.main([path, path]) == 0
    assert capsys.readouterr().out.endswith(f"{len(run['cases'])} cases compared: 0 worse, 0 better.\n")


@pytest.mark.parametrize(
    ("ratio", "width", "worse"),
    [(3.8, 0.01, True), (3.9, 0.01, False), (3.8, 0.2, False), (4.4, 0.01, False)],
    ids=["5 % and sure", "under 3 %", "not sure", "better"],
)
def test_worse_is_more_than_3_percent_and_sure(run, tmp_path, capsys, ratio, width, worse):
    before = stored(tmp_path, run, "before.json")
    found = entry(run, "ConstantList: x[5]")
    found.update(ratio=ratio, low=ratio * (1 - width), high=ratio * (1 + width))
    assert compare.main([before, stored(tmp_path, run, "after.json"), "--markdown"]) == int(worse)
    printed = capsys.readouterr().out
    assert ("| ConstantList: x[5] | 4.00x |" in printed) is (worse or ratio > 4)


def test_a_case_that_became_incorrect_is_worse_and_one_that_is_gone_is_named(run, tmp_path, capsys):
    before = stored(tmp_path, run, "before.json")
    entry(run, "ConstantList: x[5]").update(error="INCORRECT: no", correct=False)
    run["cases"].remove(entry(run, "ConstantList: len(x)"))
    run["environment"]["torch"] = "2.14.1"
    run["verdicts"] = False
    assert compare.main([before, stored(tmp_path, run, "after.json")]) == 1
    printed = capsys.readouterr().out
    assert "INCORRECT in the later run: ConstantList: x[5]" in printed
    assert "not measured in the later run: ConstantList: len(x)" in printed
    assert "torch: 2.13.0 -> 2.14.1" in printed
    assert "too restless for verdicts" in printed


def test_instruction_counts_are_compared_too(tmp_path, capsys):
    for name, count in (("before", 100), ("after", 110)):
        case = {"upstream": 500, "fastutils": count, "functions": {}}
        (tmp_path / f"{name}.json").write_text(json.dumps({"environment": {}, "cases": {"a": case}}))
    paths = [str(tmp_path / "before.json"), str(tmp_path / "after.json")]
    assert compare.main(paths) == 1
    assert compare.main(paths[::-1]) == 0
    assert "GATE FAILED: 1 of 1" in capsys.readouterr().out


def test_what_is_no_result_cannot_be_compared(run, tmp_path, capsys):
    (tmp_path / "other.json").write_text("[]")
    assert compare.main([stored(tmp_path, run), str(tmp_path / "other.json")]) == 2
    assert compare.main([stored(tmp_path, run), str(tmp_path / "missing.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


# ---- plot


def test_the_drawings_are_well_formed_and_one_for_each_family(run):
    drawings = plot.drawings(run)
    families = {case.family.name for case in cases() if case.family}
    assert len(drawings) == 1 + len(families)
    for drawing in drawings.values():
        root = ElementTree.fromstring(drawing)
        assert "prefers-color-scheme: dark" in drawing
        left, top, width, height = map(float, root.get("viewBox").split())
        for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
            assert left <= float(circle.get("cx")) <= width
            assert top <= float(circle.get("cy")) <= height


def test_a_loss_is_drawn_as_one_and_an_incorrect_case_not_at_all(run):
    entry(run, "ConstantList: x[5]").update(ratio=0.5, low=0.4, high=0.6)
    entry(run, "ConstantList: len(x)").update(error="INCORRECT", correct=False)
    drawing = plot.drawings(run)["helpers.svg"]
    assert drawing.count('<circle class="loss"') == 1
    assert "len(x)" not in drawing


def test_an_axis_is_logarithmic_and_does_not_leave_its_ends():
    axis = plot.Log(1, 100, 0, 200)
    assert [axis(value) for value in (0.1, 1, 10, 100, 1e9)] == pytest.approx([0, 0, 100, 200, 200])
    assert axis.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert plot.Log(1, 1e9, 0, 1).ticks() == pytest.approx([10.0**power for power in range(10)])


def test_plot_writes_files(run, tmp_path, capsys):
    assert plot.main([stored(tmp_path, run), "--out", str(tmp_path / "docs")]) == 0
    assert (tmp_path / "docs" / "copy-slice-by-size.svg").is_file()
    (tmp_path / "other.json").write_text("{}")
    assert plot.main([str(tmp_path / "other.json")]) == 2


# ---- report


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "README.md").write_text(f"before\n{report.BEGIN}\nof yesterday\n{report.END}\nafter\n")
    return tmp_path


def reported(checkout, document, steps=STEPS):
    folder = checkout / "results"
    folder.mkdir(exist_ok=True)
    stored(folder, document)
    (folder / "step.json").write_text(json.dumps(steps))
    return report.main(["--results", str(folder)], checkout)


def test_the_report_writes_between_the_markers_and_nothing_else(run, checkout, capsys):
    assert reported(checkout, run) == 0
    text = (checkout / "README.md").read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n{report.GENERATED}\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "of yesterday" not in text
    assert "| mixed | 9 | 90.0 | 10.0 | **9.0x** | [8.90, 9.10] |" in text
    assert all(f"| {name}" in text for name in report.SHOWN)
    assert "No case of the helpers is slower" in text
    assert "No result of a GPU is committed" in text
    page = (checkout / "docs" / "benchmarks.md").read_text()
    assert all(f"| {found['id']}" in page for found in run["cases"])
    lines = page.splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert sum(line.startswith("|---") for line in lines) == 1 + len(show.sections(run))
    assert sum(line.startswith("\\*1 ") for line in lines) == 4
    for name in plot.drawings(run):
        assert f"({name})" in page
        assert (checkout / "docs" / name).is_file()
    before = (checkout / "README.md").read_text()
    assert reported(checkout, run) == 0
    assert (checkout / "README.md").read_text() == before


def test_losses_and_missed_targets_are_in_the_report(run, checkout):
    entry(run, "ConstantList: x[5]").update(ratio=0.5, low=0.4, high=0.6, met="not met")
    assert reported(checkout, run) == 0
    text = (checkout / "README.md").read_text()
    assert "not met: ConstantList: x[5] (0.50x, target >=4x)" in text
    assert "with the whole interval: ConstantList: x[5] (-30.0 ns of 40.0)" in text


def test_cases_in_threads_have_no_verdict_where_other_work_had_a_core(run, checkout):
    run["unsettled"] = "other work had a core"
    entry(run, "copy_slice: 64 MB").update(ratio=0.5, low=0.4, high=0.6, met="not met")
    assert reported(checkout, run) == 0
    text = (checkout / "README.md").read_text()
    assert "| copy_slice: 64 MB | 40.0 | 10.0 | no verdict | other work had a core |" in text
    assert "copy_slice: 64 MB (" not in text
    assert "copy_slice: 64 MB" not in (checkout / "docs" / "helpers.svg").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"complete": False}, "the run was interrupted"),
        ({"verdicts": False}, "the noise floor was above 2%"),
        ({"format": 0}, "has format 0"),
    ],
)
def test_nothing_is_written_of_a_run_that_cannot_be_trusted(run, checkout, capsys, change, message):
    folder = checkout / "results"
    folder.mkdir()
    (folder / "micro.json").write_text(json.dumps({"format": results.FORMAT, **run, **change}))
    (folder / "step.json").write_text(json.dumps(STEPS))
    before = (checkout / "README.md").read_text()
    assert report.main(["--results", str(folder)], checkout) == 1
    assert f"nothing was written: {message}" in capsys.readouterr().err.replace(str(folder / "micro.json") + " ", "")
    assert (checkout / "README.md").read_text() == before


def test_an_incorrect_case_stops_the_report(run, checkout, capsys):
    entry(run, "ConstantList: x[5]").update(error="INCORRECT: no", correct=False)
    assert reported(checkout, run) == 1
    assert "these cases are incorrect: ConstantList: x[5]" in capsys.readouterr().err


def test_a_readme_without_markers_is_refused():
    for text in ("", report.BEGIN, f"{report.END} {report.BEGIN}", f"{report.BEGIN * 2}{report.END}"):
        with pytest.raises(report.Refused, match=r"README.md must hold"):
            report.insert(text, "part")


def test_what_the_readme_shows_are_cases():
    assert set(report.SHOWN) <= {case.id for case in cases()}


def test_the_committed_report_is_what_its_results_say():
    if not (report.RESULTS / "micro.json").is_file() or not (CHECKOUT / "README.md").is_file():
        pytest.skip("no results are committed yet, or this is no checkout")
    measured, steps = report.load(report.RESULTS)
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert report.insert(text, report.readme(measured, steps, gpu.load())) == text, "make bench-report refreshes it"


# ---- tables


def test_markdown_shows_stars_and_bars():
    text = table.markdown(["a|b", "ns"], [["x *1", "2"]])
    assert text == "| a\\|b | ns |\n|---|---:|\n| x \\*1 | 2 |\n"


def test_unknown_bytes_are_no_zero(run):
    (row,) = show.memory(run["memory"]).splitlines()[2:]
    assert row.split() == ["memory:", "ConstantList", "80", "?", "56", "3"]


# ---- history


def test_runs_are_added_one_line_each_and_shown_side_by_side(run, tmp_path, capsys):
    assert history.main([], tmp_path) == 1
    path = history.add(run, tmp_path)
    run["environment"]["commit"] = "def5678 with uncommitted changes"
    entry(run, "ConstantList: x[5]").update(ratio=5.0)
    entry(run, "ConstantList: len(x)").update(error="INCORRECT", correct=False)
    assert history.add(run, tmp_path) == path
    assert path.name.startswith("a-processor-2-core-s-cpython-3.11.2-")
    assert len(list(history.runs(path))) == 2
    assert history.main(["-k", "ConstantList"], tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["case", "abc1234", "def5678"] for line in lines)
    assert "ConstantList: x[5]                                       4.00x" in "\n".join(lines) or any(
        line.startswith("ConstantList: x[5] ") and line.split()[-2:] == ["4.00x", "5.00x"] for line in lines
    )
    assert any(line.startswith("ConstantList: len(x)") and line.endswith("4.00x") for line in lines)


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "machine.jsonl").write_text('{"cases": []}\n')
    with pytest.raises(results.Unreadable, match=r"machine\.jsonl, line 1"):
        list(history.runs(tmp_path / "machine.jsonl"))


# ---- GPU


def gpu_result(**more):
    row = {"bytes": 64, "queue": "idle", "median_ns": {"torch slice": 2400.0, "copy_slice": 490.0}, **more}
    return {"machine": {"gpu": "A GPU", "torch": "2.11", "cuda": "13.0", "python": "3.12"}, "rows": [row]}


def test_no_gpu_result_is_said(tmp_path, capsys):
    assert gpu.main(tmp_path) == 0
    assert capsys.readouterr().out.strip() == gpu.NOTHING


def test_host_and_device_time_stand_apart(tmp_path, capsys):
    (tmp_path / "gpu-one.json").write_text(json.dumps(gpu_result()))
    (tmp_path / "gpu-two.json").write_text(json.dumps(gpu_result(device_ns={"copy_slice": 1700.0})))
    assert gpu.main(tmp_path) == 0
    one, two = capsys.readouterr().out.split("A GPU, torch 2.11, CUDA 13.0, Python 3.12")[1:]
    assert "Device time was not taken." in one
    assert two.index("Host time") < two.index("2,400") < two.index("Device time in ns") < two.index("1,700")


def test_groups_of_buffers_have_tables_of_their_own(tmp_path, capsys):
    steps = {"buffers": 16, "fill": "half", "arrived_ns": {"auto": 9000.0}, "device_ns": {"auto": 1700.0}}
    (tmp_path / "staging-one.json").write_text(json.dumps(gpu_result(**steps)))
    assert gpu.load(tmp_path) == []
    assert gpu.main(tmp_path) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(gpu.NOTHING)
    for heading in (
        "in ns per step",
        "until everything has arrived",
        "Device time in ns per step",
        "16 x 64 B, half, idle",
    ):
        assert heading in printed
    (tmp_path / "staging-one.json").write_text(json.dumps({**gpu_result(**steps), "stand_in": True}))
    assert gpu.main(tmp_path) == 2
    assert "without a GPU" in capsys.readouterr().err


def test_a_file_that_is_no_gpu_result_is_named(tmp_path, capsys):
    (tmp_path / "gpu-bad.json").write_text('{"rows": [{"bytes": 64}]}')
    assert gpu.main(tmp_path) == 2
    assert "gpu-bad.json is no result of tests/gpu/run.sh: KeyError" in capsys.readouterr().err
