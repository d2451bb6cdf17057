"""What one engine step scheduled, in four counts. The Python form; ``_iteration`` holds the compiled one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class IterationDetails:
    """How many requests and tokens one engine step spends on context (prefill) and on generation (decode).

    Upstream: ``vllm.v1.utils.IterationDetails``.
    """

    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int
    num_generation_tokens: int

    def __repr__(self) -> str:
        return (
            f"IterationDetails(num_ctx_requests={self.num_ctx_requests},{' ' * 17}num_ctx_tokens={self.num_ctx_tokens},"
            f"{' ' * 18}num_generation_requests={self.num_generation_requests},"
            f"{' ' * 18}num_generation_tokens={self.num_generation_tokens})"
        )


def compute_iteration_details(scheduler_output: Any) -> IterationDetails:
    """Count the requests and tokens that `scheduler_output` schedules, by context and generation.

    `scheduler_output` is vLLM's ``SchedulerOutput`` or anything with ``num_scheduled_tokens`` (a mapping of request id
    to tokens), ``scheduled_new_reqs`` (objects with ``req_id``) and ``scheduled_cached_reqs`` (with
    ``is_context_phase(req_id)``). A request counts as context if ``is_context_phase`` says so or if it is new.
    It is only read; whatever its parts raise is raised here.

    Upstream: ``vllm.v1.utils.compute_iteration_details``.
    """
    new_req_ids = {request.req_id for request in scheduler_output.scheduled_new_reqs}
    return _ask(scheduler_output, new_req_ids, scheduler_output.num_scheduled_tokens)


def _ask(scheduler_output: Any, new_req_ids: set[Any], num_scheduled_tokens: Any) -> IterationDetails:
    num_ctx_requests = 0
    num_ctx_tokens = 0
    num_generation_requests = 0
    num_generation_tokens = 0
    for req_id, num_tokens in num_scheduled_tokens.items():
        if scheduler_output.scheduled_cached_reqs.is_context_phase(req_id) or req_id in new_req_ids:
            num_ctx_requests += 1
            num_ctx_tokens += num_tokens
        else:
            num_generation_requests += 1
            num_generation_tokens += num_tokens
    return IterationDetails(num_ctx_requests, num_ctx_tokens, num_generation_requests, num_generation_tokens)


# Either form is pickled by its public name.
compute_iteration_details.__module__ = "fastutils"
