"""Lets torch.compile trace through the compiled functions: it reads their Python forms in their place.

torch's tracer takes a second to import, so nothing here imports it: the substitution is made when somebody else does.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from fastutils import _host

TRACER = "torch._dynamo"


class _ThenCall(importlib.abc.Loader):
    """Loads a module with `loader`, gives the module back to it, and calls `then`."""

    def __init__(self, loader: importlib.abc.Loader, then: Callable[[], None]) -> None:
        self.loader = loader
        self.then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # get_source() and the like: many look at a module without loading it

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.then()


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds one module as everybody else does, and has `then` called once it is loaded."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenCall(spec.loader, self.loaded)
                return spec
        return None

    def loaded(self) -> None:
        # Not when it was found: many look for a module and never load it.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self.then()


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` once the module `name` is loaded: now if it is, else when somebody imports it."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _WhenImported(name, then))


def _substitute(pairs: Sequence[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
    import torch

    for compiled, python in pairs:
        try:
            torch.compiler.substitute_in_graph(compiled)(python)
        except Exception as error:  # torch.compile must not fail over a function that it may never meet
            _host.logger(__name__).warning("torch.compile cannot trace %s: %s", compiled.__name__, error)


def make_traceable(*pairs: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    """Have torch.compile trace the second function of each pair wherever it meets the first."""
    when_imported(TRACER, lambda: _substitute(pairs))
