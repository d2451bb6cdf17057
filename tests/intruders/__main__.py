"""python -m intruders BLOCK [CASE]: runs a block, from behind a case if one is given. 1 if anything failed."""

import faulthandler
import gc
import sys

from intruders import blocks
from intruders.matrix import Run


def main(name, after=None):
    faulthandler.enable()
    run = Run(blocks.find(name), after or None)
    sys.unraisablehook = lambda unraisable: None  # what an intruder raises in a finalizer is its own affair
    gc.collect()
    gc.freeze()  # so that what is walked and collected is what the cases make
    run.all()
    print(f"combinations: {run.cases} intruded upon: {run.intruded} different as known: {run.differing}")
    return bool(run.failures)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
