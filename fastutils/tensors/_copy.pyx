# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
# cython: auto_pickle=False, boundscheck=False, wraparound=False
"""copy_slice, CpuGpuBuffer and their plurals, compiled. ``copy`` and ``buffer`` hold the Python forms, which say what
these must do. What is not a plain copy between plain tensors goes to PyTorch's own operators, as it does there."""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from fastutils.tensors.bridge cimport FU_ALL_ROWS, FU_DONE, FU_FALLBACK, FU_REUSED, fu_bridge

import copyreg
from numbers import Integral

import torch

from fastutils.tensors import buffer as _twin
from fastutils.tensors import copy as _copy_twin
from fastutils.tensors import runtime as _runtime
from fastutils.tensors import tracing as _tracing


cdef extern from "Python.h":
    ctypedef struct PyMemberDef:
        pass
    PyTypeObject* Py_TYPE(PyObject* thing) noexcept
    void Py_INCREF(PyObject* thing)
    void Py_DECREF(PyObject* thing)
    void Py_XDECREF(PyObject* thing)


cdef extern from "tensor_objects.h":
    ctypedef struct fu_tensor_layout:
        Py_ssize_t weak_references
        Py_ssize_t hooks[2]
    object stolen "fu_stolen" (void* thing)
    bint row_count "fu_row_count" (PyObject* n, long long* rows) noexcept
    bint is_only_ours "fu_is_only_ours" (PyObject* tensor, const fu_tensor_layout* layout) noexcept
    object member "fu_member" (PyTypeObject* type, PyMemberDef* member, const char* name, Py_ssize_t offset)


cdef object _loaded = _runtime.load()  # raises what `fastutils` then reports as the reason
cdef const fu_bridge* bridge = <const fu_bridge*><size_t>_loaded.table
cdef object _Tensor = torch.Tensor
cdef PyTypeObject* Tensor = <PyTypeObject*>_Tensor

# Without knowing where a tensor object keeps its hooks, no view is ever handed out again.
cdef fu_tensor_layout layout
cdef bint may_reuse = len(_loaded.hook_offsets) == 2
if may_reuse:
    layout.weak_references = _Tensor.__weakrefoffset__
    layout.hooks[0], layout.hooks[1] = _loaded.hook_offsets


cdef inline bint is_tensor(PyObject* thing) noexcept:
    return thing != NULL and Py_TYPE(thing) == Tensor  # a subclass may change what any operator means


cdef object torch_copy(object from_tensor, object to_tensor, object length):
    cdef object rows = slice(None, length)  # what Cython makes of [:length] words some errors in its own way
    copy_ = to_tensor[rows].copy_  # first, as in Python: Cython would look it up after evaluating the argument
    return copy_(from_tensor[rows], non_blocking=True)


def copy_slice(from_tensor, to_tensor, length):
    """Copy the first `length` rows of `from_tensor` to `to_tensor`, without blocking; return ``to_tensor[:length]``.

    Means exactly ``to_tensor[:length].copy_(from_tensor[:length], non_blocking=True)``: `length` follows slice rules
    (negative, zero, too large), dtypes, devices and strides may differ, shapes may broadcast, and whatever PyTorch
    raises is raised. The result is a view of `to_tensor`. Between host and device the copy may still be running on the
    current stream when the call returns: synchronize before reading a host destination.

    Upstream: ``vllm.v1.utils.copy_slice``.
    """
    cdef long long rows
    cdef void* view = NULL
    if (
        is_tensor(<PyObject*>from_tensor)
        and is_tensor(<PyObject*>to_tensor)
        and row_count(<PyObject*>length, &rows)
        and bridge.copy_rows(<void*>from_tensor, <void*>to_tensor, rows, NULL, &view) == FU_DONE
    ):
        return stolen(view)
    return torch_copy(from_tensor, to_tensor, length)


# A buffer's attributes may be missing, which Cython's own attributes cannot be: NULL, reached only through their slots.
cdef extern from *:
    """
    #define FU_BUFFER struct __pyx_obj_9fastutils_7tensors_5_copy_BufferCopies  /* Cython's name for it */
    #define fu_slot(buffer, field) ((PyObject **)((char *)(buffer) + offsetof(FU_BUFFER, field)))
    #define fu_host_slot(buffer) fu_slot(buffer, host)
    #define fu_device_slot(buffer) fu_slot(buffer, device)
    #define fu_array_slot(buffer) fu_slot(buffer, array)
    #define fu_host_view_slot(buffer) fu_slot(buffer, host_view)
    #define fu_device_view_slot(buffer) fu_slot(buffer, device_view)
    #define fu_offset(slot) ((Py_ssize_t)(char *)slot(NULL))
    static PyMemberDef fu_array_member;
    """
    PyObject** host_slot "fu_host_slot" (void* buffer) noexcept
    PyObject** device_slot "fu_device_slot" (void* buffer) noexcept
    PyObject** array_slot "fu_array_slot" (void* buffer) noexcept
    PyObject** host_view_slot "fu_host_view_slot" (void* buffer) noexcept
    PyObject** device_view_slot "fu_device_view_slot" (void* buffer) noexcept
    PyMemberDef array_member "fu_array_member"


