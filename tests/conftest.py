"""Fixtures that every test module may use."""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell starts a background process with SIGINT ignored, and then Python raises no KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["compiled", "python"])
def form(request):
    """Runs the test once for the compiled and once for the Python form."""
    return request.param


TREE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
depth = int(sys.argv[1])
if depth:
    command = [sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        print(child.pid, child.stdout.readline().decode().strip(), flush=True)
        time.sleep(600)
print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def tree():
    """(a process, [its child, its grandchild])."""
    import psutil  # here: the tests that a GPU machine runs do without it

    root = subprocess.Popen([sys.executable, "-c", TREE, "2", TREE], stdout=subprocess.PIPE, text=True)
    with root:
        below = [psutil.Process(int(pid)) for pid in root.stdout.readline().split()]
        assert len(below) == 2
        yield root, below
        for process in below:
            if process.is_running():
                process.kill()
        root.kill()
