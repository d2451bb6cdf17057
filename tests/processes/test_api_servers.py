"""APIServerProcessManager: start, readiness, end."""

import argparse
import copy
import itertools
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import weakref
from multiprocessing import Pipe
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import server_programs as programs
from process_ends import all_end

from fastutils import APIServerProcessManager

ARGS = argparse.Namespace(model="m", api_key="k")


def start(program, count=1, args=ARGS, sock=None, addresses=None, **more):
    addresses = addresses or ["tcp://127.0.0.1:0"] * count
    return APIServerProcessManager("listen", sock, args, count, addresses, addresses, target_server_fn=program, **more)


@pytest.fixture
def started():
    """`start`, with each manager shut down after the test."""
    managers = []

    def begin(*args, **kwargs):
        managers.append(start(*args, **kwargs))
        return managers[-1]

    yield begin
    while managers:
        managers.pop().shutdown(0)


# --- the children and what they get ----------------------------------------------------------------------------------


def test_servers_bind_real_sockets_report_them_and_serve(started):
    zmq = pytest.importorskip("zmq")
    with socket.create_server(("127.0.0.1", 0)) as listener, zmq.Context() as context:
        manager = started(
            programs.echo_server,
            3,
            sock=listener,
            stats_update_address="tcp://127.0.0.1:9",
            tensor_queue="a queue",
        )
        assert [process.name for process in manager.processes] == ["ApiServer_0", "ApiServer_1", "ApiServer_2"]
        inputs, outputs = manager.gather_actual_addresses(30)
        assert len({*inputs, *outputs}) == 6
        assert all(re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d*", address) for address in inputs + outputs)
        for index, (to, back) in enumerate(zip(inputs, outputs, strict=True)):
            with context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as answers:
                requests.connect(to)
                answers.connect(back)
                requests.send_json("hello")
                assert answers.poll(30_000)
                assert answers.recv_json() == {
                    "index": index,
                    "count": 3,
                    "config": [
                        "actual_address_pipe",
                        "client_count",
                        "client_index",
                        "input_address",
                        "output_address",
                        "stats_update_address",
                        "tensor_queue",
                    ],
                    "args": {"model": "m", "api_key": "k"},
                    "listen_address": "listen",
                    "socket": listener.getsockname()[1],
                    "modules": [],  # supervision loads nothing heavy into a worker
                    "request": "hello",
                }
                requests.send_json("stop")
        for process in manager.processes:
            process.join(30)
        assert [process.exitcode for process in manager.processes] == [0, 0, 0]
        assert listener.fileno() >= 0  # stays the caller's


def test_options_that_are_not_given_are_absent(started):
    zmq = pytest.importorskip("zmq")
    manager = started(programs.echo_server)
    (to,), (back,) = manager.gather_actual_addresses(30)
    with zmq.Context() as context, context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as answers:
        requests.connect(to)
        answers.connect(back)
        requests.send_json("hello")
        assert answers.poll(30_000)
        config = answers.recv_json()["config"]
    assert config == ["actual_address_pipe", "client_count", "client_index", "input_address", "output_address"]


def test_ipc_addresses(started, short_folder):
    pytest.importorskip("zmq")
    addresses = [f"ipc://{short_folder}/in"], [f"ipc://{short_folder}/out"]
    manager = APIServerProcessManager("l", None, ARGS, 1, *addresses, target_server_fn=programs.echo_server)
    assert manager.gather_actual_addresses(30) == addresses
    manager.shutdown()


def test_reports_are_kept_by_client_index(started):
    addresses = [f"tcp://127.0.0.1:{port}" for port in (11, 12, 13)]
    manager = started(programs.report_and_exit, 3, addresses=addresses)
    assert manager.gather_actual_addresses(30) == (addresses, addresses)
    manager.shutdown()
    assert manager.gather_actual_addresses(0) == (addresses, addresses)


@pytest.mark.usefixtures("announcement")
def test_a_report_counts_even_if_its_sender_ended_right_after(started):
    manager = started(programs.report_and_exit, 2)
    for process in manager.processes:
        process.join(30)
    assert manager.gather_actual_addresses(0)[0] == ["tcp://127.0.0.1:0"] * 2


def test_a_server_whose_module_cannot_be_used_fails_by_itself(started):
    manager = started(programs.raise_error)
    with pytest.raises(
        RuntimeError, match=r"^API server process ApiServer_0 exited \(code=1\) before reporting its bound ZMQ"
    ):
        manager.gather_actual_addresses(30)


# --- readiness that does not come ------------------------------------------------------------------------------------

EXITED = r"^API server process ApiServer_0 exited \(code={}\) before reporting its bound ZMQ addresses{}$"
WRONG = r"^API server ApiServer_0 \(PID: \d+\) sent something else than its bound ZMQ addresses, .*{}"


@pytest.mark.usefixtures("announcement")
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (programs.exit_with_7, EXITED.format(7, "")),
        (programs.exit_cleanly, EXITED.format(0, "")),
        (programs.kill_self, EXITED.format(-9, r": killed by SIGKILL \(the kernel's out-of-memory killer .*\)")),
        (programs.send_partial_message_and_die, EXITED.format(5, "")),
        (
            programs.close_pipe_and_wait,
            r"^API server ApiServer_0 closed its address pipe without reporting its bound ZMQ addresses; "
            r"the process \(PID: \d+\) still runs$",
        ),
        (programs.close_everything_and_wait, "^API server ApiServer_0 closed its address pipe without reporting"),
        (programs.send_wrong_type, WRONG.format("something of type list")),
        (programs.send_half_a_dictionary, WRONG.format(r"with the keys \['input_address'\]")),
        (programs.send_garbage, WRONG.format("a message that cannot be unpickled")),
        (programs.send_absurd_length, WRONG.format("claims a length of -1 bytes")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_server_that_does_not_report(started, program, message):
    manager = started(program)
    with pytest.raises(RuntimeError, match=message):
        manager.gather_actual_addresses(30)


@pytest.mark.parametrize("program", [programs.wait_silently, programs.send_partial_message_and_wait])
def test_nobody_waits_past_the_deadline(started, program):
    manager = started(program, 2)
    message = (
        "Timed out after 0.1s waiting for API server(s) to report bound ZMQ addresses: ['ApiServer_0', 'ApiServer_1']"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        manager.gather_actual_addresses(0.1)


def test_the_timeout_names_only_the_missing_and_can_be_followed_by_another_try(started):
    manager = started(programs.first_reports_others_wait, 2)
    missing = ["ApiServer_0", "ApiServer_1"]
    while missing == ["ApiServer_0", "ApiServer_1"]:
        with pytest.raises(RuntimeError, match="Timed out after 0") as caught:
            manager.gather_actual_addresses(0.05)
        missing = re.findall(r"ApiServer_\d", str(caught.value))
    assert missing == ["ApiServer_1"]
    os.kill(manager.processes[1].pid, signal.SIGTERM)
    with pytest.raises(RuntimeError, match=r"ApiServer_1 exited \(code=-15\) before .*: killed by SIGTERM$"):
        manager.gather_actual_addresses(30)


def test_the_default_timeout_is_the_environments(started, monkeypatch):
    manager = started(programs.wait_silently)
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "0")
    with pytest.raises(RuntimeError, match=r"Timed out after 0\.0s"):
        manager.gather_actual_addresses()
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "-3")
    with pytest.raises(ValueError, match="VLLM_ENGINE_READY_TIMEOUT_S=-3 is not a finite, non-negative number"):
        manager.gather_actual_addresses()


def test_a_grandchild_that_holds_the_pipe_open_does_not_hide_the_exit(started):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("needs process descriptors")
    pids, pid_pipe = Pipe(duplex=False)
    release_pipe, release = Pipe(duplex=False)
    with pids, pid_pipe, release_pipe, release:
        args = argparse.Namespace(pid_pipe=pid_pipe, release_pipe=release_pipe)
        manager = started(programs.leave_grandchild_and_die, args=args)
        with pytest.raises(RuntimeError, match=EXITED.format(3, "")):
            manager.gather_actual_addresses(30)
        assert pids.poll(30)
        grandchild = psutil.Process(pids.recv())
        release.send(None)
        assert all_end([grandchild])


def test_after_a_shutdown_nothing_more_is_reported(started):
    manager = started(programs.wait_silently)
    manager.shutdown(1)
    with pytest.raises(RuntimeError, match="the API servers were shut down before all had reported"):
        manager.gather_actual_addresses(1)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_impossible_timeouts(started, timeout):
    manager = started(programs.report_and_wait)
    for call in (manager.gather_actual_addresses, manager.shutdown):
        with pytest.raises(ValueError, match=r"timeout=(-1|nan|inf) is not a finite, non-negative number of seconds"):
            call(timeout)
        with pytest.raises(TypeError, match="timeout must be a number of seconds, not '1'"):
            call("1")
    assert manager.processes[0].is_alive()


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]", "[::ffff:0.0.0.0]"])
def test_a_wildcard_that_is_reported(started, host):
    address = f"tcp://{host}:5555"
    manager = started(programs.report_and_wait, addresses=[address])
    message = rf"^API server ApiServer_0 \(PID: \d+\) reported {re.escape(address)}, which stands for every interface"
    with pytest.raises(RuntimeError, match=message):
        manager.gather_actual_addresses(30)


