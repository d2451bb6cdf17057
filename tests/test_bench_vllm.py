"""The sums of ``make bench-vllm``; the measurement itself needs a vLLM."""

import pytest

from bench import vllm_step

CALLS = {"scope": 76.0, "view": 64.0, "unpriced": 3.0}
COSTS = {"scope": 100.0, "view": 50.0, "never called": 9.0}


def a_pair(off_ns, on_ns, on_costs=None):
    fast = {name: cost / 10 for name, cost in COSTS.items()} if on_costs is None else on_costs
    facts = {"summary": "11 of 14 helpers", "steps": 744}
    return {
        "0": {"step_ns": off_ns, "costs_ns": COSTS, **facts},
        "1": {"step_ns": on_ns, "costs_ns": fast, **facts},
    }


def test_the_time_of_all_helpers_in_a_step():
    assert vllm_step.helpers_ns(CALLS, COSTS) == 76 * 100 + 64 * 50


def test_a_clear_gain_is_told_with_its_interval():
    pairs = [a_pair(1_080_000, 1_069_200), a_pair(1_090_000, 1_079_100), a_pair(1_070_000, 1_059_300)] * 2
    lines = vllm_step.report(CALLS, pairs)
    assert "plugin on: 11 of 14 helpers" in lines
    assert lines[-2] == "the whole step takes +1.00 % less CPU time with the plugin (95 %: +1.00 to +1.00)"
    assert lines[-1] == "what the helpers alone would save of it: 0.90 %"
    (share,) = [line.split() for line in lines if line.startswith("their share")]
    assert share == ["their", "share", "1.00%", "0.10%"]


@pytest.mark.parametrize("noise", [30_000, 90_000])
def test_noise_is_called_noise(noise):
    pairs = [a_pair(1_000_000 + sign * noise, 1_000_000) for sign in (1, -1, 1, -1, 1, -1)]
    assert vllm_step.report(CALLS, pairs)[-1].startswith("the interval holds zero")


def test_a_loss_is_told_as_one():
    pairs = [a_pair(1_000_000, 1_020_000)] * 6
    assert "takes -2.00 % less CPU time" in vllm_step.report(CALLS, pairs)[-2]
