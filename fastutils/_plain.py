"""What a class defines under a name, and whether that gets between an instance and its own attributes."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

_MISSING = object()

# Past the metaclass, whose own attributes may be anything and whose code may do anything.
_bases_of = type.__dict__["__mro__"].__get__
_attributes_of = type.__dict__["__dict__"].__get__


def in_class(cls: type, name: str) -> Any:
    """What `cls` or the nearest of its bases has under `name`, unbound; a private object if none has it."""
    return next((_attributes_of(base)[name] for base in _bases_of(cls) if name in _attributes_of(base)), _MISSING)


def leaves_alone(cls: type, *names: str) -> bool:
    """Whether each of `names` is an instance's own affair: in its dictionary, or in a slot, and nowhere else."""
    found = [in_class(cls, name) for name in names]
    return all(each is _MISSING or type(each) is MemberDescriptorType for each in found)
