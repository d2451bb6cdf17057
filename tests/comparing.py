"""For tests that run both forms side by side on the same input."""

import importlib
from functools import cached_property

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


class Cached:
    """The scheduler's record of running requests, in the shape that the compiled form recognises."""

    def __init__(self, req_ids, num_output_tokens):
        self.req_ids = req_ids
        self.num_output_tokens = num_output_tokens

    @cached_property
    def _req_id_to_num_output_tokens(self):
        return dict(zip(self.req_ids, self.num_output_tokens))  # noqa: B905

    def is_context_phase(self, req_id):
        outputs = self._req_id_to_num_output_tokens.get(req_id)
        return outputs is not None and outputs == 0
