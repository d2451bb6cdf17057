"""Our helpers in the forms that other versions of vLLM want."""

import argparse
import inspect
import pickle
import types

import fake_vllm
import pytest
from implementations import load

import fastutils
from fastutils import plugin
from fastutils.plugin import encoder_counts, variants

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")

WITH_ENCODERS = fake_vllm.UTILS.replace(
    "    num_generation_tokens: int\n",
    "    num_generation_tokens: int\n    num_encoder_inputs: int = 0\n    num_encoder_output_tokens: int = 0\n",
)


def a_step(encoders):
    return types.SimpleNamespace(
        num_scheduled_tokens={"new": 7, "old": 1, "chunk": 5},
        scheduled_new_reqs=[types.SimpleNamespace(req_id="new")],
        scheduled_cached_reqs=types.SimpleNamespace(is_context_phase=lambda req_id: req_id == "chunk"),
        scheduled_encoder_input_stats=encoders,
    )


@pytest.mark.parametrize(
    ("encoders", "wanted"),
    [(None, (0, 0)), (types.SimpleNamespace(num_inputs=3, output_tokens=99), (3, 99))],
)
def test_encoder_counts(encoders, wanted, form, monkeypatch):
    monkeypatch.setattr(encoder_counts, "_counts", load("compute_iteration_details", form))
    details = encoder_counts.compute_iteration_details(a_step(encoders))
    assert details == encoder_counts.IterationDetails(2, 12, 1, 1, *wanted)


def test_encoder_counts_need_the_attribute():
    step = a_step(None)
    del step.scheduled_encoder_input_stats
    with pytest.raises(AttributeError, match="scheduled_encoder_input_stats"):
        encoder_counts.compute_iteration_details(step)


def test_details_with_encoders_have_defaults_and_upstreams_repr():
    gap = " " * 18
    assert repr(encoder_counts.IterationDetails(1, 2, 3, 4)) == (
        f"IterationDetails(num_ctx_requests=1,{' ' * 17}num_ctx_tokens=2,{gap}num_generation_requests=3,"
        f"{gap}num_generation_tokens=4,{gap}num_encoder_inputs=0,{gap}num_encoder_output_tokens=0)"
    )


def test_details_are_pickled_by_upstreams_name(vllm_tree):
    utils = vllm_tree("0.32.0", WITH_ENCODERS)("utils")
    plugin.install()
    details = utils.compute_iteration_details(a_step(None))
    assert type(details) is utils.IterationDetails
    pickled = pickle.dumps(details)
    assert pickle.loads(pickled) == details
    plugin.uninstall()
    assert type(pickle.loads(pickled)) is utils.IterationDetails


@pytest.mark.parametrize("pinned_here", [True, False])
def test_a_buffer_takes_vllms_answer_about_pinning(pinned_here, monkeypatch):
    asked = []

    class Recorder:
        def __init__(self, *size, dtype, device, pin_memory, with_numpy, staged):
            assert staged is False
            asked.append(pin_memory)

    class Upstream:
        def __init__(self, *size, dtype, device, pin_memory=pinned_here, with_numpy=True):
            pass

    upstream = types.SimpleNamespace(__name__="vllm.v1.utils", CpuGpuBuffer=Upstream)
    Recorder.__name__ = "CpuGpuBuffer"
    made = variants.buffer(upstream, Recorder)
    made(1, dtype=torch.int8, device=CPU)
    made(1, dtype=torch.int8, device=CPU, pin_memory=not pinned_here)
    assert asked == [pinned_here, not pinned_here]
    assert (made.__module__, made.__qualname__) == ("vllm.v1.utils", "CpuGpuBuffer")


def test_a_buffer_is_documented_and_works():
    upstream = types.SimpleNamespace(__name__="vllm.v1.utils", CpuGpuBuffer=fastutils.CpuGpuBuffer, PIN_MEMORY=False)
    made = variants.buffer_that_stages(upstream, fastutils.CpuGpuBuffer)
    assert made.__doc__ == fastutils.CpuGpuBuffer.__doc__
    # Without pinning there is nothing to stage, and so no Python between the caller and the compiled copy.
    assert made.copy_to_gpu is fastutils.CpuGpuBuffer.copy_to_gpu
    buffer = made(3, 2, dtype=torch.int32, device=CPU)
    buffer.np[:] = [[1, 2], [3, 4], [5, 6]]
    assert buffer.copy_to_gpu(2).tolist() == [[1, 2], [3, 4]]
    assert buffer.copy_to_gpu() is buffer.gpu


class FakeTensorOfHost:
    """Knows whether it is pinned; `pin_memory` of an unpinned one gives a copy that is."""

    def __init__(self, rows, pinned):
        self.rows, self.pinned = rows, pinned

    def is_pinned(self):
        return self.pinned

    def pin_memory(self):
        return FakeTensorOfHost(list(self.rows), True)

    def __getitem__(self, item):
        return FakeTensorOfHost(self.rows[item], self.pinned)


