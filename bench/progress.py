"""A progress bar with the time left, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


class _NoBar(contextlib.nullcontext[Any]):
    """Stands in for the bar where tqdm is not installed."""

    def __enter__(self) -> _NoBar:
        return self

    def update(self) -> None: ...

    def set_description(self, text: str, refresh: bool = True) -> None: ...


def bar(total: int, unit: str) -> Any:
    """A context manager: ``update()`` after each of the `total` items, ``set_description(text, refresh=False)``."""
    try:
        from tqdm import tqdm
    except ImportError:
        print("tqdm is not installed: measuring without a progress bar", file=sys.stderr)
        return _NoBar()
    tqdm.monitor_interval = 0  # its watching thread would disturb the measurement
    return tqdm(total=total, unit=unit, disable=None, leave=False)
