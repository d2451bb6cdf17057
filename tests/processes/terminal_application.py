"""An application with a terminal of its own, on which background processes are stopped when they write (tostop).

Run as ``terminal_application.py TERMINAL``, as the leader of a session. Says how its printing server fared.
"""

import fcntl
import os
import signal
import sys
import termios
import time

import plain_servers
import process_numbers
from application_side import say, servers

PATIENCE_S = 120


def main(path):
    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    modes = termios.tcgetattr(terminal)
    modes[3] |= termios.TOSTOP
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(terminal, os.getpgrp())
    termios.tcsetattr(terminal, termios.TCSANOW, modes)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    answers = os.dup(1)
    os.dup2(terminal, 0)
    os.dup2(terminal, 1)
    manager = servers(plain_servers.print_and_wait)
    end = time.monotonic() + PATIENCE_S
    errors, was_stopped = [], False
    while time.monotonic() < end:
        try:
            manager.gather_actual_addresses(3)
            break
        except RuntimeError as error:
            errors.append(str(error))
            if process_numbers.state(manager.processes[0].pid) == "T":
                # It may have been stopped only after the error was made: one more, which must tell then.
                if was_stopped:
                    break
                was_stopped = True
    else:
        errors.append("neither works nor is stopped")
    works = process_numbers.state(manager.processes[0].pid) in ("S", "R")
    manager.shutdown(5)
    os.dup2(answers, 1)
    say({"works": works, "errors": errors, "code": manager.processes[0].exitcode})


if __name__ == "__main__":
    main(*sys.argv[1:])
