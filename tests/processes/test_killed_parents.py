"""A parent killed with SIGKILL at any moment leaves nobody behind."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import doomed_parents
import psutil

import fastutils

#: A frontend that does not end when asked, with a child that does not either.
FRONTEND = """#!/bin/sh
trap '' TERM
sleep 600 &
wait
sleep 600
"""


#: Seconds within which half of the parents' families are to be gone; none may take ten times as long. The grace that
#: the stubborn ones get is 1 s; the rest is for a machine that is busy with other things.
LIMIT_S = 2.0


def marked():
    """The numbers of the parents of whose families somebody lives; whose environment cannot be read has ended."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            number = process.environ().get(doomed_parents.MARKER)
            if number is not None and process.status() != psutil.STATUS_ZOMBIE:
                found.add(int(number))
    return found


def test_100_parents(tmp_path):
    frontend = tmp_path / "frontend"
    frontend.write_text(FRONTEND)
    frontend.chmod(0o755)
    package = os.path.dirname(os.path.dirname(fastutils.__file__))
    script = Path(__file__).with_name("doomed_parents.py")
    deaths, last_seen, ready = {}, {}, 0
    with subprocess.Popen(
        [sys.executable, script, "100", "1", frontend],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": package},
    ) as nursery:
        reports = queue.SimpleQueue()
        reader = threading.Thread(target=lambda: [reports.put((time.monotonic(), line)) for line in nursery.stdout])
        reader.start()
        left = set()
        while reader.is_alive() or left or not reports.empty():
            left = marked()
            last_seen.update(dict.fromkeys(left, time.monotonic()))
            while not reports.empty():
                moment, line = reports.get()
                number, was_ready = map(int, line.split())
                deaths[number] = moment
                ready += was_ready
            assert all(time.monotonic() - deaths.get(number, time.monotonic()) < 10 * LIMIT_S for number in left), left
        reader.join()
    assert nursery.returncode == 0
    times = sorted(last_seen.get(number, death) - death for number, death in deaths.items())
    print(f"{ready} were ready; the families outlived their parents by {times[50]:.2f} s, at most {times[-1]:.2f} s")
    assert len(times) == 100
    assert 0 < ready < 100
    assert times[50] <= LIMIT_S
