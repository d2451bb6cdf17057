"""compute_iteration_details, in both forms. Agreement on arbitrary outputs: test_iteration_properties."""

import copy
import dataclasses
import gc
import inspect
import pickle
from functools import cached_property
from types import SimpleNamespace

import implementations
import pytest
from comparing import outcome

from fastutils import _phases
from fastutils.iteration import IterationDetails

MAP = "_req_id_to_num_output_tokens"


@dataclasses.dataclass
class Cached:
    """Shaped as the engine's class: what the compiled form recognises."""

    req_ids: list
    num_output_tokens: list

    @cached_property
    def _req_id_to_num_output_tokens(self):
        return dict(zip(self.req_ids, self.num_output_tokens))  # noqa: B905

    def is_context_phase(self, req_id):
        """Known, and nothing generated yet."""
        outputs = self._req_id_to_num_output_tokens.get(req_id)
        return outputs is not None and outputs == 0


def output(tokens, cached=None, new=()):
    """`tokens` and `cached`: id -> number; `cached` may also be an object."""
    if cached is None or isinstance(cached, dict):
        cached = Cached([*(cached or {})], [*(cached or {}).values()])
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        scheduled_cached_reqs=cached,
        scheduled_new_reqs=[SimpleNamespace(req_id=req_id) for req_id in new],
    )


@pytest.fixture
def compute(form):
    return implementations.load("compute_iteration_details", form)


def counts(details):
    return dataclasses.astuple(details)


def apart(text):
    """An equal string that is another object."""
    return "".join([*text])


def test_requests_count_by_phase(compute):
    step = output({"a": 1, "b": 50, "c": 7, "d": 1}, {"a": 3, "b": 0, "d": 1}, new=["c"])
    assert counts(compute(step)) == (2, 57, 2, 2)


def test_the_order_does_not_matter(compute):
    tokens, cached = {"d": 1, "c": 7, "b": 50, "a": 1}, {"a": 3, "b": 0, "d": 1}
    assert counts(compute(output(tokens, cached, ["c"]))) == (2, 57, 2, 2)
    equal_ids = {apart(req_id): outputs for req_id, outputs in cached.items()}
    assert counts(compute(output(tokens, equal_ids, [apart("c")]))) == (2, 57, 2, 2)


def test_nothing_scheduled(compute):
    assert counts(compute(output({}))) == (0, 0, 0, 0)
    assert counts(compute(SimpleNamespace(num_scheduled_tokens={}, scheduled_new_reqs=[]))) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("tokens", "ids", "outputs", "new", "expected"),
    [
        ({"a": 5, "b": 6}, ["a", "b", "a"], [0, 1, 1], [], (0, 0, 2, 11)),
        ({"a": 5, "b": 6}, ["a", "b", apart("a")], [1, 1, 0], [], (1, 5, 1, 6)),
        ({"a": 5, "b": 6}, ["a", "a"], [1, 0], [], (1, 5, 1, 6)),
        ({"a": 5, "b": 6}, ["a"], [1], ["a", "b"], (2, 11, 0, 0)),
        ({"a": 5, "b": 6}, ["a"], [1], ["a"], (1, 5, 1, 6)),
        ({"a": 5, "b": 6}, [], [], [], (0, 0, 2, 11)),
        ({"a": 5, "b": 6}, ["z", "a", "b"], [0, 1, 0], ["y"], (1, 6, 1, 5)),
        ({"a": 5, "b": 6}, ["a", "b"], [0], [], (1, 5, 1, 6)),
        ({"a": 5, "b": 6}, ["a"], [0, 0], ["b"], (2, 11, 0, 0)),
        ({"a": 5, "b": 6}, ["a", "b"], [False, True], [], (1, 5, 1, 6)),
        ({"a": 5, "b": 6}, ["a", "b"], [None, 0.0], [], (1, 6, 1, 5)),
        ({"a": 5, "b": 6}, ["a", "b"], [-1, 2**70], [], (0, 0, 2, 11)),
        ({"a": 2**70, "b": -(2**70)}, ["a", "b"], [0, 1], [], (1, 2**70, 1, -(2**70))),
        ({"a": 2**30, "b": 2**31 - 1}, ["a", "b"], [0, 0], [], (2, 2**30 + 2**31 - 1, 0, 0)),
        ({"a": True, "b": -3}, ["a", "b"], [0, 1], [], (1, 1, 1, -3)),
        ({"a": 1.5, "b": 2}, ["a", "b"], [0, 0], [], (2, 3.5, 0, 0)),
        ({1: 5, (2,): 6, None: 7}, [1, (2,)], [0, 1], [None], (2, 12, 1, 6)),
        ({1: 5, 2: 6}, [1.0, 2], [0, 1], [True], (1, 5, 1, 6)),
    ],
)
def test_unusual_contents(compute, tokens, ids, outputs, new, expected):
    got = counts(compute(output(tokens, Cached(ids, outputs), new)))
    assert got == expected
    assert [*map(type, got)] == [*map(type, expected)]