class FakeTensorOfDevice:
    def __init__(self):
        self.got = []

    def __getitem__(self, item):
        assert item == slice(None, 2)
        return self

    def copy_(self, source, non_blocking):
        assert non_blocking is True
        self.got.append(source)
        return self


@pytest.mark.parametrize("n", [None, 2])
@pytest.mark.parametrize("pinned", [True, False])
def test_where_memory_is_pinned_an_unpinned_buffer_is_staged(n, pinned):
    plain_copies = []

    class Ours:
        """Ours."""

        def __init__(self, *size, dtype, device, pin_memory, with_numpy, staged):
            self.cpu = FakeTensorOfHost([1, 2, 3], pinned)
            self.gpu = FakeTensorOfDevice()

        def copy_to_gpu(self, n=None):
            plain_copies.append(n)
            return self.gpu

    Ours.__name__ = "CpuGpuBuffer"
    upstream = types.SimpleNamespace(__name__="vllm.v1.utils", CpuGpuBuffer=fastutils.CpuGpuBuffer, PIN_MEMORY=True)
    buffer = variants.buffer_that_stages(upstream, Ours)(3, dtype=torch.int8, device=CPU, pin_memory=False)
    assert buffer.copy_to_gpu(n) is buffer.gpu
    if pinned:
        assert (plain_copies, buffer.gpu.got) == ([n], [])
    else:
        assert plain_copies == []
        (source,) = buffer.gpu.got
        assert source.pinned
        assert source.rows == ([1, 2, 3] if n is None else [1, 2])
        # The rows may be overwritten now.
        assert source.rows is not buffer.cpu.rows


@pytest.mark.parametrize("variant", [variants.buffer, variants.buffer_that_stages])
def test_a_staged_buffer_is_staged_unless_it_is_told_otherwise(variant, form):
    ours = load("CpuGpuBuffer", form)
    upstream = types.SimpleNamespace(__name__="vllm.v1.utils", CpuGpuBuffer=fastutils.CpuGpuBuffer, PIN_MEMORY=False)
    made = variant(upstream, ours, staged_by_default=True)
    assert (made.__module__, made.__qualname__, made.__doc__) == ("vllm.v1.utils", "CpuGpuBuffer", ours.__doc__)
    wanted = inspect.signature(variant(upstream, ours)).parameters
    got = inspect.signature(made).parameters
    assert [*got.values()][:-1] == [*wanted.values()][:-1]
    assert (wanted["staged"].default, got["staged"].default) == (False, True)
    buffer = made(3, 2, dtype=torch.int32, device=CPU)
    assert isinstance(buffer, made)
    assert isinstance(buffer, ours)
    assert buffer._staging.group.stats().flushes == 0
    buffer.np[:] = [[1, 2], [3, 4], [5, 6]]
    assert buffer.copy_to_gpu(2).tolist() == [[1, 2], [3, 4]]
    assert buffer.copy_to_gpu() is buffer.gpu
    assert buffer._staging.group.stats().flushes == 2
    assert made(3, dtype=torch.bfloat16, device=CPU, with_numpy=False).copy_to_gpu().tolist() == [0, 0, 0]
    assert not hasattr(made(3, dtype=torch.int32, device=CPU, staged=False), "_staging")


@pytest.mark.parametrize(("pin_memory", "staged"), [(None, True), (True, True), (False, False)])
def test_where_memory_is_pinned_only_pinned_buffers_get_slots(pin_memory, staged):
    asked = []

    class Ours:
        """Ours."""

        def __init__(self, *size, dtype, device, pin_memory, with_numpy, staged):
            asked.append((pin_memory, staged))

        def copy_to_gpu(self, n=None):
            raise NotImplementedError

    class Upstream:
        def __init__(self, *size, dtype, device, pin_memory=True, with_numpy=True):
            pass

    Ours.__name__ = "CpuGpuBuffer"
    upstream = types.SimpleNamespace(__name__="vllm.v1.utils", CpuGpuBuffer=Upstream, PIN_MEMORY=True)
    made = variants.buffer_that_stages(upstream, Ours, staged_by_default=True)
    made(3, dtype=torch.int8, device=CPU, **({} if pin_memory is None else {"pin_memory": pin_memory}))
    assert asked == [(pin_memory is not False, staged)]


# The hooks that vLLM's own tests use.


@pytest.fixture
def record_calls(monkeypatch):
    """Our managers start nothing but note how they were called."""

    def record(self, **arguments):
        self.given = arguments

    for ours in (fastutils.APIServerProcessManager, fastutils.RustFrontendProcessManager):
        # Ours must know each parameter by the name that it is passed on under.
        known = {*inspect.signature(ours.__init__).parameters, "input_listener", "output_listener"}
        known |= {"input_listeners", "output_listeners"}

        def checked(self, known=known, **arguments):
            assert set(arguments) <= known
            record(self, **arguments)

        monkeypatch.setattr(ours, "__init__", checked)


