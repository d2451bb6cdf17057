"""Recognises the classes whose ``is_context_phase`` asks nothing but ``req_ids`` and ``num_output_tokens``.

For these the compiled form may read the two lists itself instead of calling the method for every request. What is
recognised is the code, not the name: a class of vLLM, of another engine or of a test qualifies as long as its methods
compile to one of the forms below, whatever they call their variables; anything else is called as it is.
"""

from __future__ import annotations

import builtins
import dis
import inspect
from dataclasses import fields
from functools import cached_property, lru_cache
from types import CodeType, FunctionType
from typing import Any

from fastutils._plain import in_class, leaves_alone
from fastutils.iteration import IterationDetails

#: The attribute of the recognised classes that maps each request id to its number of output tokens, filled on demand.
MAP = "_req_id_to_num_output_tokens"


class _Mapped:
    req_ids: list[Any]
    num_output_tokens: list[Any]
    _req_id_to_num_output_tokens: dict[Any, Any]

    def known_and_zero(self, key: Any) -> bool:
        found = self._req_id_to_num_output_tokens.get(key)
        return found is not None and found == 0

    def equal_to_zero(self, key: Any) -> Any:
        return self._req_id_to_num_output_tokens.get(key) == 0

    def zipped(self) -> Any:
        return dict(zip(self.req_ids, self.num_output_tokens))  # noqa: B905

    def zipped_explicitly(self) -> Any:
        return dict(zip(self.req_ids, self.num_output_tokens, strict=False))


#: Of a code's flags: what calling it does. The others tell where it was written.
_KINDS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


def _meaning(code: CodeType) -> tuple[Any, ...]:
    """All that `code` does, without the names of its variables and its docstring."""
    steps: list[Any] = [code.co_argcount, code.co_kwonlyargcount, code.co_flags & _KINDS, code.co_nlocals]
    for step in dis.get_instructions(code):
        if step.opcode in dis.hasconst:
            steps.append((step.opname, type(step.argval), step.argval))
        elif step.opcode in dis.hasname:
            steps.append((step.opname, step.argrepr))
        else:
            steps.append((step.opname, step.arg))
    return tuple(steps)


_PHASES = {_meaning(_Mapped.known_and_zero.__code__), _meaning(_Mapped.equal_to_zero.__code__)}
_MAPS = {_meaning(_Mapped.zipped.__code__), _meaning(_Mapped.zipped_explicitly.__code__)}


def _is_one_of(function: Any, code: CodeType, known: set[tuple[Any, ...]]) -> bool:
    if type(function) is not FunctionType or _meaning(code) not in known:
        return False
    theirs = getattr(function, "__builtins__", {})  # what `dict` and `zip` are to it
    return all(
        name not in function.__globals__ and theirs.get(name) is getattr(builtins, name) for name in ("dict", "zip")
    )


@lru_cache(maxsize=16)
def _is_recognised(phase: Any, code: Any, mapping: Any) -> bool:
    return (
        mapping.attrname == MAP
        and _is_one_of(phase, code, _PHASES)
        and _is_one_of(mapping.func, getattr(mapping.func, "__code__", None), _MAPS)  # type: ignore[arg-type]
    )


def recognised(cls: type) -> tuple[FunctionType, CodeType] | None:
    """The method ``is_context_phase`` of `cls`, and its code, if that and all that it reads is as described above.

    Holds as long as neither the class nor its bases change, nor the method's ``__code__``.
    """
    phase, mapping = in_class(cls, "is_context_phase"), in_class(cls, MAP)
    if type(phase) is not FunctionType or type(mapping) is not cached_property:
        return None  # before anything of theirs is hashed
    if not leaves_alone(cls, "req_ids", "num_output_tokens") or type(in_class(cls, "__dict__")) is property:
        return None
    return (phase, phase.__code__) if _is_recognised(phase, phase.__code__, mapping) else None


def plain_output(cls: type) -> bool:
    """Whether nobody can tell how often ``scheduled_cached_reqs`` of a `cls` is read."""
    return leaves_alone(cls, "scheduled_cached_reqs")


_MADE_INIT = IterationDetails.__init__


def plain_result(cls: type[IterationDetails]) -> bool:
    """Whether our class of results is as we made it, so that its instances can be filled without calling it."""
    return (
        cls.__init__ is _MADE_INIT
        and cls.__new__ is object.__new__
        and cls.__setattr__ is object.__setattr__
        and leaves_alone(cls, *(field.name for field in fields(cls)))
    )
