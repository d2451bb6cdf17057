"""What error messages show of values, and what they keep to themselves."""

import argparse
from types import SimpleNamespace

import pytest

from fastutils import APIServerProcessManager
from fastutils.processes.arguments import shown

SECRET = "S3CR3T"
WHOLE = [
    argparse.Namespace(api_key=SECRET),
    SimpleNamespace(api_key=SECRET),
    {"api_key": SECRET},
    {"api_key": {"nested": SECRET}},
    [SECRET],
    (SECRET,),
    {SECRET},
    {(SECRET, 1): 1},
]


@pytest.mark.parametrize("value", WHOLE, ids=lambda value: type(value).__name__)
def test_what_is_whole_is_told_by_its_type(value):
    assert SECRET not in shown(value)
    assert f"of type {type(value).__name__}" in shown(value)


def test_the_keys_of_a_mapping_are_no_secret():
    assert shown({"a": 1, "b": 2}) == "something of type dict with the keys ['a', 'b']"


@pytest.mark.parametrize("value", [None, True, 5, 1.5, "tcp://x", b"x"])
def test_plain_values_are_shown(value):
    assert shown(value) == repr(value)


def test_long_text_is_cut():
    assert len(shown("x" * 10_000)) == 200


@pytest.mark.parametrize("value", WHOLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("argument", ["num_servers", "input_addresses", "output_addresses", "target_server_fn"])
def test_arguments_in_the_wrong_place(argument, value):
    good = {"num_servers": 1, "input_addresses": ["tcp://127.0.0.1:0"], "output_addresses": ["tcp://127.0.0.1:0"]}
    wrong = value if argument in ("num_servers", "target_server_fn") else [value]
    with pytest.raises((TypeError, ValueError)) as caught:
        APIServerProcessManager("", None, None, **{**good, argument: wrong})
    assert SECRET not in str(caught.value)
