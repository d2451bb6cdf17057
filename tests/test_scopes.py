"""record_function_or_nullcontext, in both forms and in its three modes."""

import asyncio
import contextlib
import gc
import inspect
import subprocess
import sys
import threading
import types
import weakref

import implementations
import pytest
from comparing import outcome

from fastutils import scopes

CUSTOM, NVTX = "VLLM_CUSTOM_SCOPES_FOR_PROFILING", "VLLM_NVTX_SCOPES_FOR_PROFILING"


@pytest.fixture
def scope(form, monkeypatch):
    """The function in its form, with nothing chosen yet and nothing asked for."""
    for name in (CUSTOM, NVTX):
        monkeypatch.delenv(name, raising=False)
    function = implementations.load("record_function_or_nullcontext", form)
    scopes._reset()
    yield function
    scopes._reset()


class Annotation(contextlib.AbstractContextManager):
    """Stands in for nvtx.annotate; counts how often one is made, entered and left."""

    made: list
    events: list

    def __init__(self, name):
        self.made.append(name)
        self.name = name

    def __enter__(self):
        self.events.append(("push", self.name))
        return self

    def __exit__(self, *error):
        self.events.append(("pop", self.name))


@pytest.fixture
def nvtx(scope, monkeypatch):
    cls = type("annotate", (Annotation,), {"made": [], "events": []})
    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(annotate=cls))
    monkeypatch.setenv(NVTX, "1")
    return cls


def test_off_it_yields_the_name(scope):
    with scope("outer") as outer, scope(name="inner") as inner:
        assert (outer, inner) == ("outer", "inner")
    name = "".join(["a", "b"])
    with scope(name) as yielded:
        assert yielded is name


def test_off_exceptions_pass_through(scope):
    error = ValueError("kept")
    with pytest.raises(ValueError, match="kept") as caught, scope("x"):
        raise error
    assert caught.value is error


def test_off_a_scope_can_be_entered_again_and_nested_in_itself(scope):
    one = scope("one")
    for _ in range(3):
        with one as first, one as second, scope("other") as other:
            assert (first, second, other) == ("one", "one", "other")


def test_off_a_scope_is_a_context_manager_like_any_other(scope):
    one = scope("one")
    assert isinstance(one, contextlib.AbstractContextManager)
    assert one.enter_result == "one"
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(one) == "one"
        stack.push(scope("two"))
        stack.callback(lambda: None)
    assert one.__enter__() == "one"
    assert one.__exit__(None, None, None) is None
    assert type(one).__enter__(one) == "one"
    assert type(one).__exit__(one, None, None, None) is None

    async def entered():
        async with scope("three") as name:
            return name

    assert asyncio.run(entered()) == "three"


@pytest.mark.parametrize("name", [None, 5, ["a"], b"x", type("Str", (str,), {})("x")], ids=repr)
def test_off_any_name_will_do(scope, name):
    with scope(name) as yielded:
        assert yielded is name


def test_off_a_scope_in_its_own_name_is_collected(scope):
    class Names(list):
        pass

    names = Names()
    names.append(scope(names))
    reference = weakref.ref(names)
    del names
    gc.collect()
    assert reference() is None


def test_many_scopes_at_once_keep_their_names(scope):
    held = [scope(f"scope {i}") for i in range(200)]
    assert [each.__enter__() for each in held] == [f"scope {i}" for i in range(200)]
    del held[::2]
    held += [scope(f"more {i}") for i in range(200)]
    assert [each.__enter__() for each in held[:100]] == [f"scope {i}" for i in range(1, 200, 2)]
    assert [each.__enter__() for each in held[100:]] == [f"more {i}" for i in range(200)]


@pytest.mark.parametrize("mode", [None, CUSTOM, NVTX])
def test_wrong_arguments_are_a_type_error(scope, nvtx, monkeypatch, mode):
    monkeypatch.delenv(NVTX)
    if mode:
        monkeypatch.setenv(mode, "1")
    for call in (
        lambda: scope(),
        lambda: scope("a", "b"),
        lambda: scope(other="a"),
        lambda: scope("a", name="a"),
        lambda: scope("a", "b", name="c"),
    ):
        with pytest.raises(TypeError):
            call()


