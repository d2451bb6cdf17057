"""The baselines: upstream's form stands for vLLM's own objects only as long as the two agree."""

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
if not (CHECKOUT / "bench").is_dir():
    pytest.skip("the benchmark belongs to the checkout, not to an installation", allow_module_level=True)
sys.path.append(str(CHECKOUT))  # behind everything else: an installed fastutils stays the one under test

import fastutils  # noqa: E402
from bench import baseline, micro, upstream  # noqa: E402
from bench.cases import cases  # noqa: E402

VLLM = importlib.util.find_spec("vllm") is not None


def pretend_vllm(monkeypatch, **helpers):
    """A module in vllm.v1.utils' place."""
    module = types.ModuleType("vllm.v1.utils")
    vars(module).update(helpers)
    for name in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.utils", module)
    monkeypatch.setattr(baseline.importlib.metadata, "version", lambda name: "9.9.9")
    return module


def owned(owner):
    return {name: types.SimpleNamespace(__module__=owner) for name in baseline.HELPERS}


def test_the_form_needs_no_vllm():
    assert baseline.load("form").helpers is upstream
    assert all(hasattr(upstream, name) for name in baseline.HELPERS)
    with pytest.raises(ValueError, match="no baseline 'other'"):
        baseline.load("other")


@pytest.mark.skipif(VLLM, reason="a vLLM is installed here")
def test_without_a_vllm_auto_is_the_form_and_vllm_an_error(capsys):
    assert baseline.load() is baseline.FORM
    with pytest.raises(baseline.Unavailable, match="--baseline form needs no vLLM"):
        baseline.load("vllm")
    assert micro.main(["--baseline", "vllm"]) == 2
    assert baseline.main([]) == 2
    assert "cannot be imported" in capsys.readouterr().err


def test_vllms_own_objects_are_taken_and_named(monkeypatch):
    pretend_vllm(monkeypatch, **owned("vllm.v1.utils"))
    found = baseline.load("vllm")
    assert found.description == "the objects of vLLM 9.9.9 (vllm.v1.utils)"
    assert found.helpers.copy_slice.__module__ == "vllm.v1.utils"


def test_fastutils_in_vllms_place_is_no_baseline(monkeypatch):
    pretend_vllm(monkeypatch, **{**owned("vllm.v1.utils"), "copy_slice": fastutils.copy_slice})
    with pytest.raises(baseline.Unavailable, match=r"copy_slice comes from fastutils.*FASTUTILS_VLLM=0"):
        baseline.load("vllm")


def test_a_vllm_without_a_helper_is_named(monkeypatch):
    helpers = owned("vllm.v1.utils")
    del helpers["tensor_data"]
    pretend_vllm(monkeypatch, **helpers)
    with pytest.raises(baseline.Unavailable, match="has no tensor_data"):
        baseline.load("vllm")


def test_what_is_compared_are_cases_of_every_helper():
    compared = [case for case in cases() if case.id in baseline.COMPARED]
    assert len(compared) == len(baseline.COMPARED)
    assert {case.helper for case in compared} == set(baseline.HELPERS)


def test_the_form_stands_where_fastutils_stands_otherwise(monkeypatch):
    monkeypatch.setattr(micro, "run_case", lambda case, ours, settings, baseline: (case.id, ours, baseline))
    other = baseline.Baseline("x", "x", types.SimpleNamespace())
    found = sorted(baseline.agreement(other))
    assert found == [(name, upstream, other.helpers) for name in sorted(baseline.COMPARED)]


@pytest.mark.skipif(not VLLM, reason="no vLLM is installed here: its own objects cannot be compared")
def test_the_form_and_an_installed_vllm_agree_within_the_noise():
    # In a process of its own: whatever importing vLLM sets up stays out of this one.
    program = (
        "from bench import baseline, micro\n"
        "found = list(baseline.agreement(baseline.load('vllm'), micro.QUICK))\n"
        "assert len(found) == len(baseline.COMPARED)\n"
        "for row in found:\n"
        "    assert not row.error, (row.case.id, row.error)\n"
        "    print(row.case.id, '|', row.verdict.ratio, '|', row.verdict.low, '|', row.verdict.high)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "FASTUTILS_VLLM": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.count(" | ") == 3]
    assert len(rows) == len(baseline.COMPARED)
    # Newer versions do a little more in some helpers; a tenth more, with the whole interval, is another function.
    different = {name: float(ratio) for name, ratio, low, high in rows if float(low) > 1.1 or float(high) < 0.9}
    assert not different
