"""API-server and frontend processes: their addresses, start, readiness, supervision and end.

Importing this package loads the standard library alone, so that a spawned worker starts quickly.
"""

from fastutils.processes.readiness import report_bound_addresses

__all__ = ["report_bound_addresses"]
