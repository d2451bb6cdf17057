"""A process that does what it is told through a socket. Run as a script ``puppet.py PATH``, or called in a server."""

import os
import signal
import socket
import sys

# What a job leaves: a worker in the background of a group of its own, whose leader waits for it or ends.
JOB = "sleep 600 >/dev/null 2>&1 & echo $!"


def _start(program, **options):
    """(the process, the number that it says)."""
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_CLOSE, 0)]
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", program], {}, file_actions=actions, **options)
    os.close(writer)
    with os.fdopen(reader) as said:
        return pid, int(said.readline())


def _act(order):
    if order == "end":
        os._exit(0)
    if order == "fail":
        os._exit(3)
    if order == "crash":
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    if order == "child":
        return _start("echo $$; exec sleep 600")
    if order == "stubborn child":
        return _start("trap '' TERM; echo $$; exec sleep 600")
    if order == "job":
        return _start(f"{JOB}; wait", setpgroup=0)
    leader, worker = _start(JOB, setpgroup=0)  # "abandoned job"
    os.waitpid(leader, 0)
    return worker, worker


def obey(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw") as lines:
            print(os.getpid(), file=lines, flush=True)
            for order in lines:
                print(*_act(order.strip()), file=lines, flush=True)
    os._exit(0)


def serve(listen_address, sock, args, client_config):
    obey(args)


if __name__ == "__main__":
    obey(sys.argv[1])
