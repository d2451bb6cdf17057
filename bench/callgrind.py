"""Runs a program under valgrind's callgrind and reads what it counted.

The program marks what counts (marks(), callgrind_marks.c); outside the marks nothing is counted and it runs faster.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("callgrind_marks.c")
TIMEOUT_S = 3000


class Unavailable(Exception):
    """Instructions cannot be counted here; the message says what is missing."""


class Failed(Exception):
    """The program did not run to its end under callgrind."""


@dataclass
class Counted:
    """The instructions between two marks: all of them, and those of each function without its callees."""

    total: int = 0
    functions: dict[str, int] = field(default_factory=dict)


def valgrind() -> str:
    """The valgrind of this machine."""
    found = shutil.which("valgrind")
    if found is None:
        raise Unavailable(
            "instructions are counted with valgrind, which is not installed here "
            "(on Debian and Ubuntu: apt-get install valgrind)"
        )
    return found


def version() -> str:
    done = subprocess.run([valgrind(), "--version"], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip().removeprefix("valgrind-")


def compiler() -> list[str]:
    """The C compiler that built the extensions, as its command."""
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    return command if shutil.which(command[0]) else ["cc"]


def build_marks(folder: Path) -> Path:
    """Compile the marks into `folder`."""
    library = folder / "marks.so"
    command = [*compiler(), "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except OSError as error:
        raise Unavailable(f"there is no C compiler to build {SOURCE.name} with: {error}") from error
    if done.returncode:
        raise Unavailable(
            f"{SOURCE.name} does not compile; it needs valgrind's headers (valgrind/callgrind.h):\n{done.stderr}"
        )
    return library


def run(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> dict[str, Counted]:
    """Run the program `arguments` under callgrind; what it counted, by the labels of its marks.

    `folder` takes the counts; `environment` is all that the program sees of the environment.
    """
    command = [
        valgrind(),
        "--tool=callgrind",
        "--instr-atstart=no",
        "--compress-strings=no",
        "--compress-pos=no",
        f"--callgrind-out-file={folder}/counts",
        *arguments,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, check=False, timeout=TIMEOUT_S
    )
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise Failed(f"the program ended with status {done.returncode} under valgrind:\n{said}")
    counted = {}
    for path in folder.glob("counts.*"):
        with path.open(encoding="utf-8", errors="replace") as lines:
            label, found = parse(lines)
        if label is not None:
            counted[label] = found
    return counted


_TRIGGER = re.compile(r"desc: Trigger: Client Request: (.*)")


def parse(lines: Iterator[str]) -> tuple[str | None, Counted]:
    """The label and the counts of one of callgrind's files (without compressed names)."""
    label = None
    counted = Counted()
    function, inclusive = "", False
    for line in lines:
        if match := _TRIGGER.match(line):
            label = match.group(1).strip()
        elif line.startswith("fn="):
            function = line[3:].strip()
        elif line.startswith("calls="):
            inclusive = True  # the next line is what the callee took: it is counted where the callee stands
        elif line[:1].isdigit():
            if not inclusive:
                cost = int(line.split()[-1])
                counted.total += cost
                counted.functions[function] = counted.functions.get(function, 0) + cost
            inclusive = False
    return label, counted


@contextlib.contextmanager
def marked(library: str | Path, label: str) -> Iterator[None]:
    """Counts what happens inside, in the program that runs under callgrind."""
    marks = ctypes.CDLL(str(library))
    begin, end = marks.begin, marks.end
    text = label.encode()
    begin()
    yield
    end(text)