def test_a_patched_worker_is_seen_at_call_time(vllm_tree, record_calls, monkeypatch):
    utils = vllm_tree()("utils")
    plugin.install()
    manager = utils.APIServerProcessManager
    assert issubclass(manager, fastutils.APIServerProcessManager)
    assert manager("a", None, None, 1, ["i"], ["o"]).given["target_server_fn"] is fastutils.run_api_server_worker_proc

    def patched():
        pass

    monkeypatch.setattr(utils, "run_api_server_worker_proc", patched)
    assert manager("a", None, None, 1, ["i"], ["o"]).given == {
        "listen_address": "a",
        "sock": None,
        "args": None,
        "num_servers": 1,
        "input_addresses": ["i"],
        "output_addresses": ["o"],
        "target_server_fn": patched,
    }


def test_a_given_worker_goes_first(vllm_tree, record_calls):
    utils = vllm_tree()("utils")
    plugin.install()

    def own():
        pass

    given = utils.APIServerProcessManager(
        "a", "s", "n", 1, ["i"], ["o"], own, tensor_queue="q", stats_update_address="u"
    ).given
    assert (given["target_server_fn"], given["stats_update_address"], given["tensor_queue"]) == (own, "u", "q")


WITH_LISTENERS = fake_vllm.UTILS.replace("input_addresses, output_addresses,", "input_listeners, output_listeners,")
WITH_LISTENERS = WITH_LISTENERS.replace(
    "input_address, output_address, engine_start_index, engine_count,\n        stats_update_address=None,",
    "input_listener, output_listener, engine_start_index, engine_count,\n        data_parallel_size, "
    "stats_update_address=None, grpc_sock=None,",
)


def test_managers_of_later_versions_are_called_as_there(vllm_tree, record_calls):
    utils = vllm_tree("0.32.0", WITH_LISTENERS)("utils")
    report = plugin.install()
    assert {"APIServerProcessManager", "RustFrontendProcessManager"} <= set(report.served)
    servers = utils.APIServerProcessManager("a", None, None, 2, ["i"], output_listeners=["o"]).given
    assert (servers["input_listeners"], servers["output_listeners"]) == (["i"], ["o"])
    frontend = utils.RustFrontendProcessManager("rs", "sock", "args", "in", "out", 0, 1, 4, "stats", "grpc").given
    assert frontend == {
        "binary_path": "rs",
        "sock": "sock",
        "args": "args",
        "input_listener": "in",
        "output_listener": "out",
        "engine_start_index": 0,
        "engine_count": 1,
        "data_parallel_size": 4,
        "stats_update_address": "stats",
        "grpc_sock": "grpc",
    }
    with pytest.raises(TypeError, match="data_parallel_size"):
        utils.RustFrontendProcessManager("rs", "sock", "args", "in", "out", 0, 1)
    parameters = list(inspect.signature(utils.RustFrontendProcessManager).parameters)
    assert parameters[-3:] == ["data_parallel_size", "stats_update_address", "grpc_sock"]


def test_a_patched_logger_is_seen_at_call_time(vllm_tree, monkeypatch):
    utils = vllm_tree()("utils")
    plugin.install()
    said = []
    monkeypatch.setattr(
        utils,
        "logger",
        types.SimpleNamespace(info=lambda text, *values: said.append(text % values), exception=None, debug=None),
    )
    utils.wait_for_completion_or_failure(types.SimpleNamespace(processes=[]))
    assert said == ["Waiting for API servers to complete ..."]


def test_without_the_plugin_our_own_logger_serves(vllm_tree, caplog):
    vllm_tree()("utils")
    plugin.install()
    plugin.uninstall()
    caplog.set_level("INFO")
    fastutils.wait_for_completion_or_failure(types.SimpleNamespace(processes=[]))
    assert [record.name for record in caplog.records] == ["fastutils.processes.watching"]


def test_a_patched_popen_is_seen_at_call_time(vllm_tree, monkeypatch):
    import subprocess

    utils = vllm_tree()("utils")
    plugin.install()
    commands = []

    def popen(command, **options):
        commands.append(command)
        raise FileNotFoundError(2, "No such file", command[0])

    monkeypatch.setattr(subprocess, "Popen", popen)
    sock = types.SimpleNamespace(fileno=lambda: 7)
    with pytest.raises(FileNotFoundError):
        utils.RustFrontendProcessManager("vllm-rs", sock, argparse.Namespace(), "in", "out", 0, 1)
    (command,) = commands
    assert command[:4] == ["vllm-rs", "frontend", "--listen-fd", "7"]
