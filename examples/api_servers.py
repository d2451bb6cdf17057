"""Several worker processes behind one listening socket, supervised: start, readiness, work, a death, the end.

    python examples/api_servers.py [--servers 4] [--requests 40]

Each worker accepts connections from the one TCP socket that all of them share, as HTTP servers do, and has two ZMQ
sockets of its own, bound where the kernel chooses: jobs come in on one, answers go out on the other. The parent gathers
the addresses, sends jobs through all workers, then kills one of them. The supervision says who died and why, and when
the program ends nothing of it is left.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from typing import Any

import zmq

from fastutils import APIServerProcessManager, get_engine_client_zmq_addr, wait_for_completion_or_failure
from fastutils.processes import report_bound_addresses


def worker(
    listen_address: str, listener: socket.socket, args: argparse.Namespace, client_config: dict[str, Any]
) -> None:
    """What each process runs: a greeting for each TCP connection, the square of each number that comes as a job."""
    index = client_config["client_index"]
    with zmq.Context() as context, context.socket(zmq.PULL) as jobs, context.socket(zmq.PUSH) as answers:
        jobs.bind(client_config["input_address"])
        answers.bind(client_config["output_address"])
        report_bound_addresses(client_config, jobs, answers)
        listener.setblocking(False)  # another worker may be faster
        poller = zmq.Poller()
        poller.register(jobs, zmq.POLLIN)
        poller.register(listener, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if jobs in ready:
                number = jobs.recv_json()
                answers.send_json({"worker": index, "number": number, "square": number * number})
            if listener.fileno() in ready:
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    continue
                with connection:
                    connection.sendall(f"hello from worker {index}\n".encode())


def compute(manager: APIServerProcessManager, requests: int) -> None:
    """Send jobs to all workers in turn and collect as many answers."""
    inputs, outputs = manager.gather_actual_addresses(timeout=60)
    with zmq.Context() as context, context.socket(zmq.PULL) as answers:
        for address in outputs:
            answers.connect(address)
        senders = [context.socket(zmq.PUSH) for _ in inputs]
        for sender, address in zip(senders, inputs, strict=True):
            sender.connect(address)
        for number in range(requests):
            senders[number % len(senders)].send_json(number)
        by_worker: dict[int, int] = {}
        for _ in range(requests):
            if not answers.poll(60_000):
                raise TimeoutError("no answer within 60 s")
            answer = answers.recv_json()
            assert answer["square"] == answer["number"] ** 2
            by_worker[answer["worker"]] = by_worker.get(answer["worker"], 0) + 1
        for sender in senders:
            sender.close()
    print(f"{requests} answers, by worker: {dict(sorted(by_worker.items()))}")


def greet(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        print(f"port {port} answers:", connection.makefile().readline().strip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40)
    args = parser.parse_args()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        addresses = [get_engine_client_zmq_addr(local_only=False, host="127.0.0.1") for _ in range(2 * args.servers)]
        manager = APIServerProcessManager(
            listen_address=f"tcp://127.0.0.1:{port}",
            sock=listener,
            args=args,
            num_servers=args.servers,
            input_addresses=addresses[: args.servers],
            output_addresses=addresses[args.servers :],
            target_server_fn=worker,
        )
        try:
            compute(manager, args.requests)
            greet(port)
            victim = manager.processes[-1]
            print(f"killing {victim.name} (PID: {victim.pid})")
            os.kill(victim.pid, signal.SIGKILL)
            try:
                wait_for_completion_or_failure(manager)
            except RuntimeError as error:
                print(f"the supervisor says: {error}")
        finally:
            manager.shutdown(timeout=5)
        print("exit codes:", {process.name: process.exitcode for process in manager.processes})
    return 0


if __name__ == "__main__":
    sys.exit(main())
