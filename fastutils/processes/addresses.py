"""Addresses for the ZMQ sockets between an engine and its clients."""

from __future__ import annotations

import errno
import ipaddress
import operator
import os
import socket
import sys
import uuid
from typing import Any

from fastutils import _host
from fastutils.processes.arguments import shown

#: Longest path of a Unix socket in bytes, without the final NUL: ``sun_path`` holds 108 on Linux, 104 on BSD and macOS.
IPC_PATH_LIMIT = 107 if sys.platform.startswith("linux") else 103

# The user whose rights count when a socket is created may be another than the one who started the program.
_AS_EFFECTIVE_USER: dict[str, Any] = {"effective_ids": True} if os.access in os.supports_effective_ids else {}


def get_engine_client_zmq_addr(local_only: bool, host: str, port: int = 0) -> str:
    """A ZMQ address for an engine's client to bind, as ``vllm.v1.utils.get_engine_client_zmq_addr`` gives it.

    Local: ``ipc://FOLDER/UUID4``, where FOLDER is ``VLLM_RPC_BASE_PATH`` or the folder for temporary files; unique on
    each call, and nothing is created. Else ``tcp://host:port``, an IPv6 `host` in brackets. Port 0 lets the kernel
    choose when the socket is bound; whoever binds reads the real one from ``zmq.LAST_ENDPOINT``.

    Raises ValueError for an IPC path longer than the platform's sockets allow (107 bytes on Linux), an empty host, a
    host that brings its own port and a port outside 0..65535; TypeError for a port that is no integer;
    FileNotFoundError or NotADirectoryError if FOLDER is none, and PermissionError if sockets may not be created in it.
    """
    return _ipc_address() if local_only else _tcp_address(host, port)


def _ipc_address() -> str:
    path = f"{_host.env('VLLM_RPC_BASE_PATH')}/{uuid.uuid4()}"
    length = len(os.fsencode(path))
    if length > IPC_PATH_LIMIT:
        raise ValueError(
            f"the IPC path {path!r} takes {length} bytes, but a socket's path holds at most {IPC_PATH_LIMIT}; "
            "set VLLM_RPC_BASE_PATH to a shorter folder"
        )
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        number = errno.ENOTDIR if os.path.exists(folder) else errno.ENOENT
        what = "is no folder" if number == errno.ENOTDIR else "does not exist"
        raise OSError(number, f"the folder for sockets {what}; create it or set VLLM_RPC_BASE_PATH to another", folder)
    if not os.access(folder, os.W_OK | os.X_OK, **_AS_EFFECTIVE_USER):
        raise PermissionError(
            errno.EACCES, "no permission to create sockets in the folder; set VLLM_RPC_BASE_PATH to another", folder
        )
    return f"ipc://{path}"


def _tcp_address(host: str, port: int) -> str:
    if not isinstance(host, str):
        raise TypeError(f"host must be a string, not {shown(host)}")
    if not host:
        raise ValueError("host is empty; name an interface or address, such as 127.0.0.1")
    number = operator.index(port)
    if not 0 <= number <= 65535:
        raise ValueError(f"port {number} is not in 0..65535")
    if _is_ipv6(host):
        return f"tcp://[{host}]:{number}"
    if ":" in host and not (host[0] == "[" and host[-1] == "]" and _is_ipv6(host[1:-1])):
        raise ValueError(
            f"host {host!r} holds more than a host; pass the name or address alone, and the port as port={number}"
        )
    return f"tcp://{host}:{number}"


def _is_ipv6(host: str) -> bool:
    return isinstance(_numeric(host), ipaddress.IPv6Address)


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))  # the short forms that sockets take: 0, 127.1
    except (OSError, ValueError):
        return None


def split_tcp_address(address: str) -> tuple[str, int | None]:
    """(host without brackets, port) of ``tcp://host:port``; the port is None for ``*``.

    As ZMQ reads it: the port stands after the last colon, an IPv6 host may do without brackets. Raises ValueError for
    anything else, and for a port outside 0..65535.
    """
    inside, separator, port = address.removeprefix("tcp://").rpartition(":")
    host = inside[1:-1] if inside[:1] == "[" and inside[-1:] == "]" else inside
    wrong = not host or "[" in host or "]" in host or (":" in host and not _is_ipv6(host))
    if not address.startswith("tcp://") or not separator or wrong:
        raise ValueError(f"{address!r} is not of the form tcp://host:port (an IPv6 host in brackets) or ipc://path")
    if port != "*" and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"the port of {address!r} is not in 0..65535")
    return host, None if port == "*" else int(port)


def is_wildcard_host(host: str) -> bool:
    """Whether `host` means every interface: it can be bound, but nobody elsewhere can connect to it."""
    address = _numeric(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return host == "*" or (address is not None and address.is_unspecified)


def check_bindable(address: object, name: str) -> None:
    """Refuse what no server in another process could bind: TypeError if no string, ValueError for another form.

    ``tcp://host:port`` and ``ipc://path`` are looked at; other transports are ZMQ's business, except ``inproc``.
    """
    if not isinstance(address, str):
        raise TypeError(f"{name} must be a string such as 'tcp://127.0.0.1:0', not {shown(address)}")
    transport, separator, path = address.partition("://")
    try:
        if not separator or transport == "tcp":
            split_tcp_address(address)
        elif transport == "inproc":
            raise ValueError(f"{address!r} reaches nobody outside its own process")
        elif transport == "ipc" and not 0 < len(os.fsencode(path)) <= IPC_PATH_LIMIT:
            raise ValueError(f"the path of {address!r} must take 1 to {IPC_PATH_LIMIT} bytes")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
