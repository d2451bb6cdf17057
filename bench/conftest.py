"""Settings of pytest-benchmark that suit calls of some tens of ns."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from bench.paired import steady

#: A round shorter than this is decided by the clock.
ROUND_S = 0.001

INSTALLED = importlib.util.find_spec("pytest_benchmark") is not None
collect_ignore_glob = [] if INSTALLED else ["test_*.py"]


def pytest_report_header() -> str | None:
    return None if INSTALLED else "bench: nothing is collected, pytest-benchmark is not installed"


def pytest_configure(config: pytest.Config) -> None:
    options = config.option
    if INSTALLED:
        options.benchmark_min_time = str(max(float(options.benchmark_min_time), ROUND_S))
        options.benchmark_disable_gc = True


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    with steady():
        yield
