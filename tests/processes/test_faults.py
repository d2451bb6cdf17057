"""Every fault in every phase: it ends within its deadline, with the exact error, and leaves nothing behind."""

import argparse
import contextlib
import re
import signal
import time
from multiprocessing import Pipe

import faults
import pytest

from fastutils import APIServerProcessManager, wait_for_completion_or_failure
from fastutils.processes.watching import explain_exit

ADDRESSES = ["ipc:///never-bound-0", "ipc:///never-bound-1"]


class Server:
    """Arguments of which the second server's copy makes the fault happen while they are unpickled."""

    def __init__(self, fault):
        self.fault = fault
        self.copies = 0

    def __reduce__(self):
        self.copies += 1
        return (faults._happen, (self.fault,)) if self.copies == 2 else (argparse.Namespace, ())


@contextlib.contextmanager
def two_servers(fault, phase):
    """(manager, the writing end of the gate), the second of the manager's two servers having the fault."""
    gate, opener = Pipe(duplex=False)
    with gate, opener:
        args = argparse.Namespace(who=1, fault=fault, phase=phase, gate=gate)
        if phase == "start":
            args.first_thing = Server(fault)
        manager = APIServerProcessManager("", None, args, 2, ADDRESSES, ADDRESSES, target_server_fn=faults.serve)
        try:
            yield manager, opener
        finally:
            manager.shutdown(0)


def shut_down(manager, grace):
    began = time.monotonic()
    manager.shutdown(grace)
    assert time.monotonic() - began < grace + 1
    assert all(process.exitcode is not None for process in manager.processes)
    return manager.processes[1].exitcode


@pytest.mark.parametrize("phase", faults.PHASES)
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_fault(fault, phase):
    code = faults.FAULTS[fault][1]
    if fault == "raises a BaseException" and phase == "start":
        code = -signal.SIGINT  # as of any program: nothing of multiprocessing's is there yet to make an exit code of it
    with two_servers(fault, phase) as (manager, opener):
        if phase in ("start", "gather"):
            not_ready(manager, fault, code)
            shut_down(manager, 0.3)
            return
        manager.gather_actual_addresses(60)
        if phase == "run":
            opener.send("now")
            running(manager, code)
            shut_down(manager, 0.3)
        else:
            stubborn = code is None or fault == "leaves a child behind"
            ended = shut_down(manager, 1.0 if stubborn else 20.0)
            assert ended == (-signal.SIGKILL if code is None else code)


def not_ready(manager, fault, code):
    if code is not None:
        message = f"API server process ApiServer_1 exited (code={code}) before reporting its bound ZMQ addresses"
        message += explain_exit(code)
    elif fault == "closes all descriptors and hangs":
        message = (
            "API server ApiServer_1 closed its address pipe without reporting its bound ZMQ addresses; "
            f"the process (PID: {manager.processes[1].pid}) still runs"
        )
    else:
        message = "Timed out after 0.1s waiting for API server(s) to report bound ZMQ addresses: ['ApiServer_1']"
        while len(manager._reports) == 0:  # the first one may take longer
            with pytest.raises(RuntimeError, match=r"^Timed out after 0\.0s .*'ApiServer_1'\]$"):
                manager.gather_actual_addresses(0.02)
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        manager.gather_actual_addresses(0.1 if message.startswith("Timed") else 60)


def running(manager, code):
    first, second = manager.processes
    if code is None:
        assert second.is_alive()
    elif code == 0:
        second.join(30)
        first.terminate()
        with pytest.raises(RuntimeError, match=rf"^Process ApiServer_0 \(PID: {first.pid}\) died with exit code -15"):
            wait_for_completion_or_failure(manager)
    else:
        message = f"Process ApiServer_1 (PID: {second.pid}) died with exit code {code}{explain_exit(code)}"
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            wait_for_completion_or_failure(manager)
