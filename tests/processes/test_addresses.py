"""get_engine_client_zmq_addr, and the forms of addresses."""

import errno
import os
import re
import subprocess
import sys
import tempfile
import uuid

import pytest

import fastutils
from fastutils import get_engine_client_zmq_addr
from fastutils.processes.addresses import IPC_PATH_LIMIT, check_bindable, is_wildcard_host, split_tcp_address


def test_a_local_address_is_a_unique_path_in_the_folder_for_temporary_files(monkeypatch):
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    first, second = (get_engine_client_zmq_addr(True, "ignored", 5) for _ in range(2))
    assert first != second
    folder, _, name = first.removeprefix("ipc://").rpartition("/")
    assert folder == tempfile.gettempdir()
    assert uuid.UUID(name).version == 4


def test_the_folder_comes_from_the_environment_at_each_call(monkeypatch, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", f"{tmp_path}/{name}")
        assert get_engine_client_zmq_addr(local_only=True, host="").startswith(f"ipc://{tmp_path}/{name}/")


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 0, "tcp://127.0.0.1:0"),
        ("127.0.0.1", 65535, "tcp://127.0.0.1:65535"),
        ("node-7.cluster", 80, "tcp://node-7.cluster:80"),
        ("::1", 5, "tcp://[::1]:5"),
        ("fe80::1%eth0", 5, "tcp://[fe80::1%eth0]:5"),
        ("[::1]", 5, "tcp://[::1]:5"),
        ("*", 0, "tcp://*:0"),
    ],
)
def test_tcp(host, port, address):
    assert get_engine_client_zmq_addr(False, host, port) == address


def test_port_0_is_the_default():
    assert get_engine_client_zmq_addr(False, "::") == "tcp://[::]:0"


@pytest.mark.parametrize("port", [-1, 65536, 10**30])
def test_a_port_out_of_range(port):
    with pytest.raises(ValueError, match=re.escape(f"port {port} is not in 0..65535")):
        get_engine_client_zmq_addr(False, "127.0.0.1", port)


@pytest.mark.parametrize("port", ["80", None, 1.5])
def test_a_port_that_is_no_integer(port):
    with pytest.raises(TypeError):
        get_engine_client_zmq_addr(False, "127.0.0.1", port)


def test_no_host():
    with pytest.raises(ValueError, match="host is empty"):
        get_engine_client_zmq_addr(False, "")
    with pytest.raises(TypeError, match="host must be a string"):
        get_engine_client_zmq_addr(False, None)


def test_the_limit_is_the_one_that_zmq_finds():
    zmq = pytest.importorskip("zmq")
    assert zmq.IPC_PATH_MAX_LEN == IPC_PATH_LIMIT


def test_the_longest_path_can_be_bound_and_one_byte_more_is_refused(monkeypatch, short_folder):
    zmq = pytest.importorskip("zmq")
    room = IPC_PATH_LIMIT - len(str(uuid.uuid4())) - 1
    longest = short_folder / ("d" * (room - len(str(short_folder)) - 1))
    longest.mkdir()
    assert len(str(longest)) == room
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(longest))
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        address = get_engine_client_zmq_addr(True, "")
        socket.bind(address)
        assert socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode() == address

    monkeypatch.setenv("VLLM_RPC_BASE_PATH", f"{longest}d")
    with pytest.raises(
        ValueError, match=rf"takes {IPC_PATH_LIMIT + 1} bytes.*at most {IPC_PATH_LIMIT}.*VLLM_RPC_BASE_PATH"
    ):
        get_engine_client_zmq_addr(True, "")


def test_the_limit_counts_bytes_not_letters(monkeypatch):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/" + "ü" * 40)
    with pytest.raises(ValueError, match="takes 118 bytes"):
        get_engine_client_zmq_addr(True, "")


