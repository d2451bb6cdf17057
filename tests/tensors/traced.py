"""What test_tracing compiles: ``python traced.py FORM ORDER`` prints what each case came to, as JSON.

A case is given the helpers in their form and the compiler, and returns what can be compared with what is wanted.
"""

import importlib
import json
import os
import sys
from types import SimpleNamespace

import torch

CASES = {}  # name -> (function, what it must return)
MODE = "VLLM_CUSTOM_SCOPES_FOR_PROFILING"


def case(*wanted):
    def add(function):
        CASES[function.__name__] = function, list(wanted)
        return function

    return add


def helpers(form):
    from fastutils import _select

    found = {name: homes[form == "compiled"] for name, homes in _select.HOMES.items()}
    return SimpleNamespace(
        **{name: getattr(importlib.import_module(home), name) for name, home in found.items() if home is not None}
    )


def filled(cls, **attributes):
    buffer = cls(4, dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)
    buffer.cpu.copy_(torch.arange(4) * 10)
    vars(buffer).update(attributes)
    return buffer


def three():
    return torch.arange(3)


@case([5, 6, 7], [5, 5, 0, 0], ["copy_", "copy_"])
def slices(ours, traced):
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_method"])
        return graph

    def step(source, target, n):
        view = ours.copy_slice(source, target, n) + torch.arange(n)
        ours.copy_slices([(source, target[1:], 1)])
        return torch.cat([view, source[2:]])

    target = torch.zeros(4, dtype=torch.int64)
    out = traced(step, backend=backend)(torch.tensor([5, 5, 7]), target, 2)
    return out, target, graphs[0]


BUFFER = None


@case([0, 11, 22], [0, 10, 20, 0], [0, 10, 20, 30])
def buffer_in_a_global(ours, traced):
    global BUFFER
    BUFFER = filled(ours.CpuGpuBuffer)
    out = traced(lambda x: BUFFER.copy_to_gpu(3) + x)(three())
    some = BUFFER.gpu.clone()
    traced(lambda: BUFFER.copy_to_gpu())()
    return out, some, BUFFER.gpu


@case([0, 11, 22], [0, 10, 20, 0])
def buffer_in_an_attribute(ours, traced):
    runner = SimpleNamespace(buffers=[filled(ours.CpuGpuBuffer)])
    return traced(lambda x: runner.buffers[0].copy_to_gpu(n=3) + x)(three()), runner.buffers[0].gpu


@case([0, 11, 22], [0, 10, 20, 0], [1, 1, 20, 30])
def buffer_as_argument(ours, traced):
    buffer = filled(ours.CpuGpuBuffer)
    out = traced(lambda x, buffer: buffer.copy_to_gpu(3) + x)(three(), buffer)
    there = buffer.gpu.clone()
    buffer.gpu.fill_(1)
    traced(lambda buffer: buffer.copy_to_cpu(2))(buffer)
    return out, there, buffer.cpu


@case([0, 11], [0, 11, 22], [0, 10, 20, 0])
def buffer_by_a_symbolic_count(ours, traced):
    buffer = filled(ours.CpuGpuBuffer)
    step = traced(lambda x: buffer.copy_to_gpu(x.shape[0]) + x, dynamic=True)
    return step(torch.arange(2)), step(three()), buffer.gpu


@case([0, 11, 22], [3, 4], [1, 12, 23])
def buffer_of_a_subclass(ours, traced):
    class Own(ours.CpuGpuBuffer):
        def send(self, n):
            return self.copy_to_gpu(n)

    class Other(Own):
        def copy_to_gpu(self, n=None):
            return torch.full((n,), self.value)

    class More(Own):
        def copy_to_gpu(self, n=None):
            return ours.copy_slice(self.cpu, self.gpu, n) + 1  # what the README advises in the place of super()

    def sent(buffer, n):
        return traced(lambda x: buffer.send(n) + x)(torch.arange(n))

    return sent(filled(Own), 3), sent(filled(Other, value=3), 2), sent(filled(More), 3)


