"""Sockets that listen before their server starts: ZmqListener, its adoption, and the managers that take it."""

import argparse
import json
import os
import socket
import stat
import sys
from types import SimpleNamespace

import pytest
import server_programs as programs

from fastutils import APIServerProcessManager, RustFrontendProcessManager
from fastutils.processes import ZmqListener, adopt_listeners

zmq = pytest.importorskip("zmq")


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", "localhost", pytest.param("[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6"))]


@pytest.fixture
def addresses(short_folder):
    """Addresses that can be listened at, by transport."""
    return {"tcp": "tcp://127.0.0.1:0", "ipc": f"ipc://{short_folder}/listener"}


@pytest.fixture
def listeners(short_folder):
    """Makes `count` listeners of a transport; all are cleaned up after the test."""
    made = []

    def make(transport, count):
        for _ in range(count):
            made.append(ZmqListener(f"ipc://{short_folder}/{len(made)}" if transport == "ipc" else "tcp://127.0.0.1:0"))
        return made[-count:]

    yield make
    for listener in made:
        listener.cleanup()


# --- the listener -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
def test_the_kernel_chooses_the_port(host):
    with ZmqListener(f"tcp://{host}:0") as listener:
        port = listener.socket.getsockname()[1]
        assert port > 0
        assert listener.address == f"tcp://{host}:{port}"
        socket.create_connection((host.strip("[]"), port), 10).close()  # it listens
        assert repr(listener) == f"<ZmqListener tcp://{host}:{port} (descriptor {listener.socket.fileno()})>"
    assert listener.socket.fileno() == -1
    assert "(closed)" in repr(listener)


def test_an_ipc_socket_is_for_this_user_alone_and_is_removed(addresses):
    listener = ZmqListener(addresses["ipc"])
    path = addresses["ipc"].removeprefix("ipc://")
    assert listener.address == addresses["ipc"]
    mode = os.stat(path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    listener.close()
    assert os.path.exists(path)  # another process may listen on
    listener.cleanup()
    assert not os.path.exists(path)
    listener.cleanup()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tcp://*:5555", "name the interface's address and a port"),
        ("tcp://0.0.0.0:0", "name the interface's address and a port"),
        ("tcp://[::]:0", "name the interface's address and a port"),
        ("tcp://:::0", "name the interface's address and a port"),
        ("tcp://[::ffff:0.0.0.0]:0", "name the interface's address and a port"),
        ("tcp://0:0", "name the interface's address and a port"),
        ("tcp://127.0.0.1:*", "name the interface's address and a port"),
        ("tcp://127.0.0.1:99999", r"not in 0\.\.65535"),
        ("inproc://x", "not of the form"),
        ("ipc://", "takes 0 bytes; it must take 1 to"),
        ("ipc://" + "x" * 108, "takes 108 bytes; it must take 1 to"),
    ],
)
def test_addresses_of_another_form(address, message):
    with pytest.raises(ValueError, match=message):
        ZmqListener(address)


