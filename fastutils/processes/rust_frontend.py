"""The Rust frontend: one external process that serves in place of the Python API servers."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from fastutils import _host
from fastutils.processes import termination
from fastutils.processes.redaction import redact
from fastutils.processes.subprocess_twin import SubprocessTwin
from fastutils.processes.timeouts import checked_timeout

#: Arguments that concern the Python launcher, or that the command line carries already.
_NOT_FORWARDED = frozenset(
    {"api_server_count", "data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb"}
)
_MINIMAL_GRACE_S = 5.0
_VLLM_ARGUMENTS = "vllm.entrypoints.serve.utils.api_utils"


class RustFrontendProcessManager:
    """Starts, and later ends, a Rust frontend, as ``vllm.v1.utils.RustFrontendProcessManager`` does.

    Runs ``binary_path frontend --listen-fd FD --input-address A --output-address B --engine-start-index I
    --engine-count N [--coordinator-address S] --args-json JSON``; FD, the listening `sock`'s, is inherited by this
    child alone. JSON, with sorted keys, holds the arguments that differ from their defaults, plus
    ``engine_ready_timeout_secs`` and ``http_timeout_keep_alive`` from ``VLLM_ENGINE_READY_TIMEOUT_S`` and
    ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``. The launch is logged with its credentials hidden.

    Within vLLM its own parser tells the defaults. Elsewhere they are the fields' defaults if `args` is a dataclass,
    else ``argument_defaults`` (set it in a subclass: ``vars(parser.parse_args([]))``), else None for every argument;
    a default that is passed on all the same changes nothing for a frontend that has the same default.

    Raises ValueError for a closed `sock`, and FileNotFoundError, PermissionError or another OSError, with the path,
    when the binary cannot be run.

    Attribute: ``processes``, one object with the interface of a `multiprocessing` process, named ``RustFrontend``.
    """

    #: Name -> default of the arguments, where neither vLLM nor a dataclass tells them.
    argument_defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        binary_path: str,
        sock: Any,
        args: argparse.Namespace,
        input_address: str,
        output_address: str,
        engine_start_index: int,
        engine_count: int,
        stats_update_address: str | None = None,
    ) -> None:
        descriptor = sock.fileno()
        if descriptor < 0:
            raise ValueError(f"the listening socket {sock!r} is closed; the frontend needs its descriptor")
        command = [
            *(os.fspath(binary_path), "frontend"),
            *("--listen-fd", str(descriptor)),
            *("--input-address", input_address),
            *("--output-address", output_address),
            *("--engine-start-index", str(engine_start_index)),
            *("--engine-count", str(engine_count)),
        ]
        if stats_update_address is not None:
            command += ["--coordinator-address", stats_update_address]
        command += ["--args-json", json.dumps(self._forwarded_arguments(args), sort_keys=True)]
        shown = shlex.join(redact(command))
        _host.logger(__name__).info("Launching Rust frontend: %s", shown)
        popen = _launch(command, descriptor)
        self.processes: list[SubprocessTwin] = [SubprocessTwin(popen, "RustFrontend")]
        self._clean_up = termination.CleanUp(self, _end, self.processes)

    def _forwarded_arguments(self, args: Any) -> dict[str, Any]:
        arguments = {
            name: value
            for name, value in non_default_arguments(args, self.argument_defaults).items()
            if name not in _NOT_FORWARDED
        }
        arguments["engine_ready_timeout_secs"] = _host.env("VLLM_ENGINE_READY_TIMEOUT_S")
        arguments["http_timeout_keep_alive"] = _host.env("VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
        return arguments

    def shutdown(self, timeout: float | None = None) -> None:
        """SIGTERM, then SIGKILL to the whole tree after `timeout` seconds, at least (and by default) 5. Works once."""
        if timeout is not None:
            checked_timeout(timeout)
        self._clean_up(timeout)


def _end(timeout: float | None, processes: Sequence[SubprocessTwin]) -> None:
    termination.end_all(processes, max(timeout or 0.0, _MINIMAL_GRACE_S), "Rust frontend manager")


def _launch(command: list[str], descriptor: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, pass_fds=(descriptor,))
    except OSError as error:
        # Not the whole command: it may hold credentials.
        hint = "; is it a program for this machine, and executable?" if os.path.exists(command[0]) else ""
        reason = f"cannot start the Rust frontend ({error.strerror}){hint}"
        raise type(error)(error.errno, reason, command[0]) from None


def non_default_arguments(args: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in `args` that differ from their defaults, as JSON-able values by name.

    `args` is an `argparse.Namespace` or a dataclass. `defaults` counts for a Namespace outside vLLM; an argument that
    it does not name has the default None. Functions (argparse's dispatch targets) are no arguments.
    """
    by_vllm = _vllm_converter(args)
    if by_vllm is not None:
        return dict(by_vllm(args))
    if dataclasses.is_dataclass(args) and not isinstance(args, type):
        given = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
        defaults = {field.name: _field_default(field) for field in dataclasses.fields(args)}
    elif isinstance(args, argparse.Namespace):
        given = vars(args)
    else:
        raise TypeError(f"args must be an argparse.Namespace or a dataclass, not {type(args).__name__}")
    return {
        name: _jsonable(value)
        for name, value in given.items()
        if not callable(value) and not _same(value, defaults.get(name))
    }


def _vllm_converter(args: Any) -> Callable[[Any], dict[str, Any]] | None:
    # Only where vLLM runs, and only for what it understands: its command line's arguments.
    if "vllm" not in sys.modules or not isinstance(args, argparse.Namespace):
        return None
    try:
        module = importlib.import_module(_VLLM_ARGUMENTS)
    except ModuleNotFoundError:
        return None
    return getattr(module, "jsonify_non_default_args", None)


def _field_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _same(value: Any, default: Any) -> bool:
    # 0 == False and 1 == 1.0, but a frontend in another language tells them apart.
    return type(value) is type(default) and bool(value == default)


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _jsonable(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if hasattr(value, "model_dump"):
        return _jsonable(value.model_dump(mode="json"))
    return repr(value)
