"""Programs that the tests run in spawned processes. Nothing heavy is imported here: a child imports this module."""

import os
import signal
import sys
import threading

from fastutils.processes import report_bound_addresses


def _report(client_config, **more):
    with client_config["actual_address_pipe"] as pipe:
        pipe.send({key: client_config[key] for key in ("input_address", "output_address")} | more)


def echo_server(listen_address, sock, args, client_config):
    """Binds both sockets, reports, then answers each request on its input with one message on its output."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as requests, context.socket(zmq.PUSH) as answers:
        requests.bind(client_config["input_address"])
        answers.bind(client_config["output_address"])
        report_bound_addresses(client_config, requests, answers)
        while True:
            request = requests.recv_json()
            if request == "stop":
                return
            answer = {
                "index": client_config["client_index"],
                "count": client_config["client_count"],
                "config": sorted(client_config),
                "args": vars(args),
                "listen_address": listen_address,
                "socket": sock.getsockname()[1] if sock is not None else None,
                "modules": [name for name in ("torch", "psutil") if name in sys.modules],
                "request": request,
            }
            answers.send_json(answer)


def report_and_exit(listen_address, sock, args, client_config):
    _report(client_config)


def report_and_wait(listen_address, sock, args, client_config):
    _report(client_config)
    threading.Event().wait()


def report_and_ignore_sigterm(listen_address, sock, args, client_config):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _report(client_config)
    threading.Event().wait()


def _stubborn_process():
    import subprocess

    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def report_from_stubborn_grandchild(listen_address, sock, args, client_config):
    """Both this process and the one that it starts ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = _stubborn_process()
    _report(client_config, output_address=str(grandchild.pid))
    threading.Event().wait()


def report_from_stubborn_grandchild_but_listen(listen_address, sock, args, client_config):
    """Only the process that it starts ignores SIGTERM."""
    grandchild = _stubborn_process()
    _report(client_config, output_address=str(grandchild.pid))
    threading.Event().wait()


def report_from_another_session(listen_address, sock, args, client_config):
    """With a child; the child, or this process itself, is in a session of its own."""
    import subprocess

    if args == "the server":
        os.setsid()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(command, start_new_session=args == "the child")
    _report(client_config, output_address=str(child.pid))
    threading.Event().wait()


def wait_silently(listen_address, sock, args, client_config):
    threading.Event().wait()


def first_reports_others_wait(listen_address, sock, args, client_config):
    if client_config["client_index"] == 0:
        _report(client_config)
    threading.Event().wait()


def exit_with_7(listen_address, sock, args, client_config):
    os._exit(7)


def exit_cleanly(listen_address, sock, args, client_config):
    return


def kill_self(listen_address, sock, args, client_config):
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error(listen_address, sock, args, client_config):
    os.close(2)  # the expected traceback would only disturb the tests' output
    raise ValueError("no configuration")


def close_pipe_and_wait(listen_address, sock, args, client_config):
    client_config["actual_address_pipe"].close()
    threading.Event().wait()


def close_everything_and_wait(listen_address, sock, args, client_config):
    os.closerange(3, 1024)
    threading.Event().wait()


def leave_grandchild_and_die(listen_address, sock, args, client_config):
    """A forked grandchild keeps every descriptor open after its parent's death, the pipe's and the sentinel's too."""
    if os.fork():
        os._exit(3)
    args.pid_pipe.send(os.getpid())
    args.release_pipe.poll(None)
    os._exit(0)


def send_wrong_type(listen_address, sock, args, client_config):
    client_config["actual_address_pipe"].send(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"])
    threading.Event().wait()


def send_half_a_dictionary(listen_address, sock, args, client_config):
    client_config["actual_address_pipe"].send({"input_address": "tcp://127.0.0.1:1"})
    threading.Event().wait()


def send_garbage(listen_address, sock, args, client_config):
    client_config["actual_address_pipe"].send_bytes(b"\x80garbage")
    threading.Event().wait()


def send_partial_message_and_wait(listen_address, sock, args, client_config):
    os.write(client_config["actual_address_pipe"].fileno(), b"\0\0\0\x40half")
    threading.Event().wait()


def send_partial_message_and_die(listen_address, sock, args, client_config):
    os.write(client_config["actual_address_pipe"].fileno(), b"\0\0\0\x40half")
    os._exit(5)


def send_absurd_length(listen_address, sock, args, client_config):
    os.write(client_config["actual_address_pipe"].fileno(), b"\xff\xff\xff\xff")
    threading.Event().wait()


class NotesTheWatch:
    """Unpickles to whether the parent was being watched at that moment."""

    def __reduce__(self):
        return _is_watched, ()


def _is_watched():
    return any(thread.name == "fastutils-parent-watch" for thread in threading.enumerate())


def report_whether_watched(listen_address, sock, args, client_config):
    _report(client_config, output_address=f"watched before loading: {args}")


class Unloadable:
    """Can be pickled; unpickling it fails."""

    def __reduce__(self):
        return _fail, ()


def _fail():
    raise LookupError("not on this side")


def die_when_told(pipe, code):
    """For plain processes: ends with `code` as soon as the pipe says so."""
    pipe.recv()
    os._exit(code)


def do_nothing():
    pass


def wait_for_ever():
    threading.Event().wait()


def ignore_sigterm(pipe):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send(None)
    threading.Event().wait()


def adopting_server(listen_address, sock, args, client_config):
    """Serves the listening sockets that it was started with, as `echo_server` serves those that it binds."""
    import zmq

    from fastutils.processes import adopt_listeners

    with zmq.Context() as context, context.socket(zmq.PULL) as requests, context.socket(zmq.PUSH) as answers:
        adopt_listeners(client_config, requests, answers)
        while (request := requests.recv_json()) != "stop":
            loads = list(client_config.get("api_server_loads", ()))
            index = client_config["client_index"]
            answers.send_json({"index": index, "config": sorted(client_config), "loads": loads, "request": request})


def report_until_it_fails(listen_address, sock, args, client_config):
    """Sends one report after the other."""
    pipe = client_config["actual_address_pipe"]
    try:
        for count in range(1, 1 << 30):
            pipe.send({"input_address": client_config["input_address"], "output_address": str(count)})
    except BrokenPipeError:
        os._exit(11)
