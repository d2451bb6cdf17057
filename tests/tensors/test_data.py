"""tensor_data: the bytes, whose memory they are, and how long they live."""

import gc
import hashlib
import inspect
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from implementations import FORMS, load


@pytest.fixture
def tensor_data(form):
    return load("tensor_data", form)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def expected(tensor):
    """The bytes in row-major order, by a way of its own: element by element through the storage."""
    storage = bytes(tensor.untyped_storage().tolist())
    size = tensor.element_size()
    out = bytearray()
    for index in np.ndindex(*tensor.shape):
        at = tensor.storage_offset() + sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
        out += storage[at * size : (at + 1) * size]
    return bytes(out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape_it",
    [
        lambda t: t,
        lambda t: t[1:],
        lambda t: t.reshape(3, 4).t(),
        lambda t: t[::5],
        lambda t: t[:1].expand(3),
        lambda t: t[0],
        lambda t: t[:0],
        lambda t: t.reshape(2, 2, 3),
    ],
    ids=["whole", "offset", "transposed", "strided", "expanded", "0-dim", "empty", "3-dim"],
)
def test_every_dtype_and_layout(tensor_data, dtype, shape_it):
    raw = torch.arange(12 * dtype.itemsize, dtype=torch.int64).remainder(2 if dtype is torch.bool else 251)
    tensor = shape_it(raw.to(torch.uint8).view(dtype))
    data = tensor_data(tensor)
    assert isinstance(data, memoryview)
    assert (data.ndim, data.format, data.itemsize, data.readonly, data.contiguous) == (1, "B", 1, False, True)
    assert data.nbytes == tensor.numel() * tensor.element_size()
    assert data.tobytes() == expected(tensor)
    assert hashlib.sha256(data).digest() == hashlib.sha256(expected(tensor)).digest()
    base = data.obj.base
    assert isinstance(base, torch.Tensor)
    assert base.dtype is torch.uint8
    assert base.numel() == data.nbytes
    if data.nbytes:
        assert base.data_ptr() == np.frombuffer(data, dtype=np.uint8).ctypes.data
        assert (base.data_ptr() == tensor.data_ptr()) == tensor.is_contiguous()


def test_contiguous_memory_is_shared_both_ways(tensor_data):
    tensor = torch.zeros(4, dtype=torch.uint8)
    data = tensor_data(tensor)
    data[1] = 7
    tensor[2] = 9
    assert tensor.tolist() == data.tolist() == [0, 7, 9, 0]


def test_outlives_the_tensor_and_a_replaced_storage(tensor_data):
    tensor = torch.arange(1000, dtype=torch.int32)
    data = tensor_data(tensor)
    kept = data.tobytes()
    tensor.data = torch.zeros(3, dtype=torch.int32)
    gc.collect()
    assert data.tobytes() == kept
    base = data.obj.base
    del tensor, data
    gc.collect()
    assert bytes(base.tolist()) == kept


def test_exported_storage_is_no_longer_resizable(tensor_data):
    tensor = torch.zeros(4)
    tensor_data(tensor)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(100)


def test_gradients_parameters_subclasses_and_quantized(tensor_data):
    class Sub(torch.Tensor):
        pass

    value = torch.tensor([1.0, 2.0])
    plain = expected(value)
    assert tensor_data(value.clone().requires_grad_()).tobytes() == plain
    assert tensor_data(value.clone().requires_grad_() * 1).tobytes() == plain
    assert tensor_data(torch.nn.Parameter(value.clone())).tobytes() == plain
    assert tensor_data(value.as_subclass(Sub)).tobytes() == plain
    with torch.inference_mode():
        assert tensor_data(torch.tensor([1.0, 2.0])).tobytes() == plain


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantized(tensor_data):
    assert tensor_data(torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)).tobytes() == b"\2\2\2"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), RuntimeError, "conjugate"),
        (lambda: torch._neg_view(torch.ones(3)), RuntimeError, "negative bit"),
        (lambda: torch.eye(3).to_sparse(), RuntimeError, "sparse"),
        (lambda: torch.ones(3, device="meta"), NotImplementedError, "no data"),
        (lambda: torch._efficientzerotensor(3), RuntimeError, "ZeroTensor"),
        (lambda: [1, 2], AttributeError, "flatten"),
        (lambda: None, AttributeError, "flatten"),
    ],
    ids=["conj", "neg", "sparse", "meta", "zero tensor", "list", "None"],
)
def test_what_has_no_plain_bytes_raises_what_torch_raises(tensor_data, make, error, message):
    with pytest.raises(error, match=message):
        tensor_data(make())


