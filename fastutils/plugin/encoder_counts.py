"""Iteration details as vLLM has them from 0.26 on: they also count what the encoders of a step were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastutils import _select

_counts = _select.choose("compute_iteration_details").value


@dataclass
class IterationDetails:
    """How many requests and tokens one engine step spends on context and on generation, and on its encoders.

    Upstream: ``vllm.v1.utils.IterationDetails`` from vLLM 0.26 on.
    """

    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int
    num_generation_tokens: int
    num_encoder_inputs: int = 0
    num_encoder_output_tokens: int = 0

    def __repr__(self) -> str:
        gap = " " * 18
        return (
            f"IterationDetails(num_ctx_requests={self.num_ctx_requests},{' ' * 17}num_ctx_tokens={self.num_ctx_tokens},"
            f"{gap}num_generation_requests={self.num_generation_requests},"
            f"{gap}num_generation_tokens={self.num_generation_tokens},"
            f"{gap}num_encoder_inputs={self.num_encoder_inputs},"
            f"{gap}num_encoder_output_tokens={self.num_encoder_output_tokens})"
        )


def compute_iteration_details(scheduler_output: Any) -> IterationDetails:
    """Count what `scheduler_output` schedules, as `fastutils.compute_iteration_details` does, encoders included.

    The encoder counts are ``num_inputs`` and ``output_tokens`` of ``scheduler_output.scheduled_encoder_input_stats``,
    0 if that is None.

    Upstream: ``vllm.v1.utils.compute_iteration_details`` from vLLM 0.26 on.
    """
    counts = _counts(scheduler_output)
    encoders = scheduler_output.scheduled_encoder_input_stats
    inputs, output_tokens = (0, 0) if encoders is None else (encoders.num_inputs, encoders.output_tokens)
    return IterationDetails(
        counts.num_ctx_requests,
        counts.num_ctx_tokens,
        counts.num_generation_requests,
        counts.num_generation_tokens,
        inputs,
        output_tokens,
    )
