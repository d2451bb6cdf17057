"""API-server and frontend processes: their addresses, start, readiness, supervision and end.

Importing this package loads nothing else, so that a spawned worker watches its parent a moment after its start.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastutils.processes.listeners import ZmqListener, adopt_listeners
    from fastutils.processes.readiness import report_bound_addresses

__all__ = ["ZmqListener", "adopt_listeners", "report_bound_addresses"]

_HOMES = {"ZmqListener": "listeners", "adopt_listeners": "listeners", "report_bound_addresses": "readiness"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
