"""What the package knows of its host: environment variables, log prefixes, process titles, process trees."""

import io
import logging
import os
import sys
from types import SimpleNamespace

import pytest

from fastutils import _host

# --- environment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("VLLM_ENGINE_READY_TIMEOUT_S", None, 600),
        ("VLLM_ENGINE_READY_TIMEOUT_S", "7", 7),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", None, 5),
        ("VLLM_CONFIGURE_LOGGING", None, True),
        ("VLLM_CONFIGURE_LOGGING", "0", False),
        ("VLLM_CUSTOM_SCOPES_FOR_PROFILING", None, False),
        ("VLLM_NVTX_SCOPES_FOR_PROFILING", "1", True),
        ("VLLM_NO_USAGE_STATS", None, False),
        ("VLLM_NO_USAGE_STATS", "1", True),
        ("VLLM_NO_USAGE_STATS", "true", False),  # only 1 counts, as in vLLM
        ("VLLM_PROCESS_NAME_PREFIX", None, "VLLM"),
        ("VLLM_LOGGING_COLOR", None, "auto"),
        ("NO_COLOR", "1", True),
    ],
)
def test_a_variable_is_read_when_it_is_asked_for(monkeypatch, name, text, value):
    if text is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, text)
    assert _host.env(name) == value
    assert type(_host.env(name)) is type(value)


@pytest.mark.parametrize("name", ["VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_CONFIGURE_LOGGING"])
def test_a_value_that_does_not_parse_is_named(monkeypatch, name):
    monkeypatch.setenv(name, "soon")
    with pytest.raises(ValueError, match=f"{name}='soon' is not an integer"):
        _host.env(name)


def test_a_loaded_vllm_reads_its_own_variables(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm.envs", SimpleNamespace(VLLM_ENGINE_READY_TIMEOUT_S=3))
    assert _host.env("VLLM_ENGINE_READY_TIMEOUT_S") == 3
    monkeypatch.setenv("VLLM_PROCESS_NAME_PREFIX", "unknown to that vLLM")
    assert _host.env("VLLM_PROCESS_NAME_PREFIX") == "unknown to that vLLM"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"VLLM_CONFIG_ROOT": "/a/b"}, "/a/b"),
        ({"XDG_CONFIG_HOME": "/x"}, "/x/vllm"),
        ({"HOME": "/home/u"}, "/home/u/.config/vllm"),
        ({"HOME": "/home/u", "VLLM_CONFIG_ROOT": "~/c"}, "/home/u/c"),
    ],
)
def test_the_configuration_folder(monkeypatch, variables, folder):
    for name in ("VLLM_CONFIG_ROOT", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(_host.config_root()) == folder


@pytest.mark.parametrize(
    "variables", [{"HOME": None}, {"HOME": ""}, {"VLLM_CONFIG_ROOT": "~/c"}, {"VLLM_CONFIG_ROOT": "~nobody-at-all/c"}]
)
def test_the_configuration_folder_in_a_home_that_is_unknown(monkeypatch, variables):
    for name in ("VLLM_CONFIG_ROOT", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    # No entry for the user, as in a container that runs under a number of its own.
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    for name, value in variables.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    assert _host.config_root() is None


@pytest.mark.parametrize("word", ["1", "true", "TRUE", "yes", "on", " On "])
@pytest.mark.parametrize("name", ["VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"])
@pytest.mark.parametrize("within_vllm", [False, True])
def test_usage_stats_are_declined_by_any_word_for_yes(monkeypatch, name, word, within_vllm):
    for other in ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"):
        monkeypatch.delenv(other, raising=False)
    if within_vllm:  # which takes 1 alone
        monkeypatch.setitem(
            sys.modules, "vllm.envs", SimpleNamespace(VLLM_NO_USAGE_STATS=False, VLLM_DO_NOT_TRACK=False)
        )
    assert not _host.usage_stats_are_declined()
    monkeypatch.setenv(name, word)
    assert _host.usage_stats_are_declined()


@pytest.mark.parametrize("word", ["", "0", "false", "no", "off"])
def test_usage_stats_are_not_declined_by_a_no(monkeypatch, word):
    for name in ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, word)
    assert not _host.usage_stats_are_declined()
    monkeypatch.setenv("VLLM_DO_NOT_TRACK", "0")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    assert not _host.usage_stats_are_declined()  # the first that is set decides, as in vLLM


def test_what_vllm_itself_takes_for_a_yes_counts(monkeypatch):
    for name in ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "vllm.envs", SimpleNamespace(VLLM_NO_USAGE_STATS=False, VLLM_DO_NOT_TRACK=True))
    assert _host.usage_stats_are_declined()


