"""CpuGpuBuffer: its attributes, their freedom, and its copies."""

import copy
import inspect
import pickle
import weakref

import numpy as np
import pytest
import torch
from implementations import load

import fastutils


@pytest.fixture
def Buffer(form):
    return load("CpuGpuBuffer", form)


def filled(Buffer, *size, dtype=torch.int32, **more):
    buffer = Buffer(*size, dtype=dtype, device=torch.device("cpu"), **more)
    buffer.cpu.copy_(torch.arange(buffer.cpu.numel()).reshape(buffer.cpu.shape) + 1)
    return buffer


def test_starts_zeroed_with_a_numpy_view_of_the_host_tensor(Buffer):
    buffer = Buffer(4, 3, dtype=torch.int32, device=torch.device("cpu"))
    assert buffer.cpu.tolist() == buffer.gpu.tolist() == [[0] * 3] * 4
    assert buffer.cpu.data_ptr() != buffer.gpu.data_ptr()
    assert isinstance(buffer.np, np.ndarray)
    buffer.np[1, 2] = 7
    assert buffer.cpu[1, 2] == 7


def test_signature_is_upstreams(Buffer):
    parameters = inspect.signature(Buffer).parameters
    assert list(parameters) == ["size", "dtype", "device", "pin_memory", "with_numpy", "staged"]  # the last is ours
    assert parameters["staged"].default is False
    assert parameters["pin_memory"].default == torch.cuda.is_available()
    assert repr(parameters["pin_memory"].default) == repr(torch.cuda.is_available())
    assert parameters["with_numpy"].default is True
    assert {p.kind for p in list(parameters.values())[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.signature(Buffer.copy_to_gpu).parameters["n"].default is None
    assert inspect.signature(Buffer.copy_to_cpu).parameters["n"].default is None


def test_without_numpy_the_attribute_is_absent(Buffer):
    buffer = Buffer(4, dtype=torch.bfloat16, device=torch.device("cpu"), with_numpy=False)
    with pytest.raises(AttributeError, match="np"):
        buffer.np  # noqa: B018
    assert not hasattr(buffer, "np")


def test_bfloat16_with_numpy_says_what_to_pass(Buffer):
    buffer = Buffer.__new__(Buffer)
    with pytest.raises(ValueError, match="with_numpy=False"):
        buffer.__init__(4, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert sorted(vars(buffer)) == ["cpu", "gpu"]  # upstream notices last of all, and a subclass may make do


def test_it_is_an_ordinary_class(Buffer):
    buffer = filled(Buffer, 4)
    assert list(vars(buffer)) == ["cpu", "gpu", "np"]
    assert vars(buffer)["gpu"] is buffer.gpu
    for name in ("cpu", "gpu", "np"):
        assert not hasattr(Buffer, name)
    vars(buffer)["gpu"] = torch.zeros(4, dtype=torch.int32)
    assert buffer.copy_to_gpu(2).data_ptr() == vars(buffer)["gpu"].data_ptr()
    buffer.__dict__ = {"cpu": torch.ones(3), "gpu": torch.zeros(3)}
    assert buffer.copy_to_gpu(2).tolist() == [1, 1]
    assert not hasattr(buffer, "np")
    for name in ("__getstate__", "__setstate__", "__reduce_ex__", "__slots__"):
        assert not any(name in vars(cls) for cls in Buffer.__mro__[:-1])


def test_the_copies_are_methods_of_any_look_alike(Buffer):
    class LookAlike:
        cpu, gpu = torch.arange(4), torch.zeros(4, dtype=torch.int64)
        copy_to_gpu, copy_to_cpu = Buffer.copy_to_gpu, Buffer.copy_to_cpu

    one = LookAlike()
    assert one.copy_to_gpu(2).tolist() == [0, 1]
    assert Buffer.copy_to_gpu(one) is one.gpu
    one.gpu.add_(5)
    assert Buffer.copy_to_cpu(one, n=1).tolist() == [5]
    with pytest.raises(AttributeError, match="gpu"):
        Buffer.copy_to_gpu(object())


def test_an_attribute_of_an_instance_stands_before_the_method(Buffer):
    buffer = filled(Buffer, 4)
    buffer.copy_to_gpu = lambda n=None: ("own", n)
    assert buffer.copy_to_gpu(3) == ("own", 3)
    assert buffer.gpu.tolist() == [0] * 4


def test_the_class_can_be_patched(Buffer, monkeypatch):
    buffer, calls = filled(Buffer, 4), []
    monkeypatch.setattr(Buffer, "copy_to_gpu", lambda self, n=None: calls.append(n))
    buffer.copy_to_gpu(2)
    assert calls == [2]
    monkeypatch.undo()
    monkeypatch.setattr(Buffer, "gpu", property(lambda self: torch.zeros(9, dtype=torch.int32)), raising=False)
    assert buffer.copy_to_gpu(4).tolist() == [1, 2, 3, 4]
    assert vars(buffer)["gpu"].tolist() == [0] * 4


def test_made_inside_inference_mode_its_tensors_are_ordinary(Buffer):
    with torch.inference_mode():
        buffer = Buffer(4, dtype=torch.int32, device=torch.device("cpu"))
    assert not buffer.cpu.is_inference()
    assert not buffer.gpu.is_inference()


def test_whole_copies_return_the_tensor_itself(Buffer):
    buffer = filled(Buffer, 4)
    assert buffer.copy_to_gpu() is buffer.gpu
    assert buffer.gpu.tolist() == [1, 2, 3, 4]
    buffer.gpu.zero_()
    assert buffer.copy_to_cpu(None) is buffer.cpu
    assert buffer.np.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9, -1, -9, np.int64(2), torch.tensor(2), True])
def test_partial_copies_follow_slice_rules(Buffer, n):
    buffer = filled(Buffer, 4)
    view = buffer.copy_to_gpu(n)
    expected = list(range(1, 5))[: int(n)]
    assert view.tolist() == expected
    assert buffer.gpu.tolist() == expected + [0] * (4 - len(expected))
    assert view._base is buffer.gpu
    buffer.gpu.mul_(10)
    back = buffer.copy_to_cpu(n=n)
    assert back.tolist() == [10 * x for x in expected]
    assert back._base is buffer.cpu


def test_sharing_one_tensor_for_both_sides_copies_nothing(Buffer):
    buffer = filled(Buffer, 4)
    buffer.gpu = buffer.cpu
    assert buffer.copy_to_gpu() is buffer.cpu
    view = buffer.copy_to_gpu(2)
    assert view.data_ptr() == buffer.cpu.data_ptr()
    assert view.tolist() == [1, 2]


def test_replaced_and_resized_tensors_are_read_afresh(Buffer):
    buffer = filled(Buffer, 4)
    buffer.copy_to_gpu(2)
    buffer.cpu = torch.tensor([9, 8, 7], dtype=torch.int32)
    buffer.gpu = torch.zeros(3, dtype=torch.int32)
    assert buffer.copy_to_gpu(2).tolist() == [9, 8]
    buffer.cpu.resize_(5).copy_(torch.arange(5))
    buffer.gpu.resize_(5)
    assert buffer.copy_to_gpu(5).tolist() == [0, 1, 2, 3, 4]


def test_bad_counts_raise_what_torch_raises(Buffer):
    buffer = filled(Buffer, 4)
    for bad in (1.5, "2", [1]):
        with pytest.raises(TypeError):
            buffer.copy_to_gpu(bad)
    with pytest.raises(TypeError):
        buffer.copy_to_gpu(1, 2)
    with pytest.raises(TypeError):
        buffer.copy_to_gpu(m=1)


def test_missing_tensor_is_an_attribute_error(Buffer):
    buffer = filled(Buffer, 4)
    del buffer.gpu
    with pytest.raises(AttributeError, match="gpu"):
        buffer.copy_to_gpu()
    with pytest.raises(AttributeError, match="gpu"):
        buffer.copy_to_gpu(2)


def test_subclass_extra_attribute_weak_reference_pickle_and_copy(Buffer, monkeypatch):
    class Named(Buffer):
        def __init__(self, name):
            super().__init__(3, dtype=torch.int64, device=torch.device("cpu"))
            self.name = name

    named = Named("positions")
    assert isinstance(named, Buffer)
    assert named.name == "positions"
    assert weakref.ref(named)() is named

    buffer = filled(Buffer, 3)
    buffer.extra = "kept"
    monkeypatch.setattr(fastutils, "CpuGpuBuffer", Buffer)  # both forms are pickled by their public name
    for clone in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        assert clone.cpu.tolist() == [1, 2, 3]
        assert clone.cpu.data_ptr() != buffer.cpu.data_ptr()
        assert clone.np.tolist() == [1, 2, 3]
        assert clone.extra == "kept"
        assert clone.copy_to_gpu(2).tolist() == [1, 2]
    shallow = copy.copy(buffer)
    assert shallow.cpu is buffer.cpu
    assert shallow.np is buffer.np


def test_subclass_may_compute_a_tensor(Buffer):
    spare = torch.zeros(4, dtype=torch.int32)

    class Redirected(Buffer):
        @property
        def gpu(self):
            return spare

        @gpu.setter
        def gpu(self, tensor):
            pass

    buffer = filled(Redirected, 4)
    assert buffer.copy_to_gpu(2).tolist() == [1, 2]
    assert spare.tolist() == [1, 2, 0, 0]
    assert buffer.copy_to_gpu() is spare


# ---- what subclasses and other code make of a buffer -------------------------------------------------------------


def test_other_ways_of_setting_attributes(Buffer):
    class Mix:
        def __setattr__(self, name, value):
            seen.append(name)
            super().__setattr__(name, value)

    class Both(Buffer, Mix):
        pass

    seen = []
    buffer = filled(Both, 4)
    assert seen == ["cpu", "gpu", "np"]
    other = torch.zeros(4, dtype=torch.int32)
    object.__setattr__(buffer, "gpu", other)
    assert buffer.copy_to_gpu(2).data_ptr() == other.data_ptr()
    object.__delattr__(buffer, "gpu")
    with pytest.raises(AttributeError, match="gpu"):
        buffer.copy_to_gpu(2)
    with pytest.raises(AttributeError, match="gpu"):
        del buffer.gpu


def test_a_module_that_is_a_buffer_too(Buffer):
    class Both(Buffer, torch.nn.Module):
        def __init__(self):
            torch.nn.Module.__init__(self)
            Buffer.__init__(self, 4, dtype=torch.float32, device=torch.device("cpu"))
            self.weight = torch.nn.Parameter(torch.ones(2))

    both = Both()
    assert [name for name, _ in both.named_parameters()] == ["weight"]
    both.np[:] = 3
    assert both.copy_to_gpu(2).tolist() == [3, 3]


def test_a_subclass_may_make_the_tensors_something_else(Buffer):
    class Late(Buffer):
        pass

    buffer, elsewhere = filled(Late, 4), torch.zeros(4, dtype=torch.int32)
    Late.gpu = property(lambda self: elsewhere)
    assert buffer.copy_to_gpu(2).data_ptr() == elsewhere.data_ptr()
    assert elsewhere.tolist() == [1, 2, 0, 0]

    class Intercepted(Buffer):
        def __getattribute__(self, name):
            return elsewhere if name == "gpu" else super().__getattribute__(name)

    elsewhere.zero_()
    assert filled(Intercepted, 4).copy_to_gpu() is elsewhere
    assert elsewhere.tolist() == [1, 2, 3, 4]


class Slotted(fastutils.CpuGpuBuffer):
    __slots__ = ("extra",)


class ByHand(fastutils.CpuGpuBuffer):
    def __getnewargs__(self):
        made.append("arguments")
        return ()

    def __getstate__(self):
        return None, {"cpu": self.cpu, "gpu": self.gpu}


made = []


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, *(lambda b, p=p: pickle.loads(pickle.dumps(b, p)) for p in (2, 5))]
)
def test_slots_and_state_of_subclasses_survive_copying(again):
    buffer = filled(Slotted, 4)
    buffer.extra, buffer.more = "kept", 5
    new = again(buffer)
    assert (new.extra, new.more, new.cpu.tolist()) == ("kept", 5, [1, 2, 3, 4])
    made.clear()
    by_hand = again(filled(ByHand, 4))
    assert made == ["arguments"]
    assert by_hand.copy_to_gpu(2).tolist() == [1, 2]
    assert not hasattr(by_hand, "np")
