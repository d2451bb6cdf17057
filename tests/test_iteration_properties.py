"""compute_iteration_details: both forms against a count written for the test, on arbitrary scheduler outputs."""

from functools import reduce
from operator import add
from types import SimpleNamespace

from comparing import Cached, forms, outcome
from hypothesis import given
from hypothesis import strategies as st

from fastutils.iteration import IterationDetails

FORMS = forms("compute_iteration_details")

IDS = st.one_of(st.sampled_from("abcdefgh"), st.integers(0, 2), st.booleans(), st.none(), st.sampled_from([0.0, 1.5]))
PLAIN_IDS = st.sampled_from("abcdefgh")
COUNTS = st.one_of(st.integers(0, 3), st.integers(), st.booleans(), st.floats(0, 2))
OUTPUTS = st.one_of(st.integers(0, 2), st.none(), st.booleans(), st.integers(), st.floats(0, 1))


class Asked(Cached):
    def is_context_phase(self, req_id):
        return req_id in self.req_ids and self.num_output_tokens != []


def expected(tokens, outputs_of, new):
    context = [req_id for req_id in tokens if outputs_of.get(req_id, 1) == 0 or req_id in new]
    generation = [req_id for req_id in tokens if req_id not in context]
    # One after the other: sum() rounds floats in its own way.
    totals = [reduce(add, (tokens[req_id] for req_id in each), 0) for each in (context, generation)]
    return IterationDetails(len(context), totals[0], len(generation), totals[1])


def step(tokens, cached, new):
    requests = [SimpleNamespace(req_id=req_id) for req_id in new]
    return SimpleNamespace(num_scheduled_tokens=tokens, scheduled_cached_reqs=cached, scheduled_new_reqs=requests)


def check(tokens, ids, outputs, new, fill):
    for form, compute in FORMS.items():
        cached = Cached(ids, outputs)
        if fill:
            cached.is_context_phase("a")
        assert compute(step(tokens, cached, new)) == expected(tokens, dict(zip(ids, outputs, strict=False)), new), form


@given(st.dictionaries(IDS, COUNTS), st.lists(IDS), st.lists(OUTPUTS), st.lists(IDS), st.booleans())
def test_anything(tokens, ids, outputs, new, fill):
    check(tokens, ids, outputs, new, fill)


@given(
    st.dictionaries(PLAIN_IDS, st.integers(0, 2**31)),
    st.lists(st.tuples(PLAIN_IDS, st.integers(0, 2))),
    st.lists(PLAIN_IDS),
    st.booleans(),
)
def test_plain_outputs(tokens, cached, new, fill):
    check(tokens, [req_id for req_id, _ in cached], [outputs for _, outputs in cached], new, fill)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 300)), max_size=60), st.randoms())
def test_outputs_as_the_scheduler_makes_them(requests, random):
    tokens = {f"req-{i}": count for i, (_, _, count) in enumerate(requests)}
    ids = list(tokens)
    cached = [(req_id, outputs) for req_id, (is_new, outputs, _) in zip(ids, requests, strict=True) if not is_new]
    new = [req_id for req_id, (is_new, _, _) in zip(ids, requests, strict=True) if is_new]
    known = [req_id for req_id, _ in cached], [outputs for _, outputs in cached]
    check(tokens, *known, new, False)
    shuffled = list(tokens.items())
    random.shuffle(shuffled)
    check(dict(shuffled), *known, new, False)


@given(st.dictionaries(IDS, COUNTS), st.lists(IDS), st.lists(OUTPUTS), st.lists(IDS))
def test_a_class_of_its_own_is_asked(tokens, ids, outputs, new):
    results = [outcome(compute, step(tokens, Asked(ids, outputs), new)) for compute in FORMS.values()]
    assert all(result == results[0] for result in results)
