"""An application that is interrupted while it constructs managers, each time at another moment of that.

Run as ``interrupted_application.py KIND DEED SEED ROUNDS FOLDER``. KIND: "servers" or "frontend". DEED, what its
handler of a signal does: "raise" a KeyboardInterrupt, or "shut down" the manager. Python runs handlers where a call
begins or has returned, so those are the moments: all of them are counted once, then the first ones and random others
are tried, until a few have gone wrong. Says what went wrong.
"""

import contextlib
import os
import random
import signal
import sys
import time

import plain_servers
import process_numbers
import signal_flags
from application_side import frontend, say, servers

FIRST = 25
#: So many errors tell enough.
ENOUGH = 4
SIGNUM = signal.SIGUSR1


def descendants():
    """Living processes that this one, or one of them, has started; but multiprocessing's own helper."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    parents[int(name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return {pid for pid in found - {os.getpid()} if not is_helper(pid)}


def is_helper(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"resource_tracker" in file.read()
    except OSError:
        return True  # it has ended


class Signaller:
    """Raises the signal at the moment with this number; counts them."""

    def __init__(self, moment):
        self.moment = moment
        self.count = 0
        self.where = ""

    def __call__(self, frame, event, argument):
        if event not in ("call", "c_return") or "/fastutils/processes/" not in frame.f_code.co_filename:
            return
        self.count += 1
        if self.count == self.moment:
            name = f" of {argument.__name__}" if event == "c_return" else ""
            code = frame.f_code
            self.where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}: {event}{name}"
            sys.setprofile(None)
            signal.raise_signal(SIGNUM)


def subclass(kind):
    """The manager's class, whose newest instance is known from its first moment on."""
    import fastutils

    name = "APIServerProcessManager" if kind == "servers" else "RustFrontendProcessManager"
    base = getattr(fastutils, name)

    class Known(base):
        newest = None

        def __init__(self, *args, **kwargs):
            Known.newest = self
            super().__init__(*args, **kwargs)

    setattr(fastutils, name, Known)
    return Known


class Trials:
    def __init__(self, kind, deed, folder):
        self.known = subclass(kind)
        self.kind = kind
        self.deed = deed
        self.path = os.path.join(folder, "frontend")
        self.wrong = []

    def handle(self, signum, frame):
        manager = self.known.newest
        if self.deed == "raise":
            raise KeyboardInterrupt
        if hasattr(manager, "processes"):  # else there is nothing yet that could be shut down
            manager.shutdown(0.5)

    def construct(self, moment):
        """(what was raised, the signaller with the number of moments and the place of its own)."""
        signaller = Signaller(moment)
        raised = None
        self.known.newest = None
        try:
            sys.setprofile(signaller)
            if self.kind == "servers":
                servers(plain_servers.wait)
            else:
                frontend(self.path, "exec sleep 600")
        except BaseException as error:
            raised = error
        finally:
            sys.setprofile(None)
        try:
            if raised is None:
                self.known.newest.shutdown(0.5)
        except Exception as error:
            self.tell(signaller, f"a shutdown afterwards: {error!r}")
        return raised, signaller

    def tell(self, signaller, what):
        self.wrong.append(f"moment {signaller.moment}, {signaller.where}: {what}")

    def trial(self, moment):
        before = signal_flags.everything()
        raised, signaller = self.construct(moment)
        after = signal_flags.everything()
        if after != before:
            changed = [signum for signum in before[0] if before[0][signum] != after[0].get(signum)]
            self.tell(signaller, f"signal handlers are not as before: {changed or 'mask or wake-up descriptor'}")
            self.restore(before)
        self.judge(raised, signaller)
        end = time.monotonic() + 20
        while (left := descendants()) and time.monotonic() < end:
            time.sleep(0.005)
        if left:
            self.tell(signaller, f"{len(left)} processes were left running")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    if process_numbers.runs(pid):
                        os.kill(pid, signal.SIGKILL)

    def judge(self, raised, signaller):
        if raised is None:
            return  # it came when all was done
        if self.deed == "raise":
            if not isinstance(raised, KeyboardInterrupt):
                self.tell(signaller, f"instead of what the handler raised: {raised!r}")
            return
        words = str(raised).lower().replace("shutdown", "shut down")
        if not isinstance(raised, RuntimeError) or "shut down" not in words or "start" not in words:
            self.tell(signaller, f"does not say that it was shut down while starting: {raised!r}")

    def restore(self, before):
        for signum, (handler, restarts) in before[0].items():
            if callable(handler):
                signal.signal(signum, handler)
                signal.siginterrupt(signum, not restarts)
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])


def main(kind, deed, seed, rounds, folder):
    trials = Trials(kind, deed, folder)
    signal.signal(SIGNUM, trials.handle)
    signal.siginterrupt(SIGNUM, False)
    trials.construct(None)  # so that everything is imported
    count = trials.construct(None)[1].count
    moments = list(range(1, min(FIRST, count) + 1))
    others = range(FIRST + 1, count + 1)
    moments += random.Random(int(seed)).sample(others, min(len(others), max(int(rounds) - FIRST, 0)))
    tried = 0
    for moment in moments:
        if len(trials.wrong) >= ENOUGH:
            break
        trials.trial(moment)
        tried += 1
    say({"moments": count, "tried": tried, "wrong": trials.wrong})
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
