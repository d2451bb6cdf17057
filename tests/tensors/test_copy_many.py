"""copy_slices and copy_to_gpu_many: many copies in one call mean the single calls, one after another."""

import inspect

import pytest
import torch
from implementations import load


@pytest.fixture
def copy_slices(form):
    return load("copy_slices", form)


@pytest.fixture
def copy_to_gpu_many(form):
    return load("copy_to_gpu_many", form)


def buffers(form, *sizes):
    Buffer = load("CpuGpuBuffer", form)
    made = [Buffer(size, dtype=torch.int32, device=torch.device("cpu")) for size in sizes]
    for buffer in made:
        buffer.np[:] = range(1, len(buffer.np) + 1)
    return made


def test_each_pair_is_copied_in_order(copy_slices):
    first, second, third = torch.arange(4), torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    assert copy_slices([(first, second, 3), [second, third, 4]]) is None
    assert third.tolist() == [0, 1, 2, 0]


def test_views_on_request(copy_slices):
    source, target = torch.arange(4.0), torch.zeros(4)
    (view,) = copy_slices(iter([(source, target, 3)]), views=True)
    assert view.tolist() == [0, 1, 2]
    assert view._base is target
    assert copy_slices([], views=True) == []


def test_mixed_fast_and_torch_only_copies_keep_their_order(copy_slices):
    a, b, c = torch.arange(4), torch.zeros(4), torch.zeros(4)
    copy_slices([(a, b, 4), (b, c, 4), (c[1:], b, 3), (torch.ones(1), c, 3)])
    assert b.tolist() == [1, 2, 3, 3]
    assert c.tolist() == [1, 1, 1, 3]


@pytest.mark.parametrize("bad", [None, (torch.ones(1), torch.ones(1)), 3, "abcd"])
def test_nothing_is_copied_if_an_entry_is_no_triple(copy_slices, bad):
    source, target = torch.ones(2), torch.zeros(2)
    with pytest.raises(TypeError, match="entry 1 of 2"):
        copy_slices([(source, target, 2), bad])
    assert target.tolist() == [0, 0]


def test_an_error_leaves_the_copies_before_it_done(copy_slices):
    source, first, second = torch.ones(4), torch.zeros(4), torch.zeros(4)
    with pytest.raises(RuntimeError, match="size of tensor"):
        copy_slices([(source, first, 4), (torch.ones(3), torch.zeros(4), 4), (source, second, 4)])
    assert first.tolist() == [1] * 4
    assert second.tolist() == [0] * 4


def test_many_more_pairs_than_one_round_of_the_bridge(copy_slices):
    source = torch.arange(1000)
    targets = [torch.zeros(1000, dtype=torch.int64) for _ in range(300)]
    copy_slices([(source, target, i) for i, target in enumerate(targets)])
    assert [int(target.count_nonzero()) for target in targets] == [max(i - 1, 0) for i in range(300)]


@pytest.mark.parametrize("ns", [[1, None, 3], (1, None, 3)])
def test_a_count_per_buffer(form, copy_to_gpu_many, ns):
    made = buffers(form, 2, 3, 4)
    assert copy_to_gpu_many(made, ns) is None
    assert [b.gpu.tolist() for b in made] == [[1, 0], [1, 2, 3], [1, 2, 3, 0]]


@pytest.mark.parametrize(("ns", "second"), [(None, [1, 2, 3]), (2, [1, 2, 0]), (-1, [1, 2, 0])])
def test_one_count_for_all(form, copy_to_gpu_many, ns, second):
    made = buffers(form, 2, 3)
    copy_to_gpu_many(made, ns)
    assert made[1].gpu.tolist() == second


def test_buffer_views_on_request(form, copy_to_gpu_many):
    made = buffers(form, 2, 3)
    whole, part = copy_to_gpu_many(made, [None, 2], views=True)
    assert whole is made[0].gpu
    assert part._base is made[1].gpu


def test_lists_of_unequal_length(form, copy_to_gpu_many):
    made = buffers(form, 2, 3)
    with pytest.raises(ValueError, match="2 buffers but 1 row counts"):
        copy_to_gpu_many(made, [1])
    assert made[0].gpu.tolist() == [0, 0]


def test_subclass_that_overrides_its_copy_is_honoured(form, copy_to_gpu_many):
    Buffer = load("CpuGpuBuffer", form)
    seen = []

    class Counting(Buffer):
        def copy_to_gpu(self, n=None):
            seen.append(n)
            return super().copy_to_gpu(n)

    made = [Counting(2, dtype=torch.int32, device=torch.device("cpu")) for _ in range(2)]
    copy_to_gpu_many(made, [1, 2])
    assert seen == [1, 2]


