"""Listening sockets that are bound before the process starts that serves them.

The address is known at once, nobody can take the port in between, and there is nothing to wait or to report: the form
of vLLM 0.32 and later.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from fastutils.processes.addresses import IPC_PATH_LIMIT, is_wildcard_host, split_tcp_address

_BACKLOG = 128


class Listener(Protocol):
    """A bound, listening socket with its address: `ZmqListener`, vLLM's class of the same name, or anything alike."""

    @property
    def socket(self) -> Any: ...
    @property
    def address(self) -> str: ...
    def close(self) -> None: ...
    def cleanup(self) -> None: ...


def is_listener(thing: object) -> bool:
    return hasattr(thing, "socket") and hasattr(thing, "address")


class ZmqListener:
    """A stream socket that listens at `address`, for a ZMQ socket to adopt, possibly in another process.

    `address`: ``tcp://host:port``, port 0 for one that the kernel chooses, an IPv6 host in brackets; or ``ipc://path``,
    whose socket file only this user may connect to. A context manager that cleans up.

    Raises ValueError for another form of address, a wildcard host (nobody could connect to what is reported then) and
    an IPC path that is too long, and OSError, with the address, when it cannot be bound.

    Attributes: ``socket``, the `socket.socket`; ``address``, where it really listens.
    """

    def __init__(self, address: str) -> None:
        self._path: str | None = None
        try:
            if address.startswith("ipc://"):
                self.socket = self._listen_at_path(address.removeprefix("ipc://"))
                self.address = address
            else:
                self.socket, self.address = _listen_at_port(address)
        except OSError as error:
            raise type(error)(error.errno, f"cannot listen at {address} ({error.strerror})") from None

    def _listen_at_path(self, path: str) -> socket.socket:
        length = len(os.fsencode(path))
        if not 0 < length <= IPC_PATH_LIMIT:
            raise ValueError(f"the IPC path {path!r} takes {length} bytes; it must take 1 to {IPC_PATH_LIMIT}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            self._path = path
            os.chmod(path, 0o600)  # until it listens nobody gets in
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            self._remove_path()
            raise
        return listener

    def _remove_path(self) -> None:
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None

    def __repr__(self) -> str:
        state = "closed" if self.socket.fileno() < 0 else f"descriptor {self.socket.fileno()}"
        return f"<{type(self).__name__} {self.address} ({state})>"

    def __enter__(self) -> ZmqListener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.cleanup()

    def close(self) -> None:
        """Close this process's copy of the socket; whoever has inherited it goes on listening. Idempotent."""
        self.socket.close()

    def cleanup(self) -> None:
        """Close the socket and remove the file of an IPC address. Idempotent; for when nobody listens any more."""
        self.close()
        self._remove_path()


def _listen_at_port(address: str) -> tuple[socket.socket, str]:
    host, port = split_tcp_address(address)
    if port is None or is_wildcard_host(host):
        raise _no_interface(address)
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if is_wildcard_host(str(where[0])):
        raise _no_interface(address)
    listener = socket.create_server((where[0], port), family=family, backlog=_BACKLOG)
    shown = f"[{host}]" if ":" in host else host
    return listener, f"tcp://{shown}:{listener.getsockname()[1]}"


def _no_interface(address: str) -> ValueError:
    return ValueError(f"{address!r}: name the interface's address and a port (0: the kernel chooses)")


def adopt_listeners(client_config: Mapping[str, Any], input_socket: Any, output_socket: Any) -> None:
    """Have the two ZMQ sockets serve, inside an API server, the listening sockets in `client_config`.

    `client_config` is what the manager passed to the server: its ``input_listener`` and ``output_listener`` belong to
    the ZMQ sockets from then on, which close them. Uses ``ZMQ_USE_FD``. Raises ValueError, with nothing changed, if
    one of the two is missing or closed, or if the ZMQ socket is bound already.
    """
    import zmq

    pairs = {"input": input_socket, "output": output_socket}
    for kind, zmq_socket in pairs.items():
        listener = client_config.get(f"{kind}_listener")
        if listener is None or listener.fileno() < 0:
            state = "holds no" if listener is None else "holds an already adopted or closed"
            raise ValueError(f"client_config {state} '{kind}_listener'")
        if zmq_socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0"):
            raise ValueError(f"{kind}_socket is bound already; it cannot adopt a listener")
    for kind, zmq_socket in pairs.items():
        listener = client_config[f"{kind}_listener"]
        listener.setblocking(False)  # ZMQ's thread accepts, and must not hang where a connection is gone again
        zmq_socket.setsockopt(zmq.USE_FD, listener.fileno())
        zmq_socket.bind(client_config[f"{kind}_address"])
        listener.detach()
