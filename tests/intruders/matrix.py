"""All combinations of a block's entries, gates and acts, over both forms.

A *strict* gate opens at the same points in both forms: the outcome must then be the same one. The others open where the
interpreter likes: the outcome must be one that the Python form gives when the same act comes between any two of its
instructions (or before, after, or not at all).
"""

import contextlib
import gc
import itertools
import os
import re
import signal
import sys
import weakref
from dataclasses import dataclass, field

from intruders import acts, gates
from intruders.describing import tell, tell_error
from intruders.door import Door, walk_the_heap

#: A case that takes longer hangs.
SECONDS_PER_CASE = 60

#: At how many of its chances an intruder is let in, spread over all of them.
CHANCES = 3

#: Since Python 3.11 an instruction that looks at what it reads, in order to become a faster one, leaves behind the
#: exception of a key that is compared for that; the next Python function to be called then fails by this. It happens
#: at one call and not at the one after: a fault of the compiled form would happen again.
LEFT_BEHIND = re.compile(r"\['SystemError', '<function \S+ at 0x> returned a result with an exception set'\]")

#: Between how many of the Python form's instructions it comes before all are tried.
FEW_STEPS = 8


@dataclass
class Block:
    """`make(form)` gives a world: the objects of one call. Entries, gates and acts are functions of the world."""

    name: str
    make: object
    entries: dict
    strict: dict = field(default_factory=dict)  # name -> context manager of (world, door)
    unsteady: dict = field(default_factory=dict)  # the same, of gates that open more or less often in the other form
    acts: dict = field(default_factory=dict)
    makes_no_sense: object = lambda entry, gate, act: False
    #: Where the interpreter itself does not survive what the Python form would ask of it: the compiled form must.
    only_compiled: object = lambda entry, gate, act: False
    #: (entry, gate, act) -> why the compiled form differs. Any of the three may be None.
    differs: dict = field(default_factory=dict)
    keeps: set = frozenset()  #: (entry, gate, act) of which the interpreter itself keeps something for ever
    #: The entries that the interpreter's own types carry out item by item, in both forms: they can be intruded upon
    #: within an instruction. Not all that can: where the interpreter itself would crash, nothing may be compared.
    by_items: tuple = ()
    anywhere: dict = field(default_factory=lambda: dict(gates.ANYWHERE))


@dataclass
class Told:
    """What came of one call, in words: objects kept here would be walked and collected with those of every case."""

    facts: str
    opened: int
    entered: bool
    kept: list  # what was not let go of when everything was over

    @property
    def strict_facts(self):
        if self.facts.startswith("['RecursionError']"):
            return self.facts  # how deep it got is nobody's affair
        return f"{self.facts}, opened {self.opened} times"


def spread(chances, most):
    """`most` of the numbers 1..chances, the first and the last among them."""
    if chances <= most:
        return range(1, chances + 1)
    return sorted({1 + round(i * (chances - 1) / (most - 1)) for i in range(most)})


def references(world):
    return {name: sys.getrefcount(thing) for name, thing in world.watched()}


def once(make, form, call, gate, act, at, check=False):
    """One call, intruded upon at the `at`-th chance. With `check`, everything must be gone when it is over."""
    world = make(form)
    world.call = call
    left = [(name, weakref.ref(thing)) for name, thing in world.lasting()]
    door = Door(lambda: act(world), at)
    result, error = None, None
    with gate(world, door) if gate else contextlib.nullcontext():
        door.open = True
        try:
            result = call(world)
        except Exception as raised:
            error = raised
        finally:
            door.open = False
    outcome = tell_error(error) if error is not None else tell(result)
    del result, error
    gc.collect()
    walk_the_heap((list, tuple, set, frozenset))
    alive = [name for name, reference in left if reference() is not None]
    facts = f"{outcome!r}, then {world.state()!r}, alive {alive!r}, references {references(world)!r}"
    told = Told(facts, door.opened, door.entered, [])
    door.act = None
    world.end()
    if check:
        del world, door, act
        gc.collect()
        told.kept += [name for name, reference in left if reference() is not None]
    return told


@dataclass
class Case:
    name: str
    entry: str
    gate_name: str
    act_name: str
    gate: object
    act: object


