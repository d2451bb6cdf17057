"""How an intruder gets in from anywhere: the collector, finalizers, tracing, audit hooks, other threads.

Where exactly is the interpreter's affair and differs between the forms. `matrix` hence compares what comes of it with
all that the Python form could give. Gates that open at the same points in both forms stand with the worlds they need.
"""

import contextlib
import gc
import sys
import threading
import time
import weakref


class Cycle:
    """Garbage as soon as it is made: only a collection ends it, and then the next one takes its place."""

    def __init__(self, door, ended):
        self.me, self.door, self.ended = self, door, ended


class Finalized(Cycle):
    def __del__(self):
        if self.door.open:
            Finalized(self.door, None)
            self.door()


@contextlib.contextmanager
def collecting_at_every_allocation():
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextlib.contextmanager
def collector_callback(world, door):
    def called(phase, info):
        door()

    gc.callbacks.append(called)
    try:
        with collecting_at_every_allocation():
            yield
    finally:
        gc.callbacks.remove(called)


@contextlib.contextmanager
def finalizer_of_garbage(world, door):
    with collecting_at_every_allocation():
        door.open = True
        Finalized(door, None)
        yield


@contextlib.contextmanager
def callback_of_garbage(world, door):
    watched = []

    def ended(reference):
        watched.remove(reference)
        if door.open:
            again()
            door()

    def again():
        watched.append(weakref.ref(Cycle(None, None), ended))

    with collecting_at_every_allocation():
        again()
        yield
    watched.clear()


@contextlib.contextmanager
def _traced_by(function):
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)


def trace(world, door):
    def traced(frame, event, argument):
        door()
        return traced

    return _traced_by(traced)


def every_step(world, door):
    """Before every instruction: wherever Python code can be interrupted at all."""

    def traced(frame, event, argument):
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        door()
        return traced

    return _traced_by(traced)


@contextlib.contextmanager
def profile(world, door):
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: door())
    try:
        yield
    finally:
        sys.setprofile(before)


audited = []  # the door that audit events open now; the hook itself stays for the life of the process


@contextlib.contextmanager
def audit(world, door):
    if not audited:
        audited.append(None)
        sys.addaudithook(lambda event, arguments: audited[0] is not None and audited[0]())
    audited[0] = door
    try:
        yield
    finally:
        audited[0] = None


@contextlib.contextmanager
def thread(world, door):
    """At every moment at which threads may be switched: one of them is as good as any other."""
    ready, interval = threading.Event(), sys.getswitchinterval()
    finished = False

    def intrude():
        ready.set()
        while not door.open and not finished:
            time.sleep(0)
        with contextlib.suppress(Exception):  # what it raises is raised in its own thread
            door()

    other = threading.Thread(target=intrude)
    sys.setswitchinterval(1e-6)
    try:
        other.start()
        ready.wait()
        yield
    finally:
        finished = True
        other.join()
        sys.setswitchinterval(interval)


ANYWHERE = {
    "collector callback": collector_callback,
    "finalizer of garbage": finalizer_of_garbage,
    "weakref callback of garbage": callback_of_garbage,
    "trace function": trace,
    "profile function": profile,
    "audit hook": audit,
    "another thread": thread,
}