def test_off_wrong_arguments_of_a_scope_are_a_type_error(scope):
    one = scope("x")
    for call in (lambda: one.__enter__(1), lambda: type(one).__enter__(), lambda: one.__exit__(error=None)):
        with pytest.raises(TypeError):
            call()


def test_the_choice_is_made_once_at_first_use(scope, nvtx, monkeypatch):
    monkeypatch.delenv(NVTX)
    with scope("before") as name:
        assert name == "before"
    monkeypatch.setenv(NVTX, "1")
    with scope("after") as name:
        assert name == "after"
    assert nvtx.made == []
    scopes._reset()
    with scope("again") as annotation:
        assert annotation.name == "again"
    monkeypatch.delenv(NVTX)
    with scope("kept"):
        pass
    assert nvtx.made == ["again", "kept"]


def test_both_forms_share_one_choice(nvtx):
    compiled, python = (implementations.load("record_function_or_nullcontext", form) for form in ("compiled", "python"))
    assert compiled("x") is python("x")
    assert nvtx.made == ["x"]


def test_nvtx_annotations_are_made_once_per_name(scope, nvtx):
    for _ in range(3):
        with scope("a"), scope("b"), scope("a"):
            pass
    assert nvtx.made == ["a", "b"]
    assert nvtx.events[:6] == [("push", "a"), ("push", "b"), ("push", "a"), ("pop", "a"), ("pop", "b"), ("pop", "a")]
    with pytest.raises(ZeroDivisionError), scope("a"):
        _ = 1 / 0
    assert nvtx.events[-1] == ("pop", "a")


def test_nvtx_names_without_end_do_not_pile_up(scope, nvtx):
    for i in range(scopes.MAX_NVTX_NAMES + 50):
        scope(f"request {i}")
    first, last = scope("request 0"), scope(f"request {scopes.MAX_NVTX_NAMES + 49}")
    assert first is scope("request 0")
    assert last is not scope(f"request {scopes.MAX_NVTX_NAMES + 49}")
    assert first.name == "request 0"


def test_nvtx_names_that_are_no_plain_str_are_passed_on(scope, nvtx):
    for name in (None, 1, True, ["unhashable"]):
        with scope(name) as annotation:
            assert annotation.name is name
    assert nvtx.made == [None, 1, True, ["unhashable"]]


def test_nvtx_itself(scope, monkeypatch):
    nvtx = pytest.importorskip("nvtx")
    monkeypatch.setenv(NVTX, "1")
    one = scope("real")
    assert isinstance(one, nvtx.annotate)
    assert one is scope("real")
    for _ in range(2):
        with one, scope("nested"), one:
            pass


def test_nvtx_missing_is_a_clear_error_every_time(scope, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.setenv(NVTX, "1")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match=r"VLLM_NVTX_SCOPES_.* 'vllm-fastutils\[profiling\]'"):
            scope("x")
    monkeypatch.setenv(NVTX, "0")
    with scope("x") as name:
        assert name == "x"


def test_custom_scopes_are_torchs_and_win(scope, nvtx, monkeypatch):
    profiler = pytest.importorskip("torch.autograd.profiler")
    monkeypatch.setenv(CUSTOM, "1")
    one = scope("seen by the profiler")
    assert type(one) is profiler.record_function
    assert scope("x") is not scope("x")
    with profiler.profile() as profile:
        for _ in range(2):
            with scope("seen by the profiler"):
                pass
        with pytest.raises(ZeroDivisionError), scope("left by an error"):
            _ = 1 / 0
    rows = {event.key: event.count for event in profile.key_averages()}
    assert (rows["seen by the profiler"], rows["left by an error"]) == (2, 1)
    assert nvtx.made == []