def test_signatures(copy_slices, copy_to_gpu_many):
    assert list(inspect.signature(copy_slices).parameters) == ["pairs", "views"]
    assert list(inspect.signature(copy_to_gpu_many).parameters) == ["buffers", "ns", "views"]
    assert inspect.signature(copy_slices).parameters["views"].kind is inspect.Parameter.KEYWORD_ONLY


def test_what_an_override_changes_counts_for_later_entries(form, copy_to_gpu_many):
    Buffer = load("CpuGpuBuffer", form)
    first, second = buffers(form, 4, 4)

    class Replacing(Buffer):
        def copy_to_gpu(self, n=None):
            second.gpu = torch.zeros_like(second.gpu)

    replacing = Replacing(4, dtype=second.cpu.dtype, device=torch.device("cpu"), pin_memory=False)
    second.cpu.fill_(7)
    copy_to_gpu_many([first, replacing, second], 2)
    assert second.gpu.tolist() == [7, 7, 0, 0]


def test_a_patched_class_is_honoured(form, copy_to_gpu_many, monkeypatch):
    Buffer, seen = load("CpuGpuBuffer", form), []
    pair = buffers(form, 4, 4)
    monkeypatch.setattr(Buffer, "copy_to_gpu", lambda self, n=None: seen.append(n))
    copy_to_gpu_many(pair, [1, 2])
    assert seen == [1, 2]


def test_an_attribute_named_like_the_method_is_honoured(form, copy_to_gpu_many):
    made, seen = buffers(form, 4, 4, 4, 4), []
    made[1].copy_to_gpu = lambda n=None: seen.append(n)
    vars(made[2])["".join(["copy_to", "_gpu"])] = lambda n=None: seen.append(n)  # equal to the name, another object
    copy_to_gpu_many(made, [1, 2, 3, 4])
    assert seen == [2, 3]
    assert [b.gpu.tolist() for b in made] == [[1, 0, 0, 0], [0] * 4, [0] * 4, [1, 2, 3, 4]]


def test_a_key_that_is_no_plain_name_is_compared_at_its_turn(form, copy_to_gpu_many):
    seen = []

    class Key:
        def __hash__(self):
            return hash("gpu")

        def __eq__(self, other):
            seen.append(made[0].gpu.tolist())
            return False

    made = buffers(form, 2, 2)
    attributes = vars(made[1])
    made[1].__dict__ = {Key(): 0, **attributes}
    seen.clear()
    copy_to_gpu_many(made, 2)
    assert seen
    assert all(found == [1, 2] for found in seen)  # the first is copied before the second's attributes are read
    assert made[1].gpu.tolist() == [1, 2]


def test_what_a_class_is_given_counts(form, copy_to_gpu_many, monkeypatch):
    Buffer, made = load("CpuGpuBuffer", form), buffers(form, 2, 2)
    copy_to_gpu_many(made)  # the class was looked at
    elsewhere = torch.zeros(2, dtype=torch.int32)
    monkeypatch.setattr(Buffer, "gpu", property(lambda self: elsewhere), raising=False)
    made[0].cpu.fill_(7)
    made[1].cpu.fill_(8)
    copy_to_gpu_many(made, 1)
    assert elsewhere.tolist() == [8, 0]
    assert [vars(one)["gpu"].tolist() for one in made] == [[1, 2], [1, 2]]


def test_a_class_patched_by_an_entry_is_honoured_from_there_on(form, copy_to_gpu_many, monkeypatch):
    Buffer, seen = load("CpuGpuBuffer", form), []

    class Patching(Buffer):
        def copy_to_gpu(self, n=None):
            monkeypatch.setattr(Buffer, "copy_to_gpu", lambda self, n=None: seen.append(n))

    first, last = buffers(form, 2, 2)
    patching = Patching(2, dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)
    copy_to_gpu_many([first, patching, last], [1, 2, 2])
    assert (first.gpu.tolist(), seen, last.gpu.tolist()) == ([1, 0], [2], [0, 0])


def test_many_entries_that_only_torch_can_copy(copy_slices):
    source, targets = torch.arange(8), [torch.zeros(8) for _ in range(150)]  # another type: none of them is plain
    plain = torch.zeros(8, dtype=torch.int64)
    copy_slices([(source, target, i % 9) for i, target in enumerate(targets)] + [(source, plain, 5)])
    assert [int(target.count_nonzero()) for target in targets] == [max(i % 9 - 1, 0) for i in range(150)]
    assert plain.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