def test_lazy_conjugate_and_negative_are_resolved_when_copied(tensor_data):
    matrix = torch.tensor([[1 + 2j, 3 + 4j]]).expand(2, 2)
    assert tensor_data(matrix.conj().t()).tobytes() == matrix.conj().t().resolve_conj().contiguous().numpy().tobytes()


def test_zero_copy_zmq_send(tensor_data):
    zmq = pytest.importorskip("zmq")
    with zmq.Context() as context, context.socket(zmq.PAIR) as left, context.socket(zmq.PAIR) as right:
        for socket in (left, right):
            socket.linger = 0
            socket.rcvtimeo = socket.sndtimeo = 10_000
        left.bind("inproc://tensor-data")
        right.connect("inproc://tensor-data")
        tensor = torch.arange(100_000, dtype=torch.int32)
        left.send(tensor_data(tensor), copy=False)
        assert right.recv() == tensor.numpy().tobytes()


def test_signature(tensor_data):
    assert list(inspect.signature(tensor_data).parameters) == ["tensor"]
    with pytest.raises(TypeError):
        tensor_data()
    with pytest.raises(TypeError):
        tensor_data(torch.ones(1), 2)
    assert tensor_data(tensor=torch.ones(1)).nbytes == 4


@st.composite
def strided(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    count = 1
    for size in shape:
        count *= 2 * size + 1
    tensor = torch.arange(count * dtype.itemsize).remainder(2 if dtype is torch.bool else 251).to(torch.uint8)
    tensor = tensor.view(dtype).reshape([2 * size + 1 for size in shape])
    for dim, size in enumerate(shape):
        step, start = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        tensor = tensor[(slice(None),) * dim + (slice(start, start + step * size, step),)]
        if size and draw(st.booleans()):
            tensor = tensor.narrow(dim, 0, 1).expand(*tensor.shape)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


@given(tensor=strided())
def test_any_strided_tensor(tensor):
    wanted = expected(tensor)
    for form in FORMS:
        assert load("tensor_data", form)(tensor).tobytes() == wanted


def test_large_strided_tensors_and_those_without_room(tensor_data):
    large = torch.arange(300_000, dtype=torch.int32).reshape(300, 1000).t()
    assert tensor_data(large).tobytes() == large.contiguous().numpy().tobytes()
    assert tensor_data(large[:100]).tobytes() == large[:100].contiguous().numpy().tobytes()


def test_the_copy_of_a_strided_tensor_is_its_own(tensor_data):
    tensor = torch.arange(12, dtype=torch.uint8).reshape(3, 4).t()
    data = tensor_data(tensor)
    data[:] = bytes(12)
    assert tensor.sum() == sum(range(12))
    kept = data.obj.base
    del data, tensor
    gc.collect()
    assert kept.tolist() == [0] * 12


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_dual_tensors_are_left_to_torch(tensor_data):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        assert tensor_data(dual).tobytes() == expected(torch.ones(3))


def test_a_graph_is_not_extended_by_looking(tensor_data):
    strided = (torch.ones(4, 4, requires_grad=True) * 2).t()
    assert tensor_data(strided).tobytes() == expected(torch.full((4, 4), 2.0))
    strided.sum().backward()


def test_modes_see_the_operators(tensor_data):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    tensor = torch.ones(3)
    with Watch():
        tensor_data(tensor)
    assert seen != []


def test_bools_of_other_bytes(tensor_data):
    odd = torch.tensor([2, 255, 0, 1, 7, 0], dtype=torch.uint8).view(torch.bool)
    assert bytes(tensor_data(odd)) == bytes([2, 255, 0, 1, 7, 0])  # its own memory
    assert bytes(tensor_data(odd[::2])) == bytes([1, 0, 1])  # as torch copies them


def test_memory_that_was_exchanged_is_no_tensor():
    tensor_data = load("tensor_data", "compiled")
    tensor = torch.arange(6)
    owner = tensor_data(tensor).obj
    assert owner.base.numel() == 48
    tensor.share_memory_()
    with pytest.raises(BufferError, match="other memory"):
        _ = owner.base


def test_a_view_is_as_unhashable_as_upstreams(tensor_data):
    data = tensor_data(torch.arange(4))
    with pytest.raises(ValueError, match="writable"):
        hash(data)
    with pytest.raises(TypeError, match="unhashable"):
        hash(data.toreadonly())
    with pytest.raises(TypeError, match="unhashable"):
        hash(data.obj)


def test_exports_leak_nothing(tensor_data):
    tensor = torch.zeros(4)
    owner = tensor_data(tensor).obj
    if sys.getrefcount(None) >= 1 << 30:
        pytest.skip("None counts no references here")
    before = sys.getrefcount(None)
    for _ in range(1000):
        memoryview(owner).release()
    assert abs(sys.getrefcount(None) - before) < 100
