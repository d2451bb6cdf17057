"""copy_slice: nobody can tell it from torch's own ``to[:n].copy_(from[:n], non_blocking=True)`` except by the clock."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from implementations import FORMS, load
from outcomes import MODES, outcome, reference, values

import fastutils

PLAIN_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip


@pytest.fixture
def copy_slice(form):
    return load("copy_slice", form)


@pytest.fixture
def torch_copies(monkeypatch):
    """Counts the copies that go through torch's own operator."""
    calls = []
    original = torch.Tensor.copy_

    def counted(self, *arguments, **keywords):
        calls.append(self)
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    return calls


def numbers(*shape, dtype=torch.float32):
    count = int(np.prod(shape))
    raw = torch.arange(1, count * dtype.itemsize + 1).remainder(2 if dtype is torch.bool else 119).to(torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(int(np.prod(shape)) * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(shape).clone()


NAMED = hasattr(torch.Tensor, "rename")  # torch is giving named tensors up


class Sub(torch.Tensor):
    pass


def overlapping(shift):
    memory = numbers(16)
    return memory[shift:], memory[:12], 6


def swapped(make):
    source, target, length = make()
    return target, source, length


def in_inference_mode(make):
    with torch.inference_mode():
        return make()


def fake(make):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return make()


def dual(make):
    return torch.autograd.forward_ad.make_dual(make(), numbers(8))


def view_of_dual():
    base = zeros(8)
    view = base[2:]
    base.add_(dual(lambda: numbers(8)))  # the view has no gradient of its own yet: torch looks it up in the base
    return view


# Lengths, on tensors of 8 and 6 rows.
LENGTHS = {
    "0": 0, "1": 1, "5": 5, "6": 6, "7": 7, "8": 8, "99": 99, "-1": -1, "-3": -3, "-99": -99, "2**63": 2**63,
    "-2**63": -(2**63), "True": True, "False": False, "None": None, "np.int64": np.int64(3), "np.int8": np.int8(-3),
    "np.bool": np.True_, "0-dim": torch.tensor(3), "0-dim negative": torch.tensor(-3), "1 element": torch.tensor([2]),
    "2 elements": torch.tensor([2, 3]), "float": 2.0, "np.float": np.float64(2), "str": "2", "list": [2],
    "Ellipsis": ..., "slice": slice(1, 2),
}  # fmt: skip

# name -> (whether the direct path serves in grad mode, what makes source, target and length)
CASES = {
    "1-dim": (True, lambda: (numbers(8), zeros(8), 5)),
    "2-dim": (True, lambda: (numbers(4, 3), zeros(6, 3), 4)),
    "4-dim": (True, lambda: (numbers(4, 3, 2, 2), zeros(6, 3, 2, 2), 3)),
    "7-dim": (True, lambda: (numbers(3, 1, 2, 1, 2, 1, 2), zeros(3, 1, 2, 1, 2, 1, 2), 2)),
    "no rows": (True, lambda: (numbers(0, 3), zeros(4, 3), 0)),
    "rows of nothing": (True, lambda: (numbers(4, 0), zeros(4, 0), 2)),
    "offsets": (True, lambda: (numbers(9)[2:], zeros(9)[1:], 4)),
    "views of views": (True, lambda: (numbers(9)[2:][1:], zeros(9)[1:][1:], 4)),
    "one row of odd stride": (True, lambda: (numbers(3, 4)[:1, 1:2].t(), zeros(3, 4)[:1, 2:3].t(), 1)),
    "the same tensor": (True, lambda: (lambda t: (t, t, 4))(numbers(8))),
    "source in inference mode": (True, lambda: (in_inference_mode(lambda: numbers(8)), zeros(8), 4)),
    "too long": (False, lambda: (numbers(8), zeros(8), 99)),
    "too long for one": (False, lambda: (numbers(8), zeros(4), 6)),
    "negative": (False, lambda: (numbers(8), zeros(8), -2)),
    "broadcast rows": (False, lambda: (numbers(1), zeros(4), 3)),
    "broadcast columns": (False, lambda: (numbers(4, 1), zeros(4, 3), 3)),
    "broadcast dimension": (False, lambda: (numbers(3), zeros(3, 3), 3)),
    "other columns": (False, lambda: (numbers(4, 2), zeros(4, 3), 3)),
    "other dtype": (False, lambda: (numbers(8, dtype=torch.int64), zeros(8), 4)),
    "strided source": (False, lambda: (numbers(8, 2)[:, 0], zeros(8), 4)),
    "strided target": (False, lambda: (numbers(8), zeros(8, 2)[:, 1], 4)),
    "transposed": (False, lambda: (numbers(4, 3).t(), zeros(4, 3).t(), 2)),
    "transposed source": (False, lambda: (numbers(3, 4).t(), zeros(4, 3), 2)),
    "expanded source": (False, lambda: (numbers(1).expand(8), zeros(8), 4)),
    "expanded target": (False, lambda: (numbers(8), zeros(1).expand(8), 4)),
    "channels last": (
        False,
        lambda: (numbers(2, 3, 4, 5), zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), 1),
    ),
    "overlap forward": (False, lambda: overlapping(0)),
    "overlap by one": (False, lambda: overlapping(1)),
    "same storage, apart": (False, lambda: (lambda t: (t[:4], t[8:], 4))(numbers(16))),
    "0-dim source": (False, lambda: (torch.tensor(1.0), zeros(3), 1)),
    "0-dim target": (False, lambda: (numbers(3), torch.tensor(1.0), 1)),
    "0-dim both": (False, lambda: (torch.tensor(1.0), torch.tensor(2.0), 0)),
    "conj source": (False, lambda: (numbers(8, dtype=torch.complex64).conj(), zeros(8, dtype=torch.complex64), 4)),
    "conj target": (False, lambda: (numbers(8, dtype=torch.complex64), zeros(8, dtype=torch.complex64).conj(), 4)),
    "neg source": (False, lambda: (torch._neg_view(numbers(8)), zeros(8), 4)),
    "neg target": (False, lambda: (numbers(8), torch._neg_view(zeros(8)), 4)),
    "zero tensor": (False, lambda: (torch._efficientzerotensor(8), numbers(8), 4)),
    "sparse source": (False, lambda: (torch.eye(4).to_sparse(), zeros(4, 4), 2)),
    "sparse target": (False, lambda: (numbers(4, 4), torch.eye(4).to_sparse(), 2)),
    "meta": (False, lambda: (torch.ones(8, device="meta"), torch.zeros(8, device="meta"), 4)),
    "meta source": (False, lambda: (torch.ones(8, device="meta"), zeros(8), 4)),
    "fake": (False, lambda: fake(lambda: (torch.ones(8), torch.zeros(8), 4))),
    "subclass source": (False, lambda: (numbers(8).as_subclass(Sub), zeros(8), 4)),
    "subclass target": (False, lambda: (numbers(8), zeros(8).as_subclass(Sub), 4)),
    "parameter source": (False, lambda: (torch.nn.Parameter(numbers(8)), zeros(8), 4)),
    "parameter target": (False, lambda: (numbers(8), torch.nn.Parameter(zeros(8)), 4)),
    "frozen parameter": (False, lambda: (numbers(8), torch.nn.Parameter(zeros(8), requires_grad=False), 4)),
    "source requires grad": (False, lambda: (numbers(8).requires_grad_(), zeros(8), 4)),
    "source has history": (False, lambda: (numbers(8).requires_grad_() * 2, zeros(8), 4)),
    "target is a leaf": (False, lambda: (numbers(8), zeros(8).requires_grad_(), 4)),
    "target has history": (False, lambda: (numbers(8), zeros(8).requires_grad_() * 2, 4)),
    "target is a view with history": (False, lambda: (numbers(8), (zeros(8).requires_grad_() * 2)[1:], 4)),
    "target among several outputs": (True, lambda: (numbers(4), zeros(8).split(4)[1], 3)),
    "target in inference mode": (False, lambda: (numbers(8), in_inference_mode(lambda: zeros(8)), 4)),
    "no_grad view of a leaf": (False, lambda: (numbers(4), no_grad_view(), 3)),
    **({"named": (False, lambda: (numbers(8).rename("rows"), zeros(8).rename("rows"), 4))} if NAMED else {}),
    "freed storage, no rows": (True, lambda: (numbers(8), freed(zeros(8)), 0)),
    "lists": (False, lambda: ([1.0, 2.0], [0.0, 0.0], 2)),
    "list source": (False, lambda: ([1.0, 2.0], zeros(4), 2)),
    "None": (False, lambda: (None, zeros(4), 2)),
}


def no_grad_view():
    leaf = zeros(8).requires_grad_()
    with torch.no_grad():
        return leaf[2:6]


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


QUIET = pytest.mark.filterwarnings("ignore:Named tensors", "ignore:.*expanded tensor", "ignore:ComplexHalf")


@QUIET
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_every_case(copy_slice, case, mode):
    make = CASES[case][1]
    assert outcome(copy_slice, make, mode) == outcome(reference, make, mode)


@QUIET
@pytest.mark.parametrize("case", CASES)
def test_the_direct_path_serves_where_it_may_and_only_there(torch_copies, case):
    direct, make = CASES[case]
    source, target, length = make()
    try:
        load("copy_slice", "compiled")(source, target, length)
    except (RuntimeError, TypeError, IndexError, AttributeError):
        assert not direct
    else:
        assert (torch_copies == []) is direct


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", [(), (2,)], ids=["1-dim", "2-dim"])
def test_every_length(copy_slice, length, shape, mode):
    for rows in ((8, 8), (8, 6), (6, 8)):

        def make(rows=rows):
            return numbers(rows[0], *shape), zeros(rows[1], *shape), LENGTHS[length]

        assert outcome(copy_slice, make, mode) == outcome(reference, make, mode)


@QUIET
@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_every_dtype_is_copied_directly(copy_slice, form, dtype, torch_copies):
    source, target = numbers(8, 3, dtype=dtype), zeros(8, 3, dtype=dtype)
    view = copy_slice(source, target, 5)
    assert values(target) == values(source)[: 15 * dtype.itemsize] + bytes(9 * dtype.itemsize)
    assert values(view) == values(source)[: 15 * dtype.itemsize]
    assert len(torch_copies) == (form == "python")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("case", ["source", "target", "both"])
def test_quantized(copy_slice, case):
    def make():
        quantized = torch.quantize_per_tensor(numbers(8), 0.5, 0, torch.qint8)
        source = numbers(8) if case == "target" else quantized
        target = zeros(8) if case == "source" else quantized.clone()
        return source, target, 4

    def facts(function):
        source, target, length = make()
        try:
            return values(function(source, target, length)), values(target)
        except RuntimeError as error:
            return str(error).splitlines()[0]

    assert facts(copy_slice) == facts(reference)


def test_sub_byte_types_are_left_to_torch(copy_slice):
    def make():
        return (
            torch.ones(8, dtype=torch.uint8).view(torch.uint4),
            torch.zeros(8, dtype=torch.uint8).view(torch.uint4),
            4,
        )

    def error(function):
        try:
            function(*make())
        except Exception as caught:
            return type(caught), str(caught).splitlines()[0]
        return None

    assert error(copy_slice) == error(reference)


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, 1 << 20])
def test_large_copies(copy_slice, size):
    source, target = torch.arange(size, dtype=torch.int64).to(torch.uint8), torch.zeros(size, dtype=torch.uint8)
    assert torch.equal(copy_slice(source, target, size), source)
    assert target._version == 1


