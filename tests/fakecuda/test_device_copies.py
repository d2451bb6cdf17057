"""Copies with a device: one direct call of the right kind, bytes and stream, and nothing freed or read too early."""

import ctypes
import gc
import threading
import weakref

import pytest
import torch
from fake import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, INVALID_VALUE
from implementations import load

from fastutils.tensors import runtime as bridge_loader

MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.fixture(autouse=True)
def _needs_the_stand_in(runtime):
    yield
    torch.cuda.synchronize()


@pytest.fixture
def copy_slice(form):
    return load("copy_slice", form)


def host(n=64, pin=True, dtype=torch.int32, start=1):
    tensor = torch.arange(start, start + n, dtype=dtype)
    return tensor.pin_memory() if pin else tensor


def device(n=64, where="cuda:0", dtype=torch.int32):
    # Not torch.zeros: the stand-in runs no kernels.
    return torch.zeros(n, dtype=dtype).pin_memory().to(where)


def on_host(tensor):
    return tensor.cpu().tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pin", [True, False], ids=["pinned", "pageable"])
def test_an_upload_is_one_direct_call(copy_slice, runtime, pin, mode):
    source, target = host(pin=pin), device()
    runtime.reset()
    with MODES[mode]():
        view = copy_slice(source, target, 10)
    (copy,) = runtime.copies()
    assert (copy.to, copy.source, copy.bytes) == (target.data_ptr(), source.data_ptr(), 40)
    assert (copy.kind, copy.stream, copy.device) == (HOST_TO_DEVICE, 0, 0)
    assert not copy.gil
    assert view.shape == (10,)
    assert view._base is target
    assert target._version == 1
    assert on_host(target) == [*range(1, 11)] + [0] * 54


@pytest.mark.parametrize("pin", [True, False], ids=["pinned", "pageable"])
def test_a_download_is_one_direct_call(copy_slice, runtime, pin):
    source, target = host().to("cuda:0"), host(pin=pin, start=100)
    runtime.reset()
    copy_slice(source, target, 5)
    torch.cuda.current_stream().synchronize()
    (copy,) = runtime.copies()
    assert (copy.to, copy.source, copy.bytes) == (target.data_ptr(), source.data_ptr(), 20)
    assert (copy.kind, copy.stream) == (DEVICE_TO_HOST, 0)
    assert target[:6].tolist() == [1, 2, 3, 4, 5, 105]


def test_within_a_device(copy_slice, runtime):
    source, target = host().to("cuda:0"), device()
    runtime.reset()
    copy_slice(source, target, 7)
    (copy,) = runtime.copies()
    assert (copy.kind, copy.bytes) == (DEVICE_TO_DEVICE, 28)
    assert on_host(target)[:8] == [*range(1, 8), 0]


def test_nothing_to_copy_calls_nothing(copy_slice, runtime):
    source, target = host(), device()
    runtime.reset()
    assert copy_slice(source, target, 0).shape == (0,)
    assert runtime.copies() == []
    assert target._version == 1


def test_the_current_stream_is_used(copy_slice, runtime):
    source, target, stream = host(), device(), torch.cuda.Stream()
    runtime.reset()
    with torch.cuda.stream(stream):
        copy_slice(source, target, 3)
    assert [copy.stream for copy in runtime.copies()] == [stream.cuda_stream]


def test_another_device_than_the_current_one(copy_slice, runtime):
    # A raw stream of 0 belongs to the current device, not to the tensor's.
    source, target = host(), device(where="cuda:1")
    runtime.reset()
    copy_slice(source, target, 3)
    assert [copy.device for copy in runtime.copies()] == [1]
    assert on_host(target)[:4] == [1, 2, 3, 0]
    with torch.cuda.device(1):
        runtime.reset()
        copy_slice(source, target, 4)
        assert [copy.device for copy in runtime.copies()] == [1]
    assert torch.cuda.current_device() == 0


def test_between_devices_torch_orders_the_streams(copy_slice, runtime):
    source, target = host().to("cuda:1"), device()
    runtime.reset()
    with runtime.held():
        copy_slice(source, target, 5)
        assert runtime.records()[0] >= 2  # each device's stream waits for the other's
    assert on_host(target)[:6] == [1, 2, 3, 4, 5, 0]


