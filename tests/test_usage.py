"""report_usage_stats: when it reports, what, and where to."""

import json
import os
import stat
import sys
import threading
from enum import Enum, IntEnum
from types import ModuleType, SimpleNamespace

import pytest

from fastutils import report_usage_stats
from fastutils.usage import LOCAL_RECORD, UsageContext


class Mode(IntEnum):
    VLLM_COMPILE = 3


def make_config(**more):
    model = SimpleNamespace(
        dtype="torch.bfloat16",
        quantization="fp8",
        enforce_eager=False,
        max_model_len=4096,
        architectures=["LlamaForCausalLM"],
        architecture="LlamaForCausalLM",
        _model_info=SimpleNamespace(architecture="TransformersForCausalLM"),
        using_transformers_backend=lambda: False,
        get_num_experts=lambda: 8,
    )
    parts = {
        "model_config": model,
        "cache_config": SimpleNamespace(
            block_size=16,
            gpu_memory_utilization=0.9,
            kv_cache_memory_bytes=None,
            cache_dtype="auto",
            enable_prefix_caching=True,
        ),
        "parallel_config": SimpleNamespace(
            disable_custom_all_reduce=False,
            tensor_parallel_size=2,
            data_parallel_size=3,
            pipeline_parallel_size=4,
            enable_expert_parallel=True,
            all2all_backend="naive",
            enable_eplb=True,
            eplb_config=SimpleNamespace(num_redundant_experts=5),
        ),
        "scheduler_config": SimpleNamespace(max_num_seqs=64, max_num_batched_tokens=2048),
        "lora_config": None,
        "kv_transfer_config": None,
        "attention_config": SimpleNamespace(backend=None),
        "compilation_config": SimpleNamespace(mode=Mode.VLLM_COMPILE),
        "speculative_config": None,
    }
    return SimpleNamespace(**parts | more)


FACTS = {
    "dtype": "torch.bfloat16",
    "block_size": 16,
    "gpu_memory_utilization": 0.9,
    "kv_cache_memory_bytes": None,
    "quantization": "fp8",
    "kv_cache_dtype": "auto",
    "enable_lora": False,
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "disable_custom_all_reduce": False,
    "tensor_parallel_size": 2,
    "data_parallel_size": 3,
    "pipeline_parallel_size": 4,
    "enable_expert_parallel": True,
    "all2all_backend": "naive",
    "kv_connector": None,
    "max_model_len": 4096,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "attention_backend": None,
    "compilation_mode": "VLLM_COMPILE",
    "spec_decode_method": None,
    "num_speculative_tokens": None,
    "enable_eplb": True,
    "num_redundant_experts": 5,
    "num_experts": 8,
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """vLLM's configuration folder, not yet there; usage statistics are allowed."""
    for name in ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    for name in list(sys.modules):
        if name.partition(".")[0] == "vllm":
            monkeypatch.delitem(sys.modules, name)
    path = tmp_path / "config" / "vllm"
    monkeypatch.setenv("VLLM_CONFIG_ROOT", str(path))
    return path


def finish():
    for thread in threading.enumerate():
        if thread.name == "fastutils-usage":
            thread.join(30)


def records(folder):
    finish()
    lines = (folder / LOCAL_RECORD).read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda record: record["log_time"])


def test_without_vllm_the_record_goes_to_a_local_file(folder):
    assert report_usage_stats(make_config()) is None
    report_usage_stats(make_config(), UsageContext.LLM_CLASS)
    first, second = records(folder)
    assert {key: first[key] for key in FACTS} == FACTS
    assert first["model_architecture"] == "LlamaForCausalLM"
    assert (first["context"], second["context"]) == ("ENGINE_CONTEXT", "LLM_CLASS")
    assert set(first) == {*FACTS, "uuid", "log_time", "model_architecture", "context"}
    assert first["uuid"] != second["uuid"]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_record_is_for_this_user_alone(folder):
    before = os.umask(0)
    try:
        report_usage_stats(make_config())
        finish()
    finally:
        os.umask(before)
    assert (mode(folder.parent), mode(folder), mode(folder / LOCAL_RECORD)) == (0o700, 0o700, 0o600)