class Run:
    """Carries out a block. Each case is announced before it begins, so that the last one names a crash."""

    def __init__(self, block, after=None):
        self.block, self.after = block, after
        self.cases = self.intruded = self.differing = 0
        self.failures = []
        self.possible = {}
        self.opened = {}

    def announce(self, name):
        os.write(1, f"case: {name}\n".encode())
        signal.alarm(SECONDS_PER_CASE)  # its default action ends the process: a hang has a name, too

    def fail(self, case, how, *told, excused=True):
        for entry, gate, act in self.block.differs if excused else ():
            if entry in (None, case.entry) and gate in (None, case.gate_name) and act in (None, case.act_name):
                self.differing += 1
                return
        self.failures.append(case.name)
        lines = [f"python   {each}" for each in told[:-1]] + [f"compiled {each}" for each in told[-1:]]
        os.write(1, ("\n    ".join([f"FAILED: {case.name}: {how}", *lines]) + "\n").encode())

    def all(self):
        block = self.block
        acts_here = {**acts.EVERYWHERE, **block.acts}
        ways = {
            **{name: (gate, self.strictly) for name, gate in block.strict.items()},
            **{name: (gate, self.unsteadily) for name, gate in block.unsteady.items()},
            **{name: (gate, self.anywhere) for name, gate in block.anywhere.items()},
        }
        for entry, gate, act in itertools.product(block.entries, ways, acts_here):
            name = f"{block.name} | {entry} | {gate} | {act}"
            if self.after is not None:
                self.after = None if name == self.after else self.after
            elif self.opened.get((entry, gate)) != 0 and not block.makes_no_sense(entry, gate, act):
                self.announce(name)
                self.case(Case(name, entry, gate, act, ways[gate][0], acts_here[act]), ways[gate][1])
        signal.alarm(0)

    def case(self, case, compare):
        if (case.entry, case.gate_name) not in self.opened:
            self.opened[case.entry, case.gate_name] = self.once("compiled", case, 0).opened
        chances = self.opened[case.entry, case.gate_name]
        if compare == self.strictly:
            key = "python", case.entry, case.gate_name
            if key not in self.opened:
                undisturbed = [self.once(form, case, 0).strict_facts for form in ("python", "compiled")]
                self.opened[key] = undisturbed[0] == undisturbed[1]
                if not self.opened[key]:
                    self.fail(case, "even undisturbed", *undisturbed)
            if not self.opened[key]:
                return
        if not chances:
            return  # this entry does not come by this gate
        self.cases += 1
        told = [self.once("compiled", case, at) for at in spread(chances, CHANCES)]
        self.intruded += any(each.entered for each in told)
        lost = [each.kept for each in told if each.kept]
        if lost and (case.entry, case.gate_name, case.act_name) not in self.block.keeps:
            self.fail(case, f"kept for ever: {lost[0]}", excused=False)
        elif not self.block.only_compiled(case.entry, case.gate_name, case.act_name):
            compare(case, chances, told)

    def once(self, form, case, at, gate=None):
        make, call = self.block.make, self.block.entries[case.entry]
        return once(make, form, call, gate or case.gate, case.act, at, check=form == "compiled")

    def strictly(self, case, chances, told):
        for at, got in zip(spread(chances, CHANCES), told, strict=True):
            expected = self.once("python", case, at)
            if got.strict_facts != expected.strict_facts:
                self.fail(case, f"at chance {at} of {chances}", expected.strict_facts, got.strict_facts)
                return

    def unsteadily(self, case, chances, told):
        self.one_of(case, told, more=self.at_python_chances)

    def anywhere(self, case, chances, told):
        self.one_of(case, told, more=self.at_python_chances if case.entry in self.block.by_items else None)

    def one_of(self, case, told, more):
        key = case.entry, case.act_name
        known = self.possible.setdefault(key, {})
        if not known:
            self.between_the_steps(case, known, FEW_STEPS)
        if any(got.facts not in known for got in told):
            self.between_the_steps(case, known, sys.maxsize)
        for at, got in zip(spread(self.opened[case.entry, case.gate_name], CHANCES), told, strict=True):
            if LEFT_BEHIND.match(got.facts) and sys.version_info >= (3, 11):
                got = self.once("compiled", case, at)
            if got.facts not in known and (more is None or got.facts not in more(case)):
                self.fail(case, "none of these", *known, got.facts)
                return

    def between_the_steps(self, case, known, most):
        """What the Python form gives if the act comes between two of its instructions, or before, after or never."""
        steps = self.once("python", case, 0, gates.every_step)
        known[steps.facts] = None
        for at in spread(steps.opened, most):
            known[self.once("python", case, at, gates.every_step).facts] = None

    def at_python_chances(self, case):
        undisturbed = self.once("python", case, 0)
        return [undisturbed.facts, *(self.once("python", case, 1 + i).facts for i in range(undisturbed.opened))]
