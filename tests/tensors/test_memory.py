"""Memory that runs out in the middle of a call."""

import re
import sys
from pathlib import Path

import pytest
import torch
from implementations import load

testcapi = pytest.importorskip("_testcapi")

CALLS = {
    "copy_slice": lambda form, buffer: load("copy_slice", form)(buffer.cpu, buffer.gpu, 3),
    "copy_to_gpu": lambda form, buffer: buffer.copy_to_gpu(3),
    "copy_to_gpu_many": lambda form, buffer: load("copy_to_gpu_many", form)([buffer] * 2, [3, 2]),
    "tensor_data": lambda form, buffer: load("tensor_data", form)(buffer.cpu),
    "base": lambda form, buffer: buffer.data.obj.base,
}


@pytest.mark.parametrize("form", ["compiled", "python"])
@pytest.mark.parametrize("call", CALLS)
def test_memory_that_runs_out(form, call):
    buffer = load("CpuGpuBuffer", form)(8, dtype=torch.int32, device="cpu", pin_memory=False)
    buffer.data = load("tensor_data", form)(buffer.cpu)
    CALLS[call](form, buffer)
    outcomes = []
    for step in range(12):
        before = buffer.gpu._version
        try:
            testcapi.set_nomemory(step, step + 1)
            CALLS[call](form, buffer)
            outcome = "done"
        except (MemoryError, torch.OutOfMemoryError):
            outcome = "no memory"
        finally:
            testcapi.remove_mem_hooks()
        outcomes.append(outcome)
        copies = {"copy_slice": 1, "copy_to_gpu": 1, "copy_to_gpu_many": 2}.get(call, 0)
        assert buffer.gpu._version - before in ((copies,) if outcome == "done" else range(copies + 1))
    if form == "compiled":  # which needs few allocations
        assert outcomes[-1] == "done"
        assert "no memory" in outcomes or call == "copy_to_gpu_many"


@pytest.mark.parametrize("form", ["compiled", "python"])
@pytest.mark.parametrize("views", [False, True])
def test_lists_that_cannot_grow(form, views):
    buffer = load("CpuGpuBuffer", form)(8, dtype=torch.int32, device="cpu", pin_memory=False)
    copy_slices, many = load("copy_slices", form), load("copy_to_gpu_many", form)
    entry = (buffer.cpu, buffer.gpu, 3)
    entries, buffers = [entry] * 40, [buffer] * 40
    held = [sys.getrefcount(thing) for thing in (entry, buffer, buffer.cpu, buffer.gpu)]
    for step in range(60):
        for call, several in ((copy_slices, entries), (many, buffers)):
            try:
                testcapi.set_nomemory(step, step + 1)
                call(several, views=views)
            except (MemoryError, torch.OutOfMemoryError):
                pass
            finally:
                testcapi.remove_mem_hooks()
    assert [sys.getrefcount(thing) for thing in (entry, buffer, buffer.cpu, buffer.gpu)] == held


def test_no_source_has_a_list_comprehension():
    """Cython 3.3's releases the item twice where the list cannot grow."""
    for source in Path(__file__).parents[2].glob("fastutils/**/*.pyx"):
        comprehensions = [node for node in source.read_text().splitlines() if re.search(r"\[[^\]]* for \w", node)]
        assert not comprehensions, source
