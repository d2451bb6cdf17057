"""The race detector's switch, and that what it wraps stays what it was."""

import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from implementations import load

import fastutils
from fastutils import _select

NAMES = sorted(_select.RACING)


def run(*arguments, **variables):
    """What a fresh interpreter prints. The checkout is on its path, installed or not."""
    environment = {key: value for key, value in os.environ.items() if key != "FASTUTILS_DEBUG_RACES"}
    environment.update(variables, PYTHONPATH=str(Path(fastutils.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SAME = """
import importlib, sys
import fastutils
from fastutils import _select
for name in sorted(_select.RACING):
    choice = _select.choose(name)
    home = importlib.import_module(_select.HOMES[name][choice.implementation == "compiled"])
    print(getattr(fastutils, name) is getattr(home, name), "race" in choice.reason)
print("fastutils.tensors.races" in sys.modules)
"""


@pytest.mark.parametrize("variables", [{}, {"FASTUTILS_DEBUG_RACES": "off"}], ids=["unset", "off"])
def test_off_nothing_is_different(variables):
    assert run("-c", SAME, **variables).splitlines() == ["True False"] * len(NAMES) + ["False"]


def test_on_all_that_copies_is_wrapped():
    assert run("-c", SAME, FASTUTILS_DEBUG_RACES="warn").splitlines() == ["False True"] * len(NAMES) + ["True"]


@pytest.mark.parametrize(
    ("value", "mode"),
    [("warn", "warn"), ("raise", "raise"), (" Warn ", "warn")]
    + [(off, "") for off in ("", " ", "0", "OFF", "no", "False")],
)
def test_what_the_switch_takes(value, mode, monkeypatch):
    monkeypatch.setenv("FASTUTILS_DEBUG_RACES", value)
    assert _select.race_mode() == mode


@pytest.mark.parametrize("disabled", ["", "1"])
def test_whichever_form_serves_is_wrapped(disabled, monkeypatch):
    monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", disabled)
    monkeypatch.delenv("FASTUTILS_DEBUG_RACES", raising=False)
    plain = _select.choose("CpuGpuBuffer")
    monkeypatch.setenv("FASTUTILS_DEBUG_RACES", "warn")
    choice = _select.choose("CpuGpuBuffer")
    assert choice.implementation == plain.implementation
    assert choice.reason == f"{plain.reason}; the race detector is on: FASTUTILS_DEBUG_RACES=warn"
    assert choice.value.__bases__ == (plain.value,)
    assert _select.choose("CpuGpuBuffer").value is choice.value


@pytest.mark.parametrize("value", ["1", "wran", "warn,raise"])
def test_a_wrong_word_is_named_and_so_are_the_right_ones(value, monkeypatch):
    monkeypatch.setenv("FASTUTILS_DEBUG_RACES", value)
    for name in NAMES:
        with pytest.raises(ValueError, match=f"^FASTUTILS_DEBUG_RACES='{value}' is none of warn, raise and 0 "):
            _select.choose(name)
    assert _select.choose("ConstantList").value is fastutils.ConstantList  # which races with nobody


@pytest.mark.parametrize(
    ("value", "told"),
    [("raise", "the race detector is on: FASTUTILS_DEBUG_RACES=raise"), ("yes", "'yes' is none of warn, raise")],
)
def test_the_report_tells(value, told):
    lines = run("-m", "fastutils", "--no-check", FASTUTILS_DEBUG_RACES=value).splitlines()
    assert sorted(line.split()[0] for line in lines if told in line) == NAMES


PICKLED = """
import pickle, torch, fastutils
buffer = fastutils.CpuGpuBuffer(3, dtype=torch.int32, device="cpu", pin_memory=False)
buffer.np[:] = 7
again = pickle.loads(pickle.dumps(buffer))
print(type(again) is fastutils.CpuGpuBuffer, again.copy_to_gpu(2).tolist())
print(pickle.loads(pickle.dumps(fastutils.copy_slice)) is fastutils.copy_slice)
"""


def test_pickled_by_reference():
    assert run("-c", PICKLED, FASTUTILS_DEBUG_RACES="raise").splitlines() == ["True [7, 7]", "True"]
    dumped = pickle.dumps(fastutils.copy_slice)  # of a process without the switch, for one with it
    load_it = f"import pickle, fastutils; print(pickle.loads({dumped!r}) is fastutils.copy_slice)"
    assert run("-c", load_it, FASTUTILS_DEBUG_RACES="warn") == "True\n"


TRACED = """
import torch, fastutils
buffer = fastutils.CpuGpuBuffer(4, dtype=torch.int64, device="cpu", pin_memory=False)
buffer.cpu.copy_(torch.arange(4))

def step(target):
    fastutils.copy_to_gpu_many([buffer], 3)
    fastutils.copy_slices([(buffer.cpu, target, 1)])
    return buffer.copy_to_gpu(2) + fastutils.copy_slice(buffer.cpu, target, 2) + buffer.copy_to_cpu(2)

print(torch.compile(step, backend="eager", fullgraph=True)(torch.ones(4, dtype=torch.int64)).tolist())
"""


@pytest.mark.parametrize("disabled", ["", "1"])
def test_a_full_graph_is_traced_through_it(disabled):
    variables = {"FASTUTILS_DEBUG_RACES": "raise", "FASTUTILS_NO_EXTENSIONS": disabled}
    assert run("-W", "ignore", "-c", TRACED, **variables) == "[0, 3]\n"


# ---- what is wrapped ---------------------------------------------------------------------------------------------


@pytest.fixture
def races():
    from fastutils.tensors import races

    yield races
    races._uploads.clear()


@pytest.fixture
def watched(races, form):
    return lambda name: races.watch(name, load(name, form), "raise")


@pytest.mark.parametrize("name", NAMES)
def test_it_looks_like_what_it_wraps(watched, name):
    twin, wrapper = load(name, "python"), watched(name)
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        assert getattr(wrapper, attribute) == getattr(twin, attribute)
    assert inspect.signature(wrapper) == inspect.signature(twin)
    if isinstance(twin, type):
        for method in ("copy_to_gpu", "copy_to_cpu"):
            ours, theirs = getattr(wrapper, method), getattr(twin, method)
            assert (ours.__qualname__, ours.__doc__) == (theirs.__qualname__, theirs.__doc__)
            assert inspect.signature(ours) == inspect.signature(theirs)


def test_copies_within_the_cpu_leave_no_record(races, watched):
    before = races.counts()
    source, target = torch.arange(6), torch.zeros(6, dtype=torch.int64)
    buffer = watched("CpuGpuBuffer")(6, dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)
    buffer.cpu.copy_(source)
    assert watched("copy_slice")(source, target, 3).tolist() == [0, 1, 2]
    assert watched("copy_slices")([(source, target, 4)], views=True)[0].tolist() == [0, 1, 2, 3]
    assert watched("copy_slices")([(source, target, 5)]) is None
    assert buffer.copy_to_gpu(2).tolist() == [0, 1]
    assert watched("copy_to_gpu_many")([buffer], [3], views=True)[0].tolist() == [0, 1, 2]
    assert watched("copy_to_gpu_many")([buffer]) is None
    assert buffer.gpu.tolist() == [*range(6)]
    buffer.gpu.mul_(2)
    assert buffer.copy_to_cpu() is buffer.cpu
    races.check()
    assert races.counts() == before


@pytest.mark.parametrize("n", [None, 2, -1, 9, np.int64(2), torch.tensor(2), True])
def test_row_counts_mean_what_they_meant(watched, form, n):
    source, target = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    expected = load("copy_slice", form)(source, torch.zeros(4, dtype=torch.int64), n).tolist()
    assert watched("copy_slice")(from_tensor=source, to_tensor=target, length=n).tolist() == expected
    with pytest.raises(TypeError):
        watched("copy_slice")(source, target, 1.5)


def test_a_buffer_stays_a_buffer(watched, form):
    Buffer, plain = watched("CpuGpuBuffer"), load("CpuGpuBuffer", form)
    buffer = Buffer(4, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)
    assert isinstance(buffer, plain)
    assert list(vars(buffer)) == ["cpu", "gpu", "np"]

    class LookAlike:
        cpu, gpu = torch.arange(4), torch.zeros(4, dtype=torch.int64)
        copy_to_gpu, copy_to_cpu = Buffer.copy_to_gpu, Buffer.copy_to_cpu

    assert LookAlike().copy_to_gpu(n=2).tolist() == [0, 1]
    assert Buffer.copy_to_cpu(LookAlike()) is LookAlike.cpu

    class Derived(Buffer):
        def copy_to_gpu(self, n=None):
            return super().copy_to_gpu(n) + 1

    derived = Derived(4, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)
    assert derived.copy_to_gpu(2).tolist() == [1, 1]
    with pytest.raises(AttributeError, match="gpu"):
        Buffer.copy_to_gpu(object())


def test_a_buffers_tensors_are_read_once(watched):
    asked = []

    class Computed(watched("CpuGpuBuffer")):
        gpu = property(lambda self: asked.append("gpu") or torch.zeros(4), lambda self, tensor: None)
        cpu = property(lambda self: asked.append("cpu") or torch.ones(4), lambda self, tensor: None)

    buffer = object.__new__(Computed)
    assert buffer.copy_to_gpu(2).tolist() == [1, 1]
    assert asked == ["gpu", "cpu"]  # in the order in which the plain form asks
    assert buffer.copy_to_cpu().tolist() == [0] * 4
    assert asked[2:] == ["cpu", "gpu"]


def test_an_index_is_asked_once(watched):
    class Index:
        asked = 0

        def __index__(self):
            Index.asked += 1
            return 2

    assert len(watched("copy_slice")(torch.arange(4), torch.zeros(4, dtype=torch.int64), Index())) == 2
    plain, Index.asked = Index.asked, 0
    load("copy_slice", "python")(torch.arange(4), torch.zeros(4, dtype=torch.int64), Index())
    assert plain == Index.asked


def test_refusals_of_copy_slices_come_before_any_copy(watched):
    target = torch.zeros(3)
    with pytest.raises(TypeError, match="entry 1 of 2 is 5"):
        watched("copy_slices")([(torch.ones(3), target, 3), 5])
    assert target.tolist() == [0] * 3
    with pytest.raises(ValueError, match="got 1 buffers but 2 row counts"):
        watched("copy_to_gpu_many")([5], [1, 2])
