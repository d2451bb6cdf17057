"""The door that a gate opens for an intruder."""

import gc


class Intrusion(Exception):
    """What an intruder raises."""


class Token:
    """Something that is only itself; its name tells it in both forms."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"


class Door:
    """Counts how often an intruder could come in, and lets it in once: the `at`-th time."""

    def __init__(self, act=None, at=0):
        self.act, self.at = act, at
        self.opened = 0
        self.open = False  # only while the call runs: not while things are made ready or looked at afterwards
        self.entered = False

    def __call__(self, *ignored, **also_ignored):
        if not self.open:
            return
        self.opened += 1
        if self.opened == self.at and not self.entered:
            self.entered = True
            self.open = False  # the intruder's own doings open no door
            try:
                self.act()
            finally:
                self.open = True


def walk_the_heap(kinds=(list, set, frozenset)):
    """Touch every item of every container, as a debugger may: what is found half-filled crashes here.

    Not those of tuples while something is at work: the interpreter's own code, such as that of zip(), fills a tuple
    after it can be found.
    """
    for each in gc.get_objects():
        kind = type(each)
        if kind in kinds:
            for item in each:
                type(item)
        elif kind is dict:
            for key in list(each):
                type(key)
            for value in list(each.values()):
                type(value)
