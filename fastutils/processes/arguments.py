"""What callers pass: time limits, counts, one parameter under two names, and what errors show of a value."""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

# One wait never takes longer than this; callers loop. poll(2) overflows at 2**31 ms, about 24 days.
_LONGEST_WAIT_S = 24 * 3600.0

_LONGEST_TEXT = 200


def checked_timeout(timeout: float, name: str = "timeout") -> float:
    """`timeout` in seconds as a float. TypeError if it is no real number; ValueError if negative or not finite."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"{name} must be a number of seconds, not {timeout!r}")
    seconds = float(timeout)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name}={timeout!r} is not a finite, non-negative number of seconds")
    return seconds


def checked_number(name: str, number: int, least: int) -> int:
    """`number` as an int. TypeError if it is no integer; ValueError below `least`."""
    if isinstance(number, bool):
        raise TypeError(f"{name} must be an integer, not {number!r}")
    checked = operator.index(number)
    if checked < least:
        raise ValueError(f"{name}={checked}: it must be at least {least}")
    return checked


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


def also_called(**names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Lets a constructor take parameters by a newer name too: ``also_called(newer="older")``.

    The keyword decides, so each version's own call works and `inspect.signature` shows the older form. Passing both
    names is a TypeError.
    """

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def call(self: Any, /, *args: Any, **kwargs: Any) -> None:
            for newer, older in names.items():
                if newer not in kwargs:
                    continue
                if older in kwargs:
                    raise TypeError(f"{older} and {newer} are one argument under two names; pass one of them")
                kwargs[older] = kwargs.pop(newer)
            init(self, *args, **kwargs)

        return call

    return decorate


def shown(value: object) -> str:
    """Text and numbers as they are (200 characters of them), of a mapping the keys, of anything else only the type.

    What was passed by mistake is likely to be something whole: the arguments, or a configuration. Its values belong
    neither into a message nor into the log that the message ends up in.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return f"{value!r:.{_LONGEST_TEXT}}"
    kind = f"of type {type(value).__name__}"
    if isinstance(value, Mapping):
        return f"something {kind} with the keys {[key for key in value if isinstance(key, str)]!r:.{_LONGEST_TEXT}}"
    return f"something {kind}"
