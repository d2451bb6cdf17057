# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
# cython: auto_pickle=False
"""tensor_data, compiled. ``data`` holds the Python form, which says what this one must do."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyTypeObject

from fastutils.tensors.bridge cimport FU_DONE, FU_FALLBACK, fu_bridge, fu_bytes

import torch

from fastutils import tracing as _tracing
from fastutils.tensors import data as _twin
from fastutils.tensors import runtime as _runtime


cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(PyObject* thing) noexcept
    void Py_DECREF(void* thing)


cdef extern from "objects.h":
    int share_doc "fu_share_doc" (object function, object twin) except -1


cdef extern from "tensor_objects.h":
    object stolen "fu_stolen" (void* thing)


cdef object _loaded = _runtime.load()  # raises what `fastutils` then reports as the reason
cdef const fu_bridge* bridge = <const fu_bridge*><size_t>_loaded.table
cdef object _Tensor = torch.Tensor
cdef PyTypeObject* Tensor = <PyTypeObject*>_Tensor


# Holds the storage and not the tensor, which may be given another storage (`tensor.data = ...`) at any time.
@cython.final
@cython.freelist(16)
@cython.internal
cdef class TensorBytes:
    """The owner of the memory behind a `tensor_data` memoryview."""

    cdef fu_bytes bytes

    def __hash__(self):
        raise TypeError("unhashable type: 'TensorBytes'")  # hash() of a read-only view asks its owner, upstream's array

    def __dealloc__(self):
        if self.bytes.storage != NULL:
            bridge.release_storage(self.bytes.storage)

    cdef int must_hold(self) except -1:
        if self.bytes.storage == NULL:
            raise BufferError("no bytes: only tensor_data() makes an object that has some")
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.must_hold()
        Py_DECREF(<void*>view.obj)  # Cython's None, which is overwritten (test_exports_leak_nothing)
        PyBuffer_FillInfo(view, self, self.bytes.data, <Py_ssize_t>self.bytes.size, 0, flags)

    @property
    def base(self):
        """A `torch.Tensor` of unsigned bytes over the same memory, made afresh on every access."""
        cdef void* tensor = NULL
        self.must_hold()
        if bridge.wrap_bytes(&self.bytes, &tensor) == FU_FALLBACK:
            raise BufferError("the tensor's storage has other memory by now: call tensor_data() again")
        return stolen(tensor)


def tensor_data(tensor):
    cdef TensorBytes owner  # holds the memory before the memoryview is allocated, upon which anything may run
    if Py_TYPE(<PyObject*>tensor) == Tensor:
        owner = TensorBytes.__new__(TensorBytes)
        if bridge.tensor_bytes(<void*>tensor, &owner.bytes) == FU_DONE:
            return PyMemoryView_FromObject(owner)
    return _twin.tensor_data(tensor)


tensor_data.__module__ = "fastutils"
share_doc(tensor_data, _twin.tensor_data)
_tracing.make_traceable((tensor_data, _twin.tensor_data))
