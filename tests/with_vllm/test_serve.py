"""``vllm serve`` with two API servers and the plugin: it serves, and however it ends, it ends whole."""

import importlib.metadata
import signal

import psutil
import pytest
from process_ends import all_end
from server import END_S, Server

from fastutils.plugin import versions


def ours(name):
    """Whether the helper `name` is ours in the vLLM that is installed."""
    return versions.form_in(name, versions.public_part(importlib.metadata.version("vllm"))).variant is not None


@pytest.fixture
def start(model, tmp_path, quiet_environment):
    """Starts a server, with more environment variables, that is ended after the test."""
    started = []

    def start_one(**variables):
        started.append(Server(model, tmp_path / "log", quiet_environment | variables))
        return started[-1]

    yield start_one
    for server in started:
        server.end()


@pytest.fixture
def server(start):
    started = start()
    started.wait_until_ready()
    return started


def test_it_serves_and_ends_at_sigterm(server):
    # In every process: the parent, two API servers, the engine core and its worker.
    lines = [line for line in server.text().splitlines() if "helpers of vLLM" in line]
    assert len(lines) == 5, lines
    assert len({line.partition(" INFO ")[0] for line in lines}) == 5
    assert {line.partition("helpers of vLLM")[2] for line in lines} == {lines[0].partition("helpers of vLLM")[2]}

    prompts = [f"Number {index}" for index in range(200)]
    tokens = server.complete_many(prompts)
    assert [len(each) for each in tokens] == [16] * 200
    assert server.complete_many(prompts[:8]) == tokens[:8]

    server.parent.send_signal(signal.SIGTERM)
    assert server.parent.wait(END_S) == 0
    server.wait_until_gone()
    # At SIGTERM vLLM itself ends the engine first and logs that its clients miss it; none of our frames is in there.
    assert "site-packages/fastutils/" not in server.text()


def test_the_death_of_an_api_server_ends_the_rest(server):
    (victim,) = server.named("APIServer_1")
    victim.kill()
    assert server.parent.wait(END_S) != 0
    server.wait_until_gone()
    text = server.text()
    assert f"ApiServer_1 (PID: {victim.pid}) died with exit code -9" in text
    if ours("wait_for_completion_or_failure"):
        assert "killed by SIGKILL" in text
    assert "exit code None" not in text


def test_the_death_of_the_parent_leaves_no_api_server(server):
    if not ours("APIServerProcessManager"):
        pytest.skip("this vLLM's own manager serves, and its API servers outlive their parent")
    assert len(server.named("APIServer")) == 2
    server.parent.kill()
    server.parent.wait(END_S)
    server.wait_for(lambda: not server.named("APIServer"), END_S, "the end of the API servers")


@pytest.mark.parametrize("moment", ["serving", "starting the engine"])
def test_the_death_of_the_parent_leaves_nothing_if_engines_are_guarded(start, moment):
    server = start(FASTUTILS_VLLM_GUARD_ENGINES="1")
    if moment == "serving":
        server.wait_until_ready()
        assert len(server.named("EngineCore")) == 1
        assert "the processes that vLLM starts from this one end with it" in server.text()
    else:  # long before it has come to load its plugins
        server.wait_for(lambda: engine_guards(server), END_S, "the start of the engine's guard")
        server.wait_for(lambda: server.named("spawn_main"), END_S, "the start of the engine")
    left = [*server.processes(), *engine_guards(server)]
    assert len(left) > 2
    server.parent.kill()
    server.parent.wait(END_S)
    assert all_end(left, 3), [process for process in left if process.is_running()]
    assert server.processes() == []


def engine_guards(server):
    """They lead sessions of their own."""
    descendants = psutil.Process(server.parent.pid).children(recursive=True)
    return [process for process in descendants if any("engine_guard.py" in word for word in command_of(process))]


def command_of(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
