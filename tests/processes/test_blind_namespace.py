"""A /proc that shows another namespace's processes (``unshare --pid`` without a new /proc) is no /proc at all."""

import contextlib
import os
import signal
import subprocess
import sys

import process_numbers
import psutil
import pytest

pytestmark = pytest.mark.skipif(
    not process_numbers.can_be_chosen(), reason="process numbers can only be chosen by root on Linux"
)

#: Starts a child with the number that is its argument, and says whether it could be had.
PARENT = """
import os, sys, time
sys.path.append(sys.argv[1])
import process_numbers
def start():
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid
print(process_numbers.take(int(sys.argv[2]), start), flush=True)
time.sleep(600)
"""


def free_numbers():
    """The first of many numbers that nobody has, well above those that are given now."""
    with open("/proc/sys/kernel/pid_max") as file:
        top = int(file.read())
    taken = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    with open(process_numbers.LAST) as file:
        last = int(file.read())
    for first in range(top - 1000, 1000, -500):
        if not taken.intersection(range(first - 100, first + 300)) and not first - 2000 < last < first + 300:
            return first
    return pytest.skip("no free numbers")


@pytest.fixture
def family_with_numbers():
    """Starts a process with the first number that has a child with the second one; (parent, child), psutil's."""
    found = []

    def start(parent, child):
        folder = os.path.dirname(process_numbers.__file__)
        words = [sys.executable, "-I", "-S", "-c", PARENT, folder, str(child)]
        said = []

        def spawn():
            popen = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            popen.returncode = 0  # the fixture sees to it, by its number
            with popen.stdout:
                if popen.pid == parent:
                    said.append(popen.stdout.readline())
            return popen.pid

        if process_numbers.take(parent, spawn) is None:
            pytest.skip(f"the number {parent} was not to be had: too much goes on here")
        found.append(psutil.Process(parent))
        if said != [f"{child}\n"]:
            pytest.skip(f"the number {child} was not to be had: too much goes on here")
        found.append(psutil.Process(child))
        return found

    yield start
    for process in reversed(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for process in found[:1]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, 0)


@pytest.mark.parametrize("whose", ["server", "frontend"])
def test_numbers_that_coincide(application, short_folder, family_with_numbers, whose):
    # Outside, a process has the server's number and its child that of the application's own child, which the server
    # has never heard of.
    first = free_numbers()
    program = application("blind_application", short_folder, first, within="blind namespace")
    told = program.answer()
    assert min(told.values()) > first
    outside = family_with_numbers(told[whose], told["bystander"])
    seen = program.ask("shut down")
    assert seen["bystander"] is None, f"a child of the application's own was ended: {seen}"
    assert all(process.is_running() for process in outside), "processes outside were ended"
    assert seen["alive before"] == [True, True]
    assert seen["codes"] == [-signal.SIGTERM, -signal.SIGTERM]
    assert seen["child ended"], "what a server had started lives on"
    assert seen["frontend's child ended"], "what the frontend had started lives on"
