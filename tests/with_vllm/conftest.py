"""A real vLLM without a GPU and without a network. Skipped where vLLM is not installed; see ``make test-vllm``.

This folder is not called vllm: Python would take it for the package.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: One engine start takes half a minute on two free cores, and the machine may not be free.
DEADLINE_S = 900


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed; make test-vllm has it"))


@pytest.fixture(scope="session")
def quiet_environment(tmp_path_factory):
    """Environment variables for a vLLM that asks no server for anything and leaves nothing in the home folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "FASTUTILS_"))}
    return kept | {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


@pytest.fixture(scope="session")
def python(quiet_environment):
    """Runs a program with this interpreter until it ends; returns all that it wrote."""

    def run(*arguments, **variables):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=quiet_environment | variables,
            cwd=quiet_environment["HOME"],  # not the checkout: what is installed is to be tested
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory, python):
    """The folder of a small model."""
    folder = tmp_path_factory.mktemp("model")
    python(HERE / "tiny_model.py", folder)
    return folder