cdef inline void clear(PyObject** slot):
    cdef PyObject* held = slot[0]
    slot[0] = NULL
    Py_XDECREF(held)


cdef inline object held(object buffer, PyObject** slot, str name):
    if slot[0] == NULL:
        raise AttributeError(f"{type(buffer).__name__!r} object has no attribute {name!r}")
    return <object>slot[0]


cdef inline void replace(PyObject** slot, object value):
    cdef PyObject* before = slot[0]
    Py_INCREF(<PyObject*>value)
    slot[0] = <PyObject*>value
    Py_XDECREF(before)


cdef int copy_between(PyObject* source, PyObject* target, PyObject** view_slot, object n, void** out) except -1:
    # Copies `source` to `target` and makes *out the result, a new reference, or returns FU_FALLBACK.
    cdef long long rows
    cdef int outcome
    cdef PyObject* view = NULL
    cdef PyObject* last
    if not is_tensor(source) or not is_tensor(target):
        return FU_FALLBACK
    if n is not None and not row_count(<PyObject*>n, &rows):
        return FU_FALLBACK
    # The bridge may release the GIL, and another thread then replace the buffer's tensors.
    Py_INCREF(source)
    Py_INCREF(target)
    try:
        if n is None:
            outcome = bridge.copy_whole(source, target)
            if outcome == FU_DONE:
                Py_INCREF(target)
                out[0] = target
            return outcome
        last = view_slot[0]
        if may_reuse and is_tensor(last) and is_only_ours(last, &layout):
            view = last  # taken out meanwhile, so that no other thread takes it too
            view_slot[0] = NULL
        outcome = bridge.copy_rows(source, target, rows, view, out)
        if outcome == FU_REUSED:
            view = NULL  # our reference to it is the result now
        if outcome != FU_FALLBACK and may_reuse:
            last = view_slot[0]
            Py_INCREF(<PyObject*>out[0])
            view_slot[0] = <PyObject*>out[0]
            Py_XDECREF(last)
        return outcome
    finally:
        Py_XDECREF(view)
        Py_DECREF(source)
        Py_DECREF(target)


cdef object torch_buffer_copy(object buffer, str source, str target, object n):
    if n is not None:
        rows = slice(None, n)
        copy_ = getattr(buffer, target)[rows].copy_
        return copy_(getattr(buffer, source)[rows], non_blocking=True)
    copy_ = getattr(buffer, target).copy_
    return copy_(getattr(buffer, source), non_blocking=True)


cdef object torch_copy_of(object source, object target, object n):
    if n is not None:
        return torch_copy(source, target, n)
    return target.copy_(source, non_blocking=True)


