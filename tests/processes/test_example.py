"""The worked example, run as a user would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastutils

EXAMPLE = Path(__file__).parents[2] / "examples" / "api_servers.py"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are not beside these tests")
@pytest.mark.parametrize("servers", [1, 3])
def test_the_example_tells_who_died_and_why_and_leaves_nothing(servers):
    pytest.importorskip("zmq")
    package = os.path.dirname(os.path.dirname(fastutils.__file__))
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--servers", str(servers), "--requests", "30"],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    last = f"ApiServer_{servers - 1}"
    counts = dict.fromkeys(range(servers), 30 // servers)
    codes = {f"ApiServer_{index}": -15 for index in range(servers)} | {last: -9}
    lines = done.stdout.splitlines()
    assert lines[0] == f"30 answers, by worker: {counts}"
    assert re.fullmatch(r"port \d+ answers: hello from worker \d", lines[1])
    pid = re.fullmatch(rf"killing {last} \(PID: (\d+)\)", lines[2])[1]
    assert lines[3].startswith(
        f"the supervisor says: Process {last} (PID: {pid}) died with exit code -9: killed by SIGKILL ("
    )
    assert lines[4] == f"exit codes: {codes}"
    assert len(lines) == 5
