"""The same constructor under the parameter names of more than one version of upstream."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


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
