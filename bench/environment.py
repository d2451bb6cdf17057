"""What a number was measured on: the header of every report, and its ``environment`` in the JSON."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastutils import _select
from fastutils._report import how_python_was_built

CHECKOUT = Path(__file__).resolve().parents[1]


def facts() -> dict[str, str]:
    """Everything about interpreter, compiler, torch, machine and commit that a reader needs to repeat a number."""
    import torch

    return {
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}, {how_python_was_built()}",
        "compiler": f"interpreter: {platform.python_compiler()}; extensions: {_extension_compiler()}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} thread(s)",
        "CPU": f"{_cpu()}, {os.cpu_count()} core(s)",
        "load": _load(),
        "commit": _commit(),
    }


def forms(names: list[str]) -> dict[str, str]:
    """Which form of each public name of fastutils serves here, and why. Ends the run if a name cannot be imported."""
    found = {}
    for name in names:
        try:
            choice = _select.choose(name)
        except ImportError as error:
            raise SystemExit(f"fastutils.{name} cannot be imported, so there is nothing to measure: {error}") from error
        found[name] = f"{choice.implementation} ({choice.reason})"
    return found


@dataclass(frozen=True)
class Noise:
    """The ratio, with its 95 % interval, of the baseline to itself."""

    ratio: float
    low: float
    high: float

    @property
    def floor(self) -> float:
        """How far from 1 a ratio may lie and mean nothing."""
        return max(abs(self.ratio - 1), (self.high - self.low) / 2)


def header(environment: dict[str, str], active: dict[str, str], noise: Noise | None) -> str:
    """The lines above a table."""
    lines = dict(environment)
    for name, form in active.items():
        lines[f"fastutils.{name}"] = form
    if noise is not None:
        lines["noise floor"] = (
            f"{noise.floor:.2%}: the baseline against itself gives "
            f"{noise.ratio:.4f} [{noise.low:.4f}, {noise.high:.4f}]"
        )
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def as_json(environment: dict[str, str], active: dict[str, str]) -> dict[str, Any]:
    return {**environment, "forms": active}


def _extension_compiler() -> str:
    info = _select.build_info()
    return str(info.get("compiler") or "not recorded by the build")


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _load() -> str:
    one, five, _ = os.getloadavg()
    busy = " (other work is running: expect wide intervals)" if one > (os.cpu_count() or 1) / 2 else ""
    return f"{one:.2f} in the last minute, {five:.2f} in five, before this run{busy}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def _commit() -> str:
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return f"{name} with uncommitted changes" if _git("status", "--porcelain", "-uno") else name
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"
