"""The measuring itself, on a clock that only moves when the code under test says so."""

import gc
import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

from bench import environment, paired, table  # noqa: E402
from bench.paired import Loop, Rounds, bootstrap_interval, calibrate, judge, steady  # noqa: E402


def measure(*sides, **settings):
    """With the fake clock it does not matter who has the core meanwhile."""
    return paired.measure(*sides, **{"switches": lambda: 0, **settings})


class FakeClock:
    """Time passes in `spend` only: `cost` ns, made longer by `drift` per ns of age and, now and then, by a spike."""

    def __init__(self, drift=0.0, spike_every=0, spike=0):
        self.now = 0.0
        self.spent = 0
        self.drift, self.spike_every, self.spike = drift, spike_every, spike

    def __call__(self):
        return int(self.now)

    def spend(self, cost):
        self.spent += 1
        self.now += cost * (1 + self.drift * self.now)
        if self.spike_every and self.spent % self.spike_every == 0:
            self.now += self.spike


class CostlyItems(list):
    """Items that cost time to iterate over, as a loop does."""

    def __init__(self, clock, cost, count):
        super().__init__([None] * count)
        self.clock, self.cost = clock, cost

    def __iter__(self):
        for item in super().__iter__():
            self.clock.spend(self.cost)
            yield item


def loops(clock, first, second, loop_cost=0):
    def items(count):
        return CostlyItems(clock, loop_cost, count)

    return [Loop(f"spend({cost})", spend=clock.spend, items=items) for cost in (first, second)]


def verdict(clock, first, second, loop_cost=0, rounds=21, sample_ns=20_000):
    return judge(measure(*loops(clock, first, second, loop_cost), rounds=rounds, sample_ns=sample_ns, clock=clock))


def test_the_same_code_on_both_sides_gives_one():
    found = verdict(FakeClock(), 40, 40)
    assert found.ratio == pytest.approx(1, abs=1e-9)
    assert (found.low, found.high) == (found.ratio, found.ratio)


def test_a_slower_variant_is_seen_as_slower():
    found = verdict(FakeClock(), 40, 42)
    assert found.ratio == pytest.approx(40 / 42)
    assert found.high < 1
    assert found.difference_ns == pytest.approx(-2)


def test_the_cost_of_the_loop_is_taken_off():
    found = verdict(FakeClock(), 40, 10, loop_cost=30)
    assert found.loop_ns == pytest.approx(30)
    assert (found.upstream_ns, found.ours_ns) == (pytest.approx(40), pytest.approx(10))
    assert found.ratio == pytest.approx(4)


def test_what_drifts_falls_on_both_sides_alike():
    # Everything takes three times as long at the end as at the beginning.
    def measured(clock):
        return judge(measure(*loops(clock, 40, 40), rounds=20, sample_ns=20_000, clock=clock))

    still, drifting = FakeClock(), FakeClock()
    measured(still)
    drifting.drift = 1 / still.now
    found = measured(drifting)
    assert found.ratio == pytest.approx(1, abs=2e-4)
    assert found.low <= 1 <= found.high


def test_interruptions_do_not_move_the_median():
    found = verdict(FakeClock(spike_every=4001, spike=1_000_000), 40, 20, rounds=41)
    assert found.ratio == pytest.approx(2, rel=1e-3)


def test_a_side_that_costs_nothing_gives_a_bound_and_says_so():
    clock = FakeClock()
    found = judge(measure(*loops(clock, 40, 0, loop_cost=10), rounds=7, sample_ns=20_000, clock=clock))
    assert not found.resolved
    assert found.ratio == pytest.approx(40 / paired.RESOLUTION_NS)


@pytest.mark.parametrize(("cost", "least"), [(3, 6667), (700, 29), (90_000, 1)])
def test_samples_last_long_enough(cost, least):
    clock = FakeClock()
    (loop, _) = loops(clock, cost, 0)
    count = calibrate(loop, 20_000, clock)
    assert count >= least
    assert count * cost <= max(4 * 20_000, cost)


def test_a_sample_is_not_short_because_something_had_the_core_meanwhile():
    clock = FakeClock()
    spikes = iter([10**7])  # the very first count is as long as a hundred samples

    def spend(cost):
        clock.spend(cost)
        clock.now += next(spikes, 0)

    loop = Loop("spend(100)", spend=spend)
    assert calibrate(loop, 100_000, clock) >= 1000


def test_the_budget_ends_a_slow_case_but_not_before_seven_rounds():
    clock = FakeClock()
    rounds = measure(*loops(clock, 10**9, 10**9), rounds=100, sample_ns=1000, clock=clock, budget_ns=1)
    assert len(rounds.upstream) == len(rounds.ours) == 7


def test_both_sides_are_timed_in_turn_on_items_of_their_own():
    order = []
    made = []

    def items(side):
        def make(count):
            made.append([side] * count)
            return made[-1]

        return make

    clock = FakeClock()
    sides = [
        Loop("note(item); spend(99)", each="item", items=items(name), note=order.append, spend=clock.spend)
        for name in "AB"
    ]
    measure(*sides, rounds=2, sample_ns=1, clock=clock)
    assert "".join(order) == "AAABBB" + "ABBA" + "BAAB"
    assert len({id(each) for each in made}) == len(made)


