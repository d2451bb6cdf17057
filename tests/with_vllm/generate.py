"""``python generate.py MODEL CONFIGURATION [--count]``: generates in this process and prints one line of JSON.

The line holds digests of the tokens, the scheduler's own numbers, what the plugin replaced and, with ``--count``, how
often each of our helpers was called. Without the plugin (``FASTUTILS_VLLM=0``) the same tokens must come out.
"""

import hashlib
import json
import os
import sys

from counting import calls, count_calls

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

CONFIGURATIONS = {
    # Room for all requests at once; prompts come as embeddings too, and every step's details are logged.
    "wide": {"enable_prompt_embeds": True, "enable_logging_iteration_details": True},
    # 60 blocks of 32 tokens for 64 requests, and 96 tokens a step: prompts are cut up, requests preempted.
    "tight": {"num_gpu_blocks_override": 60, "max_num_batched_tokens": 96, "enable_chunked_prefill": True},
}


def main():
    model, configuration = sys.argv[1:3]
    if "--count" in sys.argv:
        count_calls()
    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        enforce_eager=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=64,
        seed=0,
        enable_prefix_caching=True,
        block_size=32,
        disable_log_stats=False,
        **CONFIGURATIONS[configuration],
    )
    steps = 0
    core = llm.llm_engine.engine_core.engine_core
    step = core.step_fn

    def counted_step():
        nonlocal steps
        steps += 1
        return step()

    core.step_fn = counted_step

    def generate(prompts, **options):
        given = SamplingParams(max_tokens=64, ignore_eos=True, **options)
        outputs = llm.generate(prompts, given, use_tqdm=False)
        return [
            [
                list(output.outputs[0].token_ids),
                [sorted(step) for step in output.outputs[0].logprobs] if given.logprobs is not None else None,
            ]
            for output in outputs
        ]

    beginning = "Which requests may go on, step by step? " * 3
    prompts = [f"{beginning if index % 2 else ''}Number {index}" for index in range(64)]
    calls.clear()
    results = {"greedy": generate(prompts, temperature=0)}
    after_greedy = {"steps": steps, "calls": dict(calls)}
    # On a CPU, vLLM 0.32 cannot take up a preempted request again that has a seed of its own: the engine's seed serves.
    own_seed = {"seed": 7} if configuration == "wide" else {}
    results["sampled"] = generate(prompts, temperature=0.8, top_p=0.9, **own_seed)
    results["penalties"] = generate(
        prompts[:16], temperature=0, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5, logprobs=3
    )
    if configuration == "wide":
        torch.manual_seed(1)
        embedded = [{"prompt_embeds": torch.randn(40, 64)} for _ in range(4)]
        results["embedded"] = generate(embedded, temperature=0)
    from fastutils import plugin

    metrics = {
        metric.name: metric.value
        for metric in llm.get_metrics()
        if metric.name in ("vllm:num_preemptions", "vllm:prefix_cache_hits")
    }
    report = plugin.status()
    line = {
        "tokens": {name: len(outputs) for name, outputs in results.items()},
        "digests": {
            name: hashlib.sha256(json.dumps(outputs).encode()).hexdigest() for name, outputs in results.items()
        },
        "metrics": metrics,
        "served": report.served,
        "summary": report.summary(),
        "staged": report.staged,
        "greedy": after_greedy,
        "steps": steps,
        "calls": dict(calls),
    }
    print(f"\nRESULT {json.dumps(line)}", flush=True)


if __name__ == "__main__":
    main()
