"""A group of API-server processes, and the default program that each of them runs."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, overload

from fastutils import _host
from fastutils.processes.addresses import check_bindable
from fastutils.processes.arguments import also_called, checked_number, checked_timeout, shown
from fastutils.processes.ending import DEFAULT_GRACE_S, Ending, Owner, Resources, end_all
from fastutils.processes.interrupts import Interruptions
from fastutils.processes.listeners import Listener, is_listener
from fastutils.processes.readiness import ReportPipe, gather_bound_addresses
from fastutils.processes.spawning import ServerProcess

# Where vLLM keeps ``run_server_worker``: since 0.29, and before.
_WORKER_HOMES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")
# More than anybody starts: an endless iterator of addresses is to be an error, not a wait.
_MOST_SERVERS = 65536
_ADMISSION_CONTROL = "vllm.v1.engine.admission_control"


class APIServerProcessManager(Owner):
    """Starts, and later ends, a group of API-server processes, as ``vllm.v1.utils.APIServerProcessManager`` does.

    `num_servers` spawned processes named ``ApiServer_0`` ... each run `target_server_fn` (default
    `run_api_server_worker_proc`) with ``(listen_address, sock, args, client_config)``. The dictionary ``client_config``
    holds ``input_address``, ``output_address`` (this server's, from the two lists), ``client_count``, ``client_index``,
    ``actual_address_pipe`` (for `fastutils.processes.report_bound_addresses`) and, when given, ``stats_update_address``
    and ``tensor_queue``. Everything passed must be picklable for a spawned process; `sock` stays the caller's.
    The addresses may be any iterables; each is gone through once.

    The call of vLLM 0.32 and later works as well: bound sockets (`fastutils.processes.ZmqListener` or objects alike)
    as ``input_listeners`` and ``output_listeners``, or in the place of the addresses. They belong to the manager from
    the call on, whether it succeeds or not. ``client_config`` then holds ``input_listener`` and ``output_listener``,
    the `socket.socket` objects (see `fastutils.processes.adopt_listeners`), in place of the pipe, and for more than one
    server ``api_server_loads``, a shared array of `num_servers` C ints, 2**31 - 1 each. Within a vLLM that has
    admission control, ``mp_admission_counters`` is there if ``args.max_num_queued_reqs`` is set.

    The constructor blocks until all are launched, not until they serve: see `gather_actual_addresses`. Children end
    when this process ends, even by SIGKILL, when `shutdown` is called, and when the manager is collected, with all
    that they have started. They are in one process group of their own, which a small guard process holds, so Ctrl-C in
    a terminal reaches this process alone, which is to shut them down.

    Raises ValueError if `num_servers` is not positive, the address lists do not have that length, or an address is of
    a form that no server could bind; RuntimeError, caused by the original error, if a process cannot be started: those
    started before it have been ended then.

    Attributes: ``processes``, by client index; ``listen_address``, ``sock`` and ``args`` as given.
    """

    @overload
    def __init__(
        self,
        listen_address: str,
        sock: Any,
        args: argparse.Namespace,
        num_servers: int,
        input_addresses: Iterable[str],
        output_addresses: Iterable[str],
        target_server_fn: Callable[..., Any] | None = None,
        stats_update_address: str | None = None,
        tensor_queue: Any | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        listen_address: str,
        sock: Any,
        args: argparse.Namespace,
        num_servers: int,
        input_listeners: Iterable[Listener],
        output_listeners: Iterable[Listener],
        target_server_fn: Callable[..., Any] | None = None,
        stats_update_address: str | None = None,
        tensor_queue: Any | None = None,
    ) -> None: ...

    @also_called(input_listeners="input_addresses", output_listeners="output_addresses")
    def __init__(
        self,
        listen_address: str,
        sock: Any,
        args: argparse.Namespace,
        num_servers: int,
        input_addresses: list[Any],
        output_addresses: list[Any],
        target_server_fn: Callable[..., Any] | None = None,
        stats_update_address: str | None = None,
        tensor_queue: Any | None = None,
    ) -> None:
        self.listen_address = listen_address
        self.sock = sock
        self.args = args
        self._reports: dict[int, tuple[str, str]] = {}
        self._pipes: list[ReportPipe] = []
        self._resources = Resources()
        processes: list[BaseProcess] = []
        self._ending = Ending(self, functools.partial(_end, processes, self._resources))
        self.processes = processes  # last: whoever sees it, in a signal's handler, may shut the manager down
        optional = {"stats_update_address": stats_update_address, "tensor_queue": tensor_queue}
        try:
            inputs, outputs = _taken(input_addresses, output_addresses, self._resources)
            listeners = any(map(is_listener, (*inputs, *outputs)))
            count = _checked_count(num_servers, inputs, outputs)
            target = run_api_server_worker_proc if target_server_fn is None else target_server_fn
            if not callable(target):
                raise TypeError(f"target_server_fn must be callable, not {shown(target)}")
            if listeners:
                _check_listeners(inputs, outputs)
            else:
                for name, addresses in ("input_addresses", inputs), ("output_addresses", outputs):
                    for index, address in enumerate(addresses):
                        check_bindable(address, f"{name}[{index}]")
            shared = {name: value for name, value in optional.items() if value is not None}
            shared |= _shared_arrays(count, args, listeners)
            self._start_all(count, target, inputs, outputs, shared)
        except BaseException as error:
            instead = self._ending.of_a_failed_start(error)
            if instead is not None:
                raise instead from error
            raise
        _host.logger(__name__).info("Started %d API server processes", count)

    def _start_all(
        self, count: int, target: Callable[..., Any], inputs: list[Any], outputs: list[Any], shared: dict[str, Any]
    ) -> None:
        for index in range(count):
            config = {"client_count": count, "client_index": index, **shared}
            try:
                with Interruptions():  # a process that is started must be known, whatever a signal's handler raises
                    self._start(index, target, inputs[index], outputs[index], config)
            except Exception as error:
                raise RuntimeError(
                    f"cannot start API server process ApiServer_{index} ({index + 1} of {count}): {error!r}; "
                    f"the {index} started before it were ended"
                ) from error

    def _start(
        self, index: int, target: Callable[..., Any], input_at: Any, output_at: Any, config: dict[str, Any]
    ) -> None:
        guard = self._resources.open_guard()
        with contextlib.ExitStack() as after_start:
            if is_listener(input_at):
                config |= {"input_address": input_at.address, "output_address": output_at.address}
                config |= {"input_listener": input_at.socket, "output_listener": output_at.socket}
                self._reports[index] = input_at.address, output_at.address
            else:
                receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
                # The child alone may hold the writing end: its death must show as the end of the pipe.
                after_start.enter_context(contextlib.closing(sender))
                pipe = ReportPipe(receiver)
                self._resources.closing.callback(pipe.close)
                self._pipes.append(pipe)
                config |= {"input_address": input_at, "output_address": output_at, "actual_address_pipe": sender}
            call = self.listen_address, self.sock, self.args, config
            process = ServerProcess(guard, f"ApiServer_{index}", target, call)
            process.start()
        self.processes.append(process)
        self._resources.check()
        for listener in (input_at, output_at):
            if is_listener(listener):
                listener.close()

    def gather_actual_addresses(self, timeout: float | None = None) -> tuple[list[str], list[str]]:
        """(input addresses, output addresses) as the children bound them, both by client index.

        Blocks until each child has reported, for at most `timeout` seconds (default: ``VLLM_ENGINE_READY_TIMEOUT_S``,
        600). Reports are kept: after a timeout it may be called again, after success it returns the same at once. A
        child's first report counts. The addresses of listeners are known from the start.

        Raises RuntimeError "Timed out after ...s waiting for API server(s) to report bound ZMQ addresses: [names]",
        "API server process NAME exited (code=N) before reporting its bound ZMQ addresses", "API server NAME closed
        its address pipe without reporting its bound ZMQ addresses", for a report of another form or of a wildcard
        address, to which nobody could connect, and after `shutdown`; ValueError for a negative or non-finite `timeout`.
        """
        given = _host.env("VLLM_ENGINE_READY_TIMEOUT_S") if timeout is None else timeout
        seconds = checked_timeout(given, "VLLM_ENGINE_READY_TIMEOUT_S" if timeout is None else "timeout")
        if len(self._reports) < len(self.processes):
            if self._ending.is_over:
                raise RuntimeError("the API servers were shut down before all had reported their bound ZMQ addresses")
            gather_bound_addresses(self.processes, self._pipes, self._reports, seconds)
        reports = [self._reports[index] for index in range(len(self.processes))]
        return [inputs for inputs, _ in reports], [outputs for _, outputs in reports]

    def shutdown(self, timeout: float | None = None) -> None:
        """End the processes as `fastutils.shutdown` does, with `timeout` seconds of grace (default 5). Works once."""
        if timeout is not None:
            checked_timeout(timeout)
        self._ending(timeout)


def _taken(inputs: Iterable[Any], outputs: Iterable[Any], resources: Resources) -> list[list[Any]]:
    """Both as lists, taken in turns as `zip` takes them; a listener is the manager's from when it is seen."""
    for name, things in ("input_addresses", inputs), ("output_addresses", outputs):
        if not isinstance(things, Iterable):
            raise TypeError(f"{name} must be addresses, one for each server, not {shown(things)}")

    def noted(things: Iterable[Any]) -> Iterator[Any]:
        for thing in things:
            if is_listener(thing):
                resources.closing.callback(thing.cleanup)
            yield thing

    missing = object()
    pairs = itertools.zip_longest(noted(inputs), noted(outputs), fillvalue=missing)
    columns = zip(*itertools.islice(pairs, _MOST_SERVERS), strict=True)
    return [[thing for thing in column if thing is not missing] for column in columns] or [[], []]


def _checked_count(num_servers: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    count = checked_number("num_servers", num_servers, 1)
    if not len(inputs) == len(outputs) == count:
        kind = "listeners" if any(map(is_listener, (*inputs, *outputs))) else "addresses"
        raise ValueError(
            f"num_servers={count} needs as many {kind} of each kind, but got {len(inputs)} input_{kind} and "
            f"{len(outputs)} output_{kind}"
        )
    return count


def _check_listeners(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    for name, listeners in ("input_listeners", inputs), ("output_listeners", outputs):
        for index, listener in enumerate(listeners):
            if not is_listener(listener):
                raise TypeError(f"{name}[{index}] must be a listener like the others, not {shown(listener)}")
            if listener.socket.fileno() < 0:
                raise ValueError(f"{name}[{index}] at {listener.address} is closed")


def _shared_arrays(count: int, args: Any, with_loads: bool) -> dict[str, Any]:
    if count < 2:
        return {}
    arrays = {}
    context = multiprocessing.get_context("spawn")
    if with_loads:
        # Each server counts its connections here; one that has not started yet is never the least loaded.
        arrays["api_server_loads"] = context.RawArray("i", [2**31 - 1] * count)
    if getattr(args, "max_num_queued_reqs", None) is not None and "vllm" in sys.modules:
        with contextlib.suppress(ModuleNotFoundError):  # a vLLM without admission control
            stats = importlib.import_module(_ADMISSION_CONTROL).SharedAdmissionStats
            arrays["mp_admission_counters"] = context.RawArray("q", stats.num_counters(count))
    return arrays


def _end(processes: Sequence[BaseProcess], resources: Resources, timeout: float | None) -> None:
    grace_s = DEFAULT_GRACE_S if timeout is None else timeout
    end_all(processes, grace_s, "API server manager", resources.guard)
    resources.close()


def run_api_server_worker_proc(
    listen_address: str,
    sock: Any,
    args: argparse.Namespace,
    client_config: dict[str, Any] | None = None,
    **uvicorn_kwargs: Any,
) -> None:
    """What each API-server process runs by default, as ``vllm.v1.utils.run_api_server_worker_proc`` does.

    Sets the process title ``VLLM::APIServer_<index>``, prefixes each line of stdout and stderr with the process's
    name and pid, then runs vLLM's ``run_server_worker`` under uvloop until it ends. Where ``args.logging_config`` is
    set (vLLM 0.31 and later), logging is set up by it first. Changes the calling process for good, so it belongs into
    a process of its own. Raises ImportError where vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ImportError(
            "the default API server is vLLM's, and vLLM is not installed here; pass your own server as "
            "target_server_fn to APIServerProcessManager",
            name="vllm",
        )
    logging_config = getattr(args, "logging_config", None)
    if logging_config:
        configure = getattr(importlib.import_module("vllm.logger"), "configure_logging", None)
        if configure is not None:
            configure(logging_config)
    client_config = client_config or {}
    _host.set_process_title("APIServer", str(client_config.get("client_index", 0)))
    _host.decorate_logs()
    server = _vllm_server_worker()
    _run_event_loop(server(listen_address, sock, args, client_config, **uvicorn_kwargs))


def _vllm_server_worker() -> Callable[..., Coroutine[Any, Any, None]]:
    for home in _WORKER_HOMES:
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:
            if error.name is None or not home.startswith(error.name):
                raise  # vLLM lacks one of its own requirements
            continue
        worker = getattr(module, "run_server_worker", None)
        if worker is not None:
            return worker  # type: ignore[no-any-return]
    raise ImportError(f"this vLLM has no run_server_worker in {' or '.join(_WORKER_HOMES)}", name="vllm")


def _run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ModuleNotFoundError:
        import asyncio

        asyncio.run(main)
    else:
        uvloop.run(main)
