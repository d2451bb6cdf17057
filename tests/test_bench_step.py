"""The trace replay: what is wrong prints no number, and sums are sums."""

import dataclasses
import io
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

import torch  # noqa: E402

import fastutils  # noqa: E402
from bench import recording, replay, step, totals, upstream  # noqa: E402
from bench.paired import Incorrect, Rounds  # noqa: E402
from bench.recording import TraceError  # noqa: E402
from bench.replay import HELPERS, Replay  # noqa: E402
from bench.staged import StagedCopies  # noqa: E402

TINY = step.Settings(rounds=2, sample_ns=1_000, stride=60)


def helpers(**replaced):
    """Upstream's form with some helpers replaced."""
    names = [*HELPERS, *replaced]
    return types.SimpleNamespace(**{name: replaced.get(name, getattr(upstream, name, None)) for name in names})


def recorded(trace="mixed", index=100):
    return next(found for found in recording.steps(trace) if found.index == index)


def checked(ours, found=None, wanted=HELPERS):
    found = found or recorded()
    for work in Replay(upstream, ours, wanted).works(found):
        with work.mode():
            work.check()


class OneOff(upstream.ConstantList):
    def __getitem__(self, item):
        return self._x[item - 1] if isinstance(item, int) else self._x[item]


class ShortSlice(upstream.ConstantList):
    def __getitem__(self, item):
        found = self._x[item]
        return found[:-1] if isinstance(item, slice) else found


class TupleSlice(upstream.ConstantList):
    def __getitem__(self, item):
        found = self._x[item]
        return tuple(found) if isinstance(item, slice) else found


class Snapshot(upstream.ConstantList):
    def __init__(self, x):
        super().__init__(list(x))


class LastRowMissing(upstream.CpuGpuBuffer):
    def copy_to_gpu(self, n=None):
        result = super().copy_to_gpu(n)
        if n:
            result[-1].fill_(0)
        return result


class OneRowMore(upstream.CpuGpuBuffer):
    def copy_to_gpu(self, n=None):
        super().copy_to_gpu(None if n is None else n + 1)
        return self.gpu if n is None else self.gpu[:n]


class AnotherResult(upstream.CpuGpuBuffer):
    def copy_to_gpu(self, n=None):
        return super().copy_to_gpu(n).clone()


class AView(upstream.CpuGpuBuffer):
    def copy_to_gpu(self, n=None):
        return super().copy_to_gpu(self.cpu.shape[0] if n is None else n)


class WrongLater(upstream.CpuGpuBuffer):
    """Right at first, and then it hands the last result out again without copying."""

    kept = None

    def copy_to_gpu(self, n=None):
        if self.kept is None or self.kept.shape[0] != (self.gpu.shape[0] if n is None else n):
            self.kept = super().copy_to_gpu(n)
        return self.kept


def miscounted(scheduler_output):
    found = upstream.compute_iteration_details(scheduler_output)
    return dataclasses.replace(found, num_ctx_tokens=found.num_ctx_tokens + 1)


def copied_short(from_tensor, to_tensor, length):
    upstream.copy_slice(from_tensor, to_tensor, length - 1)
    return to_tensor[:length]


def copied_and_detached(from_tensor, to_tensor, length):
    return upstream.copy_slice(from_tensor, to_tensor, length).clone()


def nameless(name):
    return upstream.contextlib.nullcontext()


WRONG = {
    "index off by one": ({"ConstantList": OneOff}, "ConstantList|x\\[-1\\]"),
    "slice too short": ({"ConstantList": ShortSlice}, r"x\[a:a\+128\]"),
    "slice of another type": ({"ConstantList": TupleSlice}, r"x\[a:a\+128\]"),
    "no live view": ({"ConstantList": Snapshot}, r"ConstantList\(x\)"),
    "last row missing": ({"CpuGpuBuffer": LastRowMissing}, "byte .* is wrong"),
    "a row too many": ({"CpuGpuBuffer": OneRowMore}, "byte .* is wrong"),
    "result elsewhere": ({"CpuGpuBuffer": AnotherResult}, "not the first|own device tensor"),
    "a view for the whole": ({"CpuGpuBuffer": AView}, "own device tensor"),
    "counts": ({"compute_iteration_details": miscounted}, "compute_iteration_details gives"),
    "short slice copy": ({"copy_slice": copied_short}, "copy_slice of .* byte"),
    "slice copy elsewhere": ({"copy_slice": copied_and_detached}, "result is not the first"),
    "scope without its name": ({"record_function_or_nullcontext": nameless}, "scope .* yields None"),
}


