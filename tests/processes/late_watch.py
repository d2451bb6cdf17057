"""In the place of `fastutils.processes.orphans` as a server's first step: the watch begins too late.

The server comes to watch its parent only after it has closed every descriptor.
"""

import os
import sys
import threading

from fastutils.processes import orphans

closed = threading.Event()
wait, closerange = orphans._Parent.wait, os.closerange
orphans._Parent.wait = lambda parent: closed.wait() and wait(parent)
os.closerange = lambda low, high: (closerange(low, high), closed.set())

if __name__ == "__main__":
    orphans.server(*map(int, sys.argv[2:]))