@pytest.mark.parametrize(
    ("variables", "tracked"),
    [
        ({}, True),
        ({"DO_NOT_TRACK": "1"}, False),
        ({"VLLM_DO_NOT_TRACK": "1"}, False),
        ({"VLLM_DO_NOT_TRACK": "0", "DO_NOT_TRACK": "1"}, True),  # the first that is set decides, as in vLLM
    ],
)
def test_do_not_track(monkeypatch, variables, tracked):
    for name in ("VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _host.env("VLLM_DO_NOT_TRACK") is not tracked


def test_the_logger_shows_within_vllm(monkeypatch):
    assert _host.logger("fastutils.x").name == "fastutils.x"
    monkeypatch.setitem(sys.modules, "vllm.logger", logging)
    assert _host.logger("fastutils.x").name == "vllm.fastutils.x"


# --- log prefixes -----------------------------------------------------------------------------------------------------


class Stream(io.StringIO):
    """Text in memory that keeps each write apart and may pretend to be a terminal."""

    def __init__(self, terminal=False):
        super().__init__()
        self.writes = []
        self._terminal = terminal

    def write(self, text):
        self.writes.append(text)
        return super().write(text)

    def isatty(self):
        return self._terminal


@pytest.fixture
def streams(monkeypatch):
    for name in ("NO_COLOR", "VLLM_LOGGING_COLOR", "VLLM_CONFIGURE_LOGGING"):
        monkeypatch.delenv(name, raising=False)

    def replace():  # within the test itself: pytest sets its own before each phase
        monkeypatch.setattr(sys, "stdout", Stream())
        monkeypatch.setattr(sys, "stderr", Stream(terminal=True))
        return sys.stdout, sys.stderr

    return replace


def test_each_line_is_prefixed_once(streams):
    out, _ = streams()
    _host.decorate_logs("Server")
    prefix = f"(Server pid={os.getpid()}) "
    print("one")
    print("two\n\nthree", end="")
    print(" goes on", "\n", sep="", end="")
    out.writelines(["four\n", "five"])
    assert out.getvalue() == "".join(
        f"{prefix}{line}" for line in ("one\n", "two\n", "\n", "three goes on\n", "four\n", "five")
    )
    assert out.write("") == 0
    assert out.write("ab\n") == 3


def test_a_line_and_its_prefix_are_one_write(streams):
    out, _ = streams()
    _host.decorate_logs("S")
    out.write("several\nlines\n")
    assert out.writes == [f"(S pid={os.getpid()}) several\n(S pid={os.getpid()}) lines\n"]


def test_a_second_call_replaces_the_prefix(streams):
    out, _ = streams()
    _host.decorate_logs("First")
    _host.decorate_logs("Second")
    print("x")
    assert out.getvalue() == f"(Second pid={os.getpid()}) x\n"


def test_the_name_of_the_process_is_the_default(streams):
    out, _ = streams()
    _host.decorate_logs()
    print("x")
    assert out.getvalue() == f"(MainProcess pid={os.getpid()}) x\n"


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, [False, True]),
        ({"VLLM_LOGGING_COLOR": "1"}, [True, True]),
        ({"VLLM_LOGGING_COLOR": "0"}, [False, False]),
        ({"VLLM_LOGGING_COLOR": "1", "NO_COLOR": "1"}, [False, False]),
    ],
)
def test_colour_is_for_terminals(streams, monkeypatch, variables, coloured):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    both = streams()
    _host.decorate_logs("S")
    for stream in both:
        stream.write("x\n")
    assert ["\x1b[0;36m(S pid=" in stream.getvalue() for stream in both] == coloured


def test_logging_that_is_not_to_be_configured(streams, monkeypatch):
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    out, _ = streams()
    _host.decorate_logs("S")
    print("x")
    assert out.getvalue() == "x\n"


def test_absent_streams(monkeypatch, streams):
    _, err = streams()
    monkeypatch.setattr(sys, "stdout", None)
    _host.decorate_logs("S")
    err.write("x")
    assert err.getvalue().endswith(" x")


# --- titles -----------------------------------------------------------------------------------------------------------


def test_the_process_title(monkeypatch):
    titles = []
    monkeypatch.setitem(sys.modules, "setproctitle", SimpleNamespace(setproctitle=titles.append))
    monkeypatch.delenv("VLLM_PROCESS_NAME_PREFIX", raising=False)
    _host.set_process_title("APIServer", "3")
    monkeypatch.setenv("VLLM_PROCESS_NAME_PREFIX", "Mine")
    _host.set_process_title("Other")
    assert titles == ["VLLM::APIServer_3", "Mine::Other"]


def test_no_title_without_setproctitle(monkeypatch):
    monkeypatch.setitem(sys.modules, "setproctitle", None)
    _host.set_process_title("APIServer")