def eventful(trace="mixed"):
    """A step that asks for everything the traces have."""
    return next(found for found in recording.steps(trace) if found.copy_slice and len(found.list_ops) == 3)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_helper_is_found_out(name):
    replaced, message = WRONG[name]
    with pytest.raises(Incorrect, match=message):
        checked(helpers(**replaced), eventful())


def test_the_right_one_is_not():
    checked(helpers(), eventful())
    checked(fastutils, eventful())
    checked(fastutils, recorded("preempt", 200))


def test_every_list_operation_and_tensor_data_can_be_replayed():
    operations = ["__len__", "__iter__", "__reversed__", "__contains__", "index", "count", "copy", "getitem_slice:16"]
    found = dataclasses.replace(
        recorded(),
        list_ops=dict.fromkeys(operations, 70),
        tensor_data=[("float32", (4, 8), True), ("bfloat16", (4, 8), False), ("bool", (5,), True)],
    )
    checked(fastutils, found)
    rows = {work.row: work for work in Replay(upstream, fastutils).works(found)}
    assert rows["tensor_data"].calls == 3
    assert {f"ConstantList: {row}" for row in ("len(x)", "for _ in reversed(x)", "x[a:a+16]")} < set(rows)
    assert all(len(side.items(2)) == 2 * work.calls for work in rows.values() for side in (work.upstream, work.ours))
    with pytest.raises(Incorrect, match="tensor_data of"):
        checked(helpers(tensor_data=lambda tensor: memoryview(bytes(tensor.nbytes))), found)


@pytest.mark.parametrize("operation", ["sort", "getitem_slice:1000", "getitem_slice:x"])
def test_an_unknown_list_operation_is_an_error(operation):
    found = dataclasses.replace(recorded(), list_ops={operation: 1})
    with pytest.raises(TraceError, match="no way to replay the list operation"):
        checked(fastutils, found)


def test_an_unknown_dtype_is_an_error():
    found = dataclasses.replace(recorded(), copy_to_gpu=[("int33", (4,), 2)])
    with pytest.raises(TraceError, match="torch has no dtype 'int33'"):
        checked(fastutils, found)


def test_buffers_of_one_shape_in_one_step_are_different_buffers_and_live_on():
    side = Replay(upstream, fastutils)
    works = [{work.row: work for work in side.works(recorded(index=index))} for index in (100, 101)]
    row = "CpuGpuBuffer.copy_to_gpu(n)"
    pairs = [[buffer for buffer, _ in found[row].ours.items(1)] for found in works]
    assert len({id(buffer) for buffer in pairs[0]}) == len(pairs[0]) == 6
    assert [id(buffer) for buffer in pairs[0]] == [id(buffer) for buffer in pairs[1]]
    assert all(buffer.gpu.data_ptr() != buffer.cpu.data_ptr() for buffer in pairs[0])
    assert not any(
        a.cpu.data_ptr() == b.cpu.data_ptr()
        for (a, _), (b, _) in zip(works[0][row].upstream.items(1), works[0][row].ours.items(1), strict=True)
    )


def test_row_counts_change_where_they_changed_in_the_engine():
    first, second = recorded(index=0), recorded(index=1)
    second = dataclasses.replace(second, copy_to_gpu=[(dtype, shape, n) for dtype, shape, n in first.copy_to_gpu])
    dtype, shape, _ = second.copy_to_gpu[0]
    second.copy_to_gpu[0] = (dtype, shape, 9)
    side = Replay(upstream, fastutils, ["CpuGpuBuffer"])

    def row_counts(found, passes):
        work = next(iter(side.works(found)))
        return [n for buffer, n in work.ours.items(passes) if buffer.gpu.shape == shape]

    assert row_counts(first, 3) == [1, 1, 1]
    assert row_counts(second, 3) == [9, 1, 9]


