"""A bystander: notes each signal that reaches it. Run as a script ``witness.py LOG MODE``.

Appends lines to LOG: ``up PID`` when it is ready, ``hit PID SIGNAL`` for each signal. MODE "leader": has a worker, a
witness too, in its group; "founder": the same, and ends when the worker is ready, which stays.
"""

import os
import signal
import sys


def main(log, mode):
    signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    if mode in ("leader", "founder"):
        reader, writer = os.pipe()
        if os.fork() == 0:
            mode = "worker"
        else:
            os.close(writer)
            os.read(reader, 1)  # until the worker is up
            if mode == "founder":
                os._exit(0)
    os.write(out, f"up {os.getpid()}\n".encode())
    if mode == "worker":
        os.write(writer, b"!")
    while True:
        os.write(out, f"hit {os.getpid()} {signal.sigwaitinfo(signals).si_signo}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
