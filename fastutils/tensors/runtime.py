"""Loads the torch bridge that was built for this torch, and finds torch's own CUDA or HIP runtime for it.

Nothing is linked: the bridge's file name says which torch minor it was compiled against, and the device runtime is the
one that torch itself depends on, never a second copy that some other package brought along. Libraries are opened here,
from Python, because calling dlopen from C would tie the wheel to the C library it was built on.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastutils import _select

BRIDGES = Path(__file__).parents[1] / "_bridge"

#: The number in csrc/bridge_abi.h; tests keep the two equal.
ABI = 3

#: (torch's library that depends on the runtime, prefix of the runtime's functions). A ROCm build has the second only.
RUNTIMES = (("libc10_cuda.so", "cuda"), ("libc10_hip.so", "hip"))
FUNCTIONS = ("MemcpyAsync", "Memcpy2DAsync", "GetLastError", "StreamIsCapturing")


class BridgeUnavailable(ImportError):
    """Why the compiled tensor helpers cannot serve here; PyTorch's own operators do their work."""


class _Host(ctypes.Structure):
    """``fu_host`` of csrc/bridge_abi.h."""

    _fields_ = [
        ("tensor_offset", ctypes.c_size_t),
        ("memcpy_async", ctypes.c_void_p),
        ("memcpy_2d_async", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("stream_is_capturing", ctypes.c_void_p),
        ("release_gil", ctypes.c_void_p),
        ("take_gil", ctypes.c_void_p),
    ]


class _Table(ctypes.Structure):
    """The beginning of ``fu_bridge`` of csrc/bridge_abi.h: what is called from here."""

    _fields_ = [
        ("abi", ctypes.c_int),
        ("torch_version", ctypes.c_char_p),
        ("init", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Host))),
        ("reads_tensor", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)),
    ]


@dataclass(frozen=True)
class DeviceRuntime:
    """The device functions that the bridge calls, as addresses in `library`, torch's own runtime."""

    kind: str  #: "cuda" or "hip"
    library: str
    functions: tuple[int, ...]


@dataclass(frozen=True)
class Bridge:
    """A loaded and checked bridge."""

    table: int  #: address of its ``fu_bridge``
    path: Path
    runtime: DeviceRuntime | None
    no_runtime: str  #: why there is no `runtime`, or ""
    library: Any = None  #: keeps it open


def torch_minor(version: str) -> str:
    """The part of a torch version that its C++ ABI goes with: "2.13" for "2.13.0+cpu"."""
    major, minor = version.split(".")[:2]
    return f"{major}.{minor}"


def bridge_name(minor: str) -> str:
    """The file name of the bridge for a torch minor."""
    return f"libfastutils_torch{minor.replace('.', '_')}.so"


def built_minors() -> list[str]:
    """The torch minors this installation has a bridge for."""
    names = (path.name for path in BRIDGES.glob("libfastutils_torch*.so"))
    return sorted(name.removeprefix("libfastutils_torch").removesuffix(".so").replace("_", ".") for name in names)


def _loaded_library(name: str) -> ctypes.CDLL:
    """The library `name` if this process has it already. OSError if not."""
    return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)


def _library_of(address: int) -> str:
    """The file that the function at `address` lies in."""

    class Info(ctypes.Structure):
        _fields_ = [
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("at", ctypes.c_void_p),
        ]

    info = Info()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    return os.fsdecode(info.file) if found and info.file else "unknown file"