def test_custom_scopes_do_not_need_torch_before_they_are_used(scope, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", None)
    with scope("x") as name:  # off
        assert name == "x"
    scopes._reset()
    monkeypatch.setenv(CUSTOM, "1")
    with pytest.raises(ImportError):
        scope("x")


@pytest.mark.parametrize("name", [CUSTOM, NVTX])
def test_a_value_that_is_no_integer_is_named(scope, monkeypatch, name):
    monkeypatch.setenv(name, "yes")
    with pytest.raises(ValueError, match=f"{name}='yes' is not an integer"):
        scope("x")


def test_threads_that_come_first_together_agree(scope, monkeypatch):
    class Own(Annotation):
        made, events = [], []

    reads, together = [], threading.Barrier(4)

    class Nvtx(types.ModuleType):
        def __getattr__(self, name):
            if name == "annotate":
                reads.append(name)
                return Own
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "nvtx", Nvtx("nvtx"))
    monkeypatch.setenv(NVTX, "1")
    found = []

    def first():
        together.wait(10)
        found.append(scope("shared"))

    threads = [threading.Thread(target=first) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert 1 <= len(reads) <= 4  # no lock is held meanwhile: see the test of a first use within the first use
    assert [each.name for each in found] == ["shared"] * 4
    seen = len(reads)
    assert scope("shared") is scope("shared")  # one choice was kept
    assert len(reads) == seen


def test_both_forms_look_alike_to_inspect():
    compiled, python = (implementations.load("record_function_or_nullcontext", form) for form in ("compiled", "python"))
    assert inspect.getdoc(compiled) == inspect.getdoc(python)
    assert (compiled.__name__, compiled.__module__) == (python.__name__, python.__module__)
    assert [*inspect.signature(compiled).parameters] == [*inspect.signature(python).parameters] == ["name"]


def test_importing_the_module_again_changes_nothing(monkeypatch):
    scopes._reset()
    first = implementations.load("record_function_or_nullcontext", "compiled")
    held = first("held")
    monkeypatch.delitem(sys.modules, "fastutils._scopes")
    again = implementations.load("record_function_or_nullcontext", "compiled")
    assert type(again("x")) is type(held)
    assert outcome(held.__enter__) == "held"
    scopes._reset()


def test_off_a_scope_is_made_by_the_function_alone():
    compiled = implementations.load("record_function_or_nullcontext", "compiled")
    scopes._reset()
    kind = type(compiled("a"))
    for make in (kind, lambda: object.__new__(kind)):
        with pytest.raises(TypeError):
            make()
    with compiled("b") as entered:  # the freed ones are still good
        assert entered == "b"


FIRST_USES = """
import os, signal, sys, threading
from fastutils import record_function_or_nullcontext as scope
import fastutils._host as host

def asked(name, real=host.env):
    {meanwhile}
    return real(name)

host.env = asked
with scope("first"):
    pass
print("entered")
"""


@pytest.mark.parametrize(
    "meanwhile",
    ["scope('in a signal handler')", "os.fork() or (host.__dict__.update(env=real), scope('forked'), os._exit(0))"],
)
def test_a_first_use_within_the_first_use_does_not_wait_for_it(meanwhile):
    script = FIRST_USES.replace("{meanwhile}", f"host.env = real; {meanwhile}")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("entered\n")


def test_off_a_scope_is_not_callable_and_its_bound_enter_keeps_it(scope):
    assert not callable(scope("x"))
    name = "".join(["a ", "name"])
    enters = [scope(name).__enter__ for _ in range(3)]  # each the only holder of its scope
    assert [enter() for enter in enters] == [name] * 3
    one = scope(name)
    first, second = one.__enter__, one.__enter__
    del one, first
    assert second() is name
    del second, enters
    assert sys.getrefcount(name) == 2


def test_a_choice_forgotten_while_it_is_made_still_serves(scope, monkeypatch):
    monkeypatch.setattr(scopes._host, "env", lambda name: scopes._reset())  # within the choosing, and false
    for _ in range(3):
        with scope("kept") as yielded:
            assert yielded == "kept"
    chosen = scopes._chosen
    monkeypatch.setattr(scopes, "_chosen", lambda: (chosen(), scopes._reset())[0])
    with scope("kept too") as yielded:
        assert yielded == "kept too"


def test_nobody_can_make_one_otherwise():
    scope = implementations.load("record_function_or_nullcontext", "compiled")
    scopes._reset()
    made = scope("outer")
    for type_of in (type(made), type(made.__enter__), type(vars(type(made))["__enter__"])):
        with pytest.raises(TypeError, match="immutable type"):
            type_of.__new__ = lambda cls: None
        with pytest.raises(TypeError):
            object.__new__(type_of)
        with pytest.raises(TypeError):
            type_of()
    with pytest.raises(TypeError, match="__class__ assignment"):
        made.__class__ = type(made.__enter__)
    scopes._reset()