def test_the_first_report_counts_and_a_second_fails_where_it_is_sent(started):
    manager = started(programs.report_until_it_fails)
    assert manager.gather_actual_addresses(30) == (["tcp://127.0.0.1:0"], ["1"])
    manager.processes[0].join(30)
    assert manager.processes[0].exitcode == 11
    assert manager.gather_actual_addresses(0) == (["tcp://127.0.0.1:0"], ["1"])


def of_both_kinds(kind):
    inputs, outputs = ["ipc:///in0", "ipc:///in1"], ["ipc:///out0", "ipc:///out1"]
    if kind == "dictionary views":
        return dict.fromkeys(inputs).keys(), dict(enumerate(outputs)).values()
    if kind == "one iterator":  # which is taken from in turns, as zip does
        both = iter(["ipc:///in0", "ipc:///out0", "ipc:///in1", "ipc:///out1"])
        return both, both
    if kind == "iterators":
        return iter(inputs), iter(outputs)
    return (address for address in inputs), (address for address in outputs)


@pytest.mark.parametrize("kind", ["iterators", "generators", "dictionary views", "one iterator"])
def test_addresses_that_are_no_list(kind):
    inputs, outputs = of_both_kinds(kind)
    manager = APIServerProcessManager("", None, ARGS, 2, inputs, outputs, target_server_fn=programs.report_and_wait)
    assert manager.gather_actual_addresses(30) == (["ipc:///in0", "ipc:///in1"], ["ipc:///out0", "ipc:///out1"])
    manager.shutdown()


