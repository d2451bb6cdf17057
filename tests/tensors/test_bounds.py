"""Tensors whose elements lie beyond their storage: torch makes them without complaint, and refuses to use them."""

import pytest
import torch
from implementations import load

ROWS = 16


def beyond(offset):
    return torch.zeros(ROWS, dtype=torch.int64).as_strided_((ROWS,), (1,), offset)


def copied(form, helper, source, target):
    if helper == "copy_slice":
        return load("copy_slice", form)(source, target, ROWS)
    if helper == "copy_slices":
        return load("copy_slices", form)([(source, target, ROWS)])
    buffer = load("CpuGpuBuffer", form)(ROWS, dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)
    buffer.cpu, buffer.gpu = source, target
    return buffer.copy_to_gpu(ROWS) if helper == "copy_to_gpu" else load("copy_to_gpu_many", form)([buffer], ROWS)


# In bytes, each wraps round to a small number.
@pytest.mark.parametrize("offset", [2**61 - ROWS, 2**61 - 8, 2**61, 2**62 - 8, 2**63 - ROWS - 1])
@pytest.mark.parametrize("helper", ["copy_slice", "copy_slices", "copy_to_gpu", "copy_to_gpu_many"])
@pytest.mark.parametrize("form", ["compiled", "python"])
@pytest.mark.parametrize("which", ["source", "target"])
def test_offsets_beyond_every_storage(form, helper, offset, which):
    try:
        bad = beyond(offset)
    except RuntimeError:
        pytest.skip("this torch refuses to make it")
    around = [torch.zeros(1 << 12, dtype=torch.int64) for _ in range(4)]
    good = torch.ones(ROWS, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        copied(form, helper, *((bad, good) if which == "source" else (good, bad)))
    assert all(not each.any() for each in around)
    assert good.sum() == ROWS


def of_sizes(sizes, strides):
    tensor = torch.zeros(16, dtype=torch.int64)[::2]
    try:
        tensor.set_(tensor.untyped_storage(), 0, sizes, strides)
    except RuntimeError:
        return tensor  # with the new sizes, and the number of elements of before
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(1, dtype=torch.int64).expand(2**61 + 1),
        lambda: torch.zeros(1, dtype=torch.int64).expand(2**60 + 3),
        lambda: of_sizes((2**32, 2**32), (0, 0)),
        lambda: of_sizes((2**62, 2, 2), (0, 0, 0)),
        lambda: of_sizes((2**62 + 1, 4), (0, 0)),
        lambda: of_sizes((8, 2**61 + 1), (0, 0)),
        lambda: of_sizes((3, -1), (0, 0)),
        lambda: of_sizes((-3, -3, 2), (0, 0, 0)),
    ],
)
def test_sizes_that_overflow(make):
    def outcome(form):
        try:
            return len(load("tensor_data", form)(make()))
        except RuntimeError as error:
            return str(error)

    assert outcome("compiled") == outcome("python")


@pytest.mark.parametrize("form", ["compiled", "python"])
def test_more_dimensions_than_a_stack_holds(form):
    tensor = torch.arange(8).as_strided([1] * 20000 + [4], [1] * 20000 + [2])
    assert bytes(load("tensor_data", form)(tensor)) == bytes(torch.tensor([0, 2, 4, 6]).numpy())


def refused():
    """A tensor whose sizes and strides torch changed before it refused them: it still counts as contiguous."""
    tensor = torch.arange(16)
    with pytest.raises(RuntimeError):
        tensor.set_(tensor.untyped_storage(), 0, (2**62, 4), (1, 1))
    return tensor


def test_sizes_that_torch_refused(form):
    copy_slice = load("copy_slice", form)
    assert copy_slice(refused(), torch.zeros(3, 4, dtype=torch.int64), 3).tolist() == [
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [2, 3, 4, 5],
    ]
    target = refused()
    copy_slice(torch.arange(7, 19).view(3, 4), target, 3)
    flat = torch.tensor([], dtype=torch.int64).set_(target.untyped_storage())
    assert flat.tolist() == [7, 8, 9, 10, 14, 18, *range(6, 16)]
    with pytest.raises(RuntimeError, match="invalid for input of size 16"):
        load("tensor_data", form)(refused())
