"""The package's face: lazy imports, the choice between forms, the report."""

import ast
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import fastutils
from fastutils import _report, _select

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def run(*arguments, **variables):
    """A fresh interpreter outside the checkout; returns its standard output."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "names", ["", "ConstantList", "compute_iteration_details, IterationDetails", "record_function_or_nullcontext"]
)
def test_what_needs_no_library_imports_none(names):
    use = f"from fastutils import {names}" if names else "import fastutils"
    script = f"{use}\nimport sys\nprint([n for n in ('torch', 'numpy', 'zmq', 'psutil') if n in sys.modules])"
    assert run("-c", script).strip() == "[]"


@pytest.mark.parametrize("library", ["zmq", "psutil"])
def test_copies_need_neither_zmq_nor_psutil(library):
    script = (
        f"import sys\nsys.modules[{library!r}] = None\n"
        "import torch\nfrom fastutils import copy_slice, CpuGpuBuffer, tensor_data\n"
        "print(copy_slice(torch.arange(3), torch.zeros(3, dtype=torch.int64), 2).tolist())\n"
        "from fastutils import StagingGroup\n"
        "print(StagingGroup('cpu').buffer('x', 2, dtype=torch.int8).copy_to_gpu().tolist())"
    )
    assert run("-c", script).splitlines() == ["[0, 1]", "[0, 0]"]


def test_without_torch_the_error_names_torch():
    script = (
        "import sys\nsys.modules['torch'] = None\nimport fastutils\n"
        "try:\n    fastutils.CpuGpuBuffer\nexcept ImportError as error:\n    print('torch' in str(error))\n"
        "print(list(fastutils.ConstantList([1])))"
    )
    assert run("-c", script).split("\n")[:2] == ["True", "[1]"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fastutils' has no attribute 'nonsense'"):
        _ = fastutils.nonsense
    assert not hasattr(fastutils, "nonsense")


def test_dir_names_all_public_names():
    assert set(fastutils.__all__) <= set(dir(fastutils))
    assert fastutils.__version__


@pytest.mark.skipif(not PROJECT.exists(), reason="the project's file is not beside these tests")
def test_every_package_is_installed():
    root = Path(fastutils.__file__).parent
    found = {".".join(path.parent.relative_to(root.parent).parts) for path in root.rglob("__init__.py")}
    (line,) = [line for line in PROJECT.read_text().splitlines() if line.startswith("packages = ")]
    assert found == set(ast.literal_eval(line.partition("= ")[2]))


def test_a_name_stays_one_object():
    assert fastutils.ConstantList is fastutils.ConstantList
    assert _select.choose("ConstantList").value is fastutils.ConstantList


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_the_switch_selects_the_python_forms(value):
    script = (
        "from fastutils import _select\n"
        "print(sorted({_select.choose(n).implementation for n in _select.HOMES}))\n"
        "print(_select.choose('ConstantList').reason)"
    )
    assert run("-c", script, FASTUTILS_NO_EXTENSIONS=value) == "['python']\nFASTUTILS_NO_EXTENSIONS is set\n"


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_switch_is_off(value, monkeypatch):
    monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", value)
    assert not _select.extensions_disabled()


def test_a_missing_compiled_module_is_explained(monkeypatch):
    monkeypatch.delenv("FASTUTILS_NO_EXTENSIONS", raising=False)
    monkeypatch.setitem(_select.HOMES, "ConstantList", ("fastutils.views", "fastutils._not_there"))
    choice = _select.choose("ConstantList")
    assert choice.implementation == "python"
    assert "holds no compiled _not_there" in choice.reason


def test_a_failed_compilation_is_explained(monkeypatch):
    monkeypatch.delenv("FASTUTILS_NO_EXTENSIONS", raising=False)
    monkeypatch.setitem(_select.HOMES, "ConstantList", ("fastutils.views", "fastutils._not_there"))
    monkeypatch.setattr(_select, "build_info", lambda: {"modules": {"fastutils._not_there": "command 'cc' failed"}})
    assert _select.choose("ConstantList").reason == (
        "fastutils._not_there did not compile when this package was built: command 'cc' failed"
    )


def test_a_broken_compiled_module_is_explained(monkeypatch, tmp_path):
    monkeypatch.delenv("FASTUTILS_NO_EXTENSIONS", raising=False)
    (tmp_path / "broken_module.py").write_text("raise ImportError('undefined symbol: PyFoo')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(_select.HOMES, "ConstantList", ("fastutils.views", "broken_module"))
    choice = _select.choose("ConstantList")
    assert choice.reason == "broken_module is there but cannot be loaded: undefined symbol: PyFoo"


def test_build_info_of_a_pure_wheel_is_empty(monkeypatch, tmp_path):
    monkeypatch.setattr(_select, "__file__", str(tmp_path / "_select.py"))
    assert _select.build_info() == {}
    (tmp_path / "_build_info.json").write_text(json.dumps({"modules": {}}))
    assert _select.build_info() == {"modules": {}}


def test_the_report_names_every_helper_its_form_and_reason():
    report = run("-m", "fastutils", "--no-check")
    for name in fastutils.__all__:
        (line,) = [line for line in report.splitlines() if line.split()[:1] == [name]]
        assert "compiled (" in line or "python (" in line
    assert "python" in report
    assert "torch" in report


def test_the_report_checks_and_measures():
    lines = list(_report.lines(0.1))
    start = next(i for i, line in enumerate(lines) if line.startswith("paired check"))
    rows = lines[start + 2 :]
    assert len(rows) == len(_report._check.CASES)
    assert not [row for row in rows if "disagree" in row]


def test_a_wrong_form_gets_no_number(monkeypatch):
    from fastutils import _check

    case = _check.Case("wrong", "ConstantList", lambda helper: lambda: 1 if helper is list else 2)
    monkeypatch.setattr(_select, "choose", lambda name: _select.Choice(name, "compiled", "", list))
    outcome = _check.measure(case, 0.0)
    assert outcome.note == "the two forms disagree: please report this"
    assert outcome.ratio != outcome.ratio


def test_a_foreign_fastutils_is_reported(monkeypatch):
    monkeypatch.setattr(
        _report.importlib.metadata, "packages_distributions", lambda: {"fastutils": ["vllm-fastutils", "fastutils"]}
    )
    assert _report.foreign_distributions() == ["fastutils"]
    assert any("'fastutils' also installs" in text for label, text in _report._environment() if label == "WARNING")


@pytest.mark.parametrize("text", ["", "{", "null", '{"modules": null}', "[1]"])
def test_a_damaged_build_note_does_not_stand_in_the_way(monkeypatch, tmp_path, text):
    monkeypatch.delenv("FASTUTILS_NO_EXTENSIONS", raising=False)
    monkeypatch.setattr(_select, "__file__", str(tmp_path / "_select.py"))
    (tmp_path / "_build_info.json").write_text(text)
    monkeypatch.setitem(_select.HOMES, "ConstantList", ("fastutils.views", "fastutils._not_there"))
    assert _select.choose("ConstantList").implementation == "python"


def test_it_can_be_imported_from_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in Path(fastutils.__file__).parent.rglob("*.py"):
            archive.write(path, path.relative_to(Path(fastutils.__file__).parents[1]))
    script = "import fastutils; print(fastutils.__file__.count('.zip'), list(fastutils.ConstantList([1])))"
    assert run("-c", script, PYTHONPATH=str(tmp_path / "package.zip")) == "1 [1]\n"


def test_what_the_stable_abi_leaves_out_is_explained(monkeypatch):
    monkeypatch.delenv("FASTUTILS_NO_EXTENSIONS", raising=False)
    monkeypatch.setitem(_select.HOMES, "ConstantList", ("fastutils.views", "fastutils._not_there"))
    monkeypatch.setattr(_select, "build_info", lambda: {"limited_api": True, "modules": {}})
    assert "stable ABI" in _select.choose("ConstantList").reason


@pytest.mark.parametrize("failure", ["raise OSError('libcudart.so.13: cannot open')", "pass"])
def test_the_report_survives_a_broken_torch(tmp_path, failure):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(failure)
    report = run("-m", "fastutils", "--no-check", PYTHONPATH=str(tmp_path))
    assert "not available (" in report
    assert "the tensor helpers cannot be used" in report


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"'{sys.executable}' -m fastutils --no-check | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "environment\n"
    assert done.stderr == ""
