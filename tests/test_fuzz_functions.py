"""compute_iteration_details and record_function_or_nullcontext under hostile input: no crash, and both forms agree."""

import contextlib
import gc
import sys
import threading
from types import SimpleNamespace

import implementations
import pytest
from comparing import Cached, forms, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from fastutils import scopes

COMPUTE = forms("compute_iteration_details")
SCOPE = forms("record_function_or_nullcontext")


class Hostile:
    """Runs `do` whenever it is compared or hashed."""

    def __init__(self, do=lambda: None):
        self.do = do

    def __eq__(self, other):
        self.do()
        return False

    def __hash__(self):
        self.do()
        return hash("b")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=2), st.just(2**64), st.just([]), st.just({}),
    st.builds(Hostile), st.just(int), st.just(Cached), st.builds(dict, a=st.integers(0, 3)), st.just(object()),
)  # fmt: skip
JUNK_LISTS = st.one_of(JUNK, st.lists(JUNK, max_size=4), st.lists(st.sampled_from("abc"), max_size=4))
JUNK_DICTS = st.one_of(JUNK, st.dictionaries(st.sampled_from("abc"), JUNK | st.integers(0, 3), max_size=3))
JUNK_CACHED = st.one_of(JUNK, st.builds(lambda ids, outputs: (ids, outputs), JUNK_LISTS, JUNK_LISTS))
JUNK_NEW = st.one_of(
    JUNK_LISTS, st.lists(st.builds(lambda i: SimpleNamespace(req_id=i), JUNK | st.just("a")), max_size=2)
)


@settings(max_examples=400)
@given(JUNK_DICTS, JUNK_CACHED, JUNK_NEW, JUNK_DICTS, st.booleans())
def test_outputs_of_anything(tokens, cached, new, made, fill):
    def build():
        parts = Cached(*cached) if type(cached) is tuple else cached
        if fill and type(parts) is Cached:
            vars(parts)["_req_id_to_num_output_tokens"] = made
        return SimpleNamespace(num_scheduled_tokens=tokens, scheduled_cached_reqs=parts, scheduled_new_reqs=new)

    results = [repr(outcome(compute, build())) for compute in COMPUTE.values()]
    assert all(result == results[0] for result in results), results


@given(JUNK)
def test_anything_for_an_output(junk):
    results = [repr(outcome(compute, junk)) for compute in COMPUTE.values()]
    assert all(result == results[0] for result in results), results


DEEDS = {
    "raises": lambda step: 1 // 0,
    "empties the tokens": lambda step: step.num_scheduled_tokens.clear(),
    "adds tokens": lambda step: step.num_scheduled_tokens.update({str(i): 1 for i in range(50)}),
    "replaces the tokens": lambda step: setattr(step, "num_scheduled_tokens", {"z": 1}),
    "empties the ids": lambda step: step.scheduled_cached_reqs.req_ids.clear(),
    "empties the outputs": lambda step: step.scheduled_cached_reqs.num_output_tokens.clear(),
    "empties the new": lambda step: step.scheduled_new_reqs.clear(),
    "replaces the cached": lambda step: setattr(step, "scheduled_cached_reqs", Cached(["b"], [0])),
    "fills the map": lambda step: step.scheduled_cached_reqs.is_context_phase("a"),
    "collects garbage": lambda step: gc.collect(),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("place", ["tokens", "ids", "outputs", "new", "req_id", "map"])
def test_deeds_in_the_middle_of_a_count(deed, place):
    results = []
    for compute in COMPUTE.values():
        step, armed = SimpleNamespace(), []

        def do(step=step, armed=armed):
            if armed:
                DEEDS[deed](step)

        evil = Hostile(do)

        class Request:
            @property
            def req_id(self, do=do):
                do()
                return "n"

        step.num_scheduled_tokens = {"a": 1, "b": 2, "n": 3, **({evil: 4} if place == "tokens" else {})}
        step.scheduled_cached_reqs = Cached(["a", "b"], [1, evil if place == "outputs" else 0])
        if place == "ids":
            step.scheduled_cached_reqs.req_ids[0] = evil
        step.scheduled_new_reqs = [SimpleNamespace(req_id=evil if place == "new" else "n"), SimpleNamespace(req_id="m")]
        if place == "req_id":
            step.scheduled_new_reqs[0] = Request()
        if place == "map":
            vars(step.scheduled_cached_reqs)["_req_id_to_num_output_tokens"] = {evil: 1, "b": 0}
        armed.append(True)
        results.append(repr(outcome(compute, step)))
        armed.clear()
    assert all(result == results[0] for result in results), results


def test_threads_that_change_a_step(form):
    compute = implementations.load("compute_iteration_details", form)
    ids = [f"r{i}" for i in range(50)]
    step = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(ids, 1),
        scheduled_cached_reqs=Cached(list(ids), [1] * 50),
        scheduled_new_reqs=[SimpleNamespace(req_id="new")],
    )
    failures, stop = [], threading.Event()

    def count():
        try:
            while not stop.is_set():
                with contextlib.suppress(RuntimeError):  # the dictionary changed size during iteration
                    compute(step)
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=count) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for i in range(300):
            step.num_scheduled_tokens[f"x{i}"] = i
            step.scheduled_cached_reqs.req_ids.append(f"x{i}")
            step.scheduled_cached_reqs.num_output_tokens.append(0)
            step.scheduled_cached_reqs = Cached(list(ids), [1] * (50 - i % 3))
            step.num_scheduled_tokens.pop(f"x{i - 1}", None)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
        sys.setswitchinterval(interval)
    assert failures == []


@given(st.lists(JUNK, max_size=3), st.dictionaries(st.sampled_from(["name", "other"]), JUNK, max_size=2))
def test_any_arguments_to_a_scope(arguments, named):
    results = []
    for scope in SCOPE.values():
        result = outcome(scope, *arguments, **named)
        if type(result) is tuple:
            results.append(result[0])
            continue
        with result as entered:
            results.append(entered)
    assert all(result is results[0] for result in results)


def test_threads_that_enter_scopes(form):
    scope = implementations.load("record_function_or_nullcontext", form)
    scopes._reset()
    failures = []

    def enter(label):
        try:
            for i in range(2000):
                name = f"{label} {i}"
                with scope(name) as one, scope(label) as other:
                    assert (one, other) == (name, label)
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=enter, args=(str(i),)) for i in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