def test_sums_have_no_limit(compute):
    most = 2**30 - 1
    tokens = {str(i): most for i in range(10_000)}
    assert counts(compute(output(tokens, dict.fromkeys(tokens, 1)))) == (0, 0, 10_000, most * 10_000)


def test_missing_tokens_are_an_error_in_both_forms(compute):
    with pytest.raises(TypeError):
        compute(output({"a": None}, {"a": 1}))
    with pytest.raises(TypeError):
        compute(output({"a": "5"}, {"a": 1}))


def test_a_filled_map_is_what_counts(compute):
    cached = Cached(["a", "b"], [1, 1])
    assert not cached.is_context_phase("a")
    cached.num_output_tokens[0] = 0  # too late
    assert counts(compute(output({"a": 5, "b": 6}, cached))) == (0, 0, 2, 11)
    vars(cached)[MAP] = {"b": 0}
    assert counts(compute(output({"a": 5, "b": 6}, cached))) == (1, 6, 1, 5)
    assert counts(compute(output({"a": 5, "b": 6}, cached, ["a"]))) == (2, 11, 0, 0)
    vars(cached)[MAP] = {"b": False, 3: 4}
    assert counts(compute(output({"a": 5, "b": 6}, cached))) == (1, 6, 1, 5)

    class AlwaysZero:
        def get(self, key):
            return 0

    vars(cached)[MAP] = AlwaysZero()
    assert counts(compute(output({"a": 5, "b": 6}, cached))) == (2, 11, 0, 0)


def test_an_overridden_is_context_phase_is_honoured(compute):
    step = output({"a": 5, "b": 6}, {"a": 1, "b": 0})
    assert counts(compute(step)) == (1, 6, 1, 5)

    class Always(Cached):
        def is_context_phase(self, req_id):
            return True

    class Never(Cached):
        is_context_phase = staticmethod(lambda req_id: False)

    class OwnMap(Cached):
        @property
        def _req_id_to_num_output_tokens(self):
            return {"a": 0}

    class OwnCachedMap(Cached):
        @cached_property
        def _req_id_to_num_output_tokens(self):
            return {"a": 0, "b": 0}

    class OwnLookup(Cached):
        def __getattribute__(self, name):
            return (lambda req_id: True) if name == "is_context_phase" else super().__getattribute__(name)

    for cls, expected in ((Always, 2), (Never, 0), (OwnMap, 1), (OwnCachedMap, 2), (OwnLookup, 2), (Cached, 1)):
        compute(output({"a": 5}, {"a": 1}))  # a recognised class comes right before
        step = output({"a": 5, "b": 6}, cls(["a", "b"], [1, 0]))
        assert compute(step).num_ctx_requests == expected, cls.__name__
    assert compute(output({"a": 5, "b": 6}, OwnMap(["a", "b"], [1, 0]))).num_ctx_tokens == 5
    step.scheduled_cached_reqs.is_context_phase = lambda req_id: req_id == "a"
    assert counts(compute(step)) == (1, 5, 1, 6)


