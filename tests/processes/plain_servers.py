"""What API servers run in tests of whole applications. Uses nothing of the package, so that it changes nothing."""

import os
import signal
import subprocess
import sys
import threading


def report(client_config, **more):
    pipe = client_config.get("actual_address_pipe")
    if pipe is not None:
        with pipe:
            pipe.send({key: client_config[key] for key in ("input_address", "output_address")} | more)


def wait(listen_address, sock, args, client_config):
    """Ends at a SIGTERM, at once."""
    report(client_config)
    while True:
        signal.pause()


def exit_with(listen_address, sock, args, client_config):
    report(client_config)
    os._exit(args)


def print_and_wait(listen_address, sock, args, client_config):
    print("a line for the terminal", flush=True)
    wait(listen_address, sock, args, client_config)


def _stubborn_child():
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE)
    child.stdout.readline()
    child.returncode = 0  # it stays, and there is nobody to be warned of that
    return child.pid


def exit_and_leave_a_stubborn_child(listen_address, sock, args, client_config):
    """Reports the child's number as its output address."""
    report(client_config, output_address=str(_stubborn_child()))
    os._exit(3)


def wait_with_a_stubborn_child(listen_address, sock, args, client_config):
    """Reports the child's number as its output address."""
    report(client_config, output_address=str(_stubborn_child()))
    threading.Event().wait()


def wait_with_a_daemon(listen_address, sock, args, client_config):
    """Reports the number of a daemon as daemons are made: by two forks and a session of its own."""
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.closerange(0, 1024)
            while True:
                signal.pause()
        os._exit(0)
    os.waitpid(first, 0)
    report(client_config, output_address=os.read(reader, 20).decode())
    while True:
        signal.pause()


_kept = []


def have_servers(listen_address, sock, args, client_config):
    """Has two servers, reports their numbers as its output address, and ends as ``args["how"]`` says."""
    from application_side import servers

    manager = servers(wait, 2)
    if args["kept"]:
        _kept.append(manager)
    manager.gather_actual_addresses(120)
    report(client_config, output_address=" ".join(str(process.pid) for process in manager.processes))
    if args["how"] == "wait":
        threading.Event().wait()
    if args["how"] == "raise":
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (the expected traceback would only disturb the tests' output)
        raise ValueError("no configuration")
    if args["how"] == "exit":
        sys.exit(5)