def test_copies_are_timed_as_the_engine_makes_them():
    for work in Replay(upstream, fastutils).works(eventful()):
        with work.mode():
            assert torch.is_inference_mode_enabled() is ("copy" in work.row and "ConstantList" not in work.row)


@pytest.mark.parametrize("broken", [{"compute_iteration_details": miscounted}, {"CpuGpuBuffer": WrongLater}])
def test_an_incorrect_run_prints_no_number_and_fails(capsys, broken):
    (name,) = broken
    status = step.main(["--trace", "mixed", "-k", name], ours=helpers(**broken), settings=TINY)
    printed = capsys.readouterr()
    assert status == 1
    assert printed.out == ""
    assert "incorrect: mixed step 0: fastutils:" in printed.err
    assert "No number is printed." in printed.err


def test_the_whole_run_prints_both_tables_and_writes_them(capsys, tmp_path):
    file = tmp_path / "step.json"
    assert step.main(["--json", str(file)], settings=TINY) == 0
    printed = capsys.readouterr().out
    for text in ("noise floor", "share before", "median step", "every result correct", "mixed", "preempt", "saturated"):
        assert text in printed
    assert "interrupted" not in printed.lower()
    written = json.loads(file.read_text())
    assert [row["trace"] for row in written["traces"]] == ["mixed", "preempt", "saturated"]
    assert sum(row["steps"] for row in written["traces"]) == written["overall"]["steps"]
    assert sum(row["share_before"] for row in written["helpers"]) == pytest.approx(1)
    assert sum(row["share_after"] for row in written["helpers"]) == pytest.approx(1)
    per_step = [found for trace in written["steps"].values() for found in trace]
    assert np.mean([found["before_us"] for found in per_step]) * 1e3 == pytest.approx(written["overall"]["upstream_ns"])
    assert set(written["environment"]["forms"]) == {*HELPERS, "StagingGroup"}
    assert list(written["staged"]) == ["mixed", "preempt", "saturated"]
    for found, trace in zip(written["staged"].values(), written["traces"], strict=True):
        assert (found["steps"], found["copies_per_step"], found["flushes_per_step"]) == (trace["steps"], 7, 1)
        assert found["before_ns"] / found["step_ns"] == pytest.approx(found["against_before"]["step"]["ratio"])
    assert "together by one StagingGroup" in printed


def grouped(**methods):
    """fastutils with a group of which some methods are replaced."""
    return types.SimpleNamespace(
        CpuGpuBuffer=fastutils.CpuGpuBuffer, StagingGroup=type("Group", (fastutils.StagingGroup,), methods)
    )


def shorter_by_a_row(self, request):
    fastutils.StagingGroup.flush(self, {name: n and n - 1 for name, n in request.items()})


def all_rows(self, request):
    fastutils.StagingGroup.flush(self, dict.fromkeys(request))


def all_buffers(self, request):
    fastutils.StagingGroup.flush(self)


@step.contextlib.contextmanager
def forgetting(self):
    with fastutils.StagingGroup.step(self):
        yield
        for collected in self._steps.values():
            collected.clear()


WRONG_GROUPS = {
    "nothing is copied": {"flush": lambda self, request: None},
    "nothing is copied where the step ends": {"step": forgetting},
    "a row too few": {"flush": shorter_by_a_row},
    "rows behind": {"flush": all_rows},
    "buffers that were not asked for": {"flush": all_buffers},
}


@pytest.mark.parametrize("name", WRONG_GROUPS)
def test_a_wrong_group_is_found_out(name):
    methods = WRONG_GROUPS[name]
    steps = [recorded(index=0), dataclasses.replace(recorded(index=100), copy_to_gpu=recorded().copy_to_gpu[:5])]
    work = StagedCopies(upstream, grouped(**methods), steps).work(steps[1])
    (which,) = methods
    with pytest.raises(Incorrect, match=rf"StagingGroup\.{which}\(.*byte .* is wrong"):
        work.check()


