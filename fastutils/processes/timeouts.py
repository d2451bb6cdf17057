"""Time limits: one check of what callers pass, one deadline for each operation."""

from __future__ import annotations

import math
import time
from numbers import Real

# One wait never takes longer than this; callers loop. poll(2) overflows at 2**31 ms, about 24 days.
_LONGEST_WAIT_S = 24 * 3600.0


def checked_timeout(timeout: float, name: str = "timeout") -> float:
    """`timeout` in seconds as a float. TypeError if it is no real number; ValueError if negative or not finite."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"{name} must be a number of seconds, not {timeout!r}")
    seconds = float(timeout)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name}={timeout!r} is not a finite, non-negative number of seconds")
    return seconds


class Deadline:
    """A moment on the monotonic clock, `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._moment = time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._moment

    def remaining(self) -> float:
        """Seconds left, at least 0 and at most what a single wait can take."""
        return min(max(self._moment - time.monotonic(), 0.0), _LONGEST_WAIT_S)
