"""``python -m fastutils``: what is active and why, versions, and a paired check of a few seconds."""

import argparse

from fastutils import _report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fastutils", description=__doc__)
    parser.add_argument("--no-check", action="store_true", help="leave the paired check out")
    arguments = parser.parse_args()
    for line in _report.lines(0.0 if arguments.no_check else 3.0):
        print(line, flush=True)


if __name__ == "__main__":
    main()
