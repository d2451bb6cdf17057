"""What the programs that play an application have in common. Each server imports this too: nothing heavy here."""

import json
import sys


def say(thing):
    """One answer to the test."""
    print(json.dumps(thing), flush=True)


def hear():
    """What the test tells next; None at the end."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def servers(target, count=1, args=None):
    from fastutils import APIServerProcessManager

    addresses = ["ipc:///never-bound"] * count
    return APIServerProcessManager("", None, args, count, addresses, addresses, target_server_fn=target)


def frontend(path, program):
    """A manager of a frontend that is a shell script, written to `path`."""
    import argparse
    import os
    import socket

    from fastutils import RustFrontendProcessManager

    path = os.fspath(path)
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\n{program}\n")
    os.chmod(path, 0o755)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return RustFrontendProcessManager(path, listener, argparse.Namespace(), "ipc:///a", "ipc:///b", 0, 1)