def test_a_round_during_which_the_core_was_taken_away_is_run_again():
    clock = FakeClock()
    switches = iter([0, 0, 0, 1, 1, 1, 1, 2, 2, 2])  # before and after each round: the second and the fourth are hit
    rounds = measure(*loops(clock, 40, 10), rounds=3, sample_ns=20_000, clock=clock, switches=lambda: next(switches))
    assert len(rounds.upstream) == len(rounds.ours) == len(rounds.loop) == 3
    assert next(switches, None) is None


def test_on_a_machine_that_always_takes_the_core_away_the_rounds_count_all_the_same():
    clock = FakeClock()
    counted = itertools.count()
    rounds = measure(*loops(clock, 40, 10), rounds=5, sample_ns=20_000, clock=clock, switches=lambda: next(counted))
    assert len(rounds.upstream) == 5
    assert next(counted) == 2 * (5 + 5)


def test_the_system_counts_switches_or_says_nothing(monkeypatch):
    before = paired.involuntary_switches()
    assert paired.involuntary_switches() >= before >= 0
    monkeypatch.setattr(paired, "_THREAD", None)
    assert paired.involuntary_switches() == 0


def test_each_loop_has_a_code_object_of_its_own():
    # The interpreter specialises bytecode in place: sharing it would make the second side undo the first one's.
    one, two = Loop("x[5]", x=[0] * 9), Loop("x[5]", x=(0,) * 9)
    assert one.run.func.__code__ is not two.run.func.__code__
    assert one.run.func.__code__.co_code == two.run.func.__code__.co_code


def test_the_interval_is_repeatable():
    values = [np.arange(9.0), np.arange(5.0)]
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_the_interval_covers_the_truth():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        values = rng.normal(0.3, 0.05, size=41)
        low, high = bootstrap_interval([values], resamples=200)
        covered += low <= 0.3 <= high
    assert 180 <= covered <= 200


def test_the_interval_knows_that_builds_differ():
    # Eleven rounds each that hardly vary, around something that each build moves by some per cent.
    rng = np.random.default_rng(2)
    covered, narrow = 0, 0
    for _ in range(100):
        builds = [rng.normal(rng.normal(0.3, 0.03), 0.001, size=11) for _ in range(9)]
        low, high = bootstrap_interval(builds, resamples=200)
        covered += low <= 0.3 <= high
        low, high = bootstrap_interval([np.concatenate(builds)], resamples=200)
        narrow += low <= 0.3 <= high
    assert covered >= 85
    assert narrow < covered


def test_a_verdict_pools_its_builds():
    one, two = Rounds([10.0, 10.0], [5.0, 5.0], [1.0, 1.0]), Rounds([12.0] * 3, [4.0] * 3, [2.0] * 3)
    found = judge(one, two)
    assert (found.upstream_ns, found.ours_ns, found.loop_ns, found.rounds) == (12, 4, 2, 5)
    assert (found.low, found.ratio, found.high) == (pytest.approx(2), pytest.approx(3), pytest.approx(3))


def test_a_verdict_holds_the_medians():
    found = judge(Rounds([10.0, 12.0, 500.0], [5.0, 4.0, 5.0], [1.0, 1.0, 2.0]))
    assert (found.upstream_ns, found.ours_ns, found.loop_ns, found.rounds) == (12, 5, 1, 3)
    assert found.ratio == pytest.approx(3)
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(100)


def test_steady_puts_everything_back_even_after_an_error():
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    assert gc.isenabled()

    def fail():
        with steady() as core:
            assert not gc.isenabled()
            if cores is not None and core is not None:
                assert os.sched_getaffinity(0) == {core}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gc.isenabled()
    assert cores is None or os.sched_getaffinity(0) == cores


def test_steady_without_a_core_leaves_the_cores_alone():
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with steady(one_core=False) as core:
        assert core is None
        assert cores is None or os.sched_getaffinity(0) == cores


def test_steady_works_where_affinity_is_forbidden(monkeypatch):
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")

    def forbidden(pid, cores):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with steady() as core:
        assert core is None


def test_a_table_lines_its_columns_up():
    text = table.render(["case", "ns"], [["short", "1"], ["rather long", "1,234"]])
    assert text.splitlines() == ["case            ns", "-----------  -----", "short            1", "rather long  1,234"]
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        table.render(["case", "ns"], [["alone"]])


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.50"), (9.994, "9.99"), (12.34, "12.3"), (1234.5, "1,234")])
def test_numbers_keep_three_digits(value, text):
    assert table.number(value) == text


def test_the_header_names_what_the_numbers_were_measured_on():
    facts = environment.facts()
    assert set(facts) == {"interpreter", "compiler", "torch", "CPU", "load", "commit"}
    assert "optimised" in facts["interpreter"].lower()
    assert all(facts.values())
    found = environment.Noise(1.01, 0.97, 1.03)
    active = environment.forms(["ConstantList"])
    text = environment.header(facts, active, found)
    assert "3.00%: the baseline against itself gives 1.0100 [0.9700, 1.0300]" in text
    assert text.count("\n") == len(facts) + 1
    assert active["ConstantList"].startswith(("compiled (", "python ("))


def test_a_name_that_cannot_be_imported_ends_the_run_with_a_reason(monkeypatch):
    def choose(name):
        raise ImportError("libsomething.so is missing")

    monkeypatch.setattr(environment._select, "choose", choose)
    with pytest.raises(SystemExit, match=r"fastutils\.ConstantList cannot be imported.*libsomething"):
        environment.forms(["ConstantList"])


def test_outside_a_git_checkout_the_commit_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "CHECKOUT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.facts()["commit"] == "not a git checkout"
