"""A vLLM that only has engines, and the parents that start them: ``engine_parents.py FOLDER METHOD KIND``.

The parent loads the plugin, starts one engine of a KIND and two processes of its own, writes all their pids in one line
(see `main`), and waits.
"""

import importlib
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path

ENGINES = '''
"""Stands for the module that vLLM's engines run."""
import ctypes, os, signal, subprocess, sys, threading
from fastutils import plugin

def sleeper(**options):
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **options).pid

def wait():
    while True:
        signal.pause()

def stubborn(pipe):
    """With a child, and one in a session of its own; none of the three ends when asked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send([os.getpid(), sleeper(), sleeper(start_new_session=True)])
    wait()

def polite(pipe):
    """Notes that it is asked, and goes."""
    def go(*_):
        with open(os.environ["REPORT"], "w") as file:
            file.write("asked")
        os._exit(0)
    signal.signal(signal.SIGTERM, go)
    pipe.send([os.getpid(), sleeper()])
    wait()

def stopped(pipe):
    pipe.send([os.getpid(), sleeper()])
    os.kill(os.getpid(), signal.SIGSTOP)
    wait()

def locked(pipe):
    """C code that holds the interpreter's lock."""
    pipe.send([os.getpid(), sleeper()])
    ctypes.PyDLL(None).sleep(600)

def moved(pipe):
    """A daemon by its own will: it leaves the session."""
    os.setsid()
    pipe.send([os.getpid()])
    wait()

def doubly_forked(pipe):
    """The other way to become a daemon: a child's child in a session of its own; the engine itself goes on."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            pipe.send([os.getpid()])
            wait()
        os._exit(0)
    os.wait()
    wait()

def with_worker(pipe):
    """Starts a worker as its parent started it, and is killed."""
    import multiprocessing
    plugin.load()
    context = multiprocessing.get_context(multiprocessing.get_start_method(allow_none=True))
    context.Process(target=stubborn, args=(pipe,)).start()
    threading.Event().wait()
'''


def write(folder):
    home = Path(folder, "vllm", "v1")
    home.mkdir(parents=True)
    for package in (home.parent, home):
        (package / "__init__.py").touch()
    (home / "engine.py").write_text(ENGINES)


def own(pipe):
    """A process of the program's own."""
    pipe.send([multiprocessing.current_process().pid])
    threading.Event().wait()


def main(method, kind):
    """Writes: the engine's pid | those that the engine reports | those of the program's own processes."""
    from fastutils import plugin

    plugin.load()
    context = multiprocessing.get_context(method)
    multiprocessing.set_start_method(method)
    target = getattr(importlib.import_module("vllm.v1.engine"), kind)
    reader, writer = context.Pipe(duplex=False)
    engine = context.Process(target=target, args=(writer,))
    engine.start()
    reported = reader.recv()
    own_reader, own_writer = context.Pipe(duplex=False)
    context.Process(target=own, args=(own_writer,)).start()
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(engine.pid, "|", *reported, "|", *own_reader.recv(), program.pid, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    main(sys.argv[2], sys.argv[3])
