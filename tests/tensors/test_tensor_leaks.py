"""References and memory stay flat over many calls."""

import gc
import sys

import pytest
import torch
from implementations import load

pytestmark = pytest.mark.leak

ROUNDS = 1_000_000


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def flat(step, *watched, rounds=ROUNDS, slack=4 << 20):
    """Runs `step` many times; the memory of the process and the reference counts of `watched` must stay."""
    for _ in range(2000):
        step()
    gc.collect()
    counts = [sys.getrefcount(thing) for thing in watched]
    memory, blocks = resident(), sys.getallocatedblocks()
    for _ in range(rounds):
        step()
    gc.collect()
    assert [sys.getrefcount(thing) for thing in watched] == counts
    assert sys.getallocatedblocks() - blocks < 500
    assert resident() - memory < slack


SOURCE, TARGET, LENGTH = torch.arange(1000), torch.zeros(1000, dtype=torch.int64), 700
WRONG = torch.zeros(3, dtype=torch.int64)


def fails(function, *arguments):
    try:
        function(*arguments)
    except (RuntimeError, TypeError):
        return
    raise AssertionError("no error")


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_copy_slice(mode):
    copy_slice = load("copy_slice", "compiled")
    with mode():
        flat(lambda: copy_slice(SOURCE, TARGET, LENGTH), SOURCE, TARGET, LENGTH)


def test_copy_slice_by_way_of_torch_and_errors():
    copy_slice = load("copy_slice", "compiled")
    flat(lambda: copy_slice(SOURCE, TARGET, -1), SOURCE, TARGET, rounds=50_000)
    flat(lambda: fails(copy_slice, WRONG, TARGET, 5), WRONG, TARGET, rounds=10_000)
    flat(lambda: fails(copy_slice, SOURCE, TARGET, "x"), SOURCE, TARGET, rounds=50_000)


def test_buffer_copies():
    Buffer = load("CpuGpuBuffer", "compiled")
    buffer = Buffer(1000, dtype=torch.int64, device="cpu")
    flat(lambda: buffer.copy_to_gpu(5), buffer, buffer.cpu, buffer.gpu)
    flat(lambda: buffer.copy_to_cpu(), buffer, buffer.cpu, buffer.gpu)
    kept = []

    def keep_the_last_three():
        kept.append(buffer.copy_to_gpu(7))
        del kept[:-3]

    flat(keep_the_last_three, buffer, buffer.cpu)
    with torch.inference_mode():
        flat(lambda: buffer.copy_to_gpu(5), buffer, buffer.cpu, buffer.gpu)


def test_buffers_themselves():
    Buffer = load("CpuGpuBuffer", "compiled")

    def make():
        buffer = Buffer(8, dtype=torch.int64, device="cpu", pin_memory=False)
        buffer.copy_to_gpu(4)
        buffer.copy_to_cpu(4)
        buffer.gpu = buffer.cpu
        del buffer.np

    flat(make, rounds=20_000)


def test_many_copies():
    copy_slices, copy_to_gpu_many = load("copy_slices", "compiled"), load("copy_to_gpu_many", "compiled")
    Buffer = load("CpuGpuBuffer", "compiled")
    buffers = [Buffer(100, dtype=torch.int64, device="cpu") for _ in range(5)]
    pairs = [(SOURCE, TARGET, LENGTH)] * 3 + [(SOURCE, TARGET, -1), [SOURCE, TARGET, 4]]
    flat(lambda: copy_slices(pairs), SOURCE, TARGET, *pairs, rounds=20_000)
    flat(lambda: copy_slices(pairs, views=True), SOURCE, TARGET, rounds=5_000)
    flat(lambda: copy_to_gpu_many(buffers, [1, None, 3, -1, 5]), *buffers, buffers[1].gpu, rounds=20_000)
    flat(lambda: fails(copy_slices, [(WRONG, TARGET, 5)]), WRONG, TARGET, rounds=10_000)
    flat(lambda: fails(copy_to_gpu_many, buffers, ["x"] * 5), *buffers, rounds=10_000)


def test_tensor_data():
    tensor_data = load("tensor_data", "compiled")
    strided = SOURCE[::2]
    flat(lambda: tensor_data(SOURCE), SOURCE)
    flat(lambda: tensor_data(strided), strided)
    flat(lambda: tensor_data(SOURCE).obj.base, SOURCE, rounds=50_000)
    flat(lambda: fails(tensor_data, torch._neg_view(torch.ones(3))), rounds=10_000)
