"""One engine in one process: prints, as a line of JSON, the CPU time of its decode steps and of the helpers in them.

``worker.py MODEL GENERATIONS [--count]``. ``FASTUTILS_VLLM`` says whose helpers run. With ``--count`` nothing is
timed; calls are counted.
"""

import json
import os
import statistics
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

REQUESTS = 64
TOKENS = 64


class Steps:
    """Takes the place of the engine core's step; `cpu_ns` gets the CPU time of each, all threads together."""

    def __init__(self, core):
        self.step = core.step_fn
        self.cpu_ns = []
        core.step_fn = self

    def __call__(self):
        start = time.process_time_ns()
        result = self.step()
        self.cpu_ns.append(time.process_time_ns() - start)
        return result


def cost_ns(call, number=5000, repeats=11):
    """Median CPU time of one call in ns; the loop's own is taken off."""

    def timed(function):
        start = time.process_time_ns()
        for _ in range(number):
            function()
        return (time.process_time_ns() - start) / number

    return statistics.median(timed(call) - timed(lambda: None) for _ in range(repeats))


def costs():
    """CPU time in ns of one call of each helper, as this process has it, by the names that are counted."""
    import torch
    from vllm.v1 import request
    from vllm.v1.core.sched import scheduler
    from vllm.v1.worker import cpu_model_runner, gpu_input_batch

    scope = scheduler.record_function_or_nullcontext
    view = request.ConstantList(list(range(256)))
    buffer = cpu_model_runner.CpuGpuBuffer(REQUESTS, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)
    buffer.gpu = buffer.cpu  # as the CPU runner does
    source, target = torch.zeros(REQUESTS), torch.zeros(REQUESTS)

    def enter_and_leave():
        with scope("schedule: allocate_slots"):
            pass

    with torch.inference_mode():
        return {
            "record_function_or_nullcontext": cost_ns(enter_and_leave),
            "ConstantList.__getitem__": cost_ns(lambda: view[-1]),
            "CpuGpuBuffer.copy_to_gpu": cost_ns(lambda: buffer.copy_to_gpu(REQUESTS)),
            "copy_slice": cost_ns(lambda: gpu_input_batch.copy_slice(source, target, REQUESTS)),
        }


def main():
    model, generations = sys.argv[1], int(sys.argv[2])
    counting = "--count" in sys.argv
    if counting:
        from counting import calls, count_calls

        count_calls()
    from vllm import LLM, SamplingParams

    llm = LLM(model=model, enforce_eager=True, dtype="float32", max_model_len=512, max_num_seqs=REQUESTS, seed=0)
    steps = Steps(llm.llm_engine.engine_core.engine_core)
    prompts = [f"Number {index}" for index in range(REQUESTS)]
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    llm.generate(prompts, sampling, use_tqdm=False)  # warms everything up
    decode_ns = []
    if counting:
        calls.clear()
    for _ in range(generations):
        steps.cpu_ns.clear()
        llm.generate(prompts, sampling, use_tqdm=False)
        decode_ns += steps.cpu_ns[2:]
    from fastutils import plugin

    result = {"served": plugin.status().served, "summary": plugin.status().summary(), "steps": len(decode_ns)}
    if counting:
        per_step = {name: count / (generations * len(steps.cpu_ns)) for name, count in calls.items()}
        result["calls_per_step"] = per_step
    else:
        result |= {"step_ns": statistics.median(decode_ns), "costs_ns": costs()}
    print(f"\nRESULT {json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main()
