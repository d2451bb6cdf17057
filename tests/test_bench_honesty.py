"""Honesty: the same code is no faster than itself, slower code is slower, and a restless machine gives no verdict."""

import dataclasses
import itertools
import sys
import types
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

from bench import aa, cold, micro, upstream  # noqa: E402
from bench.cases import cases  # noqa: E402
from bench.environment import Noise  # noqa: E402
from bench.paired import Loop, judge  # noqa: E402

SETTINGS = micro.Settings(rounds=5, builds=4, sample_ns=20_000, budget_ns=10**9)


class Clock:
    """Time passes where something spends it, and everything takes longer and longer."""

    def __init__(self, drift=0.0):
        self.now, self.drift = 0.0, drift

    def __call__(self):
        return int(self.now)

    def spend(self, cost):
        self.now += cost * (1 + self.drift * self.now)


def views(clock, costs):
    """A baseline whose views take `costs` ns for an item: one cost for each view that is made."""
    costs = iter(costs)

    class View(upstream.ConstantList):
        def __init__(self, x):
            super().__init__(x)
            self.cost = next(costs)

        def __getitem__(self, item):
            clock.spend(self.cost)
            return self._x[item]

    return types.SimpleNamespace(ConstantList=View)


@pytest.fixture(autouse=True)
def _nobody_takes_the_core(monkeypatch):
    monkeypatch.setattr(sys.modules["bench.paired"], "involuntary_switches", lambda: 0)


@pytest.mark.parametrize("drift", [0.0, 1e-8])
def test_the_same_code_comes_out_at_one_within_its_floor(drift):
    clock = Clock(drift)
    noise = aa.probe("ConstantList: x[5]", SETTINGS, clock, views(clock, itertools.repeat(40)))
    assert noise.low <= 1 <= noise.high
    assert abs(noise.ratio - 1) <= noise.floor <= 1e-3
    assert aa.refusal(noise) == ""


def test_builds_that_differ_by_chance_raise_the_floor():
    clock = Clock()
    noise = aa.probe("ConstantList: x[5]", SETTINGS, clock, views(clock, itertools.cycle([40, 44, 44, 40, 40, 40])))
    assert noise.floor > 0.02
    assert "NO VERDICTS: the noise floor is" in aa.refusal(noise)


def test_a_variant_that_is_slower_is_seen_as_slower():
    clock = Clock()
    (case,) = [case for case in cases() if case.id == "ConstantList: x[5]"]
    costs = itertools.repeat(40)
    slower = views(clock, itertools.repeat(42))
    found = micro.run_case(case, slower, SETTINGS, clock, baseline=views(clock, costs))
    assert found.verdict.ratio == pytest.approx(40 / 42)
    assert found.verdict.high < 1
    assert found.met == "not met"
    assert found.entry()["correct"]


def test_the_worst_probe_counts():
    quiet, loud = Noise(1.001, 0.999, 1.002), Noise(1.0, 0.95, 1.05)
    assert aa.worst({"a": quiet, "b": loud, "c": quiet}) is loud
    assert aa.refusal(None) == aa.refusal(quiet) == ""
    assert aa.unsettled({}) == aa.unsettled({"before": quiet}) == aa.unsettled({"before": Noise(1, 0.96, 1.04)}) == ""
    assert "only within 6%" in aa.unsettled({"before": quiet, "after": Noise(1.06, 1.05, 1.07)})


def test_the_program_prints_every_probe_and_fails_on_a_restless_machine(capsys, monkeypatch):
    tiny = dataclasses.replace(SETTINGS, rounds=2, builds=1, sample_ns=1000)
    monkeypatch.setattr(aa, "LIMIT", 1e9)
    monkeypatch.setattr(aa, "PARALLEL_LIMIT", 1e9)
    assert aa.main([], tiny) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*aa.PROBES, aa.PARALLEL))
    monkeypatch.setattr(aa, "LIMIT", -1)
    assert aa.main([], tiny) == 1
    assert "NO VERDICTS" in capsys.readouterr().out


def test_cold_calls_are_timed_one_by_one_with_the_flush_outside():
    clock = Clock()
    order = []

    def call(name, cost):
        order.append(name)
        clock.spend(cost)

    loops = [Loop(f"call('{name}', {cost})", call=call) for name, cost in (("A", 400), ("B", 100))]
    rounds = cold.measure_cold(*loops, rounds=2, flush=lambda: (order.append("-"), clock.spend(5000)), clock=clock)
    assert "".join(order) == "A" * cold.WARM_UP + "B" * cold.WARM_UP + "-A-B---B-A" + "-B-A---A-B"
    verdict = judge(rounds)
    assert (verdict.upstream_ns, verdict.ours_ns, verdict.ratio) == (400, 100, pytest.approx(4))


def test_the_flush_writes_all_of_its_memory():
    flush = cold.Flush(1 << 16)
    flush()
    assert set(flush._memory.tolist()) == {1}
    assert flush._memory.nbytes == 1 << 16
