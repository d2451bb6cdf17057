"""What can go wrong in a server, and when. Runs in spawned processes: nothing heavy is imported here."""

import os
import signal
import sys
import threading

PHASES = ("start", "gather", "run", "shutdown")


def _signal_self(signum):
    signal.signal(signum, signal.SIG_DFL) if signum not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), signum)
    threading.Event().wait()  # until it has arrived


def _raise(error):
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (the expected traceback would only disturb the tests' output)
    raise error


def _hold_the_lock():
    import ctypes

    signal.signal(signal.SIGTERM, lambda *_: None)
    ctypes.PyDLL(None).sleep(600)  # in C, without giving up the interpreter's lock


def _close_all():
    os.closerange(3, 1024)
    threading.Event().wait()


def _have_a_child(in_another_session):
    """Has a child that ignores SIGTERM."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if in_another_session:
            os.setsid()
        os.write(writer, b"!")
        while True:
            signal.pause()
    os.read(reader, 1)


def _hang_with_a_child_that_left():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _have_a_child(True)
    threading.Event().wait()


def _recurse():
    return _recurse() + 1


def _deep():
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    _recurse()


def _exec(program):
    os.execv("/bin/sh", ["sh", "-c", program])


#: Name -> (what the server does, the exit code that follows; None: it hangs).
FAULTS = {
    "returns from main": (lambda: sys.exit(0), 0),
    "exits at once": (lambda: os._exit(7), 7),
    "exits with 255": (lambda: os._exit(255), 255),
    "exits with a text": (lambda: (setattr(sys, "stderr", open(os.devnull, "w")), sys.exit("no licence")), 1),  # noqa: SIM115
    "raises": (lambda: _raise(ValueError("no configuration")), 1),
    "raises a BaseException": (lambda: _raise(KeyboardInterrupt()), 1),
    "runs out of memory": (lambda: _raise(MemoryError()), 1),
    "recurses without end": (_deep, 1),
    "is killed": (lambda: _signal_self(signal.SIGKILL), -9),
    "is terminated": (lambda: _signal_self(signal.SIGTERM), -15),
    "is interrupted": (lambda: _signal_self(signal.SIGINT), -2),
    "crashes": (lambda: _signal_self(signal.SIGSEGV), -11),
    "aborts": (lambda: _signal_self(signal.SIGABRT), -6),
    "meets an illegal instruction": (lambda: _signal_self(signal.SIGILL), -4),
    "is hung up": (lambda: _signal_self(signal.SIGHUP), -1),
    "writes to a pipe nobody reads": (lambda: _signal_self(signal.SIGPIPE), -13),
    "gets a real-time signal": (lambda: _signal_self(signal.SIGRTMIN + 1), -signal.SIGRTMIN - 1),
    "becomes another program": (lambda: _exec("exit 9"), 9),
    "leaves a child behind": (lambda: (_have_a_child(False), os._exit(3)), 3),
    "hangs": (lambda: threading.Event().wait(), None),
    "hangs with a child in another session": (_hang_with_a_child_that_left, None),
    "stops": (lambda: (os.kill(os.getpid(), signal.SIGSTOP), threading.Event().wait()), None),
    "holds the interpreter's lock": (_hold_the_lock, None),
    "closes all descriptors and hangs": (_close_all, None),
    "becomes another program that hangs": (lambda: _exec("exec sleep 600"), None),
    "ignores every signal it can": (
        lambda: ([signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 10, 12, 13, 14, 15)], threading.Event().wait()),
        None,
    ),
}


class Happens:
    """Unpickled in the server, it makes the fault happen before the server's program starts."""

    def __init__(self, fault):
        self.fault = fault

    def __reduce__(self):
        return _happen, (self.fault,)


def _happen(fault):
    return FAULTS[fault][0]()


def serve(listen_address, sock, args, client_config):
    """A server; that with the index `args.who` has `args.fault` in `args.phase`.

    `args.gate` holds back a fault while running: it is a reading end of a pipe.
    """
    faulty = client_config["client_index"] == args.who
    if faulty and args.phase == "gather":
        _happen(args.fault)
    if faulty and args.phase == "shutdown":
        signal.signal(signal.SIGTERM, lambda *_: _happen(args.fault))
    with client_config["actual_address_pipe"] as pipe:
        pipe.send({key: client_config[key] for key in ("input_address", "output_address")})
    if faulty and args.phase == "run":
        args.gate.recv()
        _happen(args.fault)
    while True:
        signal.pause()  # a handler may have run
