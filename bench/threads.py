"""A loop that several threads run at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from bench.paired import Loop


class ThreadedLoop(Loop):
    """Shares its passes among `loops`, each run by a thread of its own; what is timed is until the last has finished.

    Handing over and waiting cost some ten µs. They fall on the empty loop as well, and are taken off with it; samples
    are so long that little of that remains, and that threads change places within one (the interpreter's interval is
    5 ms).
    """

    def __init__(self, loops: Sequence[Loop]) -> None:
        self.statement = f"{len(loops)} threads: {loops[0].statement}"
        self.items = loops[0].items
        self.longer = 50
        self._loops = list(loops)
        self._jobs: list[queue.SimpleQueue[tuple[Callable[[Any], None], Any] | None]] = []
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        for _ in loops:
            jobs: queue.SimpleQueue[tuple[Callable[[Any], None], Any] | None] = queue.SimpleQueue()
            self._jobs.append(jobs)
            self._threads.append(threading.Thread(target=self._serve, args=(jobs,), daemon=True))
            self._threads[-1].start()
        self.run = lambda items: self._share([loop.run for loop in self._loops], items)  # type: ignore[assignment]
        self.run_empty = lambda items: self._share([loop.run_empty for loop in self._loops], items)  # type: ignore[assignment]

    def _serve(self, jobs: queue.SimpleQueue[tuple[Callable[[Any], None], Any] | None]) -> None:
        while (job := jobs.get()) is not None:
            run, items = job
            try:
                run(items)
            except BaseException as error:  # handed to the thread that waits
                self._done.put(error)
            else:
                self._done.put(None)

    def _share(self, runs: Sequence[Callable[[Any], None]], items: Sequence[Any]) -> None:
        number = len(runs)
        for index, run in enumerate(runs):
            self._jobs[index].put((run, items[index::number]))
        errors = [self._done.get() for _ in runs]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads."""
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()