def test_copies_wait_in_the_stream_they_were_issued_on(copy_slice, runtime):
    first, second, stream = device(), device(), torch.cuda.Stream()
    source = host()
    with runtime.held():
        with torch.cuda.stream(stream):
            copy_slice(source, first, 64)
        copy_slice(source, second, 64)
        torch.cuda.current_stream().synchronize()
        # Reading device memory behind the runtime's back: the stand-in's device memory is host memory.
        peeked = [read_word(first), read_word(second)]
        assert peeked == [0, 1]
        stream.synchronize()
        assert read_word(first) == 1


def read_word(tensor):
    return ctypes.c_int32.from_address(tensor.data_ptr()).value


@pytest.mark.parametrize("path", ["copy_slice", "copy_to_gpu", "copy_to_gpu whole", "copy_slices", "copy_to_gpu_many"])
def test_a_freed_pinned_block_is_not_handed_out_while_its_copy_is_pending(form, runtime, path):
    size = 3001  # a size class that nothing else here uses
    target = device(size)
    source = host(size)
    address = source.data_ptr()
    buffer = load("CpuGpuBuffer", form)(1, dtype=torch.int32, device="cuda:0", pin_memory=False)
    buffer.cpu, buffer.gpu = source, target
    del buffer.np
    with runtime.held():
        if path == "copy_slice":
            load("copy_slice", form)(source, target, size)
        elif path == "copy_to_gpu":
            buffer.copy_to_gpu(size)
        elif path == "copy_to_gpu whole":
            buffer.copy_to_gpu()
        elif path == "copy_slices":
            load("copy_slices", form)([(source, target, size)])
        else:
            load("copy_to_gpu_many", form)([buffer], [size])
        del source, buffer
        gc.collect()
        usurper = torch.empty(size, dtype=torch.int32, pin_memory=True).fill_(-1)
        assert usurper.data_ptr() != address
        runtime.release()
    assert on_host(target) == list(range(1, size + 1))


def test_a_pinned_target_is_not_handed_out_while_its_copy_is_pending(copy_slice, runtime):
    size = 3003
    source, target = host(size).to("cuda:0"), host(size)
    address = target.data_ptr()
    with runtime.held():
        copy_slice(source, target, size)
        del target
        gc.collect()
        usurper = torch.empty(size, dtype=torch.int32, pin_memory=True).fill_(-1)
        assert usurper.data_ptr() != address
        runtime.release()
    assert usurper.unique().tolist() == [-1]


def test_a_pageable_source_may_change_after_the_call(copy_slice, runtime):
    source, target = host(pin=False), device()
    with runtime.held():
        copy_slice(source, target, 5)
        source.zero_()
        runtime.release()
    assert on_host(target)[:5] == [1, 2, 3, 4, 5]


def test_a_pinned_source_is_read_when_the_device_gets_to_it(copy_slice, runtime):
    source, target = host(), device()
    with runtime.held():
        copy_slice(source, target, 2)
        source[0] = 77
        runtime.release()
    assert on_host(target)[:3] == [77, 2, 0]


def test_a_copy_waits_for_nothing(copy_slice, runtime):
    source, target = host(), device()
    with runtime.held():
        copy_slice(source, target, 5)
        assert not torch.cuda.current_stream().query()
        assert read_word(target) == 0


def test_under_capture_torch_decides(copy_slice, runtime):
    source, target, stream = host(pin=False), device(), torch.cuda.Stream()
    with torch.cuda.stream(stream), runtime.capturing(), pytest.raises(RuntimeError, match="pinned"):
        copy_slice(source, target, 3)


def test_an_error_is_reported_by_torch(copy_slice, runtime, form):
    source, target = host(), device()
    runtime.reset()
    runtime.fail_next(INVALID_VALUE, times=9)
    with pytest.raises(RuntimeError, match="CUDA error: made-up error 1"):
        copy_slice(source, target, 3)
    runtime.fail_next(0, times=0)
    assert len(runtime.copies()) == {"compiled": 2, "python": 1}[form]
    assert on_host(copy_slice(source, target, 3)) == [1, 2, 3]  # and it does not linger


