"""Against what fastutils is measured: upstream's form (upstream.py), or the objects of a vLLM that is installed.

Run as a program it times the one against the other: the form stands for vLLM's own code only as long as they agree.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench import upstream

CHOICES = ("auto", "form", "vllm")

#: What the baselines have to have.
HELPERS = (
    "ConstantList",
    "CpuGpuBuffer",
    "compute_iteration_details",
    "copy_slice",
    "record_function_or_nullcontext",
    "tensor_data",
)

#: Of the table of cases, what tells whether the form does the work that vLLM does: every helper, short and long calls.
COMPARED = (
    "ConstantList: x[5]",
    "ConstantList: x[-1]",
    "ConstantList: len(x)",
    "ConstantList: value in x, 256 deep",
    "ConstantList: x.index(value), 256 deep",
    "ConstantList: x[16:32]",
    "ConstantList: ConstantList(x)",
    "compute_iteration_details: N=1",
    "compute_iteration_details: N=64",
    'with record_function_or_nullcontext("x")',
    "copy_slice: 64 B, grad mode",
    "copy_slice: 4 KB, inference mode",
    "copy_to_gpu(n): 48 of 256, fresh view, inference mode",
    "copy_to_gpu(): 1 KB, inference mode",
    "tensor_data: 1 KB, contiguous",
    "tensor_data: 1 KB, not contiguous",
)


class Unavailable(Exception):
    """The baseline that was asked for cannot be had here."""


@dataclass(frozen=True)
class Baseline:
    """What stands on the other side of every case but the peers', and what the report says of it."""

    name: str
    description: str
    helpers: Any


FORM = Baseline("form", "upstream's form (bench/upstream.py: plain Python of the same behaviour)", upstream)


def load(which: str = "auto") -> Baseline:
    """The baseline `which`; ``auto`` is vLLM's own objects where a vLLM is installed, else upstream's form."""
    if which not in CHOICES:
        raise ValueError(f"no baseline {which!r}; there are: {', '.join(CHOICES)}")
    if which == "form" or (which == "auto" and importlib.util.find_spec("vllm") is None):
        return FORM
    try:
        module = importlib.import_module("vllm.v1.utils")
    except ImportError as error:
        raise Unavailable(f"vllm.v1.utils cannot be imported ({error}); --baseline form needs no vLLM") from error
    helpers = types.SimpleNamespace()
    for name in HELPERS:
        found = getattr(module, name, None)
        if found is None:
            raise Unavailable(f"this vLLM's vllm.v1.utils has no {name}; --baseline form needs no vLLM")
        owner = str(found.__module__)
        if not owner.startswith("vllm."):
            raise Unavailable(
                f"vllm.v1.utils.{name} comes from {owner}, not from vLLM: is the fastutils plugin at work in this "
                "process? FASTUTILS_VLLM=0 keeps it out"
            )
        setattr(helpers, name, found)
    return Baseline("vllm", f"the objects of vLLM {importlib.metadata.version('vllm')} (vllm.v1.utils)", helpers)


def agreement(baseline: Baseline, settings: Any = None) -> Iterator[Any]:
    """Times upstream's form against `baseline`, case by case: a ratio of 1 says that they do the same work.

    Yields what `micro.run_case` gives.
    """
    from bench import micro
    from bench.cases import cases

    for case in cases():
        if case.id in COMPARED:
            yield micro.run_case(case, upstream, settings or micro.Settings(), baseline=baseline.helpers)


def main(arguments: list[str] | None = None) -> int:
    """Print how upstream's form and an installed vLLM compare. Returns 0, 1 if a result is wrong, 2 without vLLM."""
    from bench import environment, show

    parser = argparse.ArgumentParser(prog="python -m bench.baseline", description=main.__doc__)
    parser.parse_args(arguments)
    try:
        baseline = load("vllm")
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    print(environment.header({**environment.facts(), "upstream": baseline.description}, {}, None))
    measured = list(agreement(baseline))
    print("\nHere the column fastutils is upstream's form: 1.00 means that it stands for vLLM's own code.\n")
    print(show.cases(({**row.entry(), "target": None} for row in measured), verdicts=False))
    return int(any(row.error for row in measured))


if __name__ == "__main__":
    sys.exit(main())
