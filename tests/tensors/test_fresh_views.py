"""Each copy of rows returns a view of its own, with nothing of an earlier one and nothing kept for a later one."""

import gc
import threading
import weakref

import pytest
import torch
from implementations import load
from outcomes import MODES, later_facts, values, view_facts
from torch.multiprocessing.reductions import StorageWeakRef

N = 4


@pytest.fixture
def Buffer(form):
    return load("CpuGpuBuffer", form)


def make(Buffer, *size, dtype=torch.float32):
    buffer = Buffer(*(size or (8,)), dtype=dtype, device=torch.device("cpu"))
    buffer.cpu.copy_(torch.arange(1, buffer.cpu.numel() + 1).reshape(buffer.cpu.shape))
    return buffer


def facts_of_a_fresh_view(Buffer, prepare=lambda buffer: None, *size):
    buffer = make(Buffer, *size)
    prepare(buffer)
    view = buffer.gpu[:N].copy_(buffer.cpu[:N], non_blocking=True)
    return facts(view, buffer)


def facts(view, buffer):
    return view_facts(view, buffer.cpu, buffer.gpu) | {"view": values(view)} | later_facts(view, buffer.gpu)


@pytest.mark.parametrize("copy", ["copy_to_gpu", "copy_to_cpu"])
@pytest.mark.parametrize("mode", MODES)
def test_a_dropped_view_is_gone(Buffer, copy, mode):
    buffer = make(Buffer)
    with MODES[mode]():
        view = getattr(buffer, copy)(3)
        watch, gone = weakref.ref(view), []
        weakref.finalize(view, gone.append, copy)
        del view
        assert watch() is None
        assert gone == [copy]
        tensor = buffer.gpu if copy == "copy_to_gpu" else buffer.cpu
        tensor.data = torch.zeros(8)  # frees the old memory at once: no view holds it
    memory = StorageWeakRef(tensor.untyped_storage())
    assert not memory.expired()
    if copy == "copy_to_cpu":
        del buffer.np
    tensor.data = torch.zeros(8)
    assert memory.expired()


# What somebody may do to a view before dropping it.
CHANGES = {
    "nothing": lambda view: None,
    "attribute": lambda view: setattr(view, "note", 1),
    "dict kept": lambda view: KEPT.append(view.__dict__),
    "weak reference": lambda view: KEPT.append(weakref.ref(view)),
    "requires_grad_": lambda view: view.requires_grad_(),
    "requires_grad_ and back": lambda view: view.requires_grad_().requires_grad_(False),
    "hooks": lambda view: setattr(view, "_backward_hooks", {}),
    "hook": lambda view: view.requires_grad_().register_hook(print),
    "hook, without gradient again": lambda view: (
        view.requires_grad_().register_hook(print),
        view.requires_grad_(False),
    ),
    "accumulation hook": lambda view: (
        view.requires_grad_().register_post_accumulate_grad_hook(print),
        view.requires_grad_(False),
    ),
    "grad": lambda view: setattr(view, "grad", torch.ones_like(view)),
    "as_strided_": lambda view: view.as_strided_((2, 2), (2, 1)),
    "stride": lambda view: view.as_strided_((2,), (3,)),
    "stride, with the rows to come": lambda view: view.as_strided_((N,), (2,)),
    "offset": lambda view: view.as_strided_((2,), (1,), 2),
    "unsqueeze_": lambda view: view.unsqueeze_(0),
    "resize_": lambda view: view.resize_(3),
    "set_": lambda view: view.set_(torch.ones(3)),
    "data": lambda view: setattr(view, "data", torch.ones(3)),
    "class": lambda view: setattr(view, "__class__", Sub),
    "swap_tensors": lambda view: torch.utils.swap_tensors(view, torch.ones(3)),
    "kept": lambda view: KEPT.append(view),
    "kept by numpy": lambda view: KEPT.append(view.detach().numpy()),
    "kept by a graph": lambda view: KEPT.append(torch.ones(len(view), requires_grad=True) * view),
    "kept by dlpack": lambda view: KEPT.append(view.__dlpack__()),
    "a view of it": lambda view: KEPT.append(view[1:]),
    "in-place": lambda view: view.add_(1),
    "neg bit": lambda view: torch._C._set_neg(view, True) if hasattr(torch._C, "_set_neg") else None,
    "in a dual": lambda view: dualize(view),
}
KEPT = []


class Sub(torch.Tensor):
    pass


def dualize(view):
    with torch.autograd.forward_ad.dual_level():
        view.add_(torch.autograd.forward_ad.make_dual(torch.ones_like(view), torch.ones_like(view)))


