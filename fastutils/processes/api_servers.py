"""A group of API-server processes, and the default program that each of them runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import multiprocessing
import operator
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

from fastutils import _host
from fastutils.processes import termination
from fastutils.processes.death_pipe import Lifeline, WatchedTarget
from fastutils.processes.readiness import ReportPipe, gather_bound_addresses
from fastutils.processes.timeouts import checked_timeout

# Where vLLM keeps ``run_server_worker``: since 0.29, and before.
_WORKER_HOMES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")


class APIServerProcessManager:
    """Starts, and later ends, a group of API-server processes, as ``vllm.v1.utils.APIServerProcessManager`` does.

    `num_servers` spawned processes named ``ApiServer_0`` ... each run `target_server_fn` (default
    `run_api_server_worker_proc`) with ``(listen_address, sock, args, client_config)``. The dictionary ``client_config``
    holds ``input_address``, ``output_address`` (this server's, from the two lists), ``client_count``, ``client_index``,
    ``actual_address_pipe`` (for `fastutils.processes.report_bound_addresses`) and, when given, ``stats_update_address``
    and ``tensor_queue``. Everything passed must be picklable for a spawned process; `sock` stays the caller's.

    The constructor blocks until all are launched, not until they serve: see `gather_actual_addresses`. Children end
    when this process ends, even by SIGKILL, when `shutdown` is called, and when the manager is collected.

    Raises ValueError if `num_servers` is not positive or the address lists do not have that length; RuntimeError,
    caused by the original error, if a process cannot be started: those started before it have been ended then.

    Attributes: ``processes``, by client index; ``listen_address``, ``sock`` and ``args`` as given.
    """

    def __init__(
        self,
        listen_address: str,
        sock: Any,
        args: argparse.Namespace,
        num_servers: int,
        input_addresses: list[str],
        output_addresses: list[str],
        target_server_fn: Callable[..., Any] | None = None,
        stats_update_address: str | None = None,
        tensor_queue: Any | None = None,
    ) -> None:
        count = _checked_count(num_servers, input_addresses, output_addresses)
        target = run_api_server_worker_proc if target_server_fn is None else target_server_fn
        if not callable(target):
            raise TypeError(f"target_server_fn must be callable, not {target!r}")
        self.listen_address = listen_address
        self.sock = sock
        self.args = args
        self.processes: list[BaseProcess] = []
        self._pipes: list[ReportPipe] = []
        self._reports: dict[int, tuple[str, str]] = {}
        self._lifeline = Lifeline()
        self._clean_up = termination.CleanUp(self, _end, self.processes, self._pipes, self._lifeline)
        optional = {"stats_update_address": stats_update_address, "tensor_queue": tensor_queue}
        for index in range(count):
            client_config = {
                "input_address": input_addresses[index],
                "output_address": output_addresses[index],
                "client_count": count,
                "client_index": index,
                **{name: value for name, value in optional.items() if value is not None},
            }
            try:
                self._start(index, target, client_config)
            except BaseException as error:
                self._clean_up(None)
                if isinstance(error, Exception):
                    raise RuntimeError(
                        f"cannot start API server process ApiServer_{index} ({index + 1} of {count}): {error!r}; "
                        f"the {index} started before it were ended"
                    ) from error
                raise
        _host.logger(__name__).info("Started %d API server processes", count)

    def _start(self, index: int, target: Callable[..., Any], client_config: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        self._pipes.append(ReportPipe(receiver))
        # The child alone may hold the writing end: its death must show as the end of the pipe.
        with contextlib.closing(sender):
            client_config["actual_address_pipe"] = sender
            call = WatchedTarget(self._lifeline, target, self.listen_address, self.sock, self.args, client_config)
            process: SpawnProcess = context.Process(target=call, name=f"ApiServer_{index}")
            process.start()
        self.processes.append(process)

    def gather_actual_addresses(self, timeout: float | None = None) -> tuple[list[str], list[str]]:
        """(input addresses, output addresses) as the children bound them, both by client index.

        Blocks until each child has reported, for at most `timeout` seconds (default: ``VLLM_ENGINE_READY_TIMEOUT_S``,
        600). Reports are kept: after a timeout it may be called again, after success it returns the same at once.

        Raises RuntimeError "Timed out after ...s waiting for API server(s) to report bound ZMQ addresses: [names]",
        "API server process NAME exited (code=N) before reporting its bound ZMQ addresses", "API server NAME closed
        its address pipe without reporting its bound ZMQ addresses", for a report of another form, and after
        `shutdown`; ValueError for a negative or non-finite `timeout`.
        """
        given = _host.env("VLLM_ENGINE_READY_TIMEOUT_S") if timeout is None else timeout
        seconds = checked_timeout(given, "VLLM_ENGINE_READY_TIMEOUT_S" if timeout is None else "timeout")
        if len(self._reports) < len(self.processes):
            if not self._clean_up.finalizer.alive:
                raise RuntimeError("the API servers were shut down before all had reported their bound ZMQ addresses")
            gather_bound_addresses(self.processes, self._pipes, self._reports, seconds)
        reports = [self._reports[index] for index in range(len(self.processes))]
        return [inputs for inputs, _ in reports], [outputs for _, outputs in reports]

    def shutdown(self, timeout: float | None = None) -> None:
        """End the processes as `fastutils.shutdown` does, with `timeout` seconds of grace (default 5). Works once."""
        if timeout is not None:
            checked_timeout(timeout)
        self._clean_up(timeout)


def _checked_count(num_servers: int, input_addresses: Sequence[str], output_addresses: Sequence[str]) -> int:
    if isinstance(num_servers, bool):
        raise TypeError(f"num_servers must be an integer, not {num_servers!r}")
    count = operator.index(num_servers)
    if count < 1:
        raise ValueError(f"num_servers={count}: at least one API server is needed")
    inputs, outputs = len(input_addresses), len(output_addresses)
    if not inputs == outputs == count:
        raise ValueError(
            f"num_servers={count} needs as many addresses of each kind, but got {inputs} input_addresses and "
            f"{outputs} output_addresses"
        )
    return count


def _end(
    timeout: float | None, processes: Sequence[BaseProcess], pipes: Sequence[ReportPipe], lifeline: Lifeline
) -> None:
    grace_s = termination.DEFAULT_GRACE_S if timeout is None else timeout
    try:
        termination.end_all(processes, grace_s, "API server manager")
    finally:
        for pipe in pipes:
            pipe.close()
        lifeline.close()


def run_api_server_worker_proc(
    listen_address: str,
    sock: Any,
    args: argparse.Namespace,
    client_config: dict[str, Any] | None = None,
    **uvicorn_kwargs: Any,
) -> None:
    """What each API-server process runs by default, as ``vllm.v1.utils.run_api_server_worker_proc`` does.

    Sets the process title ``VLLM::APIServer_<index>``, prefixes each line of stdout and stderr with the process's
    name and pid, then runs vLLM's ``run_server_worker`` under uvloop until it ends. Changes the calling process for
    good, so it belongs into a process of its own. Raises ImportError where vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ImportError(
            "the default API server is vLLM's, and vLLM is not installed here; pass your own server as "
            "target_server_fn to APIServerProcessManager",
            name="vllm",
        )
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
