"""The only table of microbenchmark cases: what is timed, what must come out, and what ours is meant to reach."""

from __future__ import annotations

from bench.cases import buffers, cold, copies, data, iteration, peers, scaling, scopes, staging, views
from bench.cases.model import Case


def cases() -> list[Case]:
    """Every case, in the order of the report."""
    tables = (views, iteration, scopes, copies, buffers, staging, data, peers, scaling, cold)
    return [case for table in tables for case in table.cases()]
