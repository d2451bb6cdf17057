"""report_bound_addresses, on the child's side."""

from multiprocessing import Pipe

import pytest

from fastutils.processes import report_bound_addresses

zmq = pytest.importorskip("zmq")


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


@pytest.fixture
def sockets(context):
    pair = context.socket(zmq.ROUTER), context.socket(zmq.PULL)
    for socket in pair:
        socket.bind("tcp://127.0.0.1:0")
    return pair


@pytest.fixture
def pipe():
    reader, writer = Pipe(duplex=False)
    with reader, writer:
        yield reader, writer


def test_both_addresses_are_sent_and_the_pipe_is_closed(sockets, pipe):
    reader, writer = pipe
    report_bound_addresses({"actual_address_pipe": writer}, *sockets)
    ports = [socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode() for socket in sockets]
    assert reader.recv() == {"input_address": ports[0], "output_address": ports[1]}
    assert writer.closed


def test_sockets_of_asyncio(pipe):
    from zmq.asyncio import Context

    reader, writer = pipe
    with Context() as context, context.socket(zmq.ROUTER) as first, context.socket(zmq.PULL) as second:
        first.bind("tcp://127.0.0.1:0")
        second.bind("tcp://127.0.0.1:0")
        report_bound_addresses({"actual_address_pipe": writer}, first, second)
    assert set(reader.recv()) == {"input_address", "output_address"}


def test_a_second_report(sockets, pipe):
    config = {"actual_address_pipe": pipe[1]}
    report_bound_addresses(config, *sockets)
    with pytest.raises(ValueError, match="client_config holds an already closed 'actual_address_pipe'"):
        report_bound_addresses(config, *sockets)


def test_a_configuration_without_a_pipe(sockets):
    with pytest.raises(ValueError, match="client_config holds no 'actual_address_pipe'"):
        report_bound_addresses({}, *sockets)


@pytest.mark.parametrize("unbound", [0, 1])
def test_an_unbound_socket(context, sockets, pipe, unbound):
    pair = list(sockets)
    with context.socket(zmq.PULL) as pair[unbound]:
        name = ("input_socket", "output_socket")[unbound]
        with pytest.raises(ValueError, match=f"{name} is not bound; bind it before its address is reported"):
            report_bound_addresses({"actual_address_pipe": pipe[1]}, *pair)
    assert not pipe[1].closed  # it can be reported still


def test_a_parent_that_is_gone(sockets, pipe):
    reader, writer = pipe
    reader.close()
    with pytest.raises(BrokenPipeError):
        report_bound_addresses({"actual_address_pipe": writer}, *sockets)
    assert writer.closed