def test_autograd_flows_through_the_source(copy_slice):
    source = numbers(4).requires_grad_()
    target = torch.zeros(4)
    (copy_slice(source, target, 3) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert source.grad.tolist() == [1, 2, 3, 0]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_forward_gradients_flow(copy_slice):
    with torch.autograd.forward_ad.dual_level():
        for make in (
            lambda: (dual(lambda: numbers(8)), zeros(8), 4),
            lambda: (numbers(8), dual(lambda: zeros(8)), 4),
            lambda: (numbers(8), view_of_dual(), 4),
            lambda: (dual(lambda: numbers(8)), view_of_dual(), 4),
        ):
            tangents = []
            for function in (copy_slice, reference):
                source, target, length = make()
                view = function(source, target, length)
                unpacked = [torch.autograd.forward_ad.unpack_dual(x).tangent for x in (view, target)]
                tangents.append([None if t is None else t.tolist() for t in unpacked])
            assert tangents[0] == tangents[1]


def test_in_place_after_the_copy_is_as_forbidden_as_after_slicing(copy_slice):
    # A view made in no_grad or inference mode may not be changed in place once gradients are involved.
    for mode in ("no_grad", "inference"):
        messages = []
        for function in (copy_slice, reference):
            target = torch.zeros(4)
            with MODES[mode]():
                view = function(numbers(4), target, 3)
            target.requires_grad_()
            with pytest.raises(RuntimeError) as caught:
                view.mul_(torch.ones(3, requires_grad=True))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_dispatch_mode_sees_the_operators(copy_slice):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        copy_slice(numbers(4), torch.zeros(4), 2)
    assert "aten.copy_.default" in seen
    seen.clear()
    copy_slice(numbers(4), torch.zeros(4), 2)
    assert seen == []


def test_function_mode_sees_the_operators(copy_slice):
    from torch.overrides import TorchFunctionMode

    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    source, target = numbers(4), torch.zeros(4)
    with Watch():
        copy_slice(source, target, 2)
    assert "copy_" in seen


def test_fake_tensor_mode_gives_fake_tensors(copy_slice):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        assert isinstance(copy_slice(torch.ones(4), torch.zeros(4), 2), FakeTensor)


def test_functionalize_and_vmap(copy_slice):
    def step(source, target):
        target = target.clone()
        copy_slice(source, target, 2)
        return target

    assert torch.func.functionalize(step)(numbers(4), torch.zeros(4)).tolist() == [*numbers(4)[:2].tolist(), 0, 0]
    batched = torch.vmap(lambda source, target: copy_slice(source, target, 2).clone())
    assert torch.equal(batched(numbers(3, 4), torch.zeros(3, 4)), numbers(3, 4)[:, :2])


def test_functional_tensors(copy_slice):
    target, source = (torch._to_functional_tensor(t) for t in (torch.zeros(4), numbers(4)))
    torch._enable_functionalization(reapply_views=True)
    try:
        copy_slice(source, target, 2)
        torch._sync(target)
    finally:
        torch._disable_functionalization()
    assert torch.equal(torch._from_functional_tensor(target)[:2], numbers(4)[:2])


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
def test_jit_trace_records_the_copy(copy_slice):
    traced = torch.jit.trace(lambda source, target: copy_slice(source, target, 2), (numbers(4), torch.zeros(4)))
    assert "aten::copy_" in str(traced.graph)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_profiler_shows_the_copy(copy_slice):
    source, target = numbers(4), torch.zeros(4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        copy_slice(source, target, 2)
    assert "aten::copy_" in {event.name for event in profile.events()}


def test_autocast_changes_nothing(copy_slice, form, torch_copies):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert copy_slice(numbers(4), torch.zeros(4), 2).dtype is torch.float32
    assert len(torch_copies) == (form == "python")


def test_excluded_keys_and_view_replay_are_left_to_torch(copy_slice):
    views = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    facts = []
    for function in (copy_slice, reference):
        target = torch.zeros(4)
        with torch._C._AutoDispatchBelowAutograd():
            below = function(numbers(4), target, 2)
        with torch._C._ExcludeDispatchKeyGuard(views):
            further_below = function(numbers(4), target, 2)
        with torch.autograd._force_original_view_tracking(True):
            replayed = function(numbers(4), target, 2)
        facts.append([(view._is_view(), view._version) for view in (below, further_below, replayed)])
        target.requires_grad_()
        facts[-1].append(type(replayed.grad_fn).__name__)  # by which operators autograd would make the view again
    assert facts[0] == facts[1]


def test_inference_tensors_outside_their_mode(copy_slice):
    with torch.inference_mode():
        target = torch.zeros(4)
    for function in (copy_slice, reference):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            function(numbers(4), target, 2)


def test_copy_on_write_memory_is_unshared_first(copy_slice):
    original = numbers(8)
    kept = original.tolist()
    lazy = torch._lazy_clone(original)
    copy_slice(torch.zeros(8), lazy, 4)
    assert original.tolist() == kept
    assert lazy.tolist() == [0] * 4 + kept[4:]
    copy_slice(torch._lazy_clone(original), torch.zeros(8), 4)
    assert original.tolist() == kept


def test_metadata_of_both_tensors_stays(copy_slice):
    source, target = numbers(4), torch.zeros(4)
    before = (source._version, source.data_ptr(), target.data_ptr(), target.shape, target._base)
    copy_slice(source, target, 2)
    assert before == (0, source.data_ptr(), target.data_ptr(), target.shape, target._base)


def test_signature_errors_and_pickling(copy_slice, monkeypatch):
    assert str(inspect.signature(copy_slice)).replace("torch.Tensor", "").count("from_tensor") == 1
    assert list(inspect.signature(copy_slice).parameters) == ["from_tensor", "to_tensor", "length"]
    target = torch.zeros(4)
    assert copy_slice(length=2, to_tensor=target, from_tensor=numbers(4)).shape == (2,)
    for wrong in ((), (1, 2), (1, 2, 3, 4)):
        with pytest.raises(TypeError):
            copy_slice(*wrong)
    monkeypatch.setattr(fastutils, "copy_slice", copy_slice)
    assert pickle.loads(pickle.dumps(copy_slice)) is copy_slice


@st.composite
def tensors(draw, dtype):
    rows, columns = draw(st.integers(0, 6)), draw(st.sampled_from([None, 0, 1, 3]))
    shape = (rows,) if columns is None else (rows, columns)
    base = numbers(*(2 * s + 1 for s in shape), dtype=dtype).clone()
    for dim, size in enumerate(shape):
        step, start = draw(st.sampled_from([1, 2])), draw(st.integers(0, 1))
        base = base.narrow(dim, start, 2 * size) if step == 2 else base.narrow(dim, start, size)
        if step == 2:
            base = base[(slice(None),) * dim + (slice(None, None, 2),)]
    if len(shape) == 2 and draw(st.booleans()):
        base = base.t()
    return base if draw(st.booleans()) else base.contiguous()


@given(data=st.data())
def test_any_pair_of_strided_tensors(data):
    dtypes = st.sampled_from([torch.float32, torch.int64, torch.uint8])
    dtype = data.draw(dtypes)
    source = data.draw(tensors(dtype))
    target = data.draw(tensors(data.draw(st.sampled_from([dtype, dtype, torch.int16]))))
    length = data.draw(st.integers(-8, 8))
    mode = data.draw(st.sampled_from(list(MODES)))

    def make():
        return source.clone(memory_format=torch.preserve_format), clone_as_laid_out(target), length

    expected = outcome(reference, make, mode)
    for form in FORMS:
        assert outcome(load("copy_slice", form), make, mode) == expected


def clone_as_laid_out(tensor):
    memory = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())


def odd_bools(count):
    return torch.tensor([2, 255, 0, 1], dtype=torch.uint8).repeat(count // 4).view(torch.bool)


@pytest.mark.parametrize("count", [4, 64, 40_000])
def test_bools_of_other_bytes(count):
    results = []
    for copies in (load("copy_slice", "compiled"), reference):
        target = torch.zeros(count, dtype=torch.bool)
        copies(odd_bools(count), target, count)
        results.append(target.view(torch.uint8).tolist())
    assert results[0] == results[1]


@pytest.mark.parametrize("left", [0, 8])
def test_one_tensor_for_both_whose_memory_is_gone(left):
    def run(copies):
        tensor = torch.arange(6.0)
        tensor.untyped_storage().resize_(left)
        with pytest.raises(RuntimeError) as caught:
            copies(tensor, tensor, 3)
        return str(caught.value)

    assert run(load("copy_slice", "compiled")) == run(reference)


@pytest.mark.parametrize("shift", [-1, 1, 3])
def test_two_storages_over_the_same_memory(shift):
    results = []
    for copies in (load("copy_slice", "compiled"), reference):
        memory = np.arange(80, dtype=np.int32)
        source, target = torch.from_numpy(memory[8:68]), torch.from_numpy(memory[8 + shift : 68 + shift])
        copies(source, target, 60)
        results.append(memory.tolist())
    assert results[0] == results[1]
