"""An application whose processes' numbers are given to strangers. Run as ``reuse_rounds.py FOLDER SEED ROUNDS``, as the
first process of a namespace of its own, where nobody else takes numbers and all is gone when it ends.

A round: one of some processes starts children and jobs, ends or not, and is collected or not; a stranger, if its number
is free, gets exactly that. After a few rounds the processes are shut down. Says what it has seen: `Rounds.seen`.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections import Counter

import process_numbers
import puppet
from application_side import frontend, say, servers

HERE = os.path.dirname(os.path.abspath(__file__))
GRACE_S = 0.3
# How long a loaded machine may take for what takes milliseconds.
PATIENCE_S = 60.0


def until(condition, what, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.002)


class Puppet:
    def __init__(self, listener):
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE_S)
        self.lines = connection.makefile("rw")
        connection.close()  # the file holds it
        self.pid = int(self.lines.readline())
        self.process = None

    def order(self, what):
        print(what, file=self.lines, flush=True)
        return [int(pid) for pid in self.lines.readline().split()]


class Rounds:
    def __init__(self, folder, seed):
        self.random = random.Random(seed)
        self.folder = folder
        self.log = os.path.join(folder, "log")
        self.path = os.path.join(folder, "socket")
        self.history = []
        self.seen = {"wrong": [], "counts": Counter()}
        #: What is to be left alone: number -> what it is.
        self.bystanders = {}
        #: What is to end at the next shutdown: number -> what it is.
        self.ours = {}
        open(self.log, "w").close()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.square = self.witness("leader")  # the group that strangers join

    # --- bystanders ---------------------------------------------------------------------------------------------------

    def notes(self):
        with open(self.log) as file:
            return [line.split() for line in file]

    def witness(self, mode, number=None, group=0):
        """Starts one; its number, or None if `number` is not to be had."""
        command = [sys.executable, "-I", "-S", os.path.join(HERE, "witness.py"), self.log, mode]
        options = {} if group is None else {"setpgroup": group}
        notes = len(self.notes())

        def start():
            return os.posix_spawn(command[0], command, {}, **options)

        pid = start() if number is None else process_numbers.take(number, start, tries=3)
        if pid is None:
            return None
        expected = {"leader": 2}.get(mode, 1)
        until(lambda: [note[0] for note in self.notes()[notes:]].count("up") >= expected, f"a witness: {mode}")
        for word, witness, *_ in self.notes()[notes:]:
            if word == "up":
                self.bystanders[int(witness)] = f"a {mode} with the number {pid}"
        if mode == "founder":
            os.waitpid(pid, 0)
        return pid

    def stranger(self, number):
        mode, group = self.random.choice([("leader", 0), ("founder", 0), ("plain", self.square), ("plain", None)])
        got = self.witness(mode, number, group)
        kind = f"{mode} {'of a group' if group == 0 else 'in a group' if group else 'as a child'}"
        self.seen["counts"][f"stranger: {kind}" if got else "number still in use"] += 1
        self.history.append(f"{number} is given to a stranger, {kind}: {got is not None}")

    # --- rounds -------------------------------------------------------------------------------------------------------

    def round(self, one, collect_elsewhere, deeds=("child", "stubborn child", "job", "abandoned job")):
        for _ in range(self.random.randrange(3)):
            self.have_started(one, self.random.choice(deeds))
        order = self.random.choice(["end", "fail", "crash", None])
        self.history.append(f"{one.pid}: {order}")
        if order is None:
            self.ours[one.pid] = "a process"
            return
        print(order, file=one.lines, flush=True)
        one.lines.readline()  # the end
        for pid, what in list(self.ours.items()):
            if what.endswith(f" of {one.pid}") and not (self.grouped and what.startswith("child")):
                del self.ours[pid]
                self.bystanders[pid] = f"{what}, which has ended before the shutdown"
        if collect_elsewhere and self.random.random() < 0.5:
            os.waitpid(one.pid, 0)
        else:
            until(lambda: not one.process.is_alive(), f"the end of {one.pid}")
        self.seen["counts"]["ended before"] += 1
        if self.random.random() < 0.9:
            self.stranger(one.pid)

    def have_started(self, one, what):
        pids = one.order(what)
        self.history.append(f"{one.pid} has started a {what}: {pids}")
        self.seen["counts"][what] += 1
        if what == "abandoned job":
            self.bystanders[pids[0]] = f"the worker of an abandoned job of {one.pid}"
        else:
            kind = "child" if "child" in what else "job"
            self.ours.update(dict.fromkeys(pids, f"{kind} of {one.pid}"))

    def puppets(self, processes):
        found = [Puppet(self.listener) for _ in processes]
        by_pid = {process.pid: process for process in processes}
        for one in found:
            one.process = by_pid[one.pid]
        self.kept = found  # they end when nobody can give them orders any more
        return found

    def check(self):
        for pid in self.ours:
            try:
                until(lambda pid=pid: not process_numbers.runs(pid), "", 20)
            except TimeoutError:
                self.wrong(f"{pid}, {self.ours[pid]}, was not ended")
        for pid, what in self.bystanders.items():
            if process_numbers.state(pid) not in ("S", "R", "D"):
                self.wrong(f"{pid}, {what}, was ended or stopped: {process_numbers.state(pid)}")
        for word, pid, *signums in self.notes():
            if word == "hit":
                self.wrong(f"{pid}, {self.bystanders[int(pid)]}, got {signal.Signals(int(signums[0])).name}")
        if self.seen["wrong"]:
            return
        for pid in list(self.bystanders):
            if self.random.random() < 0.5:  # the others stay, for the shutdowns to come
                self.dismiss(pid)
        self.ours.clear()
        self.history.clear()

    def dismiss(self, pid):
        if self.bystanders[pid] == self.bystanders[self.square] or self.bystanders[pid].startswith("job"):
            return  # the leader of a job ends with its worker
        os.kill(pid, signal.SIGKILL)
        until(lambda: not process_numbers.runs(pid), f"the end of {pid}")
        with contextlib.suppress(ChildProcessError):  # somebody else's child
            os.waitpid(pid, 0)
        del self.bystanders[pid]

    def wrong(self, what):
        self.seen["wrong"].append({"what": what, "before": list(self.history)})

    # --- the three kinds of processes ---------------------------------------------------------------------------------

    def with_servers(self, count):
        self.grouped = True
        manager = servers(puppet.serve, count, self.path)
        for one in self.puppets(manager.processes):
            self.round(one, collect_elsewhere=True)
        manager.shutdown(GRACE_S)
        self.check()

    def with_a_frontend(self):
        self.grouped = True
        program = f"exec {sys.executable} -I -S {os.path.join(HERE, 'puppet.py')} {self.path}"
        manager = frontend(os.path.join(self.folder, "frontend"), program)
        (one,) = self.puppets(manager.processes)
        # Nothing stubborn: a frontend's grace is never short.
        self.round(one, collect_elsewhere=True, deeds=("child", "job", "abandoned job"))
        manager.shutdown()
        self.check()

    def with_forks(self, count):
        from fastutils import shutdown

        self.grouped = False
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=puppet.obey, args=(self.path,)) for _ in range(count)]
        for process in processes:
            process.start()
        for one in self.puppets(processes):
            # Not collected elsewhere: nobody could tell then what has become of a process that is none of ours.
            self.round(one, collect_elsewhere=False)
        shutdown(processes, GRACE_S)
        self.check()


def main(folder, seed, rounds):
    all_rounds = Rounds(folder, seed)
    done = 0
    while done < rounds and not all_rounds.seen["wrong"]:
        kind = all_rounds.random.choice(["servers", "frontend", "frontend", "forks"])
        count = 1 if kind == "frontend" else all_rounds.random.randint(3, 6)
        if kind == "servers":
            all_rounds.with_servers(count)
        elif kind == "frontend":
            all_rounds.with_a_frontend()
        else:
            all_rounds.with_forks(count)
        done += count
        all_rounds.seen["counts"][kind] += count
    say(all_rounds.seen)
    os._exit(0)  # and with it everything in this namespace


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
