"""An application with some of the descriptors 0, 1 and 2 closed. Run as ``low_descriptors_application.py CLOSED THREAD
FOLDER``: CLOSED like "02" or "-", THREAD "main" or "other". Writes what it has seen as JSON into FOLDER/seen.

Each listening socket of a child is connected to, and says what the child sees.
"""

import json
import os
import socket
import sys
import threading
import traceback

FRONTEND = """
import json, os, socket, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
seen = {name: int(options[name]) for name in options if name.endswith("-fd")}
sockets = [socket.socket(fileno=fd) for fd in seen.values()]
while True:
    for each in sockets:
        connection, _ = each.accept()
        with connection:
            connection.sendall(json.dumps({"descriptors": list(seen.values())}).encode())
"""


def serve(listen_address, sock, args, client_config):
    sockets = [sock, client_config["input_listener"], client_config["output_listener"]]
    while True:
        for each in sockets:
            connection, _ = each.accept()
            with connection:
                seen = {"descriptors": [one.fileno() for one in sockets], "args": args}
                connection.sendall(json.dumps(seen).encode())


def asked(*ports):
    answers = []
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            chunks = iter(lambda: connection.recv(65536), b"")
            answers.append(json.loads(b"".join(chunks)))
    return answers


def run(folder):
    import argparse

    from fastutils import APIServerProcessManager, RustFrontendProcessManager
    from fastutils.processes import ZmqListener

    seen = {}
    path = os.path.join(folder, "frontend")
    with open(path, "w") as file:
        file.write(f"#!{sys.executable} -IS\n{FRONTEND}")
    os.chmod(path, 0o755)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        pair = [ZmqListener("tcp://127.0.0.1:0") for _ in range(2)]
        ports = [port, *(one.socket.getsockname()[1] for one in pair)]
        args = {"text": "x" * 100_000, "numbers": [1, 2, 3]}
        manager = APIServerProcessManager("", listener, args, 1, [pair[0]], [pair[1]], target_server_fn=serve)
        try:
            answers = asked(*ports)
            seen["server"] = [answer["descriptors"] for answer in answers]
            seen["args arrived"] = all(answer["args"] == args for answer in answers)
            seen["server lives"] = manager.processes[0].is_alive()
        finally:
            manager.shutdown(5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pair = [ZmqListener("tcp://127.0.0.1:0") for _ in range(2)]
        ports = [listener.getsockname()[1], *(one.socket.getsockname()[1] for one in pair)]
        manager = RustFrontendProcessManager(path, listener, argparse.Namespace(), *pair, 0, 1)
        try:
            seen["frontend"] = [answer["descriptors"] for answer in asked(*ports)]
            seen["frontend lives"] = manager.processes[0].is_alive()
        finally:
            manager.shutdown(5)
    return seen


def main(closed, thread, folder):
    for descriptor in closed.strip("-"):
        os.close(int(descriptor))
    seen = {}

    def note():
        try:
            seen.update(run(folder))
        except BaseException:
            seen["error"] = traceback.format_exc()

    if thread == "other":
        runner = threading.Thread(target=note)
        runner.start()
        runner.join()
    else:
        note()
    with open(os.path.join(folder, "seen"), "w") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
