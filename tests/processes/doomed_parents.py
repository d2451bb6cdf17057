"""Parents that are killed at random moments. Run as a script: ``doomed_parents.py COUNT SEED BINARY``.

Each parent is a fork that starts servers, or a Rust frontend's stand-in BINARY, and gets SIGKILL after a random time;
all that it starts carries its number in the environment. Prints one line ``NUMBER READY`` for each that is dead:
whether it had come to have everything started.
"""

import argparse
import os
import random
import select
import signal
import socket
import sys
import time

MARKER = "FASTUTILS_TEST_PARENT"
AT_ONCE = 4
LONGEST_S = 1.2


def serve(listen_address, sock, args, client_config):
    """Every other server has a stubborn child, and every third is stubborn itself."""
    if args.number % 3 == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.number % 2 == 0 and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    with client_config["actual_address_pipe"] as pipe:
        pipe.send({key: client_config[key] for key in ("input_address", "output_address")})
    while True:
        signal.pause()


def parent(number, binary, ready):
    from fastutils import APIServerProcessManager, RustFrontendProcessManager

    os.environ[MARKER] = str(number)
    args = argparse.Namespace(number=number)
    if number % 4 == 1:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            manager = RustFrontendProcessManager(binary, listener, args, "ipc:///a", "ipc:///b", 0, 1)
    else:
        addresses = ["ipc:///a"] * 2
        manager = APIServerProcessManager("", None, args, 2, addresses, addresses, target_server_fn=serve)
        manager.gather_actual_addresses(60)
    os.write(ready, b"!")
    while True:
        signal.pause()


def main(count, seed, binary):
    import fastutils

    assert fastutils.APIServerProcessManager
    assert fastutils.RustFrontendProcessManager
    moments = random.Random(seed)
    for first in range(0, count, AT_ONCE):
        running = []
        for number in range(first, min(first + AT_ONCE, count)):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                parent(number, binary, writer)
            os.close(writer)
            running.append((time.monotonic() + moments.uniform(0, LONGEST_S), number, pid, reader))
        for moment, number, pid, reader in sorted(running):
            time.sleep(max(0.0, moment - time.monotonic()))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            was_ready = bool(select.select([reader], [], [], 0)[0]) and os.read(reader, 1) == b"!"
            os.close(reader)
            print(number, int(was_ready), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