# --- a start that fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "inputs", "outputs"), [(2, 2, 1), (2, 1, 2), (3, 2, 2), (1, 2, 2)], ids=lambda value: str(value)
)
def test_unequal_address_lists(count, inputs, outputs):
    message = (
        f"num_servers={count} needs as many addresses of each kind, "
        f"but got {inputs} input_addresses and {outputs} output_addresses"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        APIServerProcessManager("", None, ARGS, count, ["a"] * inputs, ["b"] * outputs)


def test_endless_addresses():
    with pytest.raises(ValueError, match=r"^num_servers=1 needs .*, but got 65536 input_addresses and 1 output_addr"):
        APIServerProcessManager("", None, ARGS, 1, itertools.repeat("a"), ["b"])


def test_addresses_that_cannot_be_gone_through():
    with pytest.raises(TypeError, match=r"^output_addresses must be addresses, one for each server, not 5$"):
        APIServerProcessManager("", None, ARGS, 1, ["a"], 5)


@pytest.mark.parametrize("count", [0, -1])
def test_too_few_servers(count):
    with pytest.raises(ValueError, match=rf"^num_servers={count}: it must be at least 1$"):
        APIServerProcessManager("", None, ARGS, count, [], [])


@pytest.mark.parametrize("count", ["2", 1.0, None, True])
def test_a_number_of_servers_that_is_none(count):
    with pytest.raises(TypeError):
        APIServerProcessManager("", None, ARGS, count, ["a"], ["b"])


def test_a_target_that_is_no_function():
    with pytest.raises(TypeError, match="target_server_fn must be callable, not 'serve'"):
        start("serve")


def test_an_unpicklable_target():
    with pytest.raises(
        RuntimeError, match=r"^cannot start API server process ApiServer_0 \(1 of 2\): .*lambda.*; the 0 started"
    ):
        start(lambda *_: None, 2)


class PicklesTwice:
    """Arguments of which only two copies can be made."""

    def __init__(self):
        self.children = []

    def __reduce__(self):
        self.children = multiprocessing.active_children()
        if len(self.children) == 2:
            raise pickle.PicklingError("the third does not pickle")
        return PicklesTwice, ()


def test_a_third_server_that_cannot_start_ends_the_two_before_it():
    args = PicklesTwice()
    message = r"ApiServer_2 \(3 of 4\): .*the third does not pickle.*; the 2 started before it were ended$"
    with pytest.raises(RuntimeError, match=message) as caught:
        start(programs.wait_silently, 4, args=args)
    assert isinstance(caught.value.__cause__, pickle.PicklingError)
    assert [process.exitcode for process in args.children] == [-15, -15]


def test_an_argument_that_fails_in_the_child_is_told_apart_by_its_exit_code(started, capfd):
    manager = started(programs.wait_silently, args=argparse.Namespace(bad=programs.Unloadable()))
    with pytest.raises(RuntimeError, match=EXITED.format(1, "")):
        manager.gather_actual_addresses(30)
    assert "LookupError: not on this side" in capfd.readouterr().err


def test_the_parent_is_watched_before_anything_of_the_callers_is_loaded(started):
    manager = started(programs.report_whether_watched, args=programs.NotesTheWatch())
    assert manager.gather_actual_addresses(30)[1] == ["watched before loading: True"]


def test_admission_counters_are_shared_within_a_vllm_that_has_them(started, monkeypatch):
    zmq = pytest.importorskip("zmq")
    args = argparse.Namespace(max_num_queued_reqs=9)
    module = ModuleType("vllm.v1.engine.admission_control")
    module.SharedAdmissionStats = SimpleNamespace(num_counters=lambda servers: 3 * servers)

    def config_of(count):
        manager = started(programs.echo_server, count, args=args)
        inputs, outputs = manager.gather_actual_addresses(30)
        with zmq.Context() as context, context.socket(zmq.PUSH) as requests, context.socket(zmq.PULL) as answers:
            requests.connect(inputs[0])
            answers.connect(outputs[0])
            requests.send_json("hello")
            assert answers.poll(30_000)
            return answers.recv_json()["config"]

    assert "mp_admission_counters" not in config_of(2)  # no vLLM
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    assert "mp_admission_counters" not in config_of(2)  # one without admission control
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert "mp_admission_counters" in config_of(2)
    assert "mp_admission_counters" not in config_of(1)  # nobody to share with


# --- the end ---------------------------------------------------------------------------------------------------------


def test_shutdown_asks_first(started):
    manager = started(programs.report_and_wait, 2)
    manager.gather_actual_addresses(30)
    manager.shutdown()
    assert [process.exitcode for process in manager.processes] == [-signal.SIGTERM] * 2
    manager.shutdown()  # once is enough


def test_shutdown_kills_what_does_not_listen_with_all_that_it_started(started, caplog):
    manager = started(programs.report_from_stubborn_grandchild, 2)
    grandchildren = [psutil.Process(int(pid)) for pid in manager.gather_actual_addresses(30)[1]]
    manager.shutdown(0.05)
    assert [process.exitcode for process in manager.processes] == [-signal.SIGKILL] * 2
    assert all_end(grandchildren)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(
        r"2 process\(es\) did not end in time and are killed: ApiServer_0 \(PID: \d+\), ApiServer_1", warning
    )


def test_a_manager_that_is_forgotten_ends_its_servers():
    manager = start(programs.report_and_wait, 2)
    manager.gather_actual_addresses(30)
    processes, reference = list(manager.processes), weakref.ref(manager)
    del manager
    assert reference() is None
    assert [process.exitcode for process in processes] == [-signal.SIGTERM] * 2


def test_a_fork_of_the_parent_does_not_end_the_servers(started):
    manager = started(programs.report_and_wait)
    manager.gather_actual_addresses(30)
    child = os.fork()
    if child == 0:
        try:
            manager.shutdown(0)
            manager._clean_up.finalizer()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert manager.processes[0].is_alive()


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_manager_is_not_copied(started, act):
    manager = started(programs.report_and_wait)
    with pytest.raises(TypeError, match="APIServerProcessManager: a manager can be neither copied nor pickled"):
        act(manager)
    assert manager.gather_actual_addresses(30)
