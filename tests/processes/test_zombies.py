"""Orphans that are given to us are collected when a shutdown has killed them; other children's codes are not ours."""

import sys

import pytest
from reaping_application import KINDS


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives orphans to others than init")
@pytest.mark.parametrize("within", ["namespace", None], ids=["first process", "subreaper"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_zombie_is_left(application, kind, within):
    seen = application("reaping_application", kind, within=within).answer()
    assert seen["alive"] == [], "what the servers had started was not ended"
    assert seen["zombies"] == [], "killed processes were left as zombies"
    assert seen["own"] == 7, "the code of a child that is none of the manager's was taken"
    assert seen["codes"] == ([3, 3] if kind == "a child of an ended server" else [-15, -15])