def test_a_class_changed_after_it_was_recognised_is_noticed(compute):
    class Own(Cached):
        is_context_phase = lambda self, req_id: self._req_id_to_num_output_tokens.get(req_id) == 0  # noqa: E731

    def fresh():
        return output({"a": 5, "b": 6}, Own(["a", "b"], [1, 0]))

    assert counts(compute(fresh())) == (1, 6, 1, 5)
    Own.is_context_phase.__code__ = (lambda self, req_id: True).__code__
    assert counts(compute(fresh())) == (2, 11, 0, 0)
    Own.is_context_phase = lambda self, req_id: req_id == "a"
    assert counts(compute(fresh())) == (1, 5, 1, 6)
    del Own.is_context_phase
    assert counts(compute(fresh())) == (1, 6, 1, 5)
    Own.__getattribute__ = lambda self, name: ["b", "a"] if name == "req_ids" else object.__getattribute__(self, name)
    assert counts(compute(fresh())) == (1, 5, 1, 6)


def test_duck_typed_outputs(compute):
    class Slotted:
        __slots__ = ("asked",)

        def __init__(self):
            self.asked = []

        def is_context_phase(self, req_id):
            self.asked.append(req_id)
            return req_id == "b" and "any true value"

    class Tokens(dict):
        def items(self):
            return [("a", 1), ("b", 2), ("a", 4)]

    class Pairs:
        def items(self):
            yield from [("b", 3), ("c", 4)]

    for tokens, asked, expected in (
        ({"a": 1, "b": 2}, ["a", "b"], (1, 2, 1, 1)),
        (Tokens(), ["a", "b", "a"], (1, 2, 2, 5)),
        (Pairs(), ["b", "c"], (1, 3, 1, 4)),
    ):
        cached = Slotted()
        step = output(tokens, cached)
        step.scheduled_new_reqs = (request for request in step.scheduled_new_reqs)
        assert counts(compute(step)) == expected
        assert cached.asked == asked


def test_each_request_is_asked_for_through_the_output(compute):
    class Output:
        scheduled_new_reqs = ()
        num_scheduled_tokens = {"a": 1, "b": 2}  # noqa: RUF012
        reads = 0

        @property
        def scheduled_cached_reqs(self):
            self.reads += 1
            return SimpleNamespace(is_context_phase=lambda req_id: self.reads > 1)

    assert counts(compute(Output())) == (1, 2, 1, 1)


class Unhashable(str):
    __hash__ = None


class Angry:
    def __eq__(self, other):
        raise ZeroDivisionError("eq")

    def __hash__(self):
        return hash("a")


def raising(*_):
    raise ZeroDivisionError("asked")


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: SimpleNamespace(),
        lambda: SimpleNamespace(scheduled_new_reqs=[]),
        lambda: SimpleNamespace(scheduled_new_reqs=None, num_scheduled_tokens={}),
        lambda: SimpleNamespace(scheduled_new_reqs=[], num_scheduled_tokens=None),
        lambda: SimpleNamespace(scheduled_new_reqs=[], num_scheduled_tokens=[("a", 1)]),
        lambda: SimpleNamespace(scheduled_new_reqs=[], num_scheduled_tokens={"a": 1}),
        lambda: SimpleNamespace(scheduled_new_reqs=["no request"], num_scheduled_tokens=None),
        lambda: output({"a": 1}, SimpleNamespace()),
        lambda: output({"a": 1}, SimpleNamespace(is_context_phase=None)),
        lambda: output({"a": 1}, SimpleNamespace(is_context_phase=raising)),
        lambda: output({"a": 1}, {"a": 1}, [["unhashable"]]),
        lambda: output({"a": 1}, {"a": 1}, [Unhashable("a")]),
        lambda: output({"a": 1}, Cached([Unhashable("a")], [1])),
        lambda: output({"a": 1}, Cached([["a"]], [1])),
        lambda: output({"a": 1}, Cached([Angry()], [1])),
        lambda: output({Angry(): 1}, {"a": 1}),
        lambda: output({"a": 1}, {"a": 1}, [Angry()]),
        lambda: output({"a": 1}, Cached(None, [1])),
        lambda: output({"a": 1}, Cached(["a"], None)),
        lambda: output({"a": 1}, Cached(["a"], [Angry()])),
        lambda: output(SimpleNamespace(items=lambda: [("a",)]), {"a": 1}),
        lambda: output(SimpleNamespace(items=lambda: [5]), {"a": 1}),
    ],
)
def test_what_the_parts_raise_is_raised(make):
    compiled, python = (implementations.load("compute_iteration_details", form) for form in ("compiled", "python"))
    expected = outcome(python, make())
    assert type(expected) is tuple  # it raised
    assert outcome(compiled, make()) == expected