@case([0, 11, 22], [0, 0, 0, 0], [0, 10, 20, 0])
def buffer_replaced(ours, traced):
    buffer = filled(ours.CpuGpuBuffer)
    before = buffer.gpu

    def step(x):
        buffer.gpu = torch.zeros(4, dtype=torch.int64)
        return buffer.copy_to_gpu(3) + x

    return traced(step)(three()), before, buffer.gpu


@case([1, 10, 20], [0, 10, 20, 0], [0, 10, 0, 0])
def buffers_at_once(ours, traced):
    buffers = [filled(ours.CpuGpuBuffer) for _ in range(2)]

    def step(x):
        assert ours.copy_to_gpu_many(buffers, 1) is None
        return ours.copy_to_gpu_many(buffers, [3, 2], views=True)[0] + (x == 0)

    return traced(step)(three()), *(buffer.gpu for buffer in buffers)


@case([1, 2, 3], [0, 1, 2], True)
def bytes_of_a_tensor(ours, traced):
    x = three()
    out, data = traced(lambda x: (x + 1, ours.tensor_data(x)))(x)
    return out, torch.frombuffer(data, dtype=torch.int64), isinstance(data, memoryview)


class Step:
    """A scheduler's output, in which the request "a" is in context."""

    def __init__(self):
        self.scheduled_new_reqs = [SimpleNamespace(req_id="b")]
        self.num_scheduled_tokens = {"a": 1, "b": 2, "c": 4}
        self.scheduled_cached_reqs = self

    def is_context_phase(self, req_id):
        return req_id == "a"


@case([3, 4, 5], [2, 3, 1, 4])
def details(ours, traced):
    step = Step()
    out = traced(lambda x: x + ours.compute_iteration_details(step).num_ctx_tokens)(three())
    _, found = traced(lambda x: (x + 1, ours.compute_iteration_details(step)))(three())
    return out, list(vars(found).values())


def scoped(ours):
    def step(x):
        with ours.record_function_or_nullcontext("a"), ours.record_function_or_nullcontext(name="b"):
            return x + 1

    return step


@case([1, 2, 3], [4, 5, 6], "nullcontext", "name")
def scope_not_chosen_before(ours, traced):
    from fastutils import scopes

    scopes._reset()
    first = traced(scoped(ours))(three())
    chosen = scopes._scope.__name__

    def named(x):
        with ours.record_function_or_nullcontext("abcd") as name:
            return x + len(name)

    second = traced(named)(three())
    with ours.record_function_or_nullcontext("name") as name:
        return first, second, chosen, name


@case([1, 2, 3], [1, 2, 3], "record_function")
def scope_of_torch(ours, traced):
    from fastutils import scopes

    scopes._reset()
    os.environ[MODE] = "1"
    try:
        return traced(scoped(ours))(three()), traced(scoped(ours))(three()), scopes._scope.__name__
    finally:
        del os.environ[MODE]
        scopes._reset()


@case([5, 6, 7], [7, 8, 9], [4, 5, 6])
def view_by_what_it_views(ours, traced):
    items = [1, 2]
    view = ours.ConstantList(items)
    step = traced(lambda x: x + view._x[0] + len(view._x) + (2 in view._x) + sum(one == 2 for one in view._x))
    before = step(three())
    items[0] = 2
    return before, step(three()), traced(lambda x, view: x + view._x[1] + len(view._x))(three(), view)


@case([4, 5, 6], [2, 3, 4])
def view_by_its_methods(ours, traced):
    view = ours.ConstantList([1, 2, 2])

    def step(x):
        return x + view.index(2) + view.count(2) + view.copy()[0]

    return traced(step)(three()), traced(lambda x: x + ours.ConstantList([1, 2])._x[1])(three())


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def compiler(function, backend="eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def main(form, order):
    os.environ.pop(MODE, None)
    if order == "tracer first":
        importlib.import_module("torch._dynamo")
    ours = helpers(form)
    assert ("torch._dynamo" in sys.modules) == (order == "tracer first")
    outcomes = {}
    for name, (function, _) in CASES.items():
        try:
            outcomes[name] = [plain(value) for value in function(ours, compiler)]
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
        torch._dynamo.reset()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
