"""Which forms of a module a test runs over."""

import importlib
import os

import pytest

from fastutils import _select

FORMS = ["compiled", "python"]


def required() -> bool:
    """Whether a missing compiled module is a failure (a checkout's own test run) or a skip (a pure wheel)."""
    return os.environ.get("FASTUTILS_REQUIRE_EXTENSIONS", "").strip() not in ("", "0")


def load(name: str, form: str):
    """The object `name` in the form "compiled" or "python"; skips the test where that form is not installed."""
    python_module, compiled_module = _select.HOMES[name]
    if form == "python":
        return getattr(importlib.import_module(python_module), name)
    if compiled_module is None:
        pytest.skip(f"{name} has no compiled form")
    try:
        module = importlib.import_module(compiled_module)
    except ImportError as error:
        if required():
            raise
        pytest.skip(f"{compiled_module} is not installed: {error}")
    return getattr(module, name)
