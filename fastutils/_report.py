"""What ``python -m fastutils`` prints: which form of each helper is active and why, and on what it runs."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastutils import _check, _select

DISTRIBUTION = "vllm-fastutils"


def how_python_was_built() -> str:
    """Whether the interpreter was built with optimisation: an unoptimised one inflates every ratio."""
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return "optimised (--enable-optimizations)"
    if sys.base_prefix == "/usr":
        return "optimised by the distribution that ships it"
    return "NOT optimised (no --enable-optimizations): ratios measured here flatter the compiled forms"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def foreign_distributions() -> list[str]:
    """Other distributions in this environment that also install an import package called ``fastutils``."""
    owners = importlib.metadata.packages_distributions()
    return sorted(set(owners.get("fastutils", ())) - {DISTRIBUTION})


def _environment() -> Iterator[tuple[str, str]]:
    yield "distribution", f"{DISTRIBUTION} {_version(DISTRIBUTION)} (import name: fastutils)"
    yield "location", str(Path(__file__).parent)
    yield "python", f"{platform.python_implementation()} {platform.python_version()}, {how_python_was_built()}"
    for foreign in foreign_distributions():
        yield "WARNING", f"the distribution {foreign!r} also installs a package named fastutils; uninstall one of them"
    try:
        import torch

        version = str(torch.__version__)
    except Exception as error:  # broken CUDA libraries raise OSError, a left-over folder AttributeError
        yield "torch", f"not available ({error!r}): the tensor helpers cannot be used"
    else:
        yield "torch", version
        runtime = torch.version.cuda or getattr(torch.version, "hip", None)
        device = "a device is available" if torch.cuda.is_available() else "no device is available"
        yield "CUDA/ROCm", f"{runtime}; {device}" if runtime else "none in this torch"
        from fastutils.tensors.runtime import describe

        yield from describe()
    for distribution in ("numpy", "pyzmq", "psutil", "vllm"):
        yield distribution, _version(distribution)


def _helpers() -> Iterator[tuple[str, str]]:
    for name in _select.HOMES:
        try:
            choice = _select.choose(name)
        except Exception as error:  # whatever the libraries that it needs raise
            yield name, f"not available: {error!r}"
        else:
            yield name, f"{choice.implementation} ({choice.reason})"


def _aligned(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(rows)
    width = max(len(label) for label, _ in rows)
    return (f"  {label:<{width}}  {text}" for label, text in rows)


def _checked(seconds: float) -> Iterator[str]:
    yield f"  {'':44} {'active':>9} {'Python':>9} {'ratio':>7}"
    for outcome in _check.run(seconds):
        if outcome.note:
            yield f"  {outcome.label:44} {outcome.note}"
        else:
            yield (f"  {outcome.label:44} {outcome.active_ns:6.0f} ns {outcome.twin_ns:6.0f} ns {outcome.ratio:6.1f}x")


def lines(seconds: float = 3.0) -> Iterator[str]:
    """The report, line by line; `seconds` (s) is what the paired check may take, 0 leaves it out."""
    yield "environment"
    yield from _aligned(_environment())
    yield ""
    yield "helpers"
    yield from _aligned(_helpers())
    if seconds > 0:
        yield ""
        yield "paired check against the Python twin (make bench measures against upstream's form)"
        yield from _checked(seconds)
