"""A package tree called vllm with what the plugin looks at: helpers with upstream's signatures and none of its code."""

from pathlib import Path

UTILS = '''
"""Stands for the helper module of an old version."""
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)
PIN_MEMORY = False


class ConstantList(Sequence):
    """A view."""

    def __init__(self, x):
        self._x = x

    def __getitem__(self, item):
        return self._x[item]

    def __len__(self):
        return len(self._x)


class CpuGpuBuffer:
    def __init__(self, *size, dtype, device, pin_memory=PIN_MEMORY, with_numpy=True):
        raise NotImplementedError

    def copy_to_gpu(self, n=None):
        raise NotImplementedError


def get_engine_client_zmq_addr(local_only, host, port=0):
    return "theirs"


class APIServerProcessManager:
    def __init__(
        self, listen_address, sock, args, num_servers, input_addresses, output_addresses,
        target_server_fn=None, stats_update_address=None, tensor_queue=None,
    ):
        self.processes = []


class RustFrontendProcessManager:
    def __init__(
        self, binary_path, sock, args, input_address, output_address, engine_start_index, engine_count,
        stats_update_address=None,
    ):
        self.processes = []


def run_api_server_worker_proc(listen_address, sock, args, client_config=None, **uvicorn_kwargs):
    return "theirs"


def wait_for_completion_or_failure(api_server_manager, engine_manager=None, coordinator=None):
    return "theirs"


def shutdown(procs, timeout=None):
    return "theirs"


def copy_slice(from_tensor, to_tensor, length):
    return "theirs"


def report_usage_stats(vllm_config, usage_context="ENGINE_CONTEXT"):
    return "theirs"


def record_function_or_nullcontext(name):
    return contextlib.nullcontext(name)


def tensor_data(tensor):
    return "theirs"


@dataclass
class IterationDetails:
    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int
    num_generation_tokens: int


def compute_iteration_details(scheduler_output):
    return "theirs"


def a_helper_that_ours_lack():
    return copy_slice
'''

#: Modules that take helpers by name, as vLLM's do.
USERS = {
    "request": "from vllm.v1.utils import ConstantList\n\ndef view(x):\n    return ConstantList(x)\n",
    "runner": (
        "from vllm.v1.utils import CpuGpuBuffer as Buffer, copy_slice, record_function_or_nullcontext\n\n"
        "def is_buffer(x):\n    return isinstance(x, Buffer)\n"
    ),
    "late": "from vllm.v1.utils import ConstantList, copy_slice\n",
}


def write(folder: Path, version: str = "0.25.1", utils: str = UTILS) -> Path:
    """Writes the tree into `folder`, which is then to be put on the path."""
    v1 = folder / "vllm" / "v1"
    v1.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (v1 / "__init__.py").write_text("")
    (v1 / "utils.py").write_text(utils)
    for name, text in USERS.items():
        (v1 / f"{name}.py").write_text(text)
    return folder
