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
from types import ModuleType
from typing import Any, TextIO

#: ``vllm.v1.utils`` while the plugin has put our helpers into it: what is patched there must be seen here.
stood_in_for: ModuleType | None = None


_YES = frozenset({"1", "true", "yes", "on"})


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
    "NO_COLOR": lambda: os.environ.get("NO_COLOR", "0") != "0",
    "VLLM_CONFIG_ROOT": _config_root,
    "VLLM_CONFIGURE_LOGGING": _flag("VLLM_CONFIGURE_LOGGING", "1"),
    "VLLM_CUSTOM_SCOPES_FOR_PROFILING": _flag("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "0"),
    "VLLM_DO_NOT_TRACK": _do_not_track,
    "VLLM_ENGINE_READY_TIMEOUT_S": _integer("VLLM_ENGINE_READY_TIMEOUT_S", 600),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": _integer("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5),
    "VLLM_LOGGING_COLOR": lambda: os.environ.get("VLLM_LOGGING_COLOR", "auto"),
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


def config_root() -> Path | None:
    """vLLM's configuration folder (``VLLM_CONFIG_ROOT``, else below ``XDG_CONFIG_HOME``).

    None if it lies below a home folder that nobody knows: Python then gives a folder called ``~``, or ``/`` where
    ``HOME`` is set to nothing.
    """
    root = str(env("VLLM_CONFIG_ROOT"))
    below_home = not any(os.environ.get(name) for name in ("VLLM_CONFIG_ROOT", "XDG_CONFIG_HOME"))
    if root.startswith("~") or (below_home and os.environ.get("HOME") == ""):
        return None
    return Path(root)


def usage_stats_are_declined() -> bool:
    """Whether ``VLLM_NO_USAGE_STATS``, ``VLLM_DO_NOT_TRACK`` or ``DO_NOT_TRACK`` says so.

    vLLM takes 1 alone for a yes; whoever writes another word for yes does not want to be reported either.
    """
    told = os.environ.get("VLLM_DO_NOT_TRACK") or os.environ.get("DO_NOT_TRACK") or ""
    words = {text.strip().lower() for text in (told, os.environ.get("VLLM_NO_USAGE_STATS", ""))}
    return bool(words & _YES or env("VLLM_NO_USAGE_STATS") or env("VLLM_DO_NOT_TRACK"))


def logger(name: str) -> logging.Logger:
    """A logger for the module `name`; below ``vllm`` where vLLM runs, so that its logging set-up shows it.

    Where ours stand in for the helpers of ``vllm.v1.utils``, the logger of that module.
    """
    if stood_in_for is not None:
        log: logging.Logger = stood_in_for.logger
        return log
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


def set_process_title(name: str, suffix: str = "") -> None:
    """Show this process as ``PREFIX::name_suffix`` in ps and top, PREFIX being ``VLLM_PROCESS_NAME_PREFIX``.

    Does nothing where setproctitle is not installed.
    """
    try:
        import setproctitle
    except ModuleNotFoundError:
        return
    title = f"{name}_{suffix}" if suffix else name
    setproctitle.setproctitle(f"{env('VLLM_PROCESS_NAME_PREFIX')}::{title}")


def decorate_logs(process_name: str | None = None) -> None:
    """Start each line that this process writes to `sys.stdout` and `sys.stderr` with ``(process_name pid=PID)``.

    The name defaults to the `multiprocessing` name. Does nothing if ``VLLM_CONFIGURE_LOGGING`` is 0. A second call
    replaces the prefix of the first. Coloured on terminals, unless ``NO_COLOR`` or ``VLLM_LOGGING_COLOR`` say
    otherwise.
    """
    if not env("VLLM_CONFIGURE_LOGGING"):
        return
    if process_name is None:
        from multiprocessing import current_process

        process_name = current_process().name
    label = f"({process_name} pid={os.getpid()})"
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _prefix_lines(stream, f"\033[0;36m{label}\033[0;0m " if _in_colour(stream) else f"{label} ")


def _in_colour(stream: TextIO) -> bool:
    if env("NO_COLOR"):
        return False
    wanted = env("VLLM_LOGGING_COLOR")
    return bool(wanted == "1" or (wanted != "0" and stream.isatty()))


def _prefix_lines(stream: TextIO, prefix: str) -> None:
    # The attribute is the one that vLLM's own decoration looks for, so that neither stacks upon the other.
    write = getattr(stream, "_original_write", stream.write)
    at_line_start = True

    def write_with_prefix(text: str, /) -> int:
        nonlocal at_line_start
        if text:
            body = text[:-1] if text[-1] == "\n" else text
            marked = body.replace("\n", f"\n{prefix}")
            # In one write: several processes share the stream, and pieces of their lines would mix.
            write(f"{prefix if at_line_start else ''}{marked}{text[len(body) :]}")
            at_line_start = text[-1] == "\n"
        return len(text)

    stream._original_write = write  # type: ignore[attr-defined]
    stream.write = write_with_prefix  # type: ignore[method-assign]
