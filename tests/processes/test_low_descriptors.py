"""What a child is handed never has a number that means standard input, output or error."""

import itertools
import json

import pytest

SUBSETS = ["".join(chosen) or "-" for size in range(4) for chosen in itertools.combinations("012", size)]


@pytest.mark.parametrize("thread", ["main", "other"])
@pytest.mark.parametrize("closed", SUBSETS)
def test_an_application_without_some_standard_streams(application, tmp_path, closed, thread):
    program = application("low_descriptors_application", closed, thread, tmp_path)
    assert program.popen.wait(120) == 0
    seen = json.loads((tmp_path / "seen").read_text())
    assert "error" not in seen, seen["error"]
    for who in ("server", "frontend"):
        assert seen[f"{who} lives"], f"the {who} has ended"
        assert len(seen[who]) == 3
        for descriptors in seen[who]:
            assert len(set(descriptors)) == 3
            assert min(descriptors) >= 3, f"the {who} got the descriptors {descriptors}"
    assert seen["args arrived"]
