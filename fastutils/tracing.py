"""Lets torch.compile trace through the compiled functions: it reads their Python forms in their place.

torch's tracer takes a second to import, so nothing here imports it: the substitution is made when somebody else does.
torch itself is not imported either, for the helpers that need none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

TRACER = "torch._dynamo"


class _ThenCall:
    """Loads a module with `loader`, gives the module back to it, and calls `then`."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self.loader = loader
        self.then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # get_source() and the like: many look at a module without loading it

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.then()


class _WhenImported:
    """Finds one module as everybody else does, and has each of `calls` made once it is loaded.

    No subclass of importlib's own classes, which would be imported for nothing else and add nothing.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Callable[[], None]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenCall(spec.loader, self.loaded)  # type: ignore[assignment]
                return spec
        return None

    def loaded(self) -> None:
        # Not when it was found: many look for a module and never load it.
        _waiting.pop(self.name, None)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        calls, self.calls = self.calls, []
        for call in calls:
            call()


#: One for each name: two of them on sys.meta_path would ask each other for ever.
_waiting: dict[str, _WhenImported] = {}


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` once the module `name` is loaded: now if it is, else when somebody imports it."""
    waiting = _waiting.get(name)
    if waiting is None:
        waiting = _waiting[name] = _WhenImported(name)
        sys.meta_path.insert(0, waiting)
    waiting.calls.append(then)
    if name in sys.modules:  # looked at last: another thread may import it meanwhile
        waiting.loaded()


def _substitute(pairs: Sequence[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
    for compiled, python in pairs:
        try:
            import torch

            # The check of signatures knows no type slots, and the tests compare the signatures of both forms anyway.
            torch.compiler.substitute_in_graph(compiled, skip_signature_check=True)(python)
        except Exception as error:  # torch.compile must not fail over a function that it may never meet
            from fastutils import _host

            _host.logger(__name__).warning("torch.compile cannot trace %s: %s", compiled.__name__, error)


def make_traceable(*pairs: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    """Have torch.compile trace the second function of each pair wherever it meets the first."""
    when_imported(TRACER, lambda: _substitute(pairs))