def test_a_record_that_others_could_read_is_closed_to_them_and_the_folder_stays_as_it_is(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    (folder / LOCAL_RECORD).touch()
    (folder / LOCAL_RECORD).chmod(0o666)
    report_usage_stats(make_config())
    assert len(records(folder)) == 1
    assert (mode(folder), mode(folder / LOCAL_RECORD)) == (0o755, 0o600)  # vLLM keeps other things in there


@pytest.mark.parametrize("kind", ["symbolic link", "link", "dangling link", "pipe", "pipe with a reader", "folder"])
def test_nothing_but_an_ordinary_file_is_written_to(folder, tmp_path, caplog, kind):
    caplog.set_level("DEBUG")
    folder.mkdir(parents=True)
    record, other = folder / LOCAL_RECORD, tmp_path / "other"
    if kind != "dangling link":
        other.write_text("precious")
        other.chmod(0o644)
    reader = None
    if kind == "link":
        record.hardlink_to(other)
    elif "link" in kind:
        record.symlink_to(other)
    elif kind == "folder":
        record.mkdir()
    else:
        os.mkfifo(record)
        if "reader" in kind:
            reader = os.open(record, os.O_RDONLY | os.O_NONBLOCK)
    report_usage_stats(make_config())
    finish()
    assert "the usage record was not written" in caplog.text
    if kind == "dangling link":
        assert not other.exists()
    else:
        assert (other.read_text(), mode(other)) == ("precious", 0o644)
    if reader is not None:
        assert os.read(reader, 1) == b""
        os.close(reader)


def test_nothing_is_written_where_the_home_folder_is_unknown(tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    for name in ("VLLM_CONFIG_ROOT", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    monkeypatch.chdir(tmp_path)
    report_usage_stats(make_config())
    finish()
    assert list(tmp_path.iterdir()) == []
    assert "the home folder is not known" in caplog.text


def test_optional_parts(folder):
    config = make_config(
        lora_config=object(),
        kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector"),
        attention_config=SimpleNamespace(backend=Enum("Backend", ["FLASH_ATTN"]).FLASH_ATTN),
        speculative_config=SimpleNamespace(method="eagle", num_speculative_tokens=3),
        compilation_config=SimpleNamespace(mode=None),
    )
    report_usage_stats(config)
    (record,) = records(folder)
    assert record["enable_lora"] is True
    assert record["kv_connector"] == "NixlConnector"
    assert record["attention_backend"] == "FLASH_ATTN"
    assert (record["spec_decode_method"], record["num_speculative_tokens"]) == ("eagle", 3)
    assert record["compilation_mode"] is None


def test_the_transformers_backend_names_what_it_wraps(folder):
    config = make_config()
    config.model_config.using_transformers_backend = lambda: True
    report_usage_stats(config)
    assert records(folder)[0]["model_architecture"] == "TransformersForCausalLM(LlamaForCausalLM)"


def test_a_configuration_of_another_version_lacks_attributes(folder):
    def broken():
        raise ZeroDivisionError

    config = make_config()
    del config.attention_config, config.parallel_config.eplb_config
    config.model_config.get_num_experts = broken
    report_usage_stats(config)
    (record,) = records(folder)
    changed = {"num_redundant_experts": None, "num_experts": None}
    assert {key: record[key] for key in FACTS} == FACTS | changed


class Untouchable:
    def __getattr__(self, name):
        raise AssertionError(f"{name} was looked at")


@pytest.mark.parametrize("word", ["1", "true", "yes", "on"])
@pytest.mark.parametrize("switch", ["VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK", "the file"])
def test_each_switch_is_respected_before_anything_is_looked_at(folder, monkeypatch, switch, word):
    if switch == "the file":
        folder.mkdir(parents=True)
        (folder / "do_not_track").touch()
    else:
        monkeypatch.setenv(switch, word)
    monkeypatch.setattr("fastutils.usage._facts", _must_not_run)
    monkeypatch.setattr("fastutils.usage._architecture", _must_not_run)
    report_usage_stats(Untouchable())
    assert not (folder / LOCAL_RECORD).exists()


def _must_not_run(*_):
    raise SystemExit("built although it is not allowed")


def test_the_caller_never_fails(folder, caplog):
    caplog.set_level("DEBUG")
    report_usage_stats(None)
    assert "usage statistics were not reported" in caplog.text
    folder.parent.mkdir(parents=True)
    folder.touch()  # the folder cannot be made
    report_usage_stats(make_config())
    finish()
    assert "the usage record was not written" in caplog.text


def test_the_caller_never_waits(folder, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr("fastutils.usage._append", lambda *_: release.wait(60))
    report_usage_stats(make_config())  # returns although the file system does not answer
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "fastutils-usage"]
    assert thread.daemon
    release.set()
    thread.join(30)


def test_contexts_are_vllms():
    assert [context.value for context in UsageContext] == [
        *("UNKNOWN_CONTEXT", "LLM_CLASS", "API_SERVER", "OPENAI_API_SERVER", "OPENAI_BATCH_RUNNER", "ENGINE_CONTEXT")
    ]
    assert UsageContext.ENGINE_CONTEXT == "ENGINE_CONTEXT"


@pytest.fixture
def reporter(monkeypatch):
    """A stand-in for a loaded vLLM: its reporter's calls, and its switch."""
    state = SimpleNamespace(calls=[], enabled=True)

    class VllmContext(str, Enum):
        ENGINE_CONTEXT = "ENGINE_CONTEXT"

    for name in (
        "vllm",
        "vllm.usage",
        "vllm.usage.usage_lib",
        "vllm.model_executor",
        "vllm.model_executor.model_loader",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    library = sys.modules["vllm.usage.usage_lib"]
    library.UsageContext = VllmContext
    library.is_usage_stats_enabled = lambda: state.enabled
    library.usage_message = SimpleNamespace(report_usage=lambda *a, **k: state.calls.append((a, k)))
    sys.modules["vllm.model_executor.model_loader"].get_architecture_class_name = lambda model: "FromTheRegistry"
    state.context = VllmContext.ENGINE_CONTEXT
    return state


def test_within_vllm_its_own_reporter_gets_the_record(folder, reporter):
    report_usage_stats(make_config())
    ((arguments, keywords),) = reporter.calls
    assert arguments == ("FromTheRegistry", reporter.context)
    assert arguments[1] is reporter.context
    assert keywords == {"extra_kvs": FACTS}
    assert not (folder / LOCAL_RECORD).exists()


def test_within_vllm_its_own_switch_counts_too(folder, reporter):
    reporter.enabled = False
    report_usage_stats(make_config())
    assert reporter.calls == []
    assert not (folder / LOCAL_RECORD).exists()