def test_an_interrupt_is_not_swallowed(compute):
    class Interrupted:
        @property
        def req_id(self):
            raise KeyboardInterrupt

    step = output({"a": 1}, {"a": 1})
    step.scheduled_new_reqs.append(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        compute(step)


def test_a_dict_that_changes_meanwhile_is_an_error(compute):
    tokens = {"a": 1, "b": 2}

    def change(req_id):
        tokens["new " + req_id] = 5
        return True

    with pytest.raises(RuntimeError, match="dictionary changed size during iteration"):
        compute(output(tokens, SimpleNamespace(is_context_phase=change)))


def test_lists_that_change_while_ids_are_read(compute):
    step = output({"a": 1, "b": 2}, {"a": 1})

    class Shrinking:
        @property
        def req_id(self):
            del step.scheduled_new_reqs[1:]
            return "b"

    step.scheduled_new_reqs = [Shrinking() for _ in range(50)]
    assert counts(compute(step)) == (1, 2, 1, 1)


@pytest.mark.parametrize("arguments", [(), (1, 2)])
def test_wrong_arguments_are_a_type_error(compute, arguments):
    with pytest.raises(TypeError):
        compute(*arguments)
    with pytest.raises(TypeError):
        compute(other=output({}))
    assert counts(compute(scheduler_output=output({"a": 1}))) == (0, 0, 1, 1)


def test_the_compiled_form_asks_recognised_classes_nothing():
    compute = implementations.load("compute_iteration_details", "compiled")
    for step in (
        output({"a": 1, "b": 2, "c": 3}, {"a": 0, "b": 1}, ["c"]),
        output({"c": 3, "b": 2, "a": 1}, {"a": 0, "b": 1}, ["c"]),
    ):
        assert counts(compute(step)) == (2, 4, 1, 2)
        assert MAP not in vars(step.scheduled_cached_reqs)  # which asking would have filled


def test_the_result_is_the_dataclass(compute):
    details = compute(output({"a": 1, "b": 50}, {"a": 3, "b": 0}))
    made = IterationDetails(1, 50, 1, 1)
    assert type(details) is IterationDetails
    assert details == made
    assert [*vars(details).items()] == [*vars(made).items()]
    assert repr(details) == repr(made)
    assert dataclasses.asdict(details) == dataclasses.asdict(made)
    assert dataclasses.replace(details, num_ctx_tokens=9) == IterationDetails(1, 9, 1, 1)
    assert pickle.loads(pickle.dumps(details)) == copy.deepcopy(details) == made
    details.num_ctx_requests += 1
    details.note = "kept"
    assert (details.num_ctx_requests, details.note) == (2, "kept")
    with pytest.raises(TypeError):
        hash(details)


def test_repr_is_upstreams():
    gap = " " * 17
    assert repr(IterationDetails(1, 2, 3, 4)) == (
        f"IterationDetails(num_ctx_requests=1,{gap}num_ctx_tokens=2,{gap} num_generation_requests=3,{gap} "
        "num_generation_tokens=4)"
    )


def test_both_forms_look_alike_to_inspect():
    compiled, python = (implementations.load("compute_iteration_details", form) for form in ("compiled", "python"))
    assert inspect.getdoc(compiled) == inspect.getdoc(python)
    assert (compiled.__name__, compiled.__module__) == (python.__name__, python.__module__)
    assert [*inspect.signature(compiled).parameters] == [*inspect.signature(python).parameters]


recognised = _phases.recognised


def test_recognition_is_by_meaning_and_not_by_name():
    class Same:
        @cached_property
        def _req_id_to_num_output_tokens(self):
            """Another docstring, other names."""
            return dict(zip(self.req_ids, self.num_output_tokens, strict=False))

        def is_context_phase(me, which):
            found = me._req_id_to_num_output_tokens.get(which)
            return found is not None and found == 0

    assert recognised(Same)
    assert recognised(Cached)


def test_what_looks_similar_is_not_recognised():
    class Base:
        _req_id_to_num_output_tokens = Cached.__dict__[MAP]
        is_context_phase = Cached.is_context_phase

    def phases():
        def one(self, req_id):
            found = self._req_id_to_num_output_tokens.get(req_id)
            return found is not None and found == 1

        def false(self, req_id):
            return self._req_id_to_num_output_tokens.get(req_id) == False  # noqa: E712

        def other_map(self, req_id):
            return self._req_ids_to_num_output_tokens.get(req_id) == 0

        def swapped(req_id, self):
            return self._req_id_to_num_output_tokens.get(req_id) == 0

        async def later(self, req_id):
            return self._req_id_to_num_output_tokens.get(req_id) == 0

        def many(self, *req_id):
            return self._req_id_to_num_output_tokens.get(req_id) == 0

        return one, false, other_map, swapped, later, many, None, property(one), staticmethod(one)

    for phase in phases():
        assert not recognised(type("Own", (), {**vars(Base), "is_context_phase": phase})), phase

    def strict(self):
        return dict(zip(self.req_ids, self.num_output_tokens, strict=True))

    def reversed_pairs(self):
        return dict(zip(self.num_output_tokens, self.req_ids))  # noqa: B905

    named = cached_property(Cached.__dict__[MAP].func)
    named.__set_name__(None, "other_name")
    own_zip = {"zip": lambda *lists: [], "__builtins__": __builtins__}
    shadowed = type(strict)(Cached.__dict__[MAP].func.__code__, own_zip)
    maps = [
        cached_property(strict),
        cached_property(reversed_pairs),
        named,
        property(strict),
        cached_property(shadowed),
    ]
    for mapping in maps:
        cls = type("Own", (), {"is_context_phase": Cached.is_context_phase})
        setattr(cls, MAP, mapping)  # afterwards, so that it is not given this name
        assert not recognised(cls), mapping


def test_a_key_exchanged_for_another_during_the_walk_is_an_error(compute):
    tokens = {"a": 1}

    class Exchanging:
        def is_context_phase(self, req_id):
            del tokens[req_id]
            tokens[req_id + "a"] = 1
            return False

    with pytest.raises(RuntimeError, match="changed during iteration"):
        compute(output(tokens, Exchanging()))


def test_an_id_is_hashed_before_the_next_one_is_read(compute):
    broken = output({"a": 1})
    broken.scheduled_new_reqs = [SimpleNamespace(req_id="a"), SimpleNamespace(req_id=[]), SimpleNamespace()]
    with pytest.raises(TypeError, match="unhashable"):
        compute(broken)


def test_new_requests_whose_ids_are_no_plain_str(compute):
    class Id(str):
        pass

    mixed = output({"a": 1, "b": 2, 3: 4, "c": 8}, {"c": 5}, ["a", Id("b"), 3, 3])
    assert dataclasses.astuple(compute(mixed)) == (3, 7, 1, 8)


def test_a_recognised_class_without_a_dictionary(compute):
    class Slots:
        __slots__ = ("num_output_tokens", "req_ids")
        is_context_phase = Cached.is_context_phase
        _req_id_to_num_output_tokens = Cached._req_id_to_num_output_tokens

    with pytest.raises(TypeError, match="No '__dict__'"):
        compute(output({"a": 1}, Slots()))


def test_a_property_is_read_as_often_as_upstream_reads_it(compute):
    seen = []

    class Output:
        num_scheduled_tokens = {"a": 1, "b": 2, "c": 3}  # noqa: RUF012
        scheduled_new_reqs = [SimpleNamespace(req_id="c")]  # noqa: RUF012
        cached = Cached(["a", "b"], [0, 1])

        @property
        def scheduled_cached_reqs(self):
            seen.append("cached")
            return self.cached

    class Reading(Cached):
        @property
        def req_ids(self):
            seen.append("ids")
            return ["a", "b"]

        @req_ids.setter
        def req_ids(self, value):
            pass

    assert counts(compute(Output())) == (2, 4, 1, 2)
    assert seen == ["cached"] * 3
    seen.clear()
    Output.cached = Reading([], [0, 1])
    assert counts(compute(Output())) == (2, 4, 1, 2)
    assert seen == ["cached", "ids", "cached", "cached"]


def test_a_class_that_changes_is_looked_at_again(compute, monkeypatch):
    class Own(Cached):
        pass

    class Output(SimpleNamespace):
        pass

    step = Output(**vars(output({"a": 1, "b": 50}, Own(["a", "b"], [0, 3]))))
    assert counts(compute(step)) == (1, 1, 1, 50)
    monkeypatch.setattr(Cached, "is_context_phase", lambda self, req_id: True)  # of a base
    assert counts(compute(step)) == (2, 51, 0, 0)
    monkeypatch.undo()
    assert counts(compute(step)) == (1, 1, 1, 50)
    Own.__getattribute__ = lambda self, name: (lambda req_id: False) if name == "is_context_phase" else None
    assert counts(compute(step)) == (0, 0, 2, 51)
    del Own.__getattribute__
    Output.scheduled_cached_reqs = property(lambda self: SimpleNamespace(is_context_phase=lambda req_id: True))
    assert counts(compute(step)) == (2, 51, 0, 0)


def test_a_patched_class_of_results_is_called(compute, monkeypatch):
    made = []
    monkeypatch.setattr(IterationDetails, "__init__", lambda self, *numbers: made.append(numbers))
    compute(output({"a": 1, "b": 50}, {"a": 3, "b": 0}))
    assert made == [(1, 50, 1, 1)]
    monkeypatch.undo()
    assert counts(compute(output({"a": 1}, {"a": 3}))) == (0, 0, 1, 1)


@pytest.mark.parametrize("outputs", [[0], [0, 1, 2], []])
def test_lists_of_unequal_length_are_zipped(compute, outputs):
    step = output({"a": 1, "b": 2}, Cached(["a", "b"], outputs))
    expected = dict(zip(["a", "b"], outputs, strict=False))
    context = [req_id for req_id in "ab" if expected.get(req_id) == 0]
    assert compute(step).num_ctx_requests == len(context)
    assert compute(step).num_generation_requests == 2 - len(context)


class Raising(type):
    def __getattribute__(cls, name):
        raise RuntimeError(f"the metaclass was asked for {name}")


class Computing(type):
    @property
    def __mro__(cls):
        raise RuntimeError("the metaclass was asked for __mro__")

    def __getattr__(cls, name):
        raise RuntimeError(f"the metaclass was asked for {name}")


class RaisingHash:
    def __hash__(self):
        raise ZeroDivisionError

    def get(self, req_id):
        return 0


@pytest.mark.parametrize("metaclass", [Raising, Computing])
def test_a_metaclass_is_asked_for_nothing(compute, metaclass):
    own = metaclass("Own", (), {"is_context_phase": lambda self, req_id: True})
    assert counts(compute(output({"a": 1, "b": 2}, own()))) == (2, 3, 0, 0)
    step = metaclass("Output", (), {"scheduled_new_reqs": (), "num_scheduled_tokens": {"a": 1}})()
    step.scheduled_cached_reqs = Cached(["a"], [0])
    assert counts(compute(step)) == (1, 1, 0, 0)


@pytest.mark.parametrize("mapping", [{"a": 0}, RaisingHash()], ids=["a dict", "raises"])
def test_a_map_that_cannot_be_hashed_serves(compute, mapping):
    class Own:
        _req_id_to_num_output_tokens = mapping

        def is_context_phase(self, req_id):
            return self._req_id_to_num_output_tokens.get(req_id) == 0

    assert compute(output({"a": 1}, Own())).num_ctx_requests == 1


def test_what_ends_with_the_class_judged_last_may_count_too(compute):
    def recognised_class(ends_with=None):
        class Own(Cached):
            def is_context_phase(self, req_id):
                return self._req_id_to_num_output_tokens.get(req_id) == 0

        Own.is_context_phase.kept = ends_with
        return Own

    other, within = recognised_class(), []

    class Ending:
        def __del__(self):
            within.append(counts(compute(output({"a": 1, "b": 2}, other(["a", "b"], [0, 1])))))

    class Always:
        def is_context_phase(self, req_id):
            return True

    judged = recognised_class(Ending())
    compute(output({"a": 1, "b": 2}, judged(["a", "b"], [0, 1])))
    _phases._is_recognised.cache_clear()
    del judged
    gc.collect()
    always = Always()
    always.req_ids, always.num_output_tokens = ["a", "b"], [0, 1]
    for _ in range(3):
        assert counts(compute(output({"a": 1, "b": 2}, always))) == (2, 3, 0, 0)
    assert within == [(1, 1, 1, 2)]
