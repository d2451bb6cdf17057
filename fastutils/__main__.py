"""``python -m fastutils``: what is active and why, versions, and a paired check of a few seconds.

``python -m fastutils vllm``: which helpers of the installed vLLM the plugin replaces, and why it leaves others alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from fastutils import _report


def _vllm_lines(arguments: argparse.Namespace) -> Iterator[str]:
    from fastutils.plugin import command, versions

    if arguments.versions:
        return versions.table()
    return command.fingerprints() if arguments.fingerprints else command.report()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fastutils", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-check", action="store_true", help="leave the paired check out")
    vllm = parser.add_subparsers(dest="topic").add_parser("vllm", help="what the vLLM plugin does here")
    vllm.add_argument("--versions", action="store_true", help="print the table of supported versions instead")
    vllm.add_argument("--fingerprints", action="store_true", help="print the fingerprints of this vLLM's helpers")
    arguments = parser.parse_args()
    seconds = 0.0 if arguments.no_check else 3.0
    try:
        for line in _vllm_lines(arguments) if arguments.topic == "vllm" else _report.lines(seconds):
            print(line, flush=True)
    except BrokenPipeError:  # whoever reads has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
