"""Every signature and message of the helper module we stand in for, against both forms (facts: contract.json)."""

import inspect
import json
from pathlib import Path

import pytest
from implementations import load

import fastutils

CONTRACT = json.loads(Path(__file__).with_name("contract.json").read_text())
MISSING = object()


def signature_of(thing):
    rows = []
    for parameter in inspect.signature(thing).parameters.values():
        row = [parameter.name, parameter.kind.name.lower()]
        if parameter.default is not inspect.Parameter.empty:
            row.append(parameter.default)
        rows.append(row)
    return rows


def wanted_of(rows, got):
    """The contract's rows, with "any default" filled from what is there."""
    return [
        [*row[:2], got[i][2]] if row[2:] == ["*"] and i < len(got) and len(got[i]) == 3 else row
        for i, row in enumerate(rows)
    ]


def test_the_public_names_in_upstreams_order():
    upstream = CONTRACT["public_names"]
    assert [name for name in fastutils.__all__ if name in upstream] == upstream
    namespace = {}
    exec("from fastutils import *", namespace)
    assert set(upstream) <= set(namespace)


@pytest.mark.parametrize("path", CONTRACT["signatures"])
def test_signature(path, form):
    name, _, member = path.partition(".")
    thing = load(name, form)
    got = signature_of(getattr(thing, member) if member else thing)
    # A method of a compiled type marks self as positional-only; a caller cannot tell.
    if member and form == "compiled" and got[0][0] == "self":
        got[0][1] = "positional_or_keyword"
    wanted = wanted_of(CONTRACT["signatures"][path], got)
    beyond = CONTRACT["beyond"].get(path, [])
    assert got == wanted + [[name, "keyword_only", default] for name, default in beyond]


@pytest.mark.parametrize(("method", "arguments", "message"), CONTRACT["constant_list_errors"])
def test_a_constant_list_refuses_changes(method, arguments, message, form):
    view = load("ConstantList", form)([1, 2])
    with pytest.raises(TypeError) as caught:
        getattr(view, method)(*arguments)
    assert str(caught.value) == message
    assert view._x == [1, 2]


def test_the_repr_of_iteration_details():
    assert repr(fastutils.IterationDetails(1, 2, 3, 4)) == CONTRACT["iteration_details_repr"]


@pytest.mark.parametrize("name", CONTRACT["public_names"])
def test_every_public_name_is_documented(name, form):
    assert inspect.getdoc(load(name, form))


@pytest.mark.parametrize("name", CONTRACT["public_names"])
def test_both_forms_say_the_same(name):
    compiled, python = load(name, "compiled"), load(name, "python")
    assert inspect.getdoc(compiled) == inspect.getdoc(python)
    assert compiled.__name__ == python.__name__ == name
    assert compiled.__module__ == python.__module__


@pytest.mark.parametrize("name", [name for name in fastutils.__all__ if name not in CONTRACT["public_names"]])
def test_what_upstream_lacks_is_one_thing_in_both_forms_too(name):
    compiled, python = load(name, "compiled"), load(name, "python")
    assert inspect.getdoc(compiled)
    assert inspect.getdoc(compiled) == inspect.getdoc(python)
    assert signature_of(compiled) == signature_of(python)
    assert compiled.__name__ == python.__name__ == name
    assert compiled.__module__ == python.__module__ == "fastutils"
