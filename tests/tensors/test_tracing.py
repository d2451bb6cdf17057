"""torch.compile traces through the helpers, and using them does not import the tracer."""

import functools
import importlib.util
import json
import subprocess
import sys

import pytest
import torch
import traced
from implementations import load

from fastutils import tracing


@functools.cache  # one process serves all cases, also where it fails
def done(*command):
    return subprocess.run([sys.executable, "-W", "ignore", *command], capture_output=True, text=True, timeout=300)


def run(*command):
    assert done(*command).returncode == 0, done(*command).stderr
    return done(*command).stdout


@pytest.mark.parametrize("order", ["tracer first", "fastutils first"])
@pytest.mark.parametrize("case", traced.CASES)
def test_a_full_graph_holds_what_the_python_form_does(form, order, case):
    for name in ("copy_slice", "tensor_data", "compute_iteration_details", "ConstantList"):
        load(name, form)  # skips where this form is not installed
    _, wanted = traced.CASES[case]
    # By -c, which has the working directory on the path, where a checkout that is not installed lies.
    script = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    assert json.loads(run("-c", script, traced.__file__, form, order))[case] == wanted


def test_using_the_helpers_does_not_import_the_tracer():
    names = ["ConstantList", "record_function_or_nullcontext", "compute_iteration_details"]
    plain = f"import fastutils, sys; [getattr(fastutils, name) for name in {names}]; "
    assert run("-c", plain + "print('torch' in sys.modules)").split() == ["False"]
    tensors = "fastutils.copy_slice, fastutils.tensor_data; "
    assert run("-c", plain + tensors + "print('torch._dynamo' in sys.modules)").split() == ["False"]


def test_the_watched_module_is_loaded_as_ever(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    called = []
    before = list(sys.meta_path)
    tracing.when_imported("watched_module", lambda: called.append(sys.modules["watched_module"].value))
    tracing.when_imported("watched_module", lambda: called.append("both"))
    assert importlib.util.find_spec("watched_module") is not None  # found, not loaded
    assert called == []
    import watched_module

    assert called == [1, "both"]
    assert sys.meta_path == before
    assert watched_module.__loader__ is watched_module.__spec__.loader
    assert isinstance(watched_module.__loader__, importlib.machinery.SourceFileLoader)
    tracing.when_imported("watched_module", lambda: called.append(2))
    assert called == [1, "both", 2]
    del sys.modules["watched_module"]


def test_a_tracer_that_refuses_is_reported_and_harmless(monkeypatch, caplog):
    def refuse(function, **options):
        raise TypeError("not today")

    monkeypatch.setattr(torch.compiler, "substitute_in_graph", refuse)
    tracing._substitute([(len, len)])
    assert "cannot trace len: not today" in caplog.text
