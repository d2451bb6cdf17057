"""Readiness by report: each child says where its sockets are bound, the parent gathers what they say.

The report is one pickled dictionary ``{"input_address": ..., "output_address": ...}`` on a `multiprocessing` pipe, so
children that were written for upstream's manager need no change.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from fastutils.processes.arguments import Deadline, shown
from fastutils.processes.watching import EndWatch, ProcessLike, explain_exit

_LENGTH = struct.Struct("!i")
_LONGEST_REPORT = 1 << 20


def report_bound_addresses(client_config: Mapping[str, Any], input_socket: Any, output_socket: Any) -> None:
    """Tell the parent, from inside an API server, where the two ZMQ sockets are bound. Called once per process.

    `client_config` is what the manager passed to the server; the pipe in it is closed afterwards. The sockets (pyzmq's,
    asyncio's included) must be bound: their ``LAST_ENDPOINT`` is read, which holds the port that the kernel chose.

    Raises ValueError if a socket is not bound, or if `client_config` has no open pipe to report through.
    """
    pipe = client_config.get("actual_address_pipe")
    if pipe is None or pipe.closed:
        state = "holds no" if pipe is None else "holds an already closed"
        raise ValueError(
            f"client_config {state} 'actual_address_pipe': bound addresses are reported once, by the child"
        )
    report = {
        "input_address": _bound_address(input_socket, "input_socket"),
        "output_address": _bound_address(output_socket, "output_socket"),
    }
    try:
        pipe.send(report)
    finally:
        pipe.close()


def _bound_address(socket: Any, name: str) -> str:
    import zmq

    endpoint: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)
    address = endpoint.rstrip(b"\0").decode()
    if not address:
        raise ValueError(f"{name} is not bound; bind it before its address is reported")
    return address


class ReportPipe:
    """The parent's end of one child's pipe: collects its first message without ever blocking on it.

    ``Connection.recv`` waits for the rest of a message once its first byte is there, so a child that stops in the
    middle of one would hang the parent past any deadline.
    """

    def __init__(self, connection: Connection) -> None:
        os.set_blocking(connection.fileno(), False)
        self._connection = connection
        self._received = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def read(self) -> bytes | None:
        """The first message once it is complete, None before. Raises EOFError when it can no longer come."""
        while True:
            if len(self._received) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._received)
                if not 0 <= length <= _LONGEST_REPORT:
                    raise ValueError(f"the message claims a length of {length} bytes")
                if len(self._received) >= _LENGTH.size + length:
                    return bytes(self._received[_LENGTH.size : _LENGTH.size + length])
            try:
                chunk = os.read(self._connection.fileno(), 65536)
            except BlockingIOError:
                return None
            if not chunk:
                raise EOFError
            self._received += chunk


def gather_bound_addresses(
    processes: Sequence[ProcessLike], pipes: Sequence[ReportPipe], reports: dict[int, tuple[str, str]], timeout: float
) -> None:
    """Fill `reports`, (input address, output address) by position, until each of `processes` has reported.

    What has been reported stays in `reports` when an error is raised: a later call goes on from there. A process's
    first report counts; its pipe is closed then, so that a second one fails where it is sent. Errors as in
    `APIServerProcessManager.gather_actual_addresses`.
    """
    pending = [position for position in range(len(processes)) if position not in reports]
    deadline = Deadline(timeout)
    with EndWatch([processes[position] for position in pending]) as watch:
        while pending:
            ended, ready = watch.wait([pipes[position] for position in pending], deadline.remaining())
            codes = {id(process): code for process, code in ended}
            for position in list(pending):
                process, pipe = processes[position], pipes[position]
                exited = id(process) in codes
                # A report counts even if its sender ended right after: the pipe is read before the end is judged.
                if not exited and pipe not in ready:
                    continue
                report = _read_report(process, pipe, watch, exited)
                if report is not None:
                    reports[position] = report
                    pipe.close()
                    pending.remove(position)
                    watch.forget(process)
                elif exited:
                    raise _exited_too_early(process, codes[id(process)])
            if pending and deadline.passed:
                names = [processes[position].name for position in pending]
                raise RuntimeError(
                    f"Timed out after {timeout:.1f}s waiting for API server(s) to report bound ZMQ addresses: {names}"
                )


def _read_report(process: ProcessLike, pipe: ReportPipe, watch: EndWatch, exited: bool) -> tuple[str, str] | None:
    try:
        message = pipe.read()
    except EOFError:
        if exited:
            return None
        raise _closed_without_report(process, watch) from None
    except ValueError as error:
        raise _wrong_report(process, str(error)) from None
    return None if message is None else _addresses_in(process, message)


def _closed_without_report(process: ProcessLike, watch: EndWatch) -> RuntimeError:
    # The pipe closes a moment before the exit code is there, and the code is what the reader wants to know.
    end = Deadline(1.0)
    while not end.passed:
        for ended, code in watch.wait(timeout=end.remaining())[0]:
            if ended is process:
                return _exited_too_early(process, code)
    return RuntimeError(
        f"API server {process.name} closed its address pipe without reporting its bound ZMQ addresses; "
        f"the process (PID: {process.pid}) still runs"
    )


def _exited_too_early(process: ProcessLike, code: int | None) -> RuntimeError:
    return RuntimeError(
        f"API server process {process.name} exited (code={code}) before reporting its bound ZMQ addresses"
        f"{explain_exit(code)}"
    )


def _addresses_in(process: ProcessLike, message: bytes) -> tuple[str, str]:
    try:
        report = pickle.loads(message)
    except Exception as error:
        raise _wrong_report(process, f"a message that cannot be unpickled ({error})") from error
    if isinstance(report, Mapping):
        addresses = report.get("input_address"), report.get("output_address")
        if all(isinstance(address, str) and address for address in addresses):
            for address in addresses:
                _check_reachable(process, str(address))
            return str(addresses[0]), str(addresses[1])
    raise _wrong_report(process, shown(report))


def _check_reachable(process: ProcessLike, address: str) -> None:
    from fastutils.processes.addresses import is_wildcard_host, split_tcp_address

    try:
        host, _ = split_tcp_address(address)
    except ValueError:
        return  # another transport, which ZMQ knows
    if is_wildcard_host(host):
        raise RuntimeError(
            f"API server {process.name} (PID: {process.pid}) reported {address}, which stands for every interface: "
            "other machines cannot connect to it; bind the address of one interface"
        )


def _wrong_report(process: ProcessLike, what: str) -> RuntimeError:
    return RuntimeError(
        f"API server {process.name} (PID: {process.pid}) sent something else than its bound ZMQ addresses, "
        f"{{'input_address': ..., 'output_address': ...}}: {what}"
    )