def test_an_incorrect_group_prints_no_number_and_fails(capsys):
    ours = grouped(flush=lambda self, request: None)
    assert step.main(["--trace", "mixed", "-k", "staging"], ours=ours, settings=TINY) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "incorrect: mixed step 0: StagingGroup.flush(dict): byte" in printed.err


def test_the_copies_of_a_step_are_made_together():
    steps = [recorded(index=0), recorded(index=100), dataclasses.replace(recorded(), copy_to_gpu=[])]
    copies = StagedCopies(upstream, fastutils, steps)
    works = [copies.work(found) for found in steps]
    assert works[2] is None
    for found, work in zip(steps, works[:2], strict=False):
        work.check()
        assert (work.copies, work.flushes) == (len(found.copy_to_gpu), 1)
    for way in works[1].ways:  # in turn with the row counts of the step before
        this, before = ([n for _, n in calls] for calls in way.items(2))
        assert this == [n for _, _, n in steps[1].copy_to_gpu]
        assert before == [n for _, _, n in steps[0].copy_to_gpu]


def test_without_a_group_there_is_no_table_of_it(capsys, tmp_path):
    file = tmp_path / "step.json"
    arguments = ["--trace", "mixed", "-k", "CpuGpuBuffer", "--json", str(file)]
    assert step.main(arguments, ours=helpers(), settings=TINY) == 0
    assert "StagingGroup" not in capsys.readouterr().out
    assert json.loads(file.read_text())["staged"] == {}


def test_ctrl_c_prints_what_is_done(capsys, monkeypatch):
    @step.contextlib.contextmanager
    def impatient(traces, settings):
        def wrap(steps):
            yield from steps[:2]
            raise KeyboardInterrupt

        yield wrap

    monkeypatch.setattr(step, "progress_bar", impatient)
    assert step.main(["--trace", "mixed", "--trace", "preempt"], settings=TINY) == 130
    printed = capsys.readouterr().out
    assert "INTERRUPTED: only the 2 steps that were done." in printed
    assert "preempt" not in printed


def test_ctrl_c_in_the_middle_of_a_step_drops_that_step():
    seen = []

    class Impatient(upstream.CpuGpuBuffer):
        def copy_to_gpu(self, n=None):
            seen.append(n)
            if len(seen) == 400:
                raise KeyboardInterrupt
            return super().copy_to_gpu(n)

    settings = step.Settings(rounds=2, sample_ns=1)
    (result,) = step.run(["mixed"], (upstream, helpers(CpuGpuBuffer=Impatient)), settings)
    assert not result.complete
    assert 0 < len(result.requests) < 20
    assert all(set(row.steps) <= set(result.requests) for row in result.rows.values())


def test_ctrl_c_before_the_first_step_prints_no_table(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, "noise", interrupted)
    assert step.main([], settings=TINY) == 130
    assert "interrupted before the first step" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["-k", "nonsense"], ["--trace", "nonsense"]])
