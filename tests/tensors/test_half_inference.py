"""Tensors that are inference tensors by their keys and none by their version counter, or the other way round."""

import pytest
import torch
from implementations import load

MODES = {"inference": lambda: torch.inference_mode(True), "ordinary": lambda: torch.inference_mode(False)}

FIVES = torch.full((8,), 5.0)


def exchanged(first, second, shape=(8,)):
    with MODES[first]():
        tensor = torch.zeros(shape)
    with MODES[second]():
        tensor.data = torch.zeros(shape)
    return tensor


def detached(first, second, shape=(8,)):
    with MODES[first]():
        tensor = torch.zeros(shape)
    with MODES[second]():
        return tensor.detach()


def buffer_of(form, target):
    buffer = load("CpuGpuBuffer", form)(8, dtype=torch.float32, device=torch.device("cpu"))
    buffer.cpu.fill_(5)
    buffer.gpu = target
    return buffer


@pytest.mark.parametrize("make", [exchanged, detached])
@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("shape", [(8,), (2, 4), ()])
def test_their_bytes(make, first, second, shape):
    tensor = make(first, second, shape)

    def bytes_in(form):
        try:
            return bytes(load("tensor_data", form)(tensor))
        except RuntimeError as error:
            return str(error)

    assert bytes_in("compiled") == bytes_in("python")


# What each helper does, and what torch's own operators do.
COPIES = {
    "copy_slice": (
        lambda form, target: load("copy_slice", form)(FIVES, target, 3),
        lambda target: target[:3].copy_(FIVES[:3]),
    ),
    "copy_slices": (
        lambda form, target: load("copy_slices", form)([(FIVES, target, 3)]),
        lambda target: [target[:3].copy_(FIVES[:3])][1:] or None,
    ),
    "copy_to_gpu(3)": (
        lambda form, target: buffer_of(form, target).copy_to_gpu(3),
        lambda target: target[:3].copy_(FIVES[:3]),
    ),
    "copy_to_gpu()": (
        lambda form, target: buffer_of(form, target).copy_to_gpu(),
        lambda target: target.copy_(FIVES),
    ),
    "copy_to_gpu_many": (
        lambda form, target: load("copy_to_gpu_many", form)([buffer_of(form, target)]),
        lambda target: [target.copy_(FIVES)][1:] or None,
    ),
    "copy_to_gpu_many, 3": (
        lambda form, target: load("copy_to_gpu_many", form)([buffer_of(form, target)], 3),
        lambda target: [target[:3].copy_(FIVES[:3])][1:] or None,
    ),
}


def version(tensor):
    try:
        return tensor._version
    except RuntimeError as error:
        return str(error)


def outcome(copy, target, mode):
    with MODES[mode]():
        try:
            view = copy(target)
        except RuntimeError as error:
            seen = [str(error)]
        else:
            seen = [view if view is None else (view.is_inference(), view._is_view(), version(view), view.tolist())]
    return [*seen, target.is_inference(), version(target), target.tolist()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("make", [exchanged, detached])
@pytest.mark.parametrize("name", COPIES)
def test_tensors_that_are_half_inference_tensors(form, name, make, first, second, mode):
    ours, plain = COPIES[name]
    expected = outcome(plain, make(first, second), mode)
    assert outcome(lambda target: ours(form, target), make(first, second), mode) == expected
