"""Whether this process is still the one in which a group was made."""

from __future__ import annotations

import os

#: [how many forks lie between this process and the one that imported this]: what a child has of a device is unusable.
generation = [0]


def _count() -> None:
    generation[0] += 1


os.register_at_fork(after_in_child=_count)
