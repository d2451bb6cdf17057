"""Reads the recorded steps of traces/ and rebuilds what the engine hands to the helpers in each of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

TRACES = Path(__file__).with_name("traces")


class TraceError(ValueError):
    """A line of a trace does not say what traces/README.md promises."""


@dataclass
class NewRequestData:
    """A request in its first scheduled step; only what the helpers read of the engine's class of this name."""

    req_id: str


@dataclass
class CachedRequestData:
    """The requests that the workers already know; only what the helpers read of the engine's class of this name."""

    req_ids: list[str]
    num_output_tokens: list[int]
    resumed_req_ids: set[str] = field(default_factory=set)

    @cached_property
    def _req_id_to_num_output_tokens(self) -> dict[str, int]:
        return dict(zip(self.req_ids, self.num_output_tokens, strict=False))

    def is_context_phase(self, req_id: str) -> bool:
        count = self._req_id_to_num_output_tokens.get(req_id)
        return count is not None and count == 0


@dataclass
class SchedulerOutput:
    """What one step scheduled; only what the helpers read of the engine's class of this name."""

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_encoder_input_stats: None = None  #: read by newer vLLMs; none of the recorded models has an encoder


@dataclass(frozen=True)
class Step:
    """One recorded engine step: what it scheduled and how often it called each helper with what."""

    trace: str
    index: int
    new: list[str]
    cached: list[str]
    num_output_tokens: list[int]
    resumed: list[str]
    num_scheduled_tokens: dict[str, int]
    total: int
    iteration_details: tuple[int, int, int, int]
    scopes: dict[str, int]
    list_ops: dict[str, int]
    copy_to_gpu: list[tuple[str, tuple[int, ...], int | None]]
    copy_slice: list[tuple[str, tuple[int, ...], int]]
    tensor_data: list[tuple[str, tuple[int, ...], bool]]

    def __str__(self) -> str:
        return f"{self.trace} step {self.index}"

    @property
    def requests(self) -> list[str]:
        """The ids of the requests scheduled in this step, in the scheduler's order."""
        return list(self.num_scheduled_tokens)

    def scheduler_outputs(self, count: int) -> list[SchedulerOutput]:
        """`count` fresh outputs of this step.

        Each has its own CachedRequestData, because that caches what the first call computes and the engine makes a
        new one every step. Lists, dict and id strings are shared: in the engine too an id is one object everywhere.
        """
        newcomers = [NewRequestData(req_id) for req_id in self.new]
        resumed = set(self.resumed)
        return [
            SchedulerOutput(
                newcomers,
                CachedRequestData(self.cached, self.num_output_tokens, resumed),
                self.num_scheduled_tokens,
                self.total,
            )
            for _ in range(count)
        ]


def available() -> list[str]:
    """The names of the traces in the folder beside this file."""
    return sorted(path.name.removesuffix(".jsonl.gz") for path in TRACES.glob("*.jsonl.gz"))


def steps(trace: str) -> Iterator[Step]:
    """Every step of the trace called `trace`, in order. TraceError names the line that cannot be understood."""
    path = TRACES / f"{trace}.jsonl.gz"
    if not path.is_file():
        raise TraceError(f"there is no trace {trace!r}; there are: {', '.join(available()) or 'none'}")
    ids: dict[str, str] = {}  # one string object per request id, as in the engine
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield _parse(trace, json.loads(line), ids)
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(f"{path.name}, line {number}: {type(error).__name__}: {error}") from error


def _parse(trace: str, line: dict[str, Any], ids: dict[str, str]) -> Step:
    output = line["scheduler_output"]

    def known(req_id: str) -> str:
        return ids.setdefault(req_id, req_id)

    scheduled = {known(req_id): int(tokens) for req_id, tokens in output["num_scheduled_tokens"]}
    context, context_tokens, generation, generation_tokens = map(int, line["iteration_details"])
    if sum(scheduled.values()) != output["total"]:
        raise ValueError(f"num_scheduled_tokens add up to {sum(scheduled.values())}, not to total={output['total']}")
    return Step(
        trace=trace,
        index=int(line["step"]),
        new=[known(req_id) for req_id in output["new"]],
        cached=[known(req_id) for req_id, _ in output["cached"]],
        num_output_tokens=[int(count) for _, count in output["cached"]],
        resumed=[known(req_id) for req_id in output["resumed"]],
        num_scheduled_tokens=scheduled,
        total=int(output["total"]),
        iteration_details=(context, context_tokens, generation, generation_tokens),
        scopes={name: int(times) for name, times in line["scopes"].items()},
        list_ops={name: int(times) for name, times in line["list_ops"].items()},
        copy_to_gpu=[(dtype, tuple(shape), None if n is None else int(n)) for dtype, shape, n in line["copy_to_gpu"]],
        copy_slice=[(dtype, tuple(shape), int(length)) for dtype, shape, length in line["copy_slice"]],
        tensor_data=[(dtype, tuple(shape), bool(dense)) for dtype, shape, dense in line["tensor_data"]],
    )
