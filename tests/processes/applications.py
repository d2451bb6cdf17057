"""Programs of this folder that play the application: a process of their own, which may be changed for good."""

import functools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fastutils

FOLDER = Path(__file__).parent
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(fastutils.__file__)))
#: Ends everything in the namespace when the program that a test knows is killed.
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")


class Application:
    """A running program that answers in JSON, one line each."""

    def __init__(self, command, environment):
        # A session of its own: neither the terminal's signals nor what it does to its group reach the tests.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.popen = subprocess.Popen(command, env=environment, start_new_session=True, bufsize=0, **pipes)
        self.pid = self.popen.pid
        self._told = b""

    def answer(self, within=120):
        """Its next answer; fails if it ends before, or takes longer than `within` seconds."""
        deadline = time.monotonic() + within
        while b"\n" not in self._told:
            if not select.select([self.popen.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                pytest.fail(f"the application has not answered within {within} s")
            chunk = os.read(self.popen.stdout.fileno(), 65536)
            if not chunk:
                pytest.fail(f"the application ended without an answer: exit code {self.popen.wait(30)}")
            self._told += chunk
        line, self._told = self._told.split(b"\n", 1)
        return json.loads(line)

    def tell(self, thing):
        self.popen.stdin.write(json.dumps(thing).encode() + b"\n")

    def ask(self, thing, within=120):
        self.tell(thing)
        return self.answer(within)

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def close(self):
        self.kill()
        self.popen.stdin.close()
        self.popen.stdout.close()


def command(module, *arguments, python=sys.executable):
    return [str(python), str(FOLDER / f"{module}.py"), *map(str, arguments)]


@functools.cache
def obstacle_to_namespaces(mount_proc=True):
    """Why no namespace for process numbers can be had here; None: it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare here"
    options = ["--mount-proc"] if mount_proc else []
    done = subprocess.run([*NAMESPACE, *options, "true"], capture_output=True, text=True, timeout=60)
    return f"no new namespace for process numbers: {done.stderr.strip()}" if done.returncode else None
