"""The guard as an operator sees it: its name, its death, and that there is none in a frozen program."""

import time

import psutil
import pytest
from applications import command
from process_ends import all_end


@pytest.fixture
def stderr(capfd):
    """What is written to standard error from here on, by the processes of this test."""
    text = ""

    def read():
        nonlocal text
        text += capfd.readouterr().err
        return text

    return read


def guards(pid):
    """The guards of this process, as `ps` would show them."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"fastutils: guard of {pid}" in " ".join(process.cmdline()) and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not (seen := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return seen


def family(program):
    told = program.answer()
    return [psutil.Process(pid) for pid in (*told["servers"], *told["children"])]


def test_the_guard_tells_whose_it_is(application):
    program = application("guarded_application")
    family(program)
    assert len(within(30, lambda: guards(program.pid))) == 1, "no process says: fastutils: guard of PID"


def test_a_killed_guard_is_started_again(application, stderr):
    program = application("guarded_application")
    members = family(program)
    program.tell("wait")
    (first,) = within(30, lambda: guards(program.pid)) or [None]
    assert first is not None, "no process says: fastutils: guard of PID"
    first.kill()
    (second,) = within(30, lambda: [guard for guard in guards(program.pid) if guard != first]) or [None]
    assert second is not None, "a killed guard was not started again"
    warnings = within(30, lambda: [line for line in stderr().splitlines() if line.startswith(("WARNING", "ERROR"))])
    assert any("guard" in line for line in warnings), f"nobody was told that the guard was killed: {warnings}"
    assert all(member.is_running() for member in members), "the guard's death has ended what it guarded"
    # What only a guard can see to.
    members[0].suspend()
    program.kill()
    left = [member for member in members if not all_end([member])]
    assert left == [], "the second guard did not see to these"


def test_a_guard_that_is_killed_again_and_again_is_no_obstacle(application):
    program = application("guarded_application")
    members = family(program)
    for _ in range(3):
        for guard in within(5, lambda: guards(program.pid)):
            guard.kill()
            assert all_end([guard])
    codes = program.ask("shut down")
    assert codes == [-15, -15]
    assert all_end(members)


def start_frozen(application, tmp_path):
    executable = tmp_path / "application"
    python, script = command("guarded_application")
    # Multiprocessing's own helper is started with Python's options, which such tools see to.
    executable.write_text(f"""#!/bin/sh
case "$1" in
    --multiprocessing-fork) exec {python} {script} "$@" ;;
    *) exec {python} "$@" ;;
esac
""")
    executable.chmod(0o755)
    return application("guarded_application", FROZEN=str(executable))


def test_a_frozen_program_has_no_guard_and_says_so(application, stderr, tmp_path):
    frozen = start_frozen(application, tmp_path)
    members = family(frozen)
    children = psutil.Process(frozen.pid).children(recursive=True)
    commands = [" ".join(child.cmdline()) for child in children if child.is_running()]
    assert not [words for words in commands if "guard" in words.replace("guarded_application", "")]
    debug = [line for line in stderr().splitlines() if line.startswith("DEBUG") and "guard" in line]
    assert debug, "no debug line says that a frozen program has no guard"
    frozen.kill()
    left = [member for member in members if not all_end([member])]
    assert left == [], "these have outlived a frozen program"
