"""The only place that chooses, for each public name, between its compiled and its Python form."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

#: Public name -> (module of the Python form, module of the compiled form or None).
HOMES: dict[str, tuple[str, str | None]] = {
    "ConstantList": ("fastutils.views", "fastutils._views"),
    "CpuGpuBuffer": ("fastutils.tensors.buffer", "fastutils.tensors._copy"),
    "get_engine_client_zmq_addr": ("fastutils.processes.addresses", None),
    "APIServerProcessManager": ("fastutils.processes.api_servers", None),
    "run_api_server_worker_proc": ("fastutils.processes.api_servers", None),
    "RustFrontendProcessManager": ("fastutils.processes.rust_frontend", None),
    "wait_for_completion_or_failure": ("fastutils.processes.watching", None),
    "shutdown": ("fastutils.processes.ending", None),
    "copy_slice": ("fastutils.tensors.copy", "fastutils.tensors._copy"),
    "report_usage_stats": ("fastutils.usage", None),
    "record_function_or_nullcontext": ("fastutils.scopes", "fastutils._scopes"),
    "tensor_data": ("fastutils.tensors.data", "fastutils.tensors._data"),
    "IterationDetails": ("fastutils.iteration", None),
    "compute_iteration_details": ("fastutils.iteration", "fastutils._iteration"),
    "copy_slices": ("fastutils.tensors.copy", "fastutils.tensors._copy"),
    "copy_to_gpu_many": ("fastutils.tensors.copy", "fastutils.tensors._copy"),
    "StagingGroup": ("fastutils.tensors.staging", "fastutils.tensors._staging"),
}

#: What ``FASTUTILS_DEBUG_RACES`` has watched: all that copies from host memory without blocking.
RACING = frozenset({"CpuGpuBuffer", "copy_slice", "copy_slices", "copy_to_gpu_many"})


@dataclass(frozen=True)
class Choice:
    """Which form of a public name serves, and why."""

    name: str
    implementation: str  #: "compiled" or "python"
    reason: str
    value: Any


def extensions_disabled() -> bool:
    """Whether ``FASTUTILS_NO_EXTENSIONS`` asks for the Python forms (any value but empty and 0)."""
    return os.environ.get("FASTUTILS_NO_EXTENSIONS", "").strip() not in ("", "0")


def race_mode() -> str:
    """What ``FASTUTILS_DEBUG_RACES`` asks for: "warn", "raise", or "" where it is off. ValueError for anything else."""
    text = os.environ.get("FASTUTILS_DEBUG_RACES", "")
    word = text.strip().lower()
    if word in ("warn", "raise"):
        return word
    if word in ("", "0", "off", "no", "false"):
        return ""
    raise ValueError(f"FASTUTILS_DEBUG_RACES={text!r} is none of warn, raise and 0 (off)")


def build_info() -> dict[str, Any]:
    """What the build wrote down about itself; empty for a pure wheel, an unbuilt checkout or an unreadable note."""
    try:
        noted = json.loads(Path(__file__).with_name("_build_info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # also: in a zip, cut short. It only explains, so it must not stand in the way
        return {}
    return noted if isinstance(noted, dict) else {}


def _why_missing(module: str, error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        noted = build_info()
        outcome = (noted.get("modules") or {}).get(module)
        if outcome not in (None, "built"):
            return f"{module} did not compile when this package was built: {outcome}"
        if noted.get("limited_api") and outcome is None:
            return f"{module} needs more than the stable ABI that this package was built for (FASTUTILS_ABI3)"
        return f"this installation holds no compiled {module.rpartition('.')[2]}; install with a C/C++ compiler present"
    return f"{module} is there but cannot be loaded: {error}"


def choose(name: str) -> Choice:
    """Import and return the form of `name` that serves here. Raises AttributeError for an unknown name.

    With ``FASTUTILS_DEBUG_RACES`` on, a copy's form is wrapped by the race detector (`fastutils.tensors.races`).
    """
    mode = race_mode() if name in RACING else ""
    choice = _form_of(name)
    if not mode:
        return choice
    watch = importlib.import_module("fastutils.tensors.races").watch
    reason = f"{choice.reason}; the race detector is on: FASTUTILS_DEBUG_RACES={mode}"
    return replace(choice, reason=reason, value=watch(name, choice.value, mode))


def _form_of(name: str) -> Choice:
    try:
        python_module, compiled_module = HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'fastutils' has no attribute {name!r}") from None
    reason = "has only this form"
    if compiled_module is not None:
        if extensions_disabled():
            reason = "FASTUTILS_NO_EXTENSIONS is set"
        else:
            try:
                value = getattr(importlib.import_module(compiled_module), name)
            except ImportError as error:
                reason = _why_missing(compiled_module, error)
            else:
                return Choice(name, "compiled", "the compiled form loads", value)
    return Choice(name, "python", reason, getattr(importlib.import_module(python_module), name))
