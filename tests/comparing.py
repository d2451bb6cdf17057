"""For tests that run both forms side by side on the same input."""

import importlib

import implementations

from fastutils import _select


def forms(name):
    """Form -> the object `name`, for every form that is installed here; usable while a module is collected."""
    python_module, compiled_module = _select.HOMES[name]
    found = {"python": getattr(importlib.import_module(python_module), name)}
    try:
        found["compiled"] = getattr(importlib.import_module(compiled_module), name)
    except ImportError:
        if implementations.required():
            raise
    return found


def outcome(function, *arguments, **named):
    """What the call returns, or the type and text of what it raises."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        return type(error), str(error)