def find_device_runtime(open_library: Callable[[str], Any] = _loaded_library) -> tuple[DeviceRuntime | None, str]:
    """Torch's own device runtime, or None and why there is none.

    Looking a function up through the handle of torch's library searches what that library depends on, in its order.
    """
    for library, prefix in RUNTIMES:
        try:
            handle = open_library(library)
        except OSError:
            continue
        try:
            found = [ctypes.cast(getattr(handle, prefix + name), ctypes.c_void_p).value or 0 for name in FUNCTIONS]
        except AttributeError as error:
            return None, f"{library} is loaded, but its runtime lacks a function: {error}"
        return DeviceRuntime(prefix, _library_of(found[0]), tuple(found)), ""
    return None, "this torch is built without CUDA and ROCm"


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def _tensor_offset(samples: list[torch.Tensor]) -> int:
    """Where a tensor object keeps its TensorImpl, found on `samples`; the layout is torch's private affair."""
    for offset in range(object.__basicsize__, type(samples[0]).__basicsize__, ctypes.sizeof(ctypes.c_void_p)):
        if all(_word(id(sample) + offset) == sample._cdata for sample in samples):
            return offset
    raise BridgeUnavailable(f"torch {torch.__version__} lays its tensor objects out in a way not seen before")


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _load_once() -> Bridge | str:
    """The bridge, or why there is none.

    Looked for in a thread of its own: modes (inference, fake tensors, a default device, transforms) belong to threads,
    and whatever is on in the caller's would make the tensors that are looked at something else than plain ones.
    """
    found: list[Bridge | str] = []
    errors: list[BaseException] = []

    def look() -> None:
        try:
            found.append(_look_for_bridge())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=look, name="fastutils-bridge")
    try:
        thread.start()
    except RuntimeError as error:  # a limit of processes
        return f"no thread can be started to look for the bridge in: {error}"
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _look_for_bridge() -> Bridge | str:
    minor = torch_minor(torch.__version__)
    path = BRIDGES / bridge_name(minor)
    if not path.exists():
        outcome = (_select.build_info().get("bridges") or {}).get(minor)
        if outcome not in (None, "built"):
            return f"the bridge for torch {minor} did not compile when this package was built: {outcome}"
        others = ", ".join(built_minors())
        has = f"only for torch {others}" if others else "for no torch"
        return (
            f"this installation has a bridge {has}, not for torch {minor}; "
            f"reinstall vllm-fastutils beside this torch, with a C++ compiler present, to build one"
        )
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        return f"{path.name} cannot be loaded: {error}"
    entry = library.fastutils_bridge
    entry.restype = ctypes.c_void_p
    address: int = entry()
    table = _Table.from_address(address)
    if table.abi != ABI:
        return f"{path.name} speaks version {table.abi} of the bridge's table, not {ABI}; reinstall vllm-fastutils"
    if table.torch_version.decode() != minor:
        return f"{path.name} was compiled against torch {table.torch_version.decode()}, not {minor}"

    runtime, no_runtime = find_device_runtime()
    with torch.inference_mode():
        samples = [torch.zeros(3, device="cpu"), torch.zeros(5, dtype=torch.int64, device="cpu")]
    samples.append(torch.zeros(2, 2, dtype=torch.bfloat16, device="cpu"))
    try:
        offset = _tensor_offset(samples)
    except BridgeUnavailable as error:
        return str(error)
    functions = runtime.functions if runtime else (None,) * len(FUNCTIONS)
    save, restore = _address(ctypes.pythonapi.PyEval_SaveThread), _address(ctypes.pythonapi.PyEval_RestoreThread)
    if not table.init(ctypes.byref(_Host(offset, *functions, save, restore))):
        return f"{path.name} refuses torch {torch.__version__}"
    for sample in samples:
        if not table.reads_tensor(id(sample), sample.numel(), sample.data_ptr()):
            return f"{path.name} misreads the tensors of torch {torch.__version__}"
    return Bridge(address, path, runtime, no_runtime, library)


def load() -> Bridge:
    """The bridge for this torch, loaded and checked once. BridgeUnavailable says why there is none."""
    bridge = _load_once()
    if isinstance(bridge, str):
        raise BridgeUnavailable(bridge)
    return bridge


def describe() -> Iterator[tuple[str, str]]:
    """Rows for ``python -m fastutils``: the bridge, torch's device runtime, and what is missing."""
    bridge = _load_once()
    if isinstance(bridge, str):
        yield "torch bridge", f"none: {bridge}"
        return
    yield "torch bridge", bridge.path.name
    if bridge.runtime is None:
        yield "device runtime", f"none: {bridge.no_runtime}; device copies go through torch"
    else:
        untried = " (ROCm: never tried on hardware)" if bridge.runtime.kind == "hip" else ""
        yield "device runtime", f"{bridge.runtime.kind}, {bridge.runtime.library}{untried}"
