"""FASTUTILS_VLLM and FASTUTILS_VLLM_STAGED."""

import logging

import pytest

import fastutils
from fastutils import plugin
from fastutils.plugin import switch, versions

ALL = frozenset(versions.FORMS)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ALL),
        (" ", ALL),
        ("1", ALL),
        ("all", ALL),
        ("0", frozenset()),
        ("off", frozenset()),
        ("copy_slice", {"copy_slice"}),
        ("copy_slice,ConstantList", {"copy_slice", "ConstantList"}),
        (" copy_slice , ConstantList, ", {"copy_slice", "ConstantList"}),
        ("IterationDetails", {"IterationDetails", "compute_iteration_details"}),
    ],
)
def test_what_it_asks_for(text, wanted):
    assert switch.wanted(text) == wanted


@pytest.mark.parametrize("text", ["copy_slic", "0,copy_slice", "yes", "copy_slice,nonsense"])
def test_a_wrong_word_is_named(text):
    with pytest.raises(ValueError, match=r"FASTUTILS_VLLM='.*': .* is no helper .* choose from ConstantList"):
        switch.wanted(text)


def test_off(vllm_tree, monkeypatch, caplog):
    utils = vllm_tree()("utils")
    monkeypatch.setenv("FASTUTILS_VLLM", "0")
    caplog.set_level(logging.INFO)
    plugin.load()
    plugin.load()
    assert utils.copy_slice(1, 2, 3) == "theirs"
    (record,) = caplog.records
    assert record.getMessage().endswith("nothing replaced: FASTUTILS_VLLM switches it off")
    assert record.levelno == logging.INFO


def test_a_choice(vllm_tree, monkeypatch):
    utils = vllm_tree()("utils")
    monkeypatch.setenv("FASTUTILS_VLLM", "copy_slice")
    plugin.load()
    assert plugin.status().served == ("copy_slice",)
    assert utils.copy_slice is fastutils.copy_slice
    assert utils.tensor_data(None) == "theirs"


def test_a_wrong_word_leaves_all_to_vllm_and_warns(vllm_tree, monkeypatch, caplog):
    utils = vllm_tree()("utils")
    monkeypatch.setenv("FASTUTILS_VLLM", "copy_slic")
    plugin.load()
    assert utils.copy_slice(1, 2, 3) == "theirs"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "copy_slic is no helper" in record.getMessage()


@pytest.mark.parametrize(
    ("text", "wanted"), [("1", True), (" on ", True), ("", False), (" ", False), ("0", False), ("off", False)]
)
def test_whether_buffers_are_staged(text, wanted):
    assert switch.stages_buffers(text) is wanted


@pytest.mark.parametrize("text", ["yes", "1 0", "staged"])
def test_staging_by_a_wrong_word(text):
    with pytest.raises(ValueError, match=rf"FASTUTILS_VLLM_STAGED='{text}' is neither 1 \(on\) nor 0 \(off\)"):
        switch.stages_buffers(text)