cdef class BufferCopies:
    """The compiled part of CpuGpuBuffer: its three attributes and its two copies."""

    cdef object host
    cdef object device
    cdef object array
    # The views handed out last, for re-use once nobody else has them. They would keep a replaced tensor's memory, so
    # replacing the tensor drops them.
    cdef object host_view
    cdef object device_view

    def __cinit__(self):
        clear(host_slot(<void*>self))
        clear(device_slot(<void*>self))
        clear(array_slot(<void*>self))
        clear(host_view_slot(<void*>self))
        clear(device_view_slot(<void*>self))

    # Not a __setattr__, which would keep object.__setattr__ and that of other bases from working.
    @property
    def cpu(self):
        """The host tensor; may be replaced."""
        return held(self, host_slot(<void*>self), "cpu")

    @cpu.setter
    def cpu(self, value):
        clear(host_view_slot(<void*>self))
        replace(host_slot(<void*>self), value)

    @cpu.deleter
    def cpu(self):
        held(self, host_slot(<void*>self), "cpu")
        clear(host_view_slot(<void*>self))
        clear(host_slot(<void*>self))

    @property
    def gpu(self):
        """Its device twin; may be replaced."""
        return held(self, device_slot(<void*>self), "gpu")

    @gpu.setter
    def gpu(self, value):
        clear(device_view_slot(<void*>self))
        replace(device_slot(<void*>self), value)

    @gpu.deleter
    def gpu(self):
        held(self, device_slot(<void*>self), "gpu")
        clear(device_view_slot(<void*>self))
        clear(device_slot(<void*>self))

    cdef object copy_as_subclass(self, str source_name, str target_name, PyObject** view_slot, object n):
        # A subclass may make any of the attributes something else. Looked up in the order of the Python form.
        cdef void* result = NULL
        target = getattr(self, target_name)
        source = getattr(self, source_name)
        if copy_between(<PyObject*>source, <PyObject*>target, view_slot, n, &result) != FU_FALLBACK:
            return stolen(result)
        return torch_copy_of(source, target, n)

    def copy_to_gpu(self, n=None):
        """Copy all rows, or the first `n`, from ``cpu`` to ``gpu`` without blocking.

        Returns ``gpu`` itself (`n` is None) or the view ``gpu[:n]``. `n` follows slice rules. The host memory must not
        be changed before the copy has run on the current stream.
        """
        cdef void* result = NULL
        if Py_TYPE(<PyObject*>self) != Buffer:
            return self.copy_as_subclass("cpu", "gpu", device_view_slot(<void*>self), n)
        if copy_between(
            host_slot(<void*>self)[0], device_slot(<void*>self)[0], device_view_slot(<void*>self), n, &result
        ) != FU_FALLBACK:
            return stolen(result)
        return torch_buffer_copy(self, "cpu", "gpu", n)

    def copy_to_cpu(self, n=None):
        """Copy all rows, or the first `n`, from ``gpu`` to ``cpu`` without blocking.

        Returns ``cpu`` itself (`n` is None) or the view ``cpu[:n]``. Synchronize with the current stream before
        reading it (or ``np``): until then it may hold old or half-written rows.
        """
        cdef void* result = NULL
        if Py_TYPE(<PyObject*>self) != Buffer:
            return self.copy_as_subclass("gpu", "cpu", host_view_slot(<void*>self), n)
        if copy_between(
            device_slot(<void*>self)[0], host_slot(<void*>self)[0], host_view_slot(<void*>self), n, &result
        ) != FU_FALLBACK:
            return stolen(result)
        return torch_buffer_copy(self, "gpu", "cpu", n)


cdef extern from *:
    Py_ssize_t ARRAY_OFFSET "fu_offset(fu_array_slot)"


class CpuGpuBuffer(BufferCopies, _twin.CpuGpuBuffer):
    __doc__ = _twin.CpuGpuBuffer.__doc__

    np = member(<PyTypeObject*>BufferCopies, &array_member, "np", ARRAY_OFFSET)

    def __getstate__(self):
        # As object's own, with what lies outside the instance's dictionary; that one refuses types with such things.
        state = dict(self.__dict__)
        for name, descriptor in _DESCRIPTORS:
            try:
                state[name] = descriptor.__get__(self)
            except AttributeError:
                pass
        slots = {name: getattr(self, name) for name in copyreg._slotnames(type(self)) if hasattr(self, name)}
        return (state, slots) if slots else state

    def __setstate__(self, state):
        slots = None
        if isinstance(state, tuple):
            state, slots = state
        descriptors = dict(_DESCRIPTORS)
        for name, value in (state or {}).items():
            if name in descriptors:
                descriptors[name].__set__(self, value)
            else:
                self.__dict__[name] = value
        for name, value in (slots or {}).items():
            setattr(self, name, value)

    def __reduce_ex__(self, protocol):
        return object.__reduce_ex__(self, max(protocol, 2))  # below 2 it wants __init__ without arguments


_DESCRIPTORS = tuple((name, getattr(CpuGpuBuffer, name)) for name in ("cpu", "gpu", "np"))
cdef object _Buffer = CpuGpuBuffer
cdef PyTypeObject* Buffer = <PyTypeObject*>_Buffer
cdef object _own_copy = BufferCopies.copy_to_gpu


cdef enum:
    ROUND = 64
    NOT_ROWS = -1


cdef struct Round:
    void* from_tensor[ROUND]
    void* to_tensor[ROUND]
    int64_t rows[ROUND]


cdef inline void enter(
    Round* plan, Py_ssize_t i, PyObject* source, PyObject* target, PyObject* n, int64_t if_none
) noexcept:
    # Borrowed references. An entry that only torch can do gets no source, at which the bridge stops.
    cdef long long rows = if_none
    plan.from_tensor[i] = NULL
    if not is_tensor(source) or not is_tensor(target):
        return
    if not row_count(n, &rows) and (n != <PyObject*>None or if_none == NOT_ROWS):
        return
    plan.from_tensor[i] = source
    plan.to_tensor[i] = target
    plan.rows[i] = rows


