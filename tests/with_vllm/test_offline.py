"""Generation in one process: the same tokens with and without the plugin, and ours are what is called."""

import json
from pathlib import Path

import pytest

GENERATE = Path(__file__).with_name("generate.py")
CORE = ("ConstantList", "CpuGpuBuffer", "copy_slice", "tensor_data", "record_function_or_nullcontext")


@pytest.fixture(scope="module")
def run(python, model):
    """One run of `generate.py` for each set of arguments; the engine's start is what takes the time."""
    done = {}

    def run_once(configuration, *options, **variables):
        key = (configuration, *options, *variables.items())
        if key not in done:
            output = python(GENERATE, model, configuration, *options, **variables)
            (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
            done[key] = json.loads(line.removeprefix("RESULT ")) | {"log": output}
        return done[key]

    return run_once


def with_and_without(run, configuration):
    # Counting puts Python in front of the compiled forms, so one configuration goes without.
    options = ["--count"] if configuration == "wide" else []
    return run(configuration, *options), run(configuration, FASTUTILS_VLLM="0")


@pytest.mark.parametrize("configuration", ["wide", "tight"])
def test_the_same_tokens(run, configuration):
    ours, theirs = with_and_without(run, configuration)
    assert set(CORE) <= set(ours["served"])
    assert theirs["served"] == []
    assert theirs["summary"] == "nothing replaced: FASTUTILS_VLLM switches it off"
    assert ours["digests"] == theirs["digests"]
    assert ours["metrics"] == theirs["metrics"]
    assert ours["steps"] == theirs["steps"]


@pytest.mark.parametrize("configuration", ["wide", "tight"])
def test_the_same_tokens_with_staged_buffers(run, configuration):
    # Uncounted: what counts a buffer's copies would call the plain ones.
    staged, theirs = run(configuration, FASTUTILS_VLLM_STAGED="1"), run(configuration, FASTUTILS_VLLM="0")
    assert staged["staged"]
    assert staged["summary"].endswith("; buffers are staged")
    assert "CpuGpuBuffer" in staged["served"]
    assert staged["digests"] == theirs["digests"]
    assert staged["metrics"] == theirs["metrics"]
    assert staged["steps"] == theirs["steps"]
    # The runner for CPUs takes its buffers out of staging, and each of its lines that does so says that once.
    warned = [line for line in staged["log"].splitlines() if "leaves its staging group" in line]
    assert len(warned) == len(set(warned))


def test_scheduling_does_not_change_the_tokens(run):
    wide, tight = run("wide", "--count"), run("tight")
    for greedy in ("greedy", "penalties"):
        assert wide["digests"][greedy] == tight["digests"][greedy]
    assert wide["metrics"]["vllm:prefix_cache_hits"] > 0
    assert tight["metrics"]["vllm:num_preemptions"] > 0
    # Prompts are cut up only if there are more steps than tokens to generate.
    assert tight["greedy"]["steps"] > wide["greedy"]["steps"] == 64


def test_ours_are_called_in_every_step(run):
    ours, theirs = with_and_without(run, "wide")
    calls, steps = ours["greedy"]["calls"], ours["greedy"]["steps"]
    assert calls["record_function_or_nullcontext"] / steps > 64  # one per request, and some
    assert calls["ConstantList.__getitem__"] / steps > 64  # the last token of each request, and blocks to be hashed
    assert calls["compute_iteration_details"] == steps
    assert 5 <= calls["CpuGpuBuffer.copy_to_gpu"] / steps <= 12
    assert ours["calls"]["copy_slice"] > 0  # whenever the batch changes
    assert ours["calls"]["tensor_data"] > 0  # the hashes of embedded prompts
    assert theirs["calls"] == {}


def test_the_details_of_each_iteration_are_logged_alike(run):
    def details(result):
        lines = [line for line in result["log"].splitlines() if " Iteration(" in line]
        return [line.partition("Iteration(")[2].partition(", iteration elapsed time")[0] for line in lines]

    ours, theirs = with_and_without(run, "wide")
    assert len(details(ours)) > 64
    assert details(ours) == details(theirs)


def test_one_line_tells_what_was_replaced(run):
    lines = [line for line in run("wide", "--count")["log"].splitlines() if "helpers of vLLM" in line]
    assert len([line for line in lines if "INFO" in line]) == 1
