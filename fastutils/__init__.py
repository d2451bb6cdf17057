"""Compiled drop-in replacements for ``vllm.v1.utils``: same names, signatures and errors.

Names are imported when first used, so ``import fastutils`` itself needs neither torch nor pyzmq nor psutil.
``python -m fastutils`` tells which form of each name is active, and why.
"""

from typing import TYPE_CHECKING, Any

from fastutils import _select

if TYPE_CHECKING:  # type checkers read the Python forms, so no stub can drift from them
    from fastutils.iteration import IterationDetails, compute_iteration_details
    from fastutils.processes.addresses import get_engine_client_zmq_addr
    from fastutils.processes.api_servers import APIServerProcessManager, run_api_server_worker_proc
    from fastutils.processes.ending import shutdown
    from fastutils.processes.rust_frontend import RustFrontendProcessManager
    from fastutils.processes.watching import wait_for_completion_or_failure
    from fastutils.scopes import record_function_or_nullcontext
    from fastutils.tensors.buffer import CpuGpuBuffer
    from fastutils.tensors.copy import copy_slice, copy_slices, copy_to_gpu_many
    from fastutils.tensors.data import tensor_data
    from fastutils.tensors.staging import StagingGroup
    from fastutils.usage import report_usage_stats
    from fastutils.views import ConstantList

# In upstream's order, then what upstream does not have.
__all__ = [  # noqa: RUF022
    "ConstantList",
    "CpuGpuBuffer",
    "get_engine_client_zmq_addr",
    "APIServerProcessManager",
    "run_api_server_worker_proc",
    "RustFrontendProcessManager",
    "wait_for_completion_or_failure",
    "shutdown",
    "copy_slice",
    "report_usage_stats",
    "record_function_or_nullcontext",
    "tensor_data",
    "IterationDetails",
    "compute_iteration_details",
    "copy_slices",
    "copy_to_gpu_many",
    "StagingGroup",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vllm-fastutils")
    value = _select.choose(name).value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
