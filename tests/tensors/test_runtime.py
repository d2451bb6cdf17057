"""Finding the bridge and the device runtime, and saying why not."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastutils.tensors import runtime

SOURCES = Path(__file__).parents[2] / "csrc"


@pytest.fixture
def own_bridges(tmp_path, monkeypatch):
    """A folder of bridges of its own, so that what is in it can be chosen."""
    monkeypatch.setattr(runtime, "BRIDGES", tmp_path)
    runtime._load_once.cache_clear()
    yield tmp_path
    runtime._load_once.cache_clear()


@pytest.fixture
def bridge():
    try:
        return runtime.load()
    except runtime.BridgeUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("version", "minor"), [("2.13.0+cpu", "2.13"), ("2.11.0", "2.11"), ("2.14.0a0+gitabc", "2.14"), ("2.9.1", "2.9")]
)
def test_the_minor_of_a_version(version, minor):
    assert runtime.torch_minor(version) == minor
    assert runtime.bridge_name(minor) == f"libfastutils_torch{minor.replace('.', '_')}.so"


def test_no_bridge_at_all(own_bridges):
    with pytest.raises(runtime.BridgeUnavailable, match=r"a bridge for no torch, not for torch 2\.\d+; reinstall"):
        runtime.load()
    assert next(runtime.describe())[1].startswith("none: this installation has a bridge for no torch")


def test_bridges_for_other_minors_only(own_bridges, monkeypatch):
    for minor in ("2.99", "2.98"):
        (own_bridges / runtime.bridge_name(minor)).touch()
    with pytest.raises(runtime.BridgeUnavailable, match=r"only for torch 2\.98, 2\.99"):
        runtime.load()


def test_a_file_that_is_no_library(own_bridges):
    name = runtime.bridge_name(runtime.torch_minor(torch.__version__))
    (own_bridges / name).write_bytes(b"no library")
    with pytest.raises(runtime.BridgeUnavailable, match=f"{name} cannot be loaded: "):
        runtime.load()


def compiled_library(path, source):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    if not SOURCES.is_dir():
        pytest.skip("the sources are not here")
    text = path.with_suffix(".c")
    text.write_text(f'#include "bridge_abi.h"\n{source}')
    subprocess.run([compiler, "-shared", "-fPIC", f"-I{SOURCES}", text, "-o", path], check=True)


TABLE = """
static int init(const fu_host *host) { return %(init)s; }
static int reads(void *tensor, int64_t numel, int64_t data) { return %(reads)s; }
static const fu_bridge bridge = {%(abi)s, "%(version)s", init, reads};
const fu_bridge *fastutils_bridge(void) { return &bridge; }
"""
GOOD = {"abi": "FU_BRIDGE_ABI", "version": "MINOR", "init": "1", "reads": "1"}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"abi": "FU_BRIDGE_ABI + 1"}, r"speaks version \d+ of the bridge's table, not \d+"),
        ({"version": "1.0"}, r"was compiled against torch 1\.0, not "),
        ({"init": "0"}, "refuses torch"),
        ({"reads": "0"}, "misreads the tensors of torch"),
    ],
)
def test_a_bridge_that_does_not_fit_is_refused(own_bridges, fault, message):
    minor = runtime.torch_minor(torch.__version__)
    compiled_library(own_bridges / runtime.bridge_name(minor), TABLE % ({**GOOD, "version": minor} | fault))
    with pytest.raises(runtime.BridgeUnavailable, match=message):
        runtime.load()


def test_the_bridge_for_another_minor_is_refused_by_the_loader_of_this_one(bridge, own_bridges, monkeypatch):
    # Under the name of a minor that it was not compiled against.
    (own_bridges / runtime.bridge_name("2.99")).write_bytes(bridge.path.read_bytes())
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(runtime.BridgeUnavailable, match="was compiled against torch"):
        runtime.load()


def test_the_number_of_the_table_is_the_headers():
    if not SOURCES.is_dir():
        pytest.skip("the sources are not here")
    (number,) = re.findall(r"#define FU_BRIDGE_ABI (\d+)", (SOURCES / "bridge_abi.h").read_text())
    assert int(number) == runtime.ABI


def test_layouts_are_the_headers(tmp_path):
    compiled_library(
        tmp_path / "layout.so",
        "size_t host_size(void) { return sizeof(fu_host); }\n"
        "size_t take_gil(void) { return offsetof(fu_host, take_gil); }\n"
        "size_t reads(void) { return offsetof(fu_bridge, reads_tensor); }\n",
    )
    library = ctypes.CDLL(str(tmp_path / "layout.so"))
    assert library.host_size() == ctypes.sizeof(runtime._Host)
    assert library.take_gil() == runtime._Host.take_gil.offset
    assert library.reads() == runtime._Table.reads_tensor.offset


class Library:
    """Stands for a library that is loaded and knows some functions."""

    def __init__(self, *names):
        for name in names:
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0))


ALL_OF_CUDA = ("cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaGetLastError", "cudaStreamIsCapturing")
ALL_OF_HIP = ("hipMemcpyAsync", "hipMemcpy2DAsync", "hipGetLastError", "hipStreamIsCapturing")


def opener(**libraries):
    def open_library(name):
        try:
            return libraries[name.partition(".")[0]]
        except KeyError:
            raise OSError(f"{name}: not loaded") from None

    return open_library


@pytest.mark.parametrize(
    ("libraries", "kind"),
    [
        ({"libc10_cuda": Library(*ALL_OF_CUDA)}, "cuda"),
        ({"libc10_hip": Library(*ALL_OF_HIP)}, "hip"),
        ({"libc10_cuda": Library(*ALL_OF_CUDA), "libc10_hip": Library(*ALL_OF_HIP)}, "cuda"),
    ],
)
def test_the_runtime_is_the_one_torch_depends_on(libraries, kind):
    found, why_not = runtime.find_device_runtime(opener(**libraries))
    assert (found.kind, why_not) == (kind, "")
    library = libraries[f"libc10_{kind}"]
    expected = [ctypes.cast(getattr(library, kind + name), ctypes.c_void_p).value for name in runtime.FUNCTIONS]
    assert list(found.functions) == expected


def test_a_runtime_without_a_function_says_which():
    found, why_not = runtime.find_device_runtime(opener(libc10_hip=Library(*ALL_OF_HIP[:-1])))
    assert found is None
    assert "libc10_hip.so is loaded" in why_not
    assert "hipStreamIsCapturing" in why_not


def test_no_runtime():
    assert runtime.find_device_runtime(opener()) == (None, "this torch is built without CUDA and ROCm")


def test_a_library_is_never_loaded_for_the_looking():
    with pytest.raises(OSError, match="libm_of_nowhere"):
        runtime._loaded_library("libm_of_nowhere.so")


def test_the_file_of_a_function(bridge):
    assert runtime._library_of(bridge.table) == str(bridge.path)
    assert runtime._library_of(0) == "unknown file"


@pytest.fixture
def looked_for_again():
    runtime._load_once.cache_clear()
    yield
    runtime._load_once.cache_clear()


@pytest.mark.parametrize("mode", ["inference", "fake", "meta device", "default device", "vmap"])
def test_whatever_mode_is_on_when_it_is_first_needed(bridge, looked_for_again, mode):
    from torch._subclasses.fake_tensor import FakeTensorMode

    def table():
        return runtime.load().table

    if mode == "vmap":
        tables = []
        torch.vmap(lambda x: tables.append(table()) or x)(torch.ones(2))
        assert tables == [bridge.table]
    elif mode == "default device":
        torch.set_default_device("meta")
        try:
            assert table() == bridge.table
        finally:
            torch.set_default_device(None)
    else:
        modes = {"inference": torch.inference_mode, "fake": FakeTensorMode, "meta device": lambda: torch.device("meta")}
        with modes[mode]():
            assert table() == bridge.table


def test_without_a_thread_to_look_in_there_is_none(looked_for_again, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runtime.threading.Thread, "start", refuse)
    with pytest.raises(runtime.BridgeUnavailable, match=r"no thread can be started .*: can't start new thread"):
        runtime.load()


def test_an_error_in_the_looking_is_the_callers(looked_for_again, monkeypatch):
    def broken():
        raise ZeroDivisionError("in the thread")

    monkeypatch.setattr(runtime, "_look_for_bridge", broken)
    with pytest.raises(ZeroDivisionError, match="in the thread"):
        runtime.load()


def test_rows_for_the_report(bridge):
    rows = dict(runtime.describe())
    assert rows["torch bridge"] == bridge.path.name
    expected = "cuda, " if torch.version.cuda else "none: this torch is built without CUDA and ROCm"
    assert rows["device runtime"].startswith(expected)


def test_without_a_bridge_the_python_forms_serve_and_say_why(tmp_path):
    program = """
import pathlib, sys
from fastutils.tensors import runtime
runtime.BRIDGES = pathlib.Path(sys.argv[1])
import fastutils, torch
from fastutils import _select
for name in ("copy_slice", "CpuGpuBuffer", "tensor_data", "copy_slices", "copy_to_gpu_many"):
    choice = _select.choose(name)
    print(choice.implementation, choice.reason)
assert fastutils.copy_slice(torch.ones(4), torch.zeros(4), 2).tolist() == [1, 1]
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("python ") for line in lines)
    assert all("a bridge for no torch" in line or "holds no compiled" in line for line in lines)