@pytest.fixture(autouse=True)
def _forget():
    yield
    KEPT.clear()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_the_next_view_is_as_good_as_fresh(Buffer, change):
    def change_one(view):
        try:
            CHANGES[change](view)
        except RuntimeError as error:
            return str(error)
        return None

    buffer, other = make(Buffer), make(Buffer)
    said = [change_one(buffer.copy_to_gpu(6)), change_one(other.gpu[:6].copy_(other.cpu[:6]))]
    assert said[0] == said[1]
    if change != "kept":
        gc.collect()
    if other.gpu.requires_grad:
        return  # the change reached the base, where the copy is forbidden
    got = facts(buffer.copy_to_gpu(N), buffer)
    view = other.gpu[:N].copy_(other.cpu[:N], non_blocking=True)
    assert got == facts(view, other)


@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES)
def test_a_view_is_not_carried_from_one_mode_into_another(Buffer, first, second):
    buffer = make(Buffer)
    with MODES[first]():
        buffer.copy_to_gpu(6)
    with MODES[second]():
        got = facts(buffer.copy_to_gpu(N), buffer)
        fresh = make(Buffer)
        fresh.copy_to_gpu()
        view = fresh.gpu[:N].copy_(fresh.cpu[:N])
        assert got == facts(view, fresh)


# What may happen to the buffer's tensors between two copies.
UPSETS = {
    "device tensor replaced": lambda b: setattr(b, "gpu", torch.zeros(8)),
    "device tensor of another dtype": lambda b: setattr(b, "gpu", torch.zeros(8, dtype=torch.float64)),
    "device tensor longer": lambda b: setattr(b, "gpu", torch.zeros(99)),
    "device tensor resized": lambda b: b.gpu.resize_(99),
    "device tensor with other data": lambda b: setattr(b.gpu, "data", torch.zeros(8)),
    "device tensor a view": lambda b: setattr(b, "gpu", torch.zeros(9)[1:]),
    "device tensor with columns": lambda b: (setattr(b, "gpu", torch.zeros(8, 2)), setattr(b, "cpu", torch.ones(8, 2))),
    "device tensor a subclass": lambda b: setattr(b, "gpu", b.gpu.as_subclass(Sub)),
    "device tensor replaced past the buffer": lambda b: b.__dict__.update(gpu=b.gpu.detach()),
    "both the same": lambda b: setattr(b, "gpu", b.cpu),
    "host tensor replaced": lambda b: setattr(b, "cpu", torch.ones(8)),
}


@pytest.mark.parametrize("upset", UPSETS)
def test_a_view_is_of_the_tensor_that_is_there_now(Buffer, upset):
    buffer, other = make(Buffer), make(Buffer)
    buffer.copy_to_gpu(6)
    other.gpu[:6].copy_(other.cpu[:6])
    for one in (buffer, other):
        UPSETS[upset](one)
    view = other.gpu[:N].copy_(other.cpu[:N])
    expected = facts(view, other)
    got_view = buffer.copy_to_gpu(N)
    assert got_view._base is (buffer.gpu if buffer.gpu._base is None else buffer.gpu._base)
    assert facts(got_view, buffer) == expected


def test_several_dimensions(Buffer):
    buffer = make(Buffer, 8, 3)
    for n in (2, 8, 0, N):
        view = buffer.copy_to_gpu(n)
        assert torch.equal(view, buffer.cpu[:n])
        assert view.stride() == buffer.gpu[:n].stride()
        del view


def test_a_held_view_keeps_its_rows(Buffer):
    buffer = make(Buffer)
    first = buffer.copy_to_gpu(2)
    second = buffer.copy_to_gpu(5)
    third = buffer.copy_to_gpu(1)
    assert [len(first), len(second), len(third)] == [2, 5, 1]
    assert len({id(first), id(second), id(third)}) == 3


@pytest.mark.parametrize("how", ["replace", "delete"])
@pytest.mark.parametrize(("name", "copy"), [("gpu", "copy_to_gpu"), ("cpu", "copy_to_cpu")])
def test_a_replaced_tensor_is_freed_at_once(Buffer, name, copy, how):
    buffer = make(Buffer)
    getattr(buffer, copy)(3)
    memory_of_it = StorageWeakRef(getattr(buffer, name).untyped_storage())
    memory = getattr(buffer, name)
    watch = weakref.ref(memory)
    del memory
    if name == "cpu":
        del buffer.np
    if how == "replace":
        setattr(buffer, name, torch.zeros(8))
    else:
        delattr(buffer, name)
    assert watch() is None
    assert memory_of_it.expired()


def test_threads_get_their_own_rows(Buffer):
    buffer = make(Buffer)
    wrong = []

    def work(n):
        for _ in range(2000):
            view = buffer.copy_to_gpu(n)
            if len(view) != n:
                wrong.append(len(view))

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 3, 5, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_buffer_in_a_cycle_is_collected(Buffer):
    buffer = make(Buffer)
    buffer.cpu.owner = buffer
    buffer.copy_to_gpu(3)
    watch = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("dtype", [torch.float64, None])
def test_a_gradients_type_is_not_handed_on(Buffer, dtype):
    buffer = make(Buffer)
    view = buffer.copy_to_gpu(N)
    view.grad_dtype = dtype
    del view
    assert buffer.copy_to_gpu(N).grad_dtype == torch.float32
