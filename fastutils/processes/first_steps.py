"""The first thing that a spawned server runs, before it imports anything of its parent's."""

from __future__ import annotations

import contextlib
import os
from multiprocessing import spawn

from fastutils.processes.death_pipe import end_with_parent


def main(lifeline: int, parent_pid: int, tracker: int, start_data: int) -> None:
    """Lead a process group, watch the parent, then go on as any process that `multiprocessing` spawns.

    A group rather than a session of its own: when its parent is gone, the kernel wakes the stopped members of a group
    that was left alone in its session.
    """
    with contextlib.suppress(PermissionError):  # it leads a session already, started so by an unusual executable
        os.setpgid(0, 0)
    end_with_parent(lifeline, parent_pid)
    spawn.spawn_main(tracker_fd=tracker, pipe_handle=start_data)