def test_a_name_that_stands_for_every_interface(monkeypatch):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("0.0.0.0", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(ValueError, match="'tcp://everywhere:0': name the interface's address"):
        ZmqListener("tcp://everywhere:0")


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6")
def test_an_ipv6_host_may_do_without_brackets():
    with ZmqListener("tcp://::1:0") as listener:
        assert listener.address == f"tcp://[::1]:{listener.socket.getsockname()[1]}"


def test_a_port_that_is_taken():
    with (
        ZmqListener("tcp://127.0.0.1:0") as first,
        pytest.raises(OSError, match=rf"cannot listen at {first.address} \(Address already in use"),
    ):
        ZmqListener(first.address)


def test_a_path_that_is_taken_stays(addresses):
    with ZmqListener(addresses["ipc"]) as first:
        with pytest.raises(OSError, match=r"cannot listen at ipc://.*Address already in use"):
            ZmqListener(addresses["ipc"])
        assert os.path.exists(first.address.removeprefix("ipc://"))


def test_a_folder_that_is_missing(short_folder):
    with pytest.raises(FileNotFoundError, match=r"cannot listen at ipc://.*missing"):
        ZmqListener(f"ipc://{short_folder}/missing/x")


# --- adoption ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_zmq_socket_serves_an_adopted_listener(listeners, transport):
    first, second = listeners(transport, 2)
    config = {"input_listener": first.socket, "output_listener": second.socket}
    config |= {"input_address": first.address, "output_address": second.address}
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        adopt_listeners(config, pull, push)
        assert first.socket.fileno() == -1
        with context.socket(zmq.PUSH) as client:
            client.connect(first.address)
            client.send(b"hello")
            assert pull.poll(30_000)
            assert pull.recv() == b"hello"


def test_what_cannot_be_adopted_changes_nothing(listeners):
    first, second, closed = listeners("tcp", 3)
    closed.close()
    good = {"input_listener": first.socket, "input_address": first.address, "output_address": second.address}
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        for config, message in [
            (good, "client_config holds no 'output_listener'"),
            (good | {"output_listener": closed.socket}, "holds an already adopted or closed 'output_listener'"),
        ]:
            with pytest.raises(ValueError, match=message):
                adopt_listeners(config, pull, push)
        push.bind("tcp://127.0.0.1:0")
        with pytest.raises(ValueError, match="output_socket is bound already"):
            adopt_listeners(good | {"output_listener": second.socket}, pull, push)
        assert first.socket.fileno() >= 0
        assert pull.getsockopt(zmq.LAST_ENDPOINT) == b"\0" or not pull.getsockopt(zmq.LAST_ENDPOINT).strip(b"\0")


# --- API servers ------------------------------------------------------------------------------------------------------


def ask(context, inputs, outputs, request):
    with context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as answers:
        requests.connect(inputs)
        answers.connect(outputs)
        requests.send_json(request)
        assert answers.poll(30_000)
        answer = answers.recv_json()
        requests.send_json("stop")
        return answer


@pytest.mark.parametrize("by", ["keyword", "position"])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_servers_adopt_their_listeners(listeners, transport, by):
    inputs, outputs = listeners(transport, 2), listeners(transport, 2)
    first, more = ("", None, argparse.Namespace(), 2), {"target_server_fn": programs.adopting_server}
    if by == "keyword":
        manager = APIServerProcessManager(*first, input_listeners=inputs, output_listeners=outputs, **more)
    else:
        manager = APIServerProcessManager(*first, inputs, outputs, **more)
    assert [listener.socket.fileno() for listener in inputs + outputs] == [-1] * 4  # theirs now
    addresses = [x.address for x in inputs], [x.address for x in outputs]
    assert manager.gather_actual_addresses(0) == addresses
    with zmq.Context() as context:
        for index, pair in enumerate(zip(*addresses, strict=True)):
            answer = ask(context, *pair, "hello")
            assert answer["config"] == [
                *("api_server_loads", "client_count", "client_index", "input_address", "input_listener"),
                *("output_address", "output_listener"),
            ]
            assert answer["index"] == index
            assert answer["loads"] == [2**31 - 1] * 2
    for process in manager.processes:
        process.join(30)
    manager.shutdown()
    assert [process.exitcode for process in manager.processes] == [0, 0]
    for listener in inputs + outputs if transport == "ipc" else []:
        assert not os.path.exists(listener.address.removeprefix("ipc://"))


def test_one_server_alone_has_no_loads_to_compare(listeners):
    one, other = listeners("tcp", 2)
    options = {"input_listeners": [one], "output_listeners": [other], "target_server_fn": programs.adopting_server}
    manager = APIServerProcessManager("", None, argparse.Namespace(), 1, **options)
    with zmq.Context() as context:
        assert "api_server_loads" not in ask(context, one.address, other.address, "hello")["config"]
    manager.shutdown()


def test_listeners_that_only_look_like_ours(listeners):
    log = []

    def alike(listener):
        return SimpleNamespace(
            socket=listener.socket,
            address=listener.address,
            close=lambda: (log.append("close"), listener.close()),
            cleanup=lambda: (log.append("cleanup"), listener.cleanup()),
        )

    pair = [alike(listener) for listener in listeners("ipc", 2)]
    options = {"input_listeners": pair[:1], "output_listeners": pair[1:], "target_server_fn": programs.adopting_server}
    manager = APIServerProcessManager("", None, argparse.Namespace(), 1, **options)
    assert log == ["close", "close"]
    manager.shutdown()
    assert log == ["close", "close", "cleanup", "cleanup"]


@pytest.mark.parametrize("case", ["unequal", "mixed", "closed", "unpicklable", "count"])
def test_listeners_are_cleaned_up_when_the_start_fails(listeners, case):
    inputs, outputs = listeners("ipc", 2), listeners("ipc", 2)
    options = {"input_listeners": inputs, "output_listeners": outputs, "target_server_fn": programs.adopting_server}
    count = 2
    if case == "unequal":
        options["output_listeners"] = outputs[:1]
        message = "num_servers=2 needs as many listeners of each kind, but got 2 input_listeners and 1 output_listeners"
        error = ValueError
    elif case == "mixed":
        options["output_listeners"] = [outputs[0], "tcp://127.0.0.1:0"]
        message, error = r"output_listeners\[1\] must be a listener like the others", TypeError
    elif case == "closed":
        outputs[1].close()
        message, error = r"output_listeners\[1\] at ipc://.* is closed", ValueError
    elif case == "unpicklable":
        options["target_server_fn"] = lambda *_: None
        message, error = "cannot start API server process ApiServer_0", RuntimeError
    else:
        count, message, error = 0, "num_servers=0: it must be at least 1", ValueError
    with pytest.raises(error, match=message):
        APIServerProcessManager("", None, argparse.Namespace(), count, **options)
    for listener in inputs + [x for x in options["output_listeners"] if not isinstance(x, str)]:
        assert listener.socket.fileno() == -1
        assert not os.path.exists(listener.address.removeprefix("ipc://"))


def test_listeners_that_an_iterator_gives(listeners):
    inputs, outputs = listeners("tcp", 2), listeners("tcp", 2)
    options = {
        "input_listeners": iter(inputs),
        "output_listeners": dict(enumerate(outputs)).values(),
    }
    manager = APIServerProcessManager(
        "", None, argparse.Namespace(), 2, target_server_fn=programs.adopting_server, **options
    )
    assert manager.gather_actual_addresses(0) == ([x.address for x in inputs], [x.address for x in outputs])
    manager.shutdown(0)


def test_the_listeners_of_an_iterator_that_fails_are_cleaned_up(listeners):
    first, second = listeners("ipc", 2)

    def failing():
        yield first
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        APIServerProcessManager("", None, None, 2, input_listeners=failing(), output_listeners=[second])
    for listener in (first, second):
        assert listener.socket.fileno() == -1
        assert not os.path.exists(listener.address.removeprefix("ipc://"))


def test_both_names_of_one_argument(listeners):
    pair = listeners("tcp", 2)
    with pytest.raises(TypeError, match="input_addresses and input_listeners are one argument under two names"):
        APIServerProcessManager("", None, None, 1, input_addresses=["a"], input_listeners=pair, output_addresses=["b"])


def test_neither_name_of_an_argument():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'output_addresses'"):
        APIServerProcessManager("", None, None, 1, input_listeners=[])


# --- the Rust frontend ------------------------------------------------------------------------------------------------

FRONTEND = """
import json, os, socket, sys
def port(option):
    return socket.socket(fileno=int(sys.argv[sys.argv.index(option) + 1])).getsockname()[1]
options = [option for option in sys.argv if option.endswith("-fd")]
report = {"argv": sys.argv[1:], "ports": {option: port(option) for option in options}}
with open(os.environ["REPORT"], "w") as file:
    json.dump(report, file)
"""


@pytest.fixture
def frontend(tmp_path, monkeypatch):
    """(path of a frontend, function that waits for its report)."""
    path, pipe = tmp_path / "frontend", tmp_path / "report"
    path.write_text(f"#!{sys.executable}\n{FRONTEND}")
    path.chmod(0o755)
    os.mkfifo(pipe)
    monkeypatch.setenv("REPORT", str(pipe))
    return str(path), lambda: json.loads(pipe.read_text())


@pytest.mark.parametrize("by", ["keyword", "position"])
def test_a_frontend_inherits_its_listeners(listeners, frontend, by):
    binary, report = frontend
    one, other = listeners("tcp", 2)
    with socket.create_server(("127.0.0.1", 0)) as http, socket.create_server(("127.0.0.1", 0)) as grpc:
        descriptors = [s.fileno() for s in (http, one.socket, other.socket, grpc)]
        ports = [s.getsockname()[1] for s in (http, one.socket, other.socket, grpc)]
        args = argparse.Namespace(model="m", model_tag=None)
        more = {"data_parallel_size": 8, "stats_update_address": "ipc:///stats", "grpc_sock": grpc}
        if by == "keyword":
            more |= {"input_listener": one, "output_listener": other, "engine_start_index": 2, "engine_count": 4}
            manager = RustFrontendProcessManager(binary_path=binary, sock=http, args=args, **more)
        else:
            manager = RustFrontendProcessManager(binary, http, args, one, other, 2, 4, **more)
        seen = report()
        manager.shutdown()
    assert (one.socket.fileno(), other.socket.fileno()) == (-1, -1)
    names = ["--listen-fd", "--input-listener-fd", "--output-listener-fd", "--grpc-listen-fd"]
    assert seen["ports"] == dict(zip(names, ports, strict=True))
    assert seen["argv"] == [
        *("frontend", names[0], str(descriptors[0]), names[1], str(descriptors[1]), names[2], str(descriptors[2])),
        *("--engine-start-index", "2", "--engine-count", "4", "--data-parallel-size", "8"),
        *(names[3], str(descriptors[3]), "--coordinator-address", "ipc:///stats"),
        "--args-json",
        '{"engine_ready_timeout_secs": 600, "http_timeout_keep_alive": 5, "model": "m", "model_tag": "m"}',
    ]


def test_the_data_parallel_size_alone(frontend):
    binary, report = frontend
    with socket.create_server(("127.0.0.1", 0)) as http:
        args = argparse.Namespace(model="m")
        manager = RustFrontendProcessManager(binary, http, args, "a", "b", 0, 1, data_parallel_size=2)
        argv = report()["argv"]
        manager.shutdown()
    assert argv[-6:-2] == ["--engine-count", "1", "--data-parallel-size", "2"]
    assert "model_tag" not in argv[-1]


def test_the_listeners_of_a_frontend_that_cannot_start(listeners):
    one, other = listeners("ipc", 2)
    with socket.create_server(("127.0.0.1", 0)) as http, pytest.raises(FileNotFoundError):
        RustFrontendProcessManager("/nowhere/frontend", http, argparse.Namespace(), one, other, 0, 1)
    for listener in (one, other):
        assert not os.path.exists(listener.address.removeprefix("ipc://"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"engine_start_index": -1}, ValueError, "engine_start_index=-1: it must be at least 0"),
        ({"engine_count": 0}, ValueError, "engine_count=0: it must be at least 1"),
        ({"engine_count": True}, TypeError, "engine_count must be an integer, not True"),
        ({"data_parallel_size": 0}, ValueError, "data_parallel_size=0: it must be at least 1"),
        ({"stats_update_address": 8}, TypeError, "data_parallel_size is passed by keyword"),
    ],
)
def test_arguments_that_cannot_be(change, error, message):
    with socket.create_server(("127.0.0.1", 0)) as http:
        arguments = {"engine_start_index": 0, "engine_count": 1} | change
        with pytest.raises(error, match=message):
            RustFrontendProcessManager("/bin/true", http, argparse.Namespace(), "a", "b", **arguments)


def test_a_listener_and_an_address(listeners):
    (one,) = listeners("tcp", 1)
    with socket.create_server(("127.0.0.1", 0)) as http, pytest.raises(TypeError, match="output_listener must be"):
        RustFrontendProcessManager("/bin/true", http, argparse.Namespace(), one, "tcp://127.0.0.1:1", 0, 1)
    assert one.socket.fileno() == -1
