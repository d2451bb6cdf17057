"""The log lines, also where vLLM sets its logging up late."""

import contextlib
import logging

import pytest

from fastutils.plugin import announcing


@contextlib.contextmanager
def silent_vllm():
    """vLLM's logger before it is set up: no handler anywhere. Yields a function that adds one, and what it gets.

    No fixture: pytest gives handlers of its own to loggers that do not propagate when a test begins.
    """
    root = logging.getLogger("vllm")
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    handler = Handler()
    propagate, level = root.propagate, root.level
    root.propagate = False
    root.setLevel(logging.INFO)
    try:
        assert not announcing.LOGGER.hasHandlers()
        yield lambda: root.addHandler(handler), seen
    finally:
        root.propagate = propagate
        root.setLevel(level)
        root.removeHandler(handler)
        for name in announcing._AWAITED:
            logging.getLogger(name).removeFilter(announcing._say_what_waits)
        announcing._waiting.clear()


def test_at_once_where_somebody_listens():
    with silent_vllm() as (listen, seen):
        listen()
        announcing.say("100 % served")
        assert seen == ["100 % served"]


@pytest.mark.parametrize("first_to_speak", announcing._AWAITED)
def test_it_waits_until_somebody_listens(first_to_speak):
    with silent_vllm() as (listen, seen):
        announcing.say("first")
        announcing.say("second")
        logging.getLogger(first_to_speak).info("lost")
        listen()
        assert seen == []
        logging.getLogger(first_to_speak).info("heard")
        assert seen == ["first", "second", "heard"]
        for name in announcing._AWAITED:
            assert logging.getLogger(name).filters == []


def test_warnings_do_not_wait(capsys, monkeypatch):
    with silent_vllm() as (_, seen):
        monkeypatch.setattr(logging, "lastResort", logging.StreamHandler())
        announcing.warn("mind this")
        assert "mind this" in capsys.readouterr().err
        assert seen == []
