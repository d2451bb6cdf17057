"""Named scopes for profilers, free when nobody profiles. The Python form; ``_scopes`` holds the compiled one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fastutils import _host, tracing

Scope = Callable[[str], AbstractContextManager[Any]]

#: An annotation is kept per name, for at most this many names: some callers put request ids into them.
MAX_NVTX_NAMES = 1024

_scope: Scope | None = None


def _nvtx_scopes() -> Scope:
    try:
        from nvtx import annotate
    except ImportError as error:
        raise type(error)(
            "VLLM_NVTX_SCOPES_FOR_PROFILING is set, but the package nvtx cannot be imported "
            f"({error}); pip install 'vllm-fastutils[profiling]', or unset the variable",
            name=error.name,
        ) from error
    # An annotation registers its name and builds its event attributes when made, and holds nothing of one entry:
    # one for each name serves every entry, nested ones and other threads included.
    known: dict[str, AbstractContextManager[Any]] = {}

    def nvtx_scope(name: str) -> AbstractContextManager[Any]:
        if type(name) is not str:
            return annotate(name)  # type: ignore[no-any-return]
        scope = known.get(name)
        if scope is None:
            scope = annotate(name)
            if len(known) < MAX_NVTX_NAMES:
                known[name] = scope
        return scope

    return nvtx_scope


def _chosen() -> Scope:
    """What makes the scopes in this process: read from the environment once, at first use, then kept."""
    global _scope
    scope = _scope
    if scope is None:
        # Without a lock: a signal handler or a fork in the middle of the imports would wait for it for ever, and two
        # threads that choose at once choose the same.
        if _host.env("VLLM_CUSTOM_SCOPES_FOR_PROFILING"):
            from torch.autograd.profiler import record_function

            scope = record_function
        elif _host.env("VLLM_NVTX_SCOPES_FOR_PROFILING"):
            scope = _nvtx_scopes()
        else:
            scope = nullcontext
        _scope = scope
    return scope


def _reset() -> None:
    """Forget the choice in both forms, so that the next use reads the environment again. For tests."""
    global _scope
    _scope = None
    compiled = sys.modules.get("fastutils._scopes")
    if compiled is not None:
        compiled._forget()


def record_function_or_nullcontext(name: str) -> AbstractContextManager[Any]:
    """A context manager that shows its body to a profiler under `name`.

    ``torch.autograd.profiler.record_function`` if ``VLLM_CUSTOM_SCOPES_FOR_PROFILING`` is on, else ``nvtx.annotate`` if
    ``VLLM_NVTX_SCOPES_FOR_PROFILING`` is, else one that does nothing and yields `name`. Chosen at the first call,
    then kept. Raises ImportError if nvtx is asked for and missing, ValueError if a variable is not an integer.

    Upstream: ``vllm.v1.utils.record_function_or_nullcontext``.
    """
    scope = _scope
    if scope is None:
        scope = _chosen()
    return scope(name)


# Either form is pickled by its public name.
record_function_or_nullcontext.__module__ = "fastutils"


def _complete(compiled: Any) -> None:
    """Give the compiled function what needs no speed: its public name, and this form where torch.compile reads it."""
    compiled.__module__ = "fastutils"
    tracing.make_traceable((compiled, record_function_or_nullcontext))
