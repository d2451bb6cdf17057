"""The Rust frontend: one external process that serves in place of the Python API servers."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, overload

from fastutils import _host
from fastutils.processes.arguments import also_called, checked_number, checked_timeout
from fastutils.processes.ending import Ending, Owner, Resources, end_all
from fastutils.processes.guard import Guard, above_standard
from fastutils.processes.interrupts import Interruptions
from fastutils.processes.listeners import Listener, is_listener
from fastutils.processes.spawning import ProgramProcess, start_program

#: Arguments that concern the Python launcher, or that the command line carries already.
_NOT_FORWARDED = frozenset(
    {"api_server_count", "data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb"}
)
_MINIMAL_GRACE_S = 5.0
# Where vLLM keeps ``jsonify_non_default_args``: since 0.33, and before.
_CONVERTER_HOMES = ("vllm.entrypoints.common.startup", "vllm.entrypoints.serve.utils.api_utils")


class RustFrontendProcessManager(Owner):
    """Starts, and later ends, a Rust frontend, as ``vllm.v1.utils.RustFrontendProcessManager`` does.

    Runs ``binary_path frontend --listen-fd FD --input-address A --output-address B --engine-start-index I
    --engine-count N [--coordinator-address S] --args-json JSON``; FD, the listening `sock`'s, is inherited by this
    child alone. JSON, with sorted keys, holds the arguments that differ from their defaults, plus
    ``engine_ready_timeout_secs`` and ``http_timeout_keep_alive`` from ``VLLM_ENGINE_READY_TIMEOUT_S`` and
    ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``. The launch is logged with the names in JSON and none of its values.

    The calls of later versions work as well. `data_parallel_size` (0.28) adds ``--data-parallel-size D`` after the
    engine count. Bound sockets (0.32; `fastutils.processes.ZmqListener` or objects alike) as ``input_listener`` and
    ``output_listener``, or in the place of the addresses, are inherited: ``--input-listener-fd`` and
    ``--output-listener-fd`` stand where the addresses stood, and JSON always holds ``model_tag``, or ``model`` in its
    place. They belong to the manager from the call on, whether it succeeds or not. `grpc_sock` is a second listening
    socket: ``--grpc-listen-fd G``.

    Within vLLM its own parser tells the defaults. Elsewhere they are the fields' defaults if `args` is a dataclass,
    else ``argument_defaults`` (set it in a subclass: ``vars(parser.parse_args([]))``), else None for every argument;
    a default that is passed on all the same changes nothing for a frontend that has the same default.

    The frontend ends when this process ends, even by SIGKILL, when `shutdown` is called, and when the manager is
    collected, with all that it has started: a small guard process, whose process group it joins, sees to that as long
    as it stays there. So Ctrl-C in a terminal reaches this process alone, which is to shut it down.

    Raises ValueError for a closed socket and for engine numbers below 0, and FileNotFoundError, PermissionError or
    another OSError, with the path, when the binary cannot be run.

    Attribute: ``processes``, one object with the interface of a `multiprocessing` process, named ``RustFrontend``.
    """

    #: Name -> default of the arguments, where neither vLLM nor a dataclass tells them.
    argument_defaults: ClassVar[Mapping[str, Any]] = {}

    @overload
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
        *,
        data_parallel_size: int | None = None,
        grpc_sock: Any | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        binary_path: str,
        sock: Any,
        args: argparse.Namespace,
        input_listener: Listener,
        output_listener: Listener,
        engine_start_index: int,
        engine_count: int,
        stats_update_address: str | None = None,
        *,
        data_parallel_size: int | None = None,
        grpc_sock: Any | None = None,
    ) -> None: ...

    @also_called(input_listener="input_address", output_listener="output_address")
    def __init__(
        self,
        binary_path: str,
        sock: Any,
        args: argparse.Namespace,
        input_address: Any,
        output_address: Any,
        engine_start_index: int,
        engine_count: int,
        stats_update_address: str | None = None,
        *,
        data_parallel_size: int | None = None,
        grpc_sock: Any | None = None,
    ) -> None:
        listeners = [thing for thing in (input_address, output_address) if is_listener(thing)]
        self._resources = Resources(listeners)
        processes: list[ProgramProcess] = []
        self._ending = Ending(self, functools.partial(_end, processes, self._resources))
        self.processes = processes  # last: whoever sees it, in a signal's handler, may shut the manager down
        copies = contextlib.ExitStack()
        try:
            sockets = {"--listen-fd": _descriptor("the listening socket", sock)}
            addresses = {"--input-address": input_address, "--output-address": output_address}
            if listeners:
                sockets["--input-listener-fd"] = _descriptor_of("input_listener", input_address)
                sockets["--output-listener-fd"] = _descriptor_of("output_listener", output_address)
                addresses = {}
            if stats_update_address is not None and not isinstance(stats_update_address, str):
                raise TypeError(
                    f"stats_update_address must be a string, not {stats_update_address!r}; "
                    "data_parallel_size is passed by keyword"
                )
            numbers = {
                "--engine-start-index": checked_number("engine_start_index", engine_start_index, 0),
                "--engine-count": checked_number("engine_count", engine_count, 1),
            }
            if data_parallel_size is not None:
                numbers["--data-parallel-size"] = checked_number("data_parallel_size", data_parallel_size, 1)
            grpc = {} if grpc_sock is None else {"--grpc-listen-fd": _descriptor("grpc_sock", grpc_sock)}
            coordinator = {} if stats_update_address is None else {"--coordinator-address": stats_update_address}
            sockets, grpc = ({name: _inheritable(fd, copies) for name, fd in each.items()} for each in (sockets, grpc))
            command = [os.fspath(binary_path), "frontend"]
            for name, value in {**sockets, **addresses, **numbers, **grpc, **coordinator}.items():
                command += [name, str(value)]
            forwarded = self._forwarded_arguments(args, bool(listeners))
            command += ["--args-json", json.dumps(forwarded, sort_keys=True)]
            names = json.dumps(_without_values(forwarded), sort_keys=True)
            _host.logger(__name__).info("Launching Rust frontend: %s, with the arguments %s", command[0], names)
            with Interruptions():  # a process that is started must be known, whatever a signal's handler raises
                guard = self._resources.open_guard()
                self.processes.append(_launch(command, [*sockets.values(), *grpc.values()], guard))
            self._resources.check()
            for listener in listeners:
                listener.close()
        except BaseException as error:
            instead = self._ending.of_a_failed_start(error)
            if instead is not None:
                raise instead from error
            raise
        finally:
            copies.close()

    def _forwarded_arguments(self, args: Any, with_model_tag: bool) -> dict[str, Any]:
        arguments = {
            name: value
            for name, value in non_default_arguments(args, self.argument_defaults).items()
            if name not in _NOT_FORWARDED
        }
        if with_model_tag:
            model_tag = getattr(args, "model_tag", None) or getattr(args, "model", None)
            if model_tag is not None:
                arguments["model_tag"] = model_tag
        arguments["engine_ready_timeout_secs"] = _host.env("VLLM_ENGINE_READY_TIMEOUT_S")
        arguments["http_timeout_keep_alive"] = _host.env("VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
        return arguments

    def shutdown(self, timeout: float | None = None) -> None:
        """SIGTERM, then SIGKILL to the whole tree after `timeout` seconds, at least (and by default) 5. Works once."""
        if timeout is not None:
            checked_timeout(timeout)
        self._ending(timeout)


def _end(processes: Sequence[ProgramProcess], resources: Resources, timeout: float | None) -> None:
    end_all(processes, max(timeout or 0.0, _MINIMAL_GRACE_S), "Rust frontend manager", resources.guard)
    resources.close()


def _descriptor(name: str, sock: Any) -> int:
    descriptor: int = sock.fileno()
    if descriptor < 0:
        raise ValueError(f"{name} {sock!r} is closed; the frontend needs its descriptor")
    return descriptor


def _without_values(forwarded: Mapping[str, Any]) -> dict[str, str]:
    """For the log: which arguments there are, whatever their names, since what is a credential only the operator knows.

    The model's name alone is shown, as vLLM's log does, where it cannot hold a URL's login or parameters.
    """
    shown = dict.fromkeys(forwarded, "***")
    model = forwarded.get("model_tag")
    if isinstance(model, str) and re.fullmatch(r"[\w./-]{1,200}", model, re.ASCII):
        shown["model_tag"] = model
    return shown


def _inheritable(descriptor: int, copies: contextlib.ExitStack) -> int:
    """`descriptor`, or a copy of it whose number is not that of a standard stream."""
    inherited = above_standard(descriptor)
    if inherited != descriptor:
        copies.callback(os.close, inherited)
    return inherited


def _descriptor_of(name: str, listener: Any) -> int:
    if not is_listener(listener):
        raise TypeError(f"{name} must be a listener like the other one, not {listener!r}")
    return _descriptor(f"the socket of {name}", listener.socket)


def _launch(command: list[str], descriptors: Sequence[int], guard: Guard) -> ProgramProcess:
    try:
        return start_program(command, "RustFrontend", descriptors, guard)
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
    for home in _CONVERTER_HOMES:
        with contextlib.suppress(ModuleNotFoundError):
            converter = getattr(importlib.import_module(home), "jsonify_non_default_args", None)
            if converter is not None:
                return converter  # type: ignore[no-any-return]
    return None


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