def test_a_choice_that_does_not_exist_lists_those_that_do(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        step.main(arguments)
    assert left.value.code == 2
    assert "there are: " in capsys.readouterr().err


def row(before, after, calls=(10, 10)):
    found = totals.Row("ConstantList")
    for index, (b, a) in enumerate(zip(before, after, strict=True)):
        found.add(index, calls[index], Rounds(b, a, [0.0] * len(b)))
    return found


def test_a_total_is_the_sum_of_the_steps_medians():
    total = totals.total(row([[4.0, 5.0, 90.0], [2.0, 2.0, 2.0]], [[1.0, 1.0, 1.0], [3.0, 2.0, 4.0]]))
    assert (total.calls, total.upstream, total.ours) == (20, 50 + 20, 10 + 30)
    assert total.ratio == pytest.approx(70 / 40)
    low, high = total.interval
    assert low < total.ratio < high


def test_a_slower_side_is_slower_in_the_total():
    rng = np.random.default_rng(0)
    noisy = [rng.normal(100, 3, size=5).tolist() for _ in range(40)]
    slower = [[time * 1.05 for time in times] for times in noisy]
    total = totals.total(row(noisy, slower, calls=[1] * 40))
    assert total.ratio == pytest.approx(1 / 1.05)
    assert total.interval[1] < 1


def test_the_summary_adds_rows_traces_and_steps():
    results = []
    for name in ("one", "two"):
        found = totals.Recorded(name, complete=True)
        found.rows["ConstantList: x[-1]"] = row([[8.0] * 3, [4.0] * 3], [[2.0] * 3, [1.0] * 3])
        found.rows["copy_slice"] = dataclasses.replace(row([[10.0] * 3], [[5.0] * 3], calls=[6]), helper="copy_slice")
        found.requests = {0: 3, 1: 5}
        results.append(found)
    results.append(totals.Recorded("never begun"))
    summary = totals.summarise(results)
    assert summary.rows["ConstantList: x[-1]"].ratio == pytest.approx(4)
    assert summary.traces["one"].upstream == pytest.approx(120 + 60)
    assert summary.everything.ours == pytest.approx(2 * (30 + 30))
    assert summary.step_count == 4
    assert [found["before_us"] for found in summary.steps["one"]] == [pytest.approx(0.14), pytest.approx(0.04)]
    assert not summary.complete
    text = step.render(summary, {"ConstantList": "compiled (x)", "copy_slice": "python (y)"})
    lines = text.splitlines()
    assert any(line.startswith("ConstantList: x[-1]  compiled") and "66.7%" in line for line in lines)
    assert any(line.startswith("all") and "3.00x" in line for line in lines)
    assert "never begun" not in text


def test_staged_copies_are_summed_over_the_traces():
    found = []
    for name in ("one", "two"):
        result = totals.Recorded(name, requests={0: 3, 1: 5}, complete=True)
        result.staged.step = row([[80.0] * 3, [40.0] * 3], [[20.0] * 3, [10.0] * 3], calls=(1, 1))
        result.staged.flush = row([[30.0] * 3, [30.0] * 3], [[4.0] * 3, [2.0] * 3], calls=(1, 1))
        result.staged.copies, result.staged.flushes = 14, 2
        found.append(result)
    summary = totals.summarise(found)
    assert summary.staged["one"].times() == {"before": 60, "after": 30, "step": 15, "flush": 3}
    ratios = {way: ratio for way, (ratio, _, _) in summary.staged["two"].against_before().items()}
    assert ratios == {"after": pytest.approx(2), "step": pytest.approx(4), "flush": pytest.approx(20)}
    lines = step.render_staged(summary)[1].splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [[name, "7.0", "1.0"] for name in ("one", "two", "all")]


def test_shares_add_up_though_noise_made_a_row_negative():
    found = totals.Recorded("one", complete=True)
    found.rows["x"] = row([[100.0] * 3], [[100.0] * 3])
    found.rows["y"] = dataclasses.replace(row([[-4.0] * 3], [[-4.0] * 3]), helper="copy_slice")
    found.requests = {0: 3}
    written = totals.as_json(totals.summarise([found]))["helpers"]
    for side in ("share_before", "share_after"):
        assert sum(helper[side] for helper in written) == pytest.approx(1)


def test_the_bar_is_quiet_where_there_is_no_terminal(capfd):
    with step.progress_bar(["mixed"], TINY) as progress:
        assert len(list(progress(list(recording.steps("mixed"))[::60]))) == 5
    assert capfd.readouterr() == ("", "")


def test_without_tqdm_there_is_no_bar_but_a_run(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with step.progress_bar(["mixed"], TINY) as progress:
        assert len(list(progress(list(recording.steps("mixed"))[::60]))) == 5
    assert "tqdm is not installed" in capsys.readouterr().err


def test_the_bar_shows_how_far_it_is_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with step.progress_bar(["mixed"], TINY) as progress:
        assert len(list(progress(list(recording.steps("mixed"))[::60]))) == 5
    assert "0/5" in terminal.getvalue()


def test_upstream_form_is_not_the_packages_own():
    for name in HELPERS:
        assert getattr(upstream, name).__module__ == "bench.upstream"
    assert "fastutils" not in vars(upstream)
    assert replay.WHO[0] == "upstream's form"
