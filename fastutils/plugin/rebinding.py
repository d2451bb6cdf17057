"""Putting objects in the place of others in every module that holds them, and back.

``from vllm.v1.utils import copy_slice`` copies a reference, so setting the attribute of ``vllm.v1.utils`` reaches only
the modules that are imported later. Those that were imported before are searched.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Binding:
    """One global name of one module that was set to `now`, and what it was `before`."""

    module: str
    namespace: dict[str, Any]
    name: str
    before: Any
    now: Any


def _namespaces(package: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for module_name, module in list(sys.modules.items()):
        top = module_name.partition(".")[0]
        # Our own modules hold our objects for themselves.
        if isinstance(module, ModuleType) and top != "fastutils" and package in (None, top):
            # Not module.__dict__: a lazily loaded module would load itself on that.
            yield module_name, object.__getattribute__(module, "__dict__")


def rebind(replacements: Iterable[tuple[Any, Any]], package: str | None = None) -> list[Binding]:
    """For each (old, new), set every global that is `old` to `new`, under whatever name, in every imported module.

    With `package`, only in that package and below. All or nothing.
    """
    wanted = {id(old): (old, new) for old, new in replacements}
    done: list[Binding] = []
    try:
        for module_name, namespace in _namespaces(package):
            for name, value in list(namespace.items()):
                pair = wanted.get(id(value))
                if pair is not None and pair[0] is value:
                    namespace[name] = pair[1]
                    done.append(Binding(module_name, namespace, name, *pair))
    except BaseException:
        restore(done)
        raise
    return done


def restore(bindings: Sequence[Binding]) -> list[Binding]:
    """Undo `rebind`; returns the bindings that hold something else by now, which are left as they are."""
    changed = []
    for binding in reversed(bindings):
        if binding.namespace.get(binding.name) is binding.now:
            binding.namespace[binding.name] = binding.before
        else:
            changed.append(binding)
    return changed


def classes_in_use(classes: Sequence[type]) -> dict[type, str]:
    """Which of `classes` have instances or subclasses already, and what was found.

    Such a class must stay: what exists would not be an instance of its replacement. Takes a walk over all objects that
    the garbage collector knows, some 50 ms in a process that has imported vLLM.
    """
    found: dict[type, str] = {}
    for cls in classes:
        derived: type
        for derived in cls.__subclasses__():
            found[cls] = f"the class {derived.__module__}.{derived.__qualname__} is derived from it"
    for referrer in gc.get_referrers(*classes):
        cls = type(referrer)
        if cls in classes:
            found[cls] = "instances of it exist already"
    return found
