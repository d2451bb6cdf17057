"""``python -m fastutils vllm`` and the entry point."""

import importlib.metadata
import os
import subprocess
import sys

import fake_vllm
import pytest

from fastutils import plugin
from fastutils.plugin import source_facts


def run(*arguments, path, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FASTUTILS_VLLM")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(path), *sys.path]), **variables}
    command = [sys.executable, "-m", "fastutils", "vllm", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fake_path(tmp_path):
    return fake_vllm.write(tmp_path, "0.99.0")


def test_it_shows_each_helper_and_why(fake_path):
    lines = run(path=fake_path).splitlines()
    assert lines[0].startswith("vLLM 0.99.0")
    (row,) = [line for line in lines if line.split()[0] == "copy_slice"]
    assert "vLLM's own  " in row
    # The fake's own source is none of upstream's forms.
    assert row.endswith("this vLLM has it in a form that fastutils does not know")
    assert lines[-1].startswith("WARNING: vLLM 0.99.0 is none of the versions")


def test_it_obeys_the_switch(fake_path):
    assert run(path=fake_path, FASTUTILS_VLLM="0") == "nothing replaced: FASTUTILS_VLLM switches it off\n"


@pytest.mark.parametrize(("value", "staged"), [("1", True), ("0", False)])
def test_it_shows_that_buffers_are_staged(tmp_path, value, staged):
    pytest.importorskip("torch")
    fake_path = fake_vllm.write(tmp_path, "0.25.1")
    found = source_facts.fingerprints(fake_vllm.UTILS, ["CpuGpuBuffer"])["CpuGpuBuffer"]
    (tmp_path / "sitecustomize.py").write_text(
        "from fastutils.plugin import versions\n"
        f"versions.FORMS['CpuGpuBuffer'] = (versions.Form('0.25.0', {found!r}, 'buffer'),)\n"
    )
    lines = run(path=fake_path, FASTUTILS_VLLM_STAGED=value).splitlines()
    (row,) = [line for line in lines if line.split()[0] == "CpuGpuBuffer"]
    assert "ours, held by" in row
    assert (", buffer, staged (" in row) is staged


def test_fingerprints(fake_path):
    lines = run("--fingerprints", path=fake_path).splitlines()
    assert len(lines) == 14
    assert all(line.endswith("NOT KNOWN") for line in lines)


def test_versions(fake_path):
    assert run("--versions", path=fake_path).startswith("| helper | 0.25 |")


def test_vllms_entry_point():
    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="fastutils")
    assert entry.load() is plugin.load
