"""Counts the instructions of every case, in upstream's form and in fastutils', with callgrind.

A case runs twice, with few passes and with more; the difference of the counts, divided by the difference of the
passes, is the cost of one pass, and the same of the empty loop is taken off. Counts hardly depend on what else the
machine does, so they serve to notice a change (gate.py). They are no times: a division counts as one instruction, a
cache miss as none.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import callgrind, table

CHECKOUT = Path(__file__).resolve().parents[1]
FEW, MORE = 20, 120
SIDES = ("upstream", "fastutils")
WARM_UP = 64
#: Of the functions of a case, so many are kept, to tell later what moved.
KEPT = 12


@dataclass
class Counts:
    """Instructions per pass, and the functions that take most of them (without their callees)."""

    total: float
    functions: dict[str, float] = field(default_factory=dict)


def selected(text: str = "") -> list[Any]:
    """The cases that are counted: the helpers' own, on one thread; large copies are one instruction repeated.

    Not isinstance(): nothing of ours runs in it, and what the interpreter's caches take depends on the folder's name.
    """
    from bench.cases import cases

    return [
        case
        for case in cases()
        if case.group == "helpers"
        and not case.parallel
        and not any(left_out in case.id for left_out in ("64 MB", "isinstance"))
        and text.lower() in case.id.lower()
    ]


def passes(case: Any) -> tuple[int, int]:
    """Few and more passes: fewer of both where a pass is long."""
    return (2, 8) if "N=1024" in case.id or "N=256" in case.id or "1 MB" in case.id else (FEW, MORE)


def child(side: str, library: str, text: str) -> int:
    """Under callgrind: run the cases of one side between marks. Exit status 1 if a result is wrong."""
    if side == "upstream":
        from bench import upstream as helpers
    else:
        import fastutils as helpers  # type: ignore[no-redef]
    gc.disable()
    for case in selected(text):
        made = case.make(helpers)
        with case.mode():
            if made.outcome() != made.expected:
                print(f"{case.id}: {side} gives a wrong result", file=sys.stderr)
                return 1
            made.loop.run(made.loop.items(WARM_UP))
            made.loop.run_empty(made.loop.items(WARM_UP))
            for count in passes(case):
                items = made.loop.items(count)
                made.loop.run(items[:1])
                with callgrind.marked(library, f"{count}:{case.id}"):
                    made.loop.run(items)
                with callgrind.marked(library, f"{count}-:{case.id}"):
                    made.loop.run_empty(items)
    return 0


def count(text: str = "", sides: tuple[str, ...] = SIDES) -> dict[str, dict[str, Counts]]:
    """Case -> side -> counts, the sides in processes of their own at the same time."""
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder, ThreadPoolExecutor(len(sides)) as pool:
        library = callgrind.build_marks(Path(folder))
        found = dict(zip(sides, pool.map(lambda side: _count(side, library, text), sides), strict=True))
    return {case.id: {side: _difference(counted, case) for side, counted in found.items()} for case in selected(text)}


def _count(side: str, library: Path, text: str) -> dict[str, callgrind.Counted]:
    # Nothing of the caller's environment, so that it cannot move the counts; every hash is the same in every run.
    environment = {
        name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
    }
    environment.update(
        PYTHONHASHSEED="0",
        PYTHONPATH=os.pathsep.join([str(CHECKOUT), *filter(None, sys.path)]),
        PYTHONDONTWRITEBYTECODE="1",
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        FASTUTILS_NO_EXTENSIONS=os.environ.get("FASTUTILS_NO_EXTENSIONS", ""),
    )
    folder = library.parent / side
    folder.mkdir()
    command = [sys.executable, "-m", "bench.instructions", "--child", side, "--marks", str(library), "-k", text]
    return callgrind.run(command, folder, environment)


def _difference(counted: dict[str, callgrind.Counted], case: Any) -> Counts:
    few, more = passes(case)
    try:
        one, two, *empty = (counted[f"{n}:{case.id}"] for n in (few, more, f"{few}-", f"{more}-"))
    except KeyError as error:
        raise callgrind.Failed(f"callgrind wrote no counts for {error}") from None
    names = {name for name in (*one.functions, *two.functions) if not _heap(name)}
    each = {name: (two.functions.get(name, 0) - one.functions.get(name, 0)) / (more - few) for name in names}
    largest = sorted(each, key=lambda name: -abs(each[name]))[:KEPT]
    loop = (empty[1].total - empty[0].total) / (more - few)
    kept = {name: round(each[name], 2) for name in largest if each[name]}
    return Counts(sum(each.values()) - loop, kept)


def _heap(function: str) -> bool:
    """Whether `function` searches or mends the heap of the C library: what that takes depends on the heap's history."""
    return function.split("'")[0].startswith(
        ("_int_malloc", "_int_free", "malloc_consolidate", "unlink_chunk", "sysmalloc")
    )


def interpreter() -> str:
    """A name for the interpreter: counts of another one are not comparable."""
    built = f"{sysconfig.get_config_var('CONFIG_ARGS')} {platform.python_compiler()}"
    digest = hashlib.sha256(built.encode()).hexdigest()[:8]
    return f"{platform.python_implementation().lower()}-{platform.python_version()}-{platform.machine()}-{digest}"


def facts() -> dict[str, str]:
    """What else the counts depend on."""
    import numpy
    import torch

    command = [*callgrind.compiler(), "--version"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        built = done.stdout.splitlines()[0]
    return {
        "interpreter": f"{platform.python_version()}, {platform.python_compiler()}",
        "C compiler": built,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "libc": " ".join(platform.libc_ver()),
        "valgrind": callgrind.version(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
    }


def as_json(found: dict[str, dict[str, Counts]]) -> dict[str, Any]:
    return {
        name: {
            **{side: round(counts.total, 2) for side, counts in sides.items()},
            "functions": sides["fastutils"].functions,
        }
        for name, sides in found.items()
    }


def render(found: dict[str, dict[str, Counts]]) -> str:
    """Instructions per call of both sides."""
    rows = []
    for name, sides in found.items():
        before, after = sides["upstream"].total, sides["fastutils"].total
        rows.append([name, f"{before:,.0f}", f"{after:,.0f}", f"{before / after:.2f}x" if after else "-"])
    return table.render(["case: instructions per call", "upstream", "fastutils", "ratio"], rows)


def main(arguments: list[str] | None = None) -> int:
    """Count and print. Exit status 0, 1 if a program failed, 2 where valgrind is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases whose id contains TEXT")
    parser.add_argument("--json", metavar="FILE", help="also write the counts to FILE")
    parser.add_argument("--functions", action="store_true", help="also print where each case spends its instructions")
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--marks", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        return child(chosen.child, chosen.marks, chosen.k)
    if not selected(chosen.k):
        parser.error(f"no case that is counted contains {chosen.k!r}")
    try:
        found = count(chosen.k)
        environment = facts()
    except callgrind.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    except (callgrind.Failed, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(f"{name:<20} {value}" for name, value in {"": interpreter(), **environment}.items()))
    print(f"\n{render(found)}")
    if chosen.functions:
        for name, sides in found.items():
            print(f"\n{name}")
            for function, cost in sides["fastutils"].functions.items():
                print(f"  {cost:10,.1f}  {function}")
    if chosen.json:
        document = {"interpreter": interpreter(), "environment": environment, "cases": as_json(found)}
        Path(chosen.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
