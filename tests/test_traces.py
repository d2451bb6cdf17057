"""Real input: every recorded engine step, against the iteration details that the engine computed in it."""

import gzip
import json
import sys
from pathlib import Path

import implementations
import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench" / "traces").is_dir():
    pytest.skip("the traces belong to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

from bench import recording, upstream  # noqa: E402
from bench.recording import TraceError  # noqa: E402
from bench.replay import COUNTS  # noqa: E402

STEPS = {"mixed": 284, "preempt": 380, "saturated": 310}


def counts(result):
    return tuple(getattr(result, name) for name in COUNTS)


@pytest.fixture(scope="module")
def steps():
    return [step for trace in recording.available() for step in recording.steps(trace)]


def test_every_line_of_every_trace_parses():
    assert {trace: sum(1 for _ in recording.steps(trace)) for trace in recording.available()} == STEPS


def test_the_recorded_numbers_are_consistent(steps):
    for step in steps:
        context, context_tokens, generation, generation_tokens = step.iteration_details
        assert context + generation == len(step.num_scheduled_tokens), str(step)
        assert context_tokens + generation_tokens == step.total, str(step)
        assert len(step.cached) == len(step.num_output_tokens), str(step)
        assert set(step.new) | set(step.cached) == set(step.num_scheduled_tokens), str(step)
        assert step.tensor_data == [], str(step)


def test_upstream_form_reproduces_what_the_engine_recorded(steps):
    assert len(steps) == 974
    for step in steps:
        (output,) = step.scheduler_outputs(1)
        assert counts(upstream.compute_iteration_details(output)) == step.iteration_details, str(step)


def test_fastutils_reproduces_what_the_engine_recorded(steps, form):
    compute = implementations.load("compute_iteration_details", form)
    for step in steps:
        (output,) = step.scheduler_outputs(1)
        assert counts(compute(output)) == step.iteration_details, str(step)
        # again, now that somebody has filled the cache of output counts
        output.scheduled_cached_reqs.is_context_phase("r0")
        assert counts(compute(output)) == step.iteration_details, str(step)


def test_resumed_requests_that_have_output_count_as_generation(steps, form):
    compute = implementations.load("compute_iteration_details", form)
    resumed = [step for step in steps if step.resumed]
    assert len(resumed) > 1
    for step in resumed:
        produced = dict(zip(step.cached, step.num_output_tokens, strict=True))
        assert all(produced[req_id] > 0 for req_id in step.resumed), str(step)
        assert counts(compute(step.scheduler_outputs(1)[0])) == step.iteration_details, str(step)


def test_each_output_is_fresh_but_shares_the_ids(steps):
    step = max(steps, key=lambda step: len(step.cached))
    one, two = step.scheduler_outputs(2)
    upstream.compute_iteration_details(one)
    assert "_req_id_to_num_output_tokens" in vars(one.scheduled_cached_reqs)
    assert "_req_id_to_num_output_tokens" not in vars(two.scheduled_cached_reqs)
    scheduled = list(one.num_scheduled_tokens)
    assert all(a is b for a, b in zip(scheduled, two.scheduled_cached_reqs.req_ids, strict=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line.pop("scopes"), "KeyError: 'scopes'"),
        (lambda line: line.update(iteration_details=[1, 2, 3]), "not enough values"),
        (lambda line: line["scheduler_output"].update(total=1 << 40), "add up to"),
        (lambda line: line.update(copy_slice=[["float32", 64, 1]]), "not iterable"),
        (lambda line: line.update(list_ops={"copy": "often"}), "often"),
    ],
)
def test_a_line_that_cannot_be_understood_is_named(tmp_path, monkeypatch, change, message):
    with gzip.open(recording.TRACES / "mixed.jsonl.gz", "rt") as lines:
        good, bad = json.loads(next(lines)), json.loads(next(lines))
    change(bad)
    with gzip.open(tmp_path / "broken.jsonl.gz", "wt") as out:
        out.write(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    monkeypatch.setattr(recording, "TRACES", tmp_path)
    steps = recording.steps("broken")
    assert next(steps).index == 0
    with pytest.raises(TraceError, match=rf"^broken\.jsonl\.gz, line 2: .*{message}"):
        next(steps)


def test_a_line_that_is_no_json_is_named(tmp_path, monkeypatch):
    with gzip.open(tmp_path / "broken.jsonl.gz", "wt") as out:
        out.write('{"step": 0\n')
    monkeypatch.setattr(recording, "TRACES", tmp_path)
    with pytest.raises(TraceError, match=r"broken\.jsonl\.gz, line 1: JSONDecodeError"):
        list(recording.steps("broken"))


def test_an_unknown_trace_lists_the_known_ones():
    with pytest.raises(TraceError, match="no trace 'other'; there are: mixed, preempt, saturated"):
        list(recording.steps("other"))
