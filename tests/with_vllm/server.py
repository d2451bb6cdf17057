"""A ``vllm serve`` with two API servers, for tests that end it in several ways."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

START_S = 600
END_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """The processes are those of one session, which is how what is left of them is found and ended."""

    def __init__(self, model, log, environment):
        self.port = free_port()
        self.log = log
        self.model = str(model)
        command = [
            *(Path(sys.executable).with_name("vllm"), "serve", self.model),
            *("--host", "127.0.0.1", "--port", str(self.port), "--api-server-count", "2"),
            *("--enforce-eager", "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "64"),
        ]
        with log.open("wb") as output:
            self.parent = subprocess.Popen(
                command,
                env=environment,
                cwd=environment["HOME"],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self):
        return self.log.read_text(errors="replace")

    def processes(self):
        """All processes of the server that live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == self.parent.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def named(self, part):
        return [process for process in self.processes() if part in " ".join(process.cmdline())]

    def wait_for(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s\n{self.text()[-8000:]}"
            time.sleep(0.2)

    def wait_until_ready(self):
        def ready():
            assert self.parent.poll() is None, f"the server ended\n{self.text()[-8000:]}"
            return self.text().count("Application startup complete.") == 2 and self._healthy()

        self.wait_for(ready, START_S, "both API servers being ready")

    def wait_until_gone(self):
        self.wait_for(lambda: not self.processes(), END_S, "the end of all processes")

    def _healthy(self):
        try:
            return self.request("GET", "/health")[0] == 200
        except OSError:
            return False

    def request(self, method, path, body=None):
        """(status, body) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def complete_many(self, prompts, max_tokens=16):
        """The texts of the completions of all `prompts`, asked for at the same time."""

        def complete(prompt):
            body = {
                "model": self.model,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            status, answer = self.request("POST", "/v1/completions", body)
            assert status == 200, answer
            return json.loads(answer)["choices"][0]["token_ids"]

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(complete, prompts))

    def end(self):
        """Kill whatever is left."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.parent.wait(END_S)
        self.wait_until_gone()
