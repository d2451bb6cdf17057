"""Copies, single and staged, on a real device: their content under load, lifetimes, capture, and no deadlock with
Python's lock."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from fastutils.tensors import runtime

STAND_IN = False
if torch.cuda.is_available():
    found, _ = runtime.find_device_runtime()
    STAND_IN = found is not None and hasattr(ctypes.CDLL(found.library), "fakecuda_log")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or STAND_IN, reason="needs a real GPU"),
]

BUSY = 50_000_000  # cycles: some 30 ms


@pytest.fixture
def copies():
    from fastutils.tensors import _copy

    return _copy


def pinned(n, start=0):
    return torch.arange(start, start + n, dtype=torch.int32).pin_memory()


def test_the_bridge_uses_torchs_runtime():
    bridge = runtime.load()
    assert bridge.runtime is not None, bridge.no_runtime
    assert "cudart" in bridge.runtime.library or "amdhip" in bridge.runtime.library


def test_contents_under_load_on_side_streams(copies):
    streams = [torch.cuda.Stream() for _ in range(4)]
    sources = [pinned(4096, 10_000 * i) for i in range(4)]
    targets = [torch.zeros(4096, dtype=torch.int32, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for n in range(0, 4097, 64):
        for stream, source, target in zip(streams, sources, targets, strict=True):
            with torch.cuda.stream(stream):
                if n % 1024 == 0:
                    torch.cuda._sleep(BUSY // 20)
                copies.copy_slice(source, target, n)
    torch.cuda.synchronize()
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(target.cpu(), source)


def test_kernels_see_the_copy_of_their_own_stream(copies):
    source, target = pinned(1 << 16, 1), torch.zeros(1 << 16, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        copies.copy_slice(source, target, 1 << 16)
        doubled = target * 2
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(doubled.cpu(), source * 2)


def test_the_call_does_not_wait_for_the_device(copies):
    source, target = pinned(1024, 1), torch.zeros(1024, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY)
    copies.copy_slice(source, target, 1024)
    busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert busy


@pytest.mark.parametrize("whole", [False, True])
def test_a_freed_pinned_block_is_not_handed_out_while_its_copy_is_pending(copies, whole):
    n = 300_001
    target = torch.zeros(n, dtype=torch.int32, device="cuda")
    source = pinned(n, 1)
    buffer = copies.CpuGpuBuffer(1, dtype=torch.int32, device="cuda", pin_memory=False)
    buffer.cpu, buffer.gpu = source, target
    del buffer.np
    expected = source.clone()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY * 4)
    if whole:
        buffer.copy_to_gpu()
    else:
        copies.copy_slice(source, target, n)
    del source, buffer
    gc.collect()
    for _ in range(4):
        torch.empty(n, dtype=torch.int32, pin_memory=True).fill_(-1)
    torch.cuda.synchronize()
    assert torch.equal(target.cpu(), expected)


def test_a_pageable_source_may_change_after_the_call(copies):
    target = torch.zeros(5000, dtype=torch.int32, device="cuda")
    for n in (1, 5000):
        source = torch.arange(1, 5001, dtype=torch.int32)
        torch.cuda._sleep(BUSY)
        copies.copy_slice(source, target, n)
        source.zero_()
        torch.cuda.synchronize()
        assert target[:n].cpu().tolist() == list(range(1, n + 1))


@pytest.mark.parametrize("pin", [True, False])
def test_downloads(copies, pin):
    source = torch.arange(5000, dtype=torch.int32, device="cuda")
    target = torch.zeros(5000, dtype=torch.int32, pin_memory=pin)
    torch.cuda._sleep(BUSY)
    copies.copy_slice(source, target, 4000)
    torch.cuda.synchronize()
    assert target.tolist() == [*range(4000)] + [0] * 1000


def test_within_the_device_and_many_in_one_call(copies):
    a, b = torch.arange(1000, device="cuda"), torch.zeros(1000, dtype=torch.int64, device="cuda")
    copies.copy_slice(a, b, 900)
    assert int(b.sum()) == sum(range(900))
    buffers = [copies.CpuGpuBuffer(100 + i, dtype=torch.int32, device="cuda", pin_memory=True) for i in range(100)]
    for i, buffer in enumerate(buffers):
        buffer.np[:] = i
    torch.cuda._sleep(BUSY)
    copies.copy_to_gpu_many(buffers, [i + 1 for i in range(100)])
    torch.cuda.synchronize()
    assert [int(buffer.gpu.sum()) for buffer in buffers] == [i * (i + 1) for i in range(100)]


def test_capture_and_replay(copies):
    source, target = pinned(1000, 1), torch.zeros(1000, dtype=torch.int32, device="cuda")
    copies.copy_slice(source, target, 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copies.copy_slice(source, target, 1000)
        doubled = target * 2
    for start in (5, 50):
        source.copy_(torch.arange(start, start + 1000, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(doubled.cpu(), source * 2)


def test_a_pageable_source_under_capture_is_refused_as_torch_refuses_it(copies):
    source, target = torch.arange(1000, dtype=torch.int32), torch.zeros(1000, dtype=torch.int32, device="cuda")
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        copies.copy_slice(source, target, 10)
    torch.cuda.synchronize()
    assert copies.copy_slice(source, target, 10).cpu().tolist() == list(range(10))


def test_threads_with_streams_of_their_own(copies):
    wrong = []

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            source, target = pinned(2048, seed * 5000), torch.empty(2048, dtype=torch.int32, device="cuda")
            for n in range(1, 2049, 7):
                copies.copy_slice(source, target, n)
            copies.copy_slice(source, target, 2048)
            stream.synchronize()
            if not torch.equal(target.cpu(), source):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.fixture(params=["compiled", "python"])
def groups(request):
    """The class StagingGroup, in both forms."""
    from fastutils.tensors import _staging
    from fastutils.tensors.staging.group import StagingGroup

    return _staging.StagingGroup if request.param == "compiled" else StagingGroup


def several(group, sizes):
    return [group.buffer(f"buffer {i}", size, dtype=torch.int32) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("mode", ["auto", "pack", "merge", "loop"])
def test_staged_rows_may_be_rewritten_at_once(groups, mode):
    group = groups("cuda", mode=mode)
    buffers = several(group, [64, 64, 64, 100, 100, 256, 256, 8192])
    group.freeze()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY)
    seen = []
    for step in range(6):
        for i, buffer in enumerate(buffers):
            buffer.np[:] = 1000 * step + i
        group.flush(48 if step % 2 else None)
        for buffer in buffers:
            buffer.np[:] = -7
        seen.append([buffer.gpu.clone() for buffer in buffers])
    busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert busy
    assert group.stats().waits == 0
    for step, found in enumerate(seen):
        for i, tensor in enumerate(found):
            rows = tensor.tolist()
            assert set(rows[:48]) == {1000 * step + i}
            assert set(rows[48:]) == {1000 * (step - step % 2) + i}


@pytest.mark.parametrize("n", [1, 48, 99, 100])
def test_buffers_of_one_size_are_one_strided_copy(n):
    from fastutils.tensors._staging import StagingGroup

    group = StagingGroup("cuda", mode="pack")
    buffers = several(group, [100] * 16)
    other = group.buffer("other", 100, dtype=torch.float32)
    for i, buffer in enumerate(buffers):
        buffer.np[:] = i + 1
    other.np[:] = 0.5
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY)
    group.flush(n)
    for buffer in [*buffers, other]:
        buffer.np[:] = -7
    torch.cuda.synchronize()
    assert group.stats().runtime_calls == 1
    for i, buffer in enumerate(buffers):
        assert buffer.gpu.tolist() == [i + 1] * n + [0] * (100 - n)
    assert other.gpu.tolist() == [0.5] * n + [0] * (100 - n)


def test_a_step_uploads_where_it_ends(groups):
    group = groups("cuda")
    buffers = several(group, [100, 200, 300])
    group.freeze()
    torch.cuda.synchronize()
    with group.step():
        views = [buffer.copy_to_gpu(50) for buffer in buffers]
        for i, buffer in enumerate(buffers):
            buffer.np[:] = i + 1
        torch.cuda.synchronize()
        assert [set(view.tolist()) for view in views] == [{0}, {0}, {0}]
    assert [view.tolist() for view in views] == [[i + 1] * 50 for i in range(3)]
    assert group.stats().flushes == 1


def test_staged_copies_follow_their_own_stream(groups):
    group = groups("cuda")
    (buffer,) = several(group, [1 << 14])
    group.freeze()
    streams, found = [torch.cuda.Stream() for _ in range(3)], []
    previous = torch.cuda.current_stream()
    for i, stream in enumerate(streams):
        stream.wait_stream(previous)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY // 2)
            buffer.np[:] = i + 1
            group.flush()
            buffer.np[:] = -7
            found.append(buffer.gpu * 2)
        previous = stream
    torch.cuda.synchronize()
    assert [set(tensor.tolist()) for tensor in found] == [{2}, {4}, {6}]


def test_a_captured_flush_reads_the_host_at_every_replay(groups):
    group = groups("cuda")
    buffers = several(group, [1000, 2000])
    group.flush()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group.flush(900)
        doubled = [buffer.gpu * 2 for buffer in buffers]
    for start in (5, 50):
        for buffer in buffers:
            buffer.np[:] = range(start, start + len(buffer.np))
        graph.replay()
        torch.cuda.synchronize()
        for tensor in doubled:
            assert tensor[:901].tolist() == [2 * value for value in range(start, start + 900)] + [0]


def test_a_flush_waits_where_no_slot_is_left_and_lets_others_run(groups):
    group = groups("cuda", slots=1, max_slots=2)
    (buffer,) = several(group, [1000])
    group.freeze()
    torch.cuda.synchronize()
    done, turns = threading.Event(), []

    def other():
        while not done.wait(1e-3):
            turns.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        torch.cuda._sleep(BUSY * 4)
        seen = []
        for step in range(5):
            buffer.np[:] = step
            group.flush()
            buffer.np[:] = -7
            seen.append(buffer.gpu.clone())
            if step == 1:
                turns.clear()
    finally:
        done.set()
        thread.join()
    torch.cuda.synchronize()
    assert [set(tensor.tolist()) for tensor in seen] == [{0}, {1}, {2}, {3}, {4}]
    stats = group.stats()
    assert stats.peak_slots == 2
    assert stats.waits >= 1
    assert stats.ns_waited > 0
    assert turns


def test_slots_that_were_given_back_are_read_to_the_end(groups):
    group = groups("cuda")
    (buffer,) = several(group, [300_001])
    device = buffer.gpu
    buffer.np[:] = 5
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY * 4)
    group.flush()
    buffer.np[:] = -7
    group.close()
    del buffer, group
    gc.collect()
    for _ in range(8):
        torch.empty(300_032, dtype=torch.int32, pin_memory=True).fill_(-1)
    torch.cuda.synchronize()
    assert set(device.tolist()) == {5}


def test_a_fetch_is_not_overtaken(groups):
    group = groups("cuda")
    (buffer,) = several(group, [1000])
    buffer.np[:] = 5
    group.flush()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY)
    fetched = group.fetch(900)
    buffer.np[:] = 6
    group.flush()
    assert not fetched.ready()
    with pytest.raises(RuntimeError, match="nobody has waited"):
        fetched.views  # noqa: B018
    with pytest.raises(TimeoutError):
        fetched.wait(1e-3)
    assert fetched.wait()["buffer 0"].tolist() == [5] * 900
    torch.cuda.synchronize()
    assert set(buffer.gpu.tolist()) == {6}


def test_threads_share_a_group(groups):
    group = groups("cuda")
    buffers = several(group, [2048] * 4)
    group.freeze()
    wrong = []

    def work(i):
        buffer, stream = buffers[i], torch.cuda.Stream()
        with torch.cuda.stream(stream):
            seen = []
            for n in range(1, 2049, 64):
                buffer.np[:n] = 5000 * i + n
                group.flush({f"buffer {i}": n})
                buffer.np[:] = -7
                seen.append((n, buffer.gpu[:n].clone()))
            stream.synchronize()
            wrong.extend(n for n, tensor in seen if set(tensor.tolist()) != {5000 * i + n})

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_with_blocking_launches():
    run(
        """
        import torch
        from fastutils.tensors._copy import copy_slice
        source = torch.arange(100).pin_memory()
        target = torch.zeros(100, dtype=torch.int64, device="cuda")
        assert copy_slice(source, target, 60).tolist() == list(range(60))
        """,
        CUDA_LAUNCH_BLOCKING="1",
    )


def test_a_host_callback_may_take_the_gil_while_the_queue_is_full():
    # The queue holds about a thousand operations; copies beyond it wait for the callback, and the callback for the GIL.
    run(
        """
        import ctypes, torch
        from fastutils.tensors import runtime
        from fastutils.tensors._copy import CpuGpuBuffer, copy_slice, copy_slices
        library = ctypes.CDLL(runtime.load().runtime.library)
        called = []
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
        source = torch.arange(256, dtype=torch.int32).pin_memory()
        target = torch.zeros(256, dtype=torch.int32, device="cuda")
        buffer = CpuGpuBuffer(256, dtype=torch.int32, device="cuda", pin_memory=True)
        torch.cuda.synchronize()
        for copy in (
            lambda: copy_slice(source, target, 256),
            lambda: buffer.copy_to_gpu(9),
            lambda: buffer.copy_to_gpu(),
            lambda: copy_slices([(source, target, 9)] * 3),
        ):
            torch.cuda._sleep(100_000_000)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            assert library.cudaLaunchHostFunc(stream, callback, None) == 0
            for _ in range(3000):
                copy()
            torch.cuda.synchronize()
        assert len(called) == 4
        """
    )