def test_an_error_that_passes_is_made_good(runtime):
    copy_slice = load("copy_slice", "compiled")
    source, target = host(), device()
    before = target._version
    runtime.reset()
    runtime.fail_next(INVALID_VALUE)
    view = copy_slice(source, target, 3)
    assert len(runtime.copies()) == 2
    assert on_host(view) == [1, 2, 3]
    assert target._version == before + 1
    torch.cuda.synchronize()  # nothing is left to be reported later


def test_neither_the_copy_nor_the_record_holds_the_gil(runtime, form):
    source, target = host(), device()
    buffer = load("CpuGpuBuffer", form)(1, dtype=torch.int32, device="cuda:0", pin_memory=False)
    buffer.cpu, buffer.gpu = source, target
    runtime.reset()
    load("copy_slice", form)(source, target, 3)
    buffer.copy_to_gpu(3)
    buffer.copy_to_gpu()
    buffer.copy_to_cpu(3)
    load("copy_slices", form)([(source, target, 3)])
    load("copy_to_gpu_many", form)([buffer] * 2, [1, None])
    assert len(runtime.copies()) == 7
    assert not any(copy.gil for copy in runtime.copies())


def test_many_copies_use_one_stream_and_keep_their_order(runtime, form):
    copy_slices = load("copy_slices", form)
    sources = [host(start=100 * i) for i in range(1, 4)]
    target, stream = device(), torch.cuda.Stream()
    runtime.reset()
    with torch.cuda.stream(stream), runtime.held():
        copy_slices([(source, target, n) for source, n in zip(sources, (10, 5, 2), strict=True)])
        copies = runtime.copies()
    assert [copy.bytes for copy in copies] == [40, 20, 8]
    assert {copy.stream for copy in copies} == {stream.cuda_stream}
    assert on_host(target)[:11] == [300, 301, 202, 203, 204, 105, 106, 107, 108, 109, 0]


def test_many_copies_mixed_with_host_copies_other_devices_and_errors(runtime, form):
    copy_slices = load("copy_slices", form)
    a, b, pinned = host(), host(start=50), host(start=0).zero_()
    here, there = device(), device(where="cuda:1")
    runtime.reset()
    copy_slices([(a, pinned, 5), (pinned, here, 5), (b, there, 4), (a, here, 2), (b, here, -63)])
    assert on_host(here)[:6] == [50, 2, 3, 4, 5, 0]
    assert on_host(there)[:5] == [50, 51, 52, 53, 0]
    versions = here._version
    runtime.fail_next(INVALID_VALUE, times=9)
    with pytest.raises(RuntimeError, match="made-up error"):
        copy_slices([(a, pinned, 5), (a, here, 5), (a, here, 6)])
    runtime.fail_next(0, times=0)
    assert here._version <= versions + 1


def test_a_buffer_on_the_device(runtime, form):
    buffer = load("CpuGpuBuffer", form)(8, 2, dtype=torch.int32, device=torch.device("cuda:0"), pin_memory=True)
    assert buffer.cpu.is_pinned()
    assert buffer.gpu.device == torch.device("cuda:0")
    buffer.np[:] = 5
    buffer.copy_to_gpu()
    buffer.np[:] = 6
    view = buffer.copy_to_gpu(3)
    assert on_host(buffer.gpu) == [[6, 6]] * 3 + [[5, 5]] * 5
    assert view._base is buffer.gpu
    buffer.copy_to_cpu(5)
    torch.cuda.synchronize()
    assert buffer.np.tolist() == [[6, 6]] * 3 + [[5, 5]] * 2 + [[6, 6]] * 3


def test_tensor_data_waits_for_the_device(runtime, form):
    tensor_data, copy_slice = load("tensor_data", form), load("copy_slice", form)
    source, target = host(), device()
    with runtime.held():
        copy_slice(source, target, 64)
        assert tensor_data(target).tobytes() == source.numpy().tobytes()


