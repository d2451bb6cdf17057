"""References and memory stay flat over many calls of every compiled entry point."""

import functools
import gc
import os
import pickle
import sys
from types import SimpleNamespace

import implementations
import pytest

from fastutils import scopes

pytestmark = pytest.mark.leak

MANY = 1_000_000
FEW = 20_000  # for what takes microseconds


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def blocks():
    gc.collect()
    return sys.getallocatedblocks()


def repeat(function, times):
    for _ in range(times):
        function()


def check_flat(function, times, *watched):
    """Blocks, the references to `watched` and, where it can be read, resident memory do not grow with the calls.

    A leak grows every time. What others allocate once, in the middle, does not: three tries.
    """
    limit = max(100, times // 100)  # a leak would be at least one block a call
    repeat(function, 1000)
    for _ in range(3):
        before, references = blocks(), [sys.getrefcount(each) for each in watched]
        memory = resident() if os.path.exists("/proc/self/statm") else None
        repeat(function, times)
        assert [sys.getrefcount(each) for each in watched] == references
        grown = blocks() - before
        if grown < limit:
            break
    assert grown < limit
    if memory is not None:
        assert resident() - memory < (1 << 20) + times  # one byte a call would be the least leak


def refused(function, *errors):
    def call():
        try:
            function()
        except errors:
            return
        raise AssertionError("it was not refused")

    return call


@pytest.fixture
def ConstantList():
    return implementations.load("ConstantList", "compiled")


def test_reading_a_view(ConstantList):
    items = [int(str(1000 + i)) for i in range(20)]
    absent, last = int("5000"), int("1019")
    view = ConstantList(items)

    def read():
        view[3]
        view[-1]
        view[2:5]
        len(view)
        last in view  # noqa: B015
        absent in view  # noqa: B015
        view.index(last)

    check_flat(read, MANY, items, absent, last, items[3])


def test_reading_a_view_the_long_way(ConstantList):
    mixed = (1.5, "text", None, int("1019"))
    view = ConstantList(mixed)
    marked = ConstantList([*mixed, int("1020")])
    wanted = int("1020")

    def read():
        view[0], view[1:], len(view), list(view), repr(view)
        wanted in marked  # noqa: B015
        marked.index(wanted, 1, None)
        marked.index(item=wanted)
        marked.count(value=wanted)
        marked.copy()
        marked[::2]
        list(reversed(marked))
        view._x  # noqa: B018

    check_flat(read, FEW, mixed, wanted, view, marked, *mixed[:2])


def test_making_views(ConstantList):
    items = []
    sub = type("Sub", (ConstantList,), {})

    check_flat(lambda: ConstantList(items), MANY, items, ConstantList)
    check_flat(lambda: ConstantList(x=items), FEW, items, ConstantList)
    check_flat(lambda: [ConstantList(items) for _ in range(100)], FEW // 20, items, ConstantList)
    check_flat(lambda: sub(items), FEW, items, ConstantList, sub)

    def with_attributes():
        view = ConstantList(items)
        view.note = items
        view._x = items
        view.__init__(items)
        view.me = view  # a cycle

    gc.disable()
    try:
        check_flat(lambda: (with_attributes(), gc.collect(0)), FEW // 4, items, ConstantList)
    finally:
        gc.enable()


def test_refusing(ConstantList):
    view = ConstantList([1])
    item = object()
    for function in (
        lambda: ConstantList(),
        lambda: ConstantList(item, item),
        lambda: ConstantList(y=item),
        lambda: view.append(item),
        lambda: view.append(item, item),
        lambda: view.append(other=item),
        lambda: view.clear(),
        lambda: view.__setitem__(0, item),
        lambda: view.__delitem__(0),
        lambda: view[item],
        lambda: view[10**30],
        lambda: view[7],
        lambda: view.index(item),
        lambda: view.index(5),
        lambda: view.index(1, item),
        lambda: len(ConstantList(item)),
        lambda: ConstantList.__new__(ConstantList)[0],
    ):
        check_flat(
            refused(function, TypeError, IndexError, ValueError, AttributeError), FEW // 10, item, view, ConstantList
        )


def test_pickling_views(ConstantList, monkeypatch):
    monkeypatch.setattr("fastutils.ConstantList", ConstantList)
    view = ConstantList([1, 2])
    view.note = "note"
    check_flat(lambda: pickle.loads(pickle.dumps(view)), FEW // 4, view, ConstantList)


class Cached:
    def __init__(self, req_ids, num_output_tokens):
        self.req_ids = req_ids
        self.num_output_tokens = num_output_tokens

    @functools.cached_property
    def _req_id_to_num_output_tokens(self):
        return dict(zip(self.req_ids, self.num_output_tokens))  # noqa: B905

    def is_context_phase(self, req_id):
        outputs = self._req_id_to_num_output_tokens.get(req_id)
        return outputs is not None and outputs == 0


def step(tokens, cached, new=()):
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        scheduled_cached_reqs=cached,
        scheduled_new_reqs=[SimpleNamespace(req_id=req_id) for req_id in new],
    )


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (lambda: step({"a": 1000, "b": 2}, Cached(["a", "b"], [0, 1])), MANY),
        (lambda: step({"a": 1000, "b": 2, "n": 3}, Cached(["a", "b"], [0, 1]), ["n"]), MANY // 10),
        (lambda: step({"b": 1000, "a": 2, "n": 3}, Cached(["a", "b"], [0, 1]), ["n"]), MANY // 10),
        (lambda: step({"a": 1000, "b": 2**70}, Cached(["a", "b"], [0, 1])), FEW),
        (lambda: step({"a": 1000}, SimpleNamespace(is_context_phase=bool)), FEW),
        (lambda: step({1: 1000}, Cached([1], [0]), [None]), FEW),
        (lambda: step({}, None), FEW),
    ],
    ids=["in step", "with new", "another order", "huge", "asked", "other ids", "empty"],
)
def test_counting(make, times):
    compute = implementations.load("compute_iteration_details", "compiled")
    output = make()
    tokens = output.num_scheduled_tokens
    check_flat(lambda: compute(output), times, output, tokens, output.scheduled_cached_reqs, *tokens)
    if isinstance(output.scheduled_cached_reqs, Cached):
        output.scheduled_cached_reqs.is_context_phase("a")
        check_flat(lambda: compute(output), FEW, output, tokens, output.scheduled_cached_reqs, *tokens)


def test_counting_what_raises():
    compute = implementations.load("compute_iteration_details", "compiled")
    bad = [
        None,
        SimpleNamespace(scheduled_new_reqs=[1]),
        step({"a": 1}, None),
        step({"a": None}, Cached(["a"], [0])),
        step({"a": 1}, Cached([[]], [0]), ["n"]),
    ]
    for output in bad:
        check_flat(refused(lambda output=output: compute(output), Exception), FEW // 10, output)


def test_classes_that_were_judged_can_go():
    compute = implementations.load("compute_iteration_details", "compiled")

    def judge():
        cls = type("Own", (Cached,), {"is_context_phase": lambda self, req_id: req_id == "a"})
        assert compute(step({"a": 1}, cls(["a"], [1]))).num_ctx_requests == 1

    check_flat(judge, 500)


def test_scopes(monkeypatch):
    scope = implementations.load("record_function_or_nullcontext", "compiled")
    scopes._reset()
    name, other = "".join(["na", "me"]), object()

    def enter():
        with scope(name):
            pass

    def enter_the_long_way():
        with scope(name=name), scope(other) as yielded:
            assert yielded is other
        held = [scope(name) for _ in range(50)]
        held[0].__enter__(), type(held[0]).__enter__(held[0]), held[0].enter_result

    check_flat(enter, MANY, name)
    check_flat(enter_the_long_way, FEW // 20, name, other)
    for function in (lambda: scope(), lambda: scope(name, name), lambda: scope(other=name), lambda: scope(name)(name)):
        check_flat(refused(function, TypeError), FEW // 10, name)
    monkeypatch.setenv("VLLM_NVTX_SCOPES_FOR_PROFILING", "1")
    monkeypatch.setitem(sys.modules, "nvtx", None)

    def choose_and_fail():
        scopes._reset()
        scope(name)

    check_flat(refused(choose_and_fail, ImportError), FEW // 10, name)
    scopes._reset()
