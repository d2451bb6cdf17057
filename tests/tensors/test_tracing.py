"""torch.compile traces through copy_slice, and importing fastutils does not import the tracer."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest
import torch
from implementations import load

from fastutils.tensors import tracing


def run(program):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("order", ["tracer first", "fastutils first"])
def test_a_full_graph_holds_the_copy(form, order):
    load("copy_slice", form)  # skips where this form is not installed
    module = {"compiled": "fastutils.tensors._copy", "python": "fastutils.tensors.copy"}[form]
    imports = ["import torch._dynamo", f"from {module} import copy_slice, copy_slices"]
    if order == "fastutils first":
        imports.reverse()
    out = run(
        "\n".join(imports)
        + """
import torch
graphs = []

def backend(graph, inputs):
    graphs.append([node.target for node in graph.graph.nodes if node.op == "call_method"])
    return graph

@torch.compile(fullgraph=True, backend=backend)
def step(source, target, n):
    view = copy_slice(source, target, n) + 1
    copy_slices([(source, target[1:], 1)])
    return view

target = torch.zeros(4)
assert step(torch.tensor([5.0, 6.0, 7.0]), target, 2).tolist() == [6, 7]
assert target.tolist() == [5, 5, 0, 0]
print(*graphs[0])
"""
    )
    assert out == ["copy_", "copy_"]


def test_using_the_copies_does_not_import_the_tracer():
    assert run("import fastutils, sys; fastutils.copy_slice; print('torch._dynamo' in sys.modules)") == ["False"]


def test_the_watched_module_is_loaded_as_ever(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    called = []
    before = list(sys.meta_path)
    tracing.when_imported("watched_module", lambda: called.append(sys.modules["watched_module"].value))
    assert importlib.util.find_spec("watched_module") is not None  # found, not loaded
    assert called == []
    import watched_module

    assert called == [1]
    assert sys.meta_path == before
    assert watched_module.__loader__ is watched_module.__spec__.loader
    assert isinstance(watched_module.__loader__, importlib.machinery.SourceFileLoader)
    tracing.when_imported("watched_module", lambda: called.append(2))
    assert called == [1, 2]
    del sys.modules["watched_module"]


def test_a_tracer_that_refuses_is_reported_and_harmless(monkeypatch, caplog):
    def refuse(function):
        raise TypeError("not today")

    monkeypatch.setattr(torch.compiler, "substitute_in_graph", refuse)
    tracing._substitute([(len, len)])
    assert "cannot trace len: not today" in caplog.text