def test_a_folder_in_which_sockets_may_not_be_created(monkeypatch, tmp_path):
    asked = []

    def access(path, mode, **more):
        asked.append((path, mode))
        return False  # root may do anything, so the answer is not the kernel's here

    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path))
    monkeypatch.setattr(os, "access", access)
    with pytest.raises(PermissionError, match=r"no permission to create sockets in the folder; set VLLM_RPC_BASE_PATH"):
        get_engine_client_zmq_addr(True, "")
    assert asked == [(str(tmp_path), os.W_OK | os.X_OK)]


AS_ANOTHER_USER = """
import os, sys
from fastutils import get_engine_client_zmq_addr
os.seteuid(65534)
try:
    print(get_engine_client_zmq_addr(True, ""))
except PermissionError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(os.access not in os.supports_effective_ids, reason="this platform asks for the real user only")
def test_the_rights_are_those_of_the_effective_user(short_folder):
    def run(mode):
        short_folder.chmod(mode)
        package = os.path.dirname(os.path.dirname(fastutils.__file__))
        environment = {**os.environ, "VLLM_RPC_BASE_PATH": str(short_folder), "PYTHONPATH": package}
        command = [sys.executable, "-c", AS_ANOTHER_USER]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

    assert run(0o777).startswith("ipc://")
    assert "no permission to create sockets" in run(0o755)


def test_a_folder_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path / "later"))
    with pytest.raises(FileNotFoundError, match=r"does not exist; create it or set VLLM_RPC_BASE_PATH .*later"):
        get_engine_client_zmq_addr(True, "")
    (tmp_path / "later").touch()
    with pytest.raises(NotADirectoryError, match=r"is no folder; create it or set VLLM_RPC_BASE_PATH .*later"):
        get_engine_client_zmq_addr(True, "")


@pytest.mark.parametrize("host", ["127.0.0.1:5555", "[::1]:5555", "node:1", "tcp://127.0.0.1", "[node:1]", "a:b:c"])
def test_a_host_with_more_than_a_host(host):
    with pytest.raises(ValueError, match=rf"host '{re.escape(host)}' holds more than a host; .*the port as port=7"):
        get_engine_client_zmq_addr(False, host, 7)


# --- the form of an address -------------------------------------------------------------------------------------------

HOSTS = {
    "127.0.0.1": "127.0.0.1",
    "localhost": "localhost",
    "lo": "lo",
    "*": "*",
    "[*]": "*",
    "0": "0",
    "127.1": "127.1",
    "[127.0.0.1]": "127.0.0.1",
    "::1": "::1",
    "[::1]": "::1",
    "::": "::",
    "::ffff:0.0.0.0": "::ffff:0.0.0.0",
    "[::ffff:127.0.0.1]": "::ffff:127.0.0.1",
    "[::1%lo]": "::1%lo",
}
NO_HOSTS = ["", "[]", "[[::1]]", "[::1", "::1]", "1:2:3", ":", "127.0.0.1:5"]


@pytest.mark.parametrize("host", HOSTS)
def test_what_zmq_binds_is_accepted(host):
    zmq = pytest.importorskip("zmq")
    for port in ("0", "*"):
        address = f"tcp://{host}:{port}"
        check_bindable(address, "address")
        assert split_tcp_address(address) == (HOSTS[host], None if port == "*" else 0)
        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.setsockopt(zmq.IPV6, 1)
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                if ":" not in host or error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # no IPv6 here
                    raise


@pytest.mark.parametrize("host", NO_HOSTS)
def test_what_zmq_does_not_bind_is_refused(host):
    zmq = pytest.importorskip("zmq")
    with pytest.raises(ValueError, match=r"address: 'tcp://.*' is not of the form tcp://host:port"):
        check_bindable(f"tcp://{host}:0", "address")
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.setsockopt(zmq.IPV6, 1)
        with pytest.raises(zmq.ZMQError):
            socket.bind(f"tcp://{host}:0")


WILDCARDS = ["*", "0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "::ffff:0:0", "::%lo", "0", "0.0", "0x0"]


@pytest.mark.parametrize("host", WILDCARDS)
def test_wildcards(host):
    assert is_wildcard_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.1", "localhost", "lo", "nöde", "\0"])
def test_no_wildcards(host):
    assert not is_wildcard_host(host)
