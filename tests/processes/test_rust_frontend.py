"""RustFrontendProcessManager, with small scripts in place of the Rust binary."""

import argparse
import dataclasses
import json
import logging
import multiprocessing
import os
import socket
import stat
import sys
import textwrap

import pytest

from fastutils import RustFrontendProcessManager, wait_for_completion_or_failure
from fastutils.processes import rust_frontend
from fastutils.processes.rust_frontend import non_default_arguments

#: Writes its arguments and what it finds behind the listening descriptor into the file REPORT.
FRONTEND = """
import json, os, signal, socket, sys, time
fd = int(sys.argv[sys.argv.index("--listen-fd") + 1])
others = []
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and int(name) != fd and os.path.exists(f"/proc/self/fd/{name}"):
        others.append(os.readlink(f"/proc/self/fd/{name}"))
report = {"argv": sys.argv[1:], "port": socket.socket(fileno=os.dup(fd)).getsockname()[1], "others": others}
THEN
with open(os.environ["REPORT"], "w") as file:
    json.dump(report, file)
"""


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A pipe in the file system: opening it for reading waits until a frontend has written its report."""
    path = tmp_path / "report"
    os.mkfifo(path)
    monkeypatch.setenv("REPORT", str(path))
    return lambda: json.loads(path.read_text())


@pytest.fixture
def binary(tmp_path):
    def make(then=""):
        path = tmp_path / "frontend"
        path.write_text(f"#!{sys.executable}\n{FRONTEND.replace('THEN', textwrap.dedent(then))}")
        path.chmod(0o755)
        return str(path)

    return make


def start(binary, listener, args=None, *more, manager=RustFrontendProcessManager):
    return manager(binary, listener, args or argparse.Namespace(), "ipc:///in", "ipc:///out", 2, 4, *more)


@pytest.mark.usefixtures("announcement")
def test_the_command_the_descriptor_and_the_end(binary, listener, report, monkeypatch):
    monkeypatch.delenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", raising=False)
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "30")
    args = argparse.Namespace(
        model="m",
        api_server_count=2,
        data_parallel_rank=1,
        data_parallel_external_lb=True,
        data_parallel_hybrid_lb=True,
        absent=None,
        dispatch_function=print,
        a_list=("x", 1),
    )
    manager = start(binary(), listener, args, "ipc:///stats")
    argv = report()["argv"]
    assert argv[:-1] == [
        *("frontend", "--listen-fd", str(listener.fileno()), "--input-address", "ipc:///in"),
        *("--output-address", "ipc:///out", "--engine-start-index", "2", "--engine-count", "4"),
        *("--coordinator-address", "ipc:///stats", "--args-json"),
    ]
    assert argv[-1] == (
        '{"a_list": ["x", 1], "engine_ready_timeout_secs": 30, "http_timeout_keep_alive": 5, "model": "m"}'
    )
    (process,) = manager.processes
    assert process.name == "RustFrontend"
    wait_for_completion_or_failure(manager)
    assert process.exitcode == 0
    manager.shutdown()


def test_only_the_listening_descriptor_is_inherited_and_only_by_the_frontend(binary, listener, report):
    manager = start(binary(), listener)
    seen = report()
    assert seen["port"] == listener.getsockname()[1]
    assert seen["others"] == []
    assert "--coordinator-address" not in seen["argv"]
    assert not os.get_inheritable(listener.fileno())
    wait_for_completion_or_failure(manager)


def test_a_frontend_that_fails(binary, listener, report):
    manager = start(binary("import atexit; atexit.register(os._exit, 9)"), listener)
    report()
    with pytest.raises(RuntimeError, match=r"^Process RustFrontend \(PID: \d+\) died with exit code 9$"):
        wait_for_completion_or_failure(manager)


def test_shutdown_asks_first(binary, listener, report):
    program = """
    import threading
    threading.Thread(target=time.sleep, args=(600,)).start()
    """
    manager = start(binary(program), listener)
    report()
    assert manager.processes[0].is_alive()
    manager.shutdown()
    assert manager.processes[0].exitcode == -15
    manager.shutdown()


@pytest.mark.parametrize(("timeout", "grace"), [(None, 5.0), (0, 5.0), (4.9, 5.0), (30, 30.0)])
def test_the_grace_is_at_least_5_seconds(binary, listener, report, monkeypatch, timeout, grace):
    manager = start(binary(), listener)
    report()
    wait_for_completion_or_failure(manager)
    seen = []
    monkeypatch.setattr(rust_frontend, "end_all", lambda processes, grace_s, *more: seen.append(grace_s))
    manager.shutdown(timeout)
    assert seen == [grace]


def test_an_impossible_timeout(binary, listener, report):
    manager = start(binary(), listener)
    report()
    with pytest.raises(ValueError, match="is not a finite, non-negative number"):
        manager.shutdown(-1)
    wait_for_completion_or_failure(manager)


def test_a_forgotten_frontend_ends(binary, listener, report):
    manager = start(binary("import threading; threading.Thread(target=time.sleep, args=(600,)).start()"), listener)
    report()
    (process,) = manager.processes
    del manager
    assert process.exitcode == -15


# --- a start that fails -----------------------------------------------------------------------------------------------


def test_no_binary(tmp_path, listener):
    with pytest.raises(FileNotFoundError, match=r"cannot start the Rust frontend \(No such file.*missing") as caught:
        start(str(tmp_path / "missing"), listener)
    assert caught.value.filename == str(tmp_path / "missing")


def test_a_binary_that_may_not_be_run(binary, listener):
    path = binary()
    os.chmod(path, stat.S_IRUSR)
    with pytest.raises(PermissionError, match=r"cannot start the Rust frontend .*executable"):
        start(path, listener)


def test_a_binary_for_another_machine(tmp_path, listener):
    path = tmp_path / "frontend"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)
    with pytest.raises(
        OSError, match=r"cannot start the Rust frontend \(Exec format error\); is it a program for this"
    ):
        start(str(path), listener)


def test_a_closed_socket(binary):
    sock = socket.socket()
    sock.close()
    with pytest.raises(ValueError, match=r"the listening socket .* is closed"):
        start(binary(), sock)


# --- arguments --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    model: str = "small"
    count: int = 1
    tags: list = dataclasses.field(default_factory=list)
    needed: str = dataclasses.field(kw_only=True)


def test_the_defaults_of_a_dataclass_are_its_fields():
    assert non_default_arguments(Options(needed="x"), {}) == {"needed": "x"}
    assert non_default_arguments(Options(count=2, tags=["a"], needed="x"), {}) == {
        "count": 2,
        "tags": ["a"],
        "needed": "x",
    }


def test_the_defaults_of_a_namespace_are_given_by_a_subclass(binary, listener, report):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="small")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--eager", action="store_true")

    class Mine(RustFrontendProcessManager):
        argument_defaults = vars(parser.parse_args([]))

    manager = start(binary(), listener, parser.parse_args(["--port", "9"]), manager=Mine)
    given = json.loads(report()["argv"][-1])
    assert given == {"port": 9, "engine_ready_timeout_secs": 600, "http_timeout_keep_alive": 5}
    wait_for_completion_or_failure(manager)


def test_false_is_not_0_and_1_is_not_true():
    args = argparse.Namespace(a=0, b=1, c=False, d=1.0)
    assert non_default_arguments(args, {"a": False, "b": True, "c": False, "d": 1}) == {"a": 0, "b": 1, "d": 1.0}


def test_within_vllm_its_own_converter_tells_the_defaults(monkeypatch):
    from types import ModuleType

    names = "vllm vllm.entrypoints vllm.entrypoints.serve vllm.entrypoints.serve.utils"
    for name in [*names.split(), "vllm.entrypoints.serve.utils.api_utils"]:
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    args = argparse.Namespace(model="m")
    assert non_default_arguments(args, {}) == {"model": "m"}  # a vLLM without it
    module.jsonify_non_default_args = lambda given: {"seen": given is args}
    assert non_default_arguments(args, {}) == {"seen": True}


def test_arguments_of_another_kind():
    with pytest.raises(TypeError, match=r"args must be an argparse\.Namespace or a dataclass, not dict"):
        non_default_arguments({}, {})


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_the_log_names_the_forwarded_arguments_and_shows_no_value(binary, listener, report, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    secret = "S3CR3T"
    args = argparse.Namespace(
        model=f"org/{secret}",
        api_key=[secret],
        proxy=f"http://host/{secret}",
        nested={secret: {"innocent": secret}},
        headers=[f"X-Innocent: {secret}"],
        api_server_count=2,
    )
    manager = start(binary(), listener, args)
    assert secret in report()["argv"][-1]  # the frontend needs them
    wait_for_completion_or_failure(manager)
    manager.shutdown()
    with pytest.raises(FileNotFoundError) as caught:
        start("/nowhere/frontend", listener, args)
    logged = caplog.text + "".join(capfd.readouterr())
    assert secret not in logged + str(caught.value)
    (first, second) = [record.getMessage() for record in caplog.records if "Launching" in record.getMessage()]
    names = ["api_key", "engine_ready_timeout_secs", "headers", "http_timeout_keep_alive", "model", "nested", "proxy"]
    shown = json.dumps(dict.fromkeys(names, "***"))
    assert first.endswith(f"/frontend, with the arguments {shown}")
    assert second == f"Launching Rust frontend: /nowhere/frontend, with the arguments {shown}"


@pytest.mark.parametrize(
    ("model", "shown"),
    [("org/model-7B_v1.5", "org/model-7B_v1.5"), ("https://me:secret@host/model", "***"), ("a?token=b", "***")],
)
def test_the_log_shows_the_models_name(model, shown):
    assert rust_frontend._without_values({"model_tag": model, "hf_token": "hf_x"}) == {
        "model_tag": shown,
        "hf_token": "***",
    }


def test_multiprocessing_can_wait_for_a_frontend(binary, listener, report):
    manager = start(binary(), listener)
    report()
    (process,) = manager.processes
    assert multiprocessing.connection.wait([process.sentinel], 60) == [process.sentinel]
    process.join()
