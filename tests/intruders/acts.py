"""What an intruder does in any world."""

import gc

from intruders.door import Intrusion, walk_the_heap


def raises(world):
    raise Intrusion("in the middle")


def calls_again(world):
    """The same helper on the same objects; what it says is its own affair."""
    try:
        world.call(world)
    except Exception:
        return


EVERYWHERE = {
    "raises": raises,
    "calls again": calls_again,
    "collects": lambda world: gc.collect(),
    "walks the heap": lambda world: walk_the_heap(),
    "drops everything": lambda world: world.drop(),
}
