"""ConstantList: a read-only live view of a list. The Python form; ``_views`` holds the compiled one."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NoReturn, TypeVar, overload

from fastutils import tracing

T = TypeVar("T")


class ConstantList(Generic[T], Sequence[T]):
    """A read-only live view of the list `x`: nothing is copied, later changes of `x` show, `x` is kept alive.

    Reading goes to `x` and raises what `x` raises; every way of changing it raises TypeError. Equality and hash are
    those of the view's identity. `x` need not be a list: what it supports, the view supports.
    The view itself is as safe to share between threads as `x` is.

    Upstream: ``vllm.v1.utils.ConstantList``.
    """

    _x: list[T]

    def __init__(self, x: list[T]) -> None:
        self._x = x

    def append(self, item: Any) -> NoReturn:
        """Raise TypeError: the view is read-only."""
        raise TypeError("Cannot append to a constant list")

    def extend(self, item: Any) -> NoReturn:
        """Raise TypeError: the view is read-only."""
        raise TypeError("Cannot extend a constant list")

    def insert(self, item: Any) -> NoReturn:
        """Raise TypeError: the view is read-only."""
        raise TypeError("Cannot insert into a constant list")

    def pop(self, item: Any) -> NoReturn:
        """Raise TypeError: the view is read-only."""
        raise TypeError("Cannot pop from a constant list")

    def remove(self, item: Any) -> NoReturn:
        """Raise TypeError: the view is read-only."""
        raise TypeError("Cannot remove from a constant list")

    def clear(self) -> NoReturn:
        """Raise TypeError: the view is read-only."""
        raise TypeError("Cannot clear a constant list")

    def index(self, item: Any, start: int = 0, stop: int | None = None) -> int:
        """The first position of `item` in the viewed list from `start` up to, not including, `stop` (None: its end).

        Raises ValueError if it is not there.
        """
        return self._x.index(item, start, stop if stop is not None else len(self._x))

    def count(self, value: Any) -> int:
        """How many items of the view are, or are equal to, `value`."""
        return super().count(value)

    def copy(self) -> list[T]:
        """A shallow copy of the viewed list; a plain list, not a view."""
        return self._x.copy()

    @overload
    def __getitem__(self, item: int) -> T: ...

    @overload
    def __getitem__(self, item: slice) -> list[T]: ...

    def __getitem__(self, item: int | slice) -> T | list[T]:
        return self._x[item]

    def __setitem__(self, item: int | slice, value: Any) -> NoReturn:
        raise TypeError("Cannot set item in a constant list")

    def __delitem__(self, item: int | slice) -> NoReturn:
        raise TypeError("Cannot delete item from a constant list")

    def __iter__(self) -> Iterator[T]:
        return iter(self._x)

    def __contains__(self, item: object) -> bool:
        return item in self._x

    def __len__(self) -> int:
        return len(self._x)

    def __repr__(self) -> str:
        return f"ConstantList({self._x})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The two oldest protocols would rebuild it by object.__new__, which does not make the compiled form.
        return object.__reduce_ex__(self, max(protocol, 2))


# Both forms are pickled under the public name, so that each process restores the form that serves there.
ConstantList.__module__ = "fastutils"


class _CompiledViews(Sequence[Any]):
    # The compiled type registers here and not on Sequence itself: isinstance remembers what it found through a
    # subclass, but searches Sequence's own registrations again every time.
    __slots__ = ()


def _complete(compiled: Any) -> type:
    """Give the compiled type what needs no speed: refusals, its place among generics and sequences, pickling.

    Returns the class that it is registered with, which must live as long as it does.
    """

    def getstate(self: Any, /) -> Any:
        # What object's own would say if `_x` were in the dictionary; that one refuses types with fields of their own.
        attributes = dict(vars(self))
        if type(self) is compiled and hasattr(self, "_x"):
            attributes["_x"] = self._x
        names = copyreg._slotnames(type(self))  # type: ignore[attr-defined]
        slots = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return (attributes or None, slots) if slots else attributes or None

    def setstate(self: Any, state: Any, /) -> None:
        attributes, slots = state if isinstance(state, tuple) else (state, {})
        attributes = dict(attributes or {})
        if type(self) is compiled and "_x" in attributes:
            self._x = attributes.pop("_x")
        if attributes:
            vars(self).update(attributes)
        for name, value in slots.items():
            setattr(self, name, value)

    def init_subclass(cls: Any, /, **options: Any) -> None:
        super(compiled, cls).__init_subclass__(**options)
        # As ABCMeta would, which upstream's subclasses have for their metaclass.
        inherited = {name for base in cls.__bases__ for name in getattr(base, "__abstractmethods__", ())}
        values = [*vars(cls).items(), *((name, getattr(cls, name, None)) for name in inherited)]
        cls.__abstractmethods__ = frozenset(
            name for name, value in values if getattr(value, "__isabstractmethod__", False)
        )

    for name in (
        "__init__",
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "__setitem__",
        "__delitem__",
        "__repr__",
    ):
        setattr(compiled, name, vars(ConstantList)[name])
    _CompiledViews.register(compiled)
    compiled.__orig_bases__, compiled.__parameters__ = ConstantList.__orig_bases__[:1], ConstantList.__parameters__  # type: ignore[attr-defined]
    compiled.__doc__ = ConstantList.__doc__
    compiled.__init_subclass__ = classmethod(init_subclass)
    compiled.__reversed__ = Sequence.__reversed__
    compiled.__getstate__ = getstate
    compiled.__setstate__ = setstate
    _make_traceable(compiled)
    return _CompiledViews


def _make_traceable(compiled: Any) -> None:
    # A traced operator looks for a Python method and not for what stands in for one: calls by name, and making a view,
    # are all that this does for torch.compile.
    def count(self: Any, value: Any) -> int:
        return sum(1 for item in self._x if item is value or item == value)

    names = ("__getitem__", "__len__", "__contains__", "__iter__", "index", "copy")
    forms: dict[str, Any] = {name: vars(ConstantList)[name] for name in names}
    forms["count"] = count  # the class's own goes by super(), which does not take a compiled view
    tracing.make_traceable(*((vars(compiled)[name], form) for name, form in forms.items()))
