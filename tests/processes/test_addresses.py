"""get_engine_client_zmq_addr."""

import os
import re
import tempfile
import uuid

import pytest

from fastutils import get_engine_client_zmq_addr
from fastutils.processes.addresses import IPC_PATH_LIMIT


def test_a_local_address_is_a_unique_path_in_the_folder_for_temporary_files(monkeypatch):
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    first, second = (get_engine_client_zmq_addr(True, "ignored", 5) for _ in range(2))
    assert first != second
    folder, _, name = first.removeprefix("ipc://").rpartition("/")
    assert folder == tempfile.gettempdir()
    assert uuid.UUID(name).version == 4


def test_the_folder_comes_from_the_environment_at_each_call(monkeypatch):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/run/a")
    assert get_engine_client_zmq_addr(local_only=True, host="").startswith("ipc:///run/a/")
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/run/b")
    assert get_engine_client_zmq_addr(local_only=True, host="").startswith("ipc:///run/b/")


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

    def access(path, mode):
        asked.append((path, mode))
        return False  # root may do anything, so the answer is not the kernel's here

    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path))
    monkeypatch.setattr(os, "access", access)
    with pytest.raises(PermissionError, match=r"no permission to create sockets in the folder; set VLLM_RPC_BASE_PATH"):
        get_engine_client_zmq_addr(True, "")
    assert asked == [(str(tmp_path), os.W_OK | os.X_OK)]


def test_a_folder_that_is_not_there_yet(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path / "later"))
    assert get_engine_client_zmq_addr(True, "").startswith(f"ipc://{tmp_path}/later/")