def test_threads_with_streams_of_their_own(runtime):
    copy_slice = load("copy_slice", "compiled")
    wrong = []

    def work(seed):
        stream = torch.cuda.Stream()
        source, target = host(start=seed * 1000), device()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            for n in range(1, 65):
                copy_slice(source, target, n)
            stream.synchronize()
            if on_host(target) != source.tolist():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


COPIES = {
    "copy_slice": lambda form, source, target: load("copy_slice", form)(source, target, len(source)),
    "copy_slices": lambda form, source, target: load("copy_slices", form)([(source, target, len(source))]),
    "copy_to_gpu": lambda form, source, target: buffer_of(form, source, target).copy_to_gpu(len(source)),
    "copy_to_gpu whole": lambda form, source, target: buffer_of(form, source, target).copy_to_gpu(),
    "copy_to_gpu_many": lambda form, source, target: load("copy_to_gpu_many", form)(
        [buffer_of(form, source, target)], len(source)
    ),
}


def buffer_of(form, source, target):
    buffer = load("CpuGpuBuffer", form)(1, dtype=torch.int32, device="cuda:0", pin_memory=False, with_numpy=False)
    buffer.cpu, buffer.gpu = source, target
    return buffer


def not_where_torch_lets_go(form, path):
    if (form, path) == ("python", "copy_to_gpu whole"):
        pytest.skip("copy_ itself does not keep the memory of its arguments alive")


@pytest.mark.parametrize("path", COPIES)
def test_a_source_given_other_memory_during_the_copy(form, runtime, path):
    not_where_torch_lets_go(form, path)
    size = 3005
    source, target = host(size), device(size)
    usurpers = []

    def swap():
        source.data = torch.zeros(1, dtype=torch.int32)
        gc.collect()
        usurpers.append(torch.empty(size, dtype=torch.int32, pin_memory=True).fill_(-1))

    runtime.during_next_copy(swap)
    COPIES[path](form, source, target)
    assert len(usurpers) == 1
    assert on_host(target) == list(range(1, size + 1))


@pytest.mark.parametrize("path", COPIES)
def test_a_target_given_other_memory_during_the_copy(form, runtime, path):
    not_where_torch_lets_go(form, path)
    size = 3007
    source, target, other = host(size), device(size), host(size, start=7)
    usurpers = []

    def swap():
        target.data = torch.empty(1, dtype=torch.int32, device="cuda:0")
        gc.collect()
        usurpers.append(torch.empty(size, dtype=torch.int32, device="cuda:0"))
        usurpers[0].copy_(other)

    runtime.during_next_copy(swap)
    COPIES[path](form, source, target)
    assert len(usurpers) == 1
    assert on_host(usurpers[0]) == other.tolist()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("n", [None, 2011])
def test_a_buffer_given_other_tensors_during_the_copy(form, runtime, many, n):
    size = 3011
    buffer = buffer_of(form, host(size), device(size))
    seen, usurpers = [], []

    def replace():
        seen.append(weakref.ref(buffer.cpu))
        buffer.cpu, buffer.gpu = torch.zeros(2, dtype=torch.int32), device(2)
        gc.collect()
        usurpers.append(torch.empty(size, dtype=torch.int32, pin_memory=True).fill_(-1))

    replaced = buffer.gpu
    runtime.during_next_copy(replace)
    load("copy_to_gpu_many", form)([buffer], n) if many else buffer.copy_to_gpu(n)
    assert on_host(replaced)[:n] == list(range(1, size + 1))[:n]
    assert replaced._version > 0
    gc.collect()
    assert seen[0]() is None


def test_two_copies_of_a_buffer_at_once_have_views_of_their_own(form, runtime):
    """While one copy has released the GIL, another one of the same buffer is made and its view kept."""
    buffer = buffer_of(form, host(), device())
    inner = []
    runtime.during_next_copy(lambda: inner.append(buffer.copy_to_gpu(5)))
    outer = buffer.copy_to_gpu(9)
    assert (len(outer), len(inner[0])) == (9, 5)
    assert outer is not inner[0]


def test_the_report_names_torchs_own_runtime(runtime):
    load("copy_slice", "compiled")
    rows = dict(bridge_loader.describe())
    assert rows["device runtime"].startswith("cuda, ")
    assert rows["device runtime"].endswith("libcudart.so.13")