cdef inline Py_ssize_t send(Round* plan, Py_ssize_t start, Py_ssize_t stop) noexcept:
    # Returns the first entry of [start, stop) that was not done.
    return start + <Py_ssize_t>bridge.copy_many(
        stop - start, plan.from_tensor + start, plan.to_tensor + start, plan.rows + start
    )


def copy_slices(pairs, *, views=False):
    """Run `copy_slice` for each ``(from_tensor, to_tensor, length)`` of `pairs`, in order, in one call.

    Returns None, or with ``views=True`` the list of the views ``to_tensor[:length]``. Nothing is copied if an entry of
    `pairs` is not a triple (TypeError). An error of PyTorch's leaves the copies before it done and the rest undone.
    Blocks no more than `copy_slice` does.
    """
    cdef list entries = list(pairs)
    cdef tuple entry
    cdef Py_ssize_t i, first, filled, done
    cdef Round plan
    for i in range(len(entries)):
        triple = entries[i]
        if not isinstance(triple, (tuple, list)) or len(triple) != 3:
            raise TypeError(
                f"copy_slices() takes (from_tensor, to_tensor, length) triples, but entry {i} of "
                f"{len(entries)} is {triple!r:.80}"
            )
        entries[i] = tuple(triple)  # ours alone: what it holds stays alive and in place while we copy
    if views:
        return [copy_slice(source, target, n) for source, target, n in entries]
    for first in range(0, len(entries), ROUND):
        filled = min(len(entries) - first, <Py_ssize_t>ROUND)
        for i in range(filled):
            entry = <tuple>entries[first + i]
            enter(&plan, i, <PyObject*>entry[0], <PyObject*>entry[1], <PyObject*>entry[2], NOT_ROWS)
        done = send(&plan, 0, filled)
        while done < filled:
            entry = <tuple>entries[first + done]
            torch_copy(entry[0], entry[1], entry[2])
            done = send(&plan, done + 1, filled)
    return None


def copy_to_gpu_many(buffers, ns=None, *, views=False):
    """Run ``buffer.copy_to_gpu(n)`` for each buffer, in order, in one call.

    `ns` holds one row count (or None for all rows) per buffer; a single int or None serves for every buffer.
    Returns None, or with ``views=True`` the list of what the single calls return. ValueError, before anything is
    copied, if `ns` and `buffers` differ in length.
    """
    cdef tuple several = tuple(buffers)
    cdef tuple counts
    cdef Py_ssize_t i, first, filled, done
    cdef PyObject* buffer
    cdef PyObject* source
    cdef PyObject* target
    cdef Round plan
    if ns is None or isinstance(ns, Integral):
        counts = (ns,) * len(several)
    else:
        counts = tuple(ns)
    if len(counts) != len(several):
        raise ValueError(
            f"copy_to_gpu_many() got {len(several)} buffers but {len(counts)} row counts; give one per buffer"
        )
    if views:
        return [one.copy_to_gpu(count) for one, count in zip(several, counts)]
    # A subclass, or a class that is patched, may make anything of its copies.
    cdef bint as_usual = _Buffer.copy_to_gpu is _own_copy
    first = 0
    while first < len(several):
        # Up to the first entry that is not ours: what its code does may change what the later ones are to copy.
        filled = 0
        while as_usual and filled < ROUND and first + filled < len(several):
            buffer = <PyObject*>several[first + filled]
            if Py_TYPE(buffer) != Buffer:
                break
            source, target = host_slot(buffer)[0], device_slot(buffer)[0]
            enter(&plan, filled, source, target, <PyObject*>counts[first + filled], FU_ALL_ROWS)
            if plan.from_tensor[filled] == NULL:
                break
            # Another thread may replace the buffer's tensors while the bridge has released the GIL.
            Py_INCREF(source)
            Py_INCREF(target)
            filled += 1
        done = send(&plan, 0, filled)
        for i in range(filled):
            Py_DECREF(<PyObject*>plan.from_tensor[i])
            Py_DECREF(<PyObject*>plan.to_tensor[i])
        first += done
        if first < len(several) and (done < filled or filled < ROUND):
            several[first].copy_to_gpu(counts[first])
            first += 1
    return None


for _public in (copy_slice, copy_slices, copy_to_gpu_many, CpuGpuBuffer):
    _public.__module__ = "fastutils"

_tracing.make_traceable((copy_slice, _copy_twin.copy_slice), (copy_slices, _copy_twin.copy_slices))
