"""The only place that knows vLLM's environment variables, logger and process helpers.

Inside a running vLLM its own objects serve; elsewhere ours, with the same variable names, defaults and parsing.
Nothing here imports vLLM: "inside" means that somebody else has.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _flag(name: str, default: str) -> Callable[[], bool]:
    def read() -> bool:
        text = os.environ.get(name, default)
        try:
            return bool(int(text))
        except ValueError:
            raise ValueError(f"{name}={text!r} is not an integer; set it to 1 (on) or 0 (off)") from None

    return read


def _integer(name: str, default: int) -> Callable[[], int]:
    def read() -> int:
        text = os.environ.get(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name}={text!r} is not an integer; its default is {default}") from None

    return read


def _do_not_track() -> bool:
    given = os.environ.get("VLLM_DO_NOT_TRACK") or os.environ.get("DO_NOT_TRACK") or "0"
    return given == "1"


def _config_root() -> str:
    default = os.environ.get("XDG_CONFIG_HOME", os.path.join(os.path.expanduser("~"), ".config"))
    return os.path.expanduser(os.environ.get("VLLM_CONFIG_ROOT", os.path.join(default, "vllm")))


_READERS: dict[str, Callable[[], Any]] = {
    "VLLM_CONFIG_ROOT": _config_root,
    "VLLM_CONFIGURE_LOGGING": _flag("VLLM_CONFIGURE_LOGGING", "1"),
    "VLLM_CUSTOM_SCOPES_FOR_PROFILING": _flag("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "0"),
    "VLLM_DO_NOT_TRACK": _do_not_track,
    "VLLM_ENGINE_READY_TIMEOUT_S": _integer("VLLM_ENGINE_READY_TIMEOUT_S", 600),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": _integer("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5),
    "VLLM_NO_USAGE_STATS": lambda: os.environ.get("VLLM_NO_USAGE_STATS", "0") == "1",
    "VLLM_NVTX_SCOPES_FOR_PROFILING": _flag("VLLM_NVTX_SCOPES_FOR_PROFILING", "0"),
    "VLLM_PROCESS_NAME_PREFIX": lambda: os.environ.get("VLLM_PROCESS_NAME_PREFIX", "VLLM"),
    "VLLM_RPC_BASE_PATH": lambda: os.environ.get("VLLM_RPC_BASE_PATH", tempfile.gettempdir()),
    "VLLM_WSL2_ENABLE_PIN_MEMORY": _flag("VLLM_WSL2_ENABLE_PIN_MEMORY", "0"),
}


def env(name: str) -> Any:
    """The value that vLLM gives its environment variable `name`, read now.

    vLLM's own reader serves where it is loaded. ValueError names a value that does not parse.
    """
    envs = sys.modules.get("vllm.envs")
    if envs is not None:
        try:
            return getattr(envs, name)
        except AttributeError:
            pass  # a version that does not know this variable yet
    return _READERS[name]()


def config_root() -> Path:
    """vLLM's configuration folder (``VLLM_CONFIG_ROOT``, else below ``XDG_CONFIG_HOME``)."""
    return Path(env("VLLM_CONFIG_ROOT"))


def logger(name: str) -> logging.Logger:
    """A logger for the module `name`; below ``vllm`` where vLLM runs, so that its logging set-up shows it."""
    if "vllm.logger" in sys.modules:
        return logging.getLogger(f"vllm.{name}")
    return logging.getLogger(name)


def in_wsl() -> bool:
    """Whether this is Linux under Windows, where pinned memory is unreliable."""
    release = os.uname().release if hasattr(os, "uname") else ""
    return "microsoft" in release.lower()


def is_pin_memory_available() -> bool:
    """Whether host memory can be page-locked: a CUDA, ROCm or XPU device is there, and not WSL (unless opted in)."""
    import torch

    if in_wsl() and not env("VLLM_WSL2_ENABLE_PIN_MEMORY"):
        return False
    if torch.cuda.is_available():
        return True
    xpu = getattr(torch, "xpu", None)
    return bool(xpu is not None and xpu.is_available())
