"""run_api_server_worker_proc, with a stand-in for vLLM's package."""

import os
import subprocess
import sys
import textwrap

import pytest

import fastutils
from fastutils import run_api_server_worker_proc

SERVER = """
import sys
async def run_server_worker(listen_address, sock, args, client_config=None, **uvicorn_kwargs):
    print("first\\nsecond")
    print(listen_address, sock, args, client_config, uvicorn_kwargs, file=sys.stderr)
    try:
        import setproctitle
    except ImportError:
        pass
    else:
        print("title", setproctitle.getproctitle())
"""


def make_vllm(folder, module):
    path = folder
    for part in ("vllm", *module.split(".")[1:-1]):
        path = path / part
        path.mkdir()
        (path / "__init__.py").touch()
    (path / f"{module.rpartition('.')[2]}.py").write_text(SERVER)


PROGRAM = """
    from fastutils import run_api_server_worker_proc as run
    run("addr", None, ["args"], {"client_index": 4}, log_level="info")
"""


def run(folder, program=PROGRAM, **environment):
    packages = [str(folder), os.path.dirname(os.path.dirname(fastutils.__file__))]
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(packages), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("home", ["vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server"])
def test_it_runs_the_servers_coroutine_under_its_name(tmp_path, home):
    make_vllm(tmp_path, home)
    done = run(tmp_path, VLLM_PROCESS_NAME_PREFIX="Mine")
    assert done.returncode == 0, done.stderr
    label = done.stdout.split(") ")[0] + ") "
    assert label.startswith("(MainProcess pid=")
    assert done.stderr == f"{label}addr None ['args'] {{'client_index': 4}} {{'log_level': 'info'}}\n"
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"{label}first", f"{label}second"]
    if lines[2:]:
        assert lines[2:] == [f"{label}title Mine::APIServer_4"]


def test_logging_that_is_not_to_be_configured_is_left_alone(tmp_path):
    make_vllm(tmp_path, "vllm.entrypoints.openai.api_server")
    assert run(tmp_path, VLLM_CONFIGURE_LOGGING="0").stdout.startswith("first\nsecond\n")


def test_a_vllm_without_a_server(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    done = run(tmp_path)
    assert (
        "ImportError: this vLLM has no run_server_worker in vllm.entrypoints.launchers.api_server.entry or"
        in done.stderr
    )


def test_a_vllm_that_lacks_a_requirement_says_which(tmp_path):
    make_vllm(tmp_path, "vllm.entrypoints.openai.api_server")
    (tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text("import a_missing_requirement")
    assert "ModuleNotFoundError: No module named 'a_missing_requirement'" in run(tmp_path).stderr


def test_without_vllm(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "vllm" else find(name, *a))
    with pytest.raises(ImportError, match="vLLM is not installed here; pass your own server as target_server_fn"):
        run_api_server_worker_proc("", None, None)


@pytest.mark.parametrize(("config", "told"), [("'log.json'", ["log.json"]), ("None", [])])
def test_logging_is_set_up_first_where_the_command_line_asks_for_it(tmp_path, config, told):
    make_vllm(tmp_path, "vllm.entrypoints.launchers.api_server.entry")
    (tmp_path / "vllm" / "logger.py").write_text("def configure_logging(config): print('configured', config)")
    program = f"""
        import argparse
        from fastutils import run_api_server_worker_proc as run
        run("addr", None, argparse.Namespace(logging_config={config}))
    """
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("configured")] == told


def test_a_vllm_that_cannot_be_told_how_to_log(tmp_path):
    make_vllm(tmp_path, "vllm.entrypoints.openai.api_server")
    (tmp_path / "vllm" / "logger.py").touch()
    program = """
        import argparse
        from fastutils import run_api_server_worker_proc as run
        run("addr", None, argparse.Namespace(logging_config="log.json"))
    """
    assert run(tmp_path, program).returncode == 0
