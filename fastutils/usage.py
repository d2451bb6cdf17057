"""Usage statistics: one record of how an engine is configured, if the operator allows it."""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import os
import stat
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastutils import _host


class UsageContext(str, enum.Enum):
    """From where an engine is used; equal, member by member, to ``vllm.usage.usage_lib.UsageContext``."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


#: Name of the local record, one JSON object a line, in vLLM's configuration folder.
LOCAL_RECORD = "fastutils_usage.jsonl"


def report_usage_stats(vllm_config: Any, usage_context: Any = UsageContext.ENGINE_CONTEXT) -> None:
    """Report once how an engine is configured, as ``vllm.v1.utils.report_usage_stats`` does.

    Nothing happens, and `vllm_config` is not looked at, if ``VLLM_NO_USAGE_STATS``, ``VLLM_DO_NOT_TRACK`` or
    ``DO_NOT_TRACK`` is 1, true, yes or on, or a file ``do_not_track`` lies in vLLM's configuration folder. Within vLLM
    its own reporter gets the record. Elsewhere the record is appended to ``fastutils_usage.jsonl`` in that folder, for
    this user's eyes alone, and goes nowhere else: no server is ever contacted. It is not written where the folder is
    not known because the home folder is not, nor into anything but an ordinary file that belongs to this user.

    Returns without waiting: a daemon thread writes the file. Never raises: a configuration without an attribute gives
    None for it, and what fails otherwise is logged at debug level.
    """
    try:
        if not _allowed():
            return
        report = _vllm_report() or _append_in_background
        report(_architecture(vllm_config), usage_context, _facts(vllm_config))
    except Exception:
        _host.logger(__name__).debug("usage statistics were not reported", exc_info=True)


def _allowed() -> bool:
    if _host.usage_stats_are_declined():
        return False
    root = _host.config_root()
    return root is None or not (root / "do_not_track").exists()


def _vllm_report() -> Callable[[str | None, Any, dict[str, Any]], None] | None:
    if "vllm" not in sys.modules:
        return None
    try:
        from vllm.usage import usage_lib
    except ImportError:
        return None

    def report(architecture: str | None, context: Any, facts: dict[str, Any]) -> None:
        if usage_lib.is_usage_stats_enabled():
            usage_lib.usage_message.report_usage(architecture, usage_lib.UsageContext(context), extra_kvs=facts)

    return report


def _architecture(config: Any) -> str | None:
    model = config.model_config
    with contextlib.suppress(Exception):
        if model.using_transformers_backend():
            return f"{model._model_info.architecture}({model.architectures[0]})"
    if "vllm.model_executor" in sys.modules:
        with contextlib.suppress(Exception):
            from vllm.model_executor.model_loader import get_architecture_class_name

            return str(get_architecture_class_name(model))
    named = _read(model, "architecture") or next(iter(_read(model, "architectures") or ()), None)
    return _text(named)


def _read(source: Any, path: str) -> Any:
    """The attribute at the dotted `path`; None where a part of it is None, missing or fails to be computed."""
    for name in path.split("."):
        try:
            source = getattr(source, name)
        except Exception:
            return None
        if source is None:
            return None
    return source


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _facts(config: Any) -> dict[str, Any]:
    """The reported keys; every value is text, a number, a bool or None."""

    def read(path: str) -> Any:
        return _read(config, path)

    num_experts = None
    with contextlib.suppress(Exception):
        num_experts = config.model_config.get_num_experts()
    return {
        "dtype": _text(read("model_config.dtype")),
        "block_size": read("cache_config.block_size"),
        "gpu_memory_utilization": read("cache_config.gpu_memory_utilization"),
        "kv_cache_memory_bytes": read("cache_config.kv_cache_memory_bytes"),
        "quantization": read("model_config.quantization"),
        "kv_cache_dtype": _text(read("cache_config.cache_dtype")),
        "enable_lora": bool(read("lora_config")),
        "enable_prefix_caching": read("cache_config.enable_prefix_caching"),
        "enforce_eager": read("model_config.enforce_eager"),
        "disable_custom_all_reduce": read("parallel_config.disable_custom_all_reduce"),
        "tensor_parallel_size": read("parallel_config.tensor_parallel_size"),
        "data_parallel_size": read("parallel_config.data_parallel_size"),
        "pipeline_parallel_size": read("parallel_config.pipeline_parallel_size"),
        "enable_expert_parallel": read("parallel_config.enable_expert_parallel"),
        "all2all_backend": read("parallel_config.all2all_backend"),
        "kv_connector": read("kv_transfer_config.kv_connector"),
        "max_model_len": read("model_config.max_model_len"),
        "max_num_seqs": read("scheduler_config.max_num_seqs"),
        "max_num_batched_tokens": read("scheduler_config.max_num_batched_tokens"),
        "attention_backend": read("attention_config.backend.name"),  # None: chosen at run time
        "compilation_mode": read("compilation_config.mode.name"),
        "spec_decode_method": read("speculative_config.method"),
        "num_speculative_tokens": read("speculative_config.num_speculative_tokens"),
        "enable_eplb": read("parallel_config.enable_eplb"),
        "num_redundant_experts": read("parallel_config.eplb_config.num_redundant_experts"),
        "num_experts": num_experts,
    }


def _append_in_background(architecture: str | None, context: Any, facts: dict[str, Any]) -> None:
    record = {
        "uuid": str(uuid.uuid4()),
        "log_time": time.time_ns(),
        "model_architecture": architecture,
        "context": getattr(context, "value", context),
        **facts,
    }
    line = json.dumps(record, default=str) + "\n"
    root = _host.config_root()
    if root is None:
        _host.logger(__name__).debug("the usage record was not written: the home folder is not known")
        return
    # The folder may lie on a network file system that does not answer.
    name = "fastutils-usage"
    threading.Thread(target=_append, args=(root / LOCAL_RECORD, line), name=name, daemon=True).start()


def _append(path: Path, line: str) -> None:
    try:
        _make_private_folder(path.parent)
        # Whoever else may write into the folder may have put a link there, or a pipe on which this would hang.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
                raise OSError(errno.EPERM, "not an ordinary file of this user's with this one name", str(path))
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, line.encode())  # in one write: records of several processes do not mix
        finally:
            os.close(descriptor)
    except OSError:
        _host.logger(__name__).debug("the usage record was not written to %s", path, exc_info=True)


def _make_private_folder(folder: Path) -> None:
    # Not `Path.mkdir(parents=True, mode=...)`, which gives the mode to the last folder only.
    if not folder.is_dir():
        _make_private_folder(folder.parent)
        with contextlib.suppress(FileExistsError):  # by another process, or no folder: opening says so
            folder.mkdir(mode=0o700)
