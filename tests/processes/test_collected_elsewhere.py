"""Exit codes that can never come, because the kernel or the application has collected the children."""

import re

import pytest

SERVERS = 64


@pytest.mark.parametrize("how", ["ignored", "thread"])
def test_a_shutdown_does_not_wait_for_the_codes(application, how):
    ordinary = application("collecting_application", "ordinary", "shutdown", SERVERS).answer()
    collected = application("collecting_application", how, "shutdown", SERVERS).answer(within=90)
    print(f"{SERVERS} servers: {ordinary['seconds']:.2f} s, collected elsewhere {collected['seconds']:.2f} s")
    # One wait of a second for each code, or the whole grace of 60 s, would be far more.
    assert collected["seconds"] < ordinary["seconds"] + 10
    assert collected["alive"] == [], "these ended, but count as living for ever"


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("what", ["frontend", "server"])
@pytest.mark.parametrize("how", ["ignored", "thread"])
def test_a_code_that_nobody_knows_is_not_a_clean_end(application, tmp_path, how, what, code):
    more = [tmp_path] if what == "frontend" else []
    seen = application("collecting_application", how, what, *more, code).answer()
    if how == "thread" and seen["exitcode"] == code:  # the manager was faster than the thread
        assert seen["error"] is None if code == 0 else "died with exit code 3" in seen["error"]
        return
    assert seen["error"] is not None, f"an end with an unknown code was taken for a clean one: {seen}"
    assert re.search("died with exit code None.*unknown", seen["error"]), seen["error"]
    assert seen["exitcode"] is None
    assert not seen["is_alive"]
    assert seen["join took"] < 30


@pytest.mark.parametrize(("code", "error"), [(0, None), (3, "died with exit code 3")])
@pytest.mark.parametrize("what", ["frontend", "server"])
def test_a_code_that_is_known(application, tmp_path, what, code, error):
    more = [tmp_path] if what == "frontend" else []
    seen = application("collecting_application", "ordinary", what, *more, code).answer()
    assert seen["exitcode"] == code
    assert seen["error"] is None if error is None else error in seen["error"]
