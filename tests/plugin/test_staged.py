"""FASTUTILS_VLLM_STAGED: the buffers of a fake vLLM are staged ones."""

import logging
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import fake_vllm
import pytest

import fastutils
from fastutils import plugin

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")

#: As in vLLM's runner for CPUs: two places that give a buffer its host tensor for a device tensor.
RUNNER = """
from vllm.v1.utils import CpuGpuBuffer

class Runner:
    def __init__(self, dtype, device):
        def make(*size):
            return CpuGpuBuffer(*size, dtype=dtype, device=device)

        self.input_ids = make(512)
        self.positions = make(512)
        self.query_start_loc = make(65)
        self.seq_lens = make(64)
        self.tables = [make(64, 4), make(64, 8)]

    def without_a_device(self):
        for v in vars(self).values():
            if isinstance(v, CpuGpuBuffer):
                v.gpu = v.cpu
        for v in self.tables:
            v.gpu = v.cpu

    def buffers(self):
        return [v for v in vars(self).values() if isinstance(v, CpuGpuBuffer)] + self.tables
"""


@pytest.fixture
def staged_vllm(vllm_tree, monkeypatch):
    """A function that imports a module of a fake vLLM whose buffers the plugin is told to stage."""
    monkeypatch.setenv("FASTUTILS_VLLM_STAGED", "1")
    load = vllm_tree()
    path = Path(load("utils").__file__).with_name("staged_runner.py")
    path.write_text(RUNNER)
    return load


def is_staged(buffer):
    return "_staging" in vars(buffer)


@pytest.mark.parametrize("value", ["1", "on"])
def test_the_buffers_are_staged(staged_vllm, monkeypatch, value, caplog):
    monkeypatch.setenv("FASTUTILS_VLLM_STAGED", value)
    caplog.set_level(logging.INFO)
    plugin.load()
    runner = staged_vllm("staged_runner").Runner(torch.int32, CPU)
    assert all(map(is_staged, runner.buffers()))
    assert all(isinstance(buffer, fastutils.CpuGpuBuffer) for buffer in runner.buffers())
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage().endswith("; buffers are staged")
    (row,) = [row for row in plugin.status().rows if row.name == "CpuGpuBuffer"]
    assert ", buffer, staged (" in row.reason


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_they_are_not_unless_asked_for(staged_vllm, monkeypatch, value):
    monkeypatch.setenv("FASTUTILS_VLLM_STAGED", value)
    report = plugin.install()
    runner = staged_vllm("staged_runner").Runner(torch.int32, CPU)
    assert not any(map(is_staged, runner.buffers()))
    assert (report.staged, report.warnings) == (False, ())
    assert "staged" not in report.summary()


def test_a_wrong_word_stages_nothing_and_warns(staged_vllm, monkeypatch, caplog):
    monkeypatch.setenv("FASTUTILS_VLLM_STAGED", "maybe")
    report = plugin.install()
    assert "CpuGpuBuffer" in report.served
    assert not report.staged
    assert report.warnings == ("buffers are not staged: FASTUTILS_VLLM_STAGED='maybe' is neither 1 (on) nor 0 (off)",)
    assert report.warnings[0] in caplog.text


@pytest.mark.parametrize(
    ("names", "reason"), [(["copy_slice"], "not asked for"), (None, "something else stands in its place")]
)
def test_it_says_so_where_vllms_own_buffer_stays(staged_vllm, names, reason):
    utils = staged_vllm("utils")
    if names is None:
        utils.CpuGpuBuffer.copy_to_gpu = lambda self, n=None: None
    report = plugin.install(names)
    assert not report.staged
    assert len(report.warnings) == 1
    assert report.warnings[0].startswith("buffers are not staged: CpuGpuBuffer is vLLM's own: ")
    assert reason in report.warnings[0]


def test_staging_that_cannot_be_imported_leaves_plain_buffers(staged_vllm, monkeypatch):
    for name in ("fastutils.tensors._staging", "fastutils.tensors.staging"):
        monkeypatch.setitem(sys.modules, name, None)
    report = plugin.install()
    assert "CpuGpuBuffer" in report.served
    assert not report.staged
    assert report.warnings[0].startswith("buffers are not staged: ModuleNotFoundError: ")
    runner = staged_vllm("staged_runner").Runner(torch.int32, CPU)
    assert not any(map(is_staged, runner.buffers()))


def test_a_runner_that_needs_no_device_is_warned_once_per_place_and_works(staged_vllm):
    plugin.install()
    runner = staged_vllm("staged_runner").Runner(torch.int32, CPU)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")  # what Python does with a RuntimeWarning where nobody has said anything
        runner.without_a_device()
    assert len(told) == 2
    assert all("leaves its staging group: its .gpu was replaced" in str(each.message) for each in told)
    assert {Path(each.filename).name for each in told} == {"staged_runner.py"}
    for buffer in runner.buffers():
        assert not is_staged(buffer)
        assert isinstance(buffer, fastutils.CpuGpuBuffer)
        buffer.np[0] = 7
        assert buffer.gpu is buffer.cpu
        assert buffer.copy_to_gpu(1).flatten()[0] == 7


def test_in_a_process_of_its_own_nothing_else_is_written(tmp_path):
    folder = fake_vllm.write(tmp_path, "0.25.1")
    (folder / "vllm/v1/staged_runner.py").write_text(RUNNER)
    script = (
        "import torch\n"
        "from fastutils import _select\n"
        "from fastutils.plugin import variants\n"
        "import vllm.v1.utils as utils\n"
        "ours = _select.choose('CpuGpuBuffer').value\n"
        "utils.CpuGpuBuffer = variants.buffer(utils, ours, staged_by_default=True)\n"
        "from vllm.v1.staged_runner import Runner\n"
        "for _ in range(3):\n"
        "    Runner(torch.int32, torch.device('cpu')).without_a_device()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{folder}:{':'.join(sys.path)}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr.count("RuntimeWarning") == 2, done.stderr


def test_only_staged_buffers_cannot_be_pickled(staged_vllm):
    plugin.install()
    buffer_class = staged_vllm("utils").CpuGpuBuffer
    assert pickle.loads(pickle.dumps(buffer_class)) is buffer_class
    with pytest.raises(TypeError, match="a staged CpuGpuBuffer can be neither pickled nor copied"):
        pickle.dumps(buffer_class(4, dtype=torch.int32, device=CPU))
    plain = buffer_class(4, dtype=torch.int32, device=CPU, staged=False)
    assert pickle.loads(pickle.dumps(plain)).cpu.tolist() == [0, 0, 0, 0]
