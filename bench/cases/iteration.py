"""compute_iteration_details."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from bench.cases.model import Case, Side, Target
from bench.paired import Loop
from bench.recording import CachedRequestData, NewRequestData, SchedulerOutput
from bench.replay import COUNTS


def details(n: int, shuffled: bool) -> Callable[[Any], Side]:
    """One step of `n` requests; `shuffled`: the ids are scheduled in another order than the scheduler lists them."""
    # An eighth of the requests is new, another eighth still in chunked prefill.
    ids = [f"req-{i}" for i in range(n)]
    new = ids[n - n // 8 :]
    cached = ids[: n - n // 8]
    outputs = [0 if i < n // 8 else 1 + i % 50 for i in range(len(cached))]
    counts = {req_id: 1 + 30 * (i < n // 8) for i, req_id in enumerate(cached)} | dict.fromkeys(new, 61)
    context = set(new) | set(cached[: n // 8])
    if shuffled:
        counts = dict(random.Random(0).sample(sorted(counts.items()), n))
    context_tokens = sum(tokens for req_id, tokens in counts.items() if req_id in context)
    newcomers = [NewRequestData(req_id) for req_id in new]
    total = sum(counts.values())
    expected = (len(context), context_tokens, n - len(context), total - context_tokens)

    def fresh(times: int) -> Sequence[SchedulerOutput]:
        return [SchedulerOutput(newcomers, CachedRequestData(cached, outputs), counts, total) for _ in range(times)]

    def make(helpers: Any) -> Side:
        count = helpers.compute_iteration_details

        def outcome() -> tuple[int, ...]:
            result = count(fresh(1)[0])
            return tuple(getattr(result, name) for name in COUNTS)

        return Side(Loop("count(item)", each="item", items=fresh, count=count), outcome, expected)

    return make


def cases() -> list[Case]:
    sizes = [(1, 5), (8, 9), (64, 18), (256, 22), (1024, 22)]
    name = "compute_iteration_details"
    rows = [Case(f"{name}: N={n}", name, details(n, False), Target(ratio)) for n, ratio in sizes]
    rows += [Case(f"{name}: N={n}, another order", name, details(n, True), Target(7)) for n in (64, 256)]
    return rows
