# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
# cython: auto_pickle=False, boundscheck=False, wraparound=False
"""copy_slice, CpuGpuBuffer and their plurals, compiled. ``copy`` and ``buffer`` hold the Python forms, which say what
these must do. What is not a plain copy between plain tensors goes to PyTorch's own operators, as it does there."""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from fastutils.tensors.bridge cimport FU_ALL_ROWS, FU_DONE, FU_FALLBACK, FU_ROUND, fu_bridge

from numbers import Integral

import torch

from fastutils import _plain
from fastutils import tracing as _tracing
from fastutils.tensors import buffer as _twin
from fastutils.tensors import copy as _copy_twin
from fastutils.tensors import runtime as _runtime


cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(PyObject* thing) noexcept
    void Py_INCREF(PyObject* thing)
    void Py_DECREF(PyObject* thing)


cdef extern from "exact.h":
    tuple as_tuple "fu_tuple" (object given)


cdef extern from "objects.h":
    unsigned int class_version "fu_class_version" (object type) noexcept
    unsigned int give_version "fu_give_version" (object type, object name) noexcept
    bint has_plain_attributes "fu_has_plain_attributes" (object type) noexcept
    int share_doc "fu_share_doc" (object function, object twin) except -1


cdef extern from "tensor_objects.h":
    object stolen "fu_stolen" (void* thing)
    bint row_count "fu_row_count" (PyObject* n, long long* rows) noexcept
    bint plain_tensors "fu_plain_tensors" (
        object thing, object cpu, object gpu, object method, PyObject** source, PyObject** target
    ) noexcept


cdef object _loaded = _runtime.load()  # raises what `fastutils` then reports as the reason
cdef const fu_bridge* bridge = <const fu_bridge*><size_t>_loaded.table
cdef object _Tensor = torch.Tensor
cdef PyTypeObject* Tensor = <PyTypeObject*>_Tensor


cdef inline bint is_tensor(object thing) noexcept:
    return Py_TYPE(<PyObject*>thing) == Tensor  # a subclass may change what any operator means


cdef object torch_copy(object from_tensor, object to_tensor, object length):
    cdef object rows = slice(None, length)  # what Cython makes of [:length] words some errors in its own way
    copy_ = to_tensor[rows].copy_  # first, as in Python: Cython would look it up after evaluating the argument
    return copy_(from_tensor[rows], non_blocking=True)


def copy_slice(from_tensor, to_tensor, length):
    cdef long long rows
    cdef void* view = NULL
    if (
        is_tensor(from_tensor)
        and is_tensor(to_tensor)
        and row_count(<PyObject*>length, &rows)
        and bridge.copy_rows(<void*>from_tensor, <void*>to_tensor, rows, &view) != FU_FALLBACK
    ):
        return stolen(view)
    return torch_copy(from_tensor, to_tensor, length)


# Whether the class that came last leaves its instances' tensors alone, and the version of which that holds.
cdef unsigned int seen_version = 0
cdef bint seen_plain = False


cdef inline bint is_plain(object cls) except -1:
    global seen_version, seen_plain
    if seen_version == 0 or class_version(cls) != seen_version:
        version = give_version(cls, "cpu")  # 0 where classes have none
        plain = has_plain_attributes(cls) and _plain.leaves_alone(cls, "cpu", "gpu") if version else cls is _Buffer
        seen_plain, seen_version = plain, version
    return seen_plain


cdef inline object copy_between(object buffer, str from_name, str to_name, object n):
    """``buffer.to_name[:n].copy_(buffer.from_name[:n])``, without ``[:n]`` if `n` is None.

    Everything is held, since whatever runs may give the buffer other tensors, and looked up in the order of Python: the
    source comes after the rows of the target, unless nobody can tell.
    """
    cdef long long rows
    cdef void* view = NULL
    cdef bint source_read = False
    target, source = getattr(buffer, to_name), None
    if is_tensor(target) and (n is None or row_count(<PyObject*>n, &rows)) and is_plain(type(buffer)):
        source, source_read = getattr(buffer, from_name), True
        if is_tensor(source) and n is None:
            if bridge.copy_whole(<void*>source, <void*>target) == FU_DONE:
                return target
        elif is_tensor(source) and bridge.copy_rows(<void*>source, <void*>target, rows, &view) != FU_FALLBACK:
            return stolen(view)
    if n is not None:
        target = target[slice(None, n)]
    copy_ = target.copy_
    if not source_read:
        source = getattr(buffer, from_name)
    return copy_(source if n is None else source[slice(None, n)], non_blocking=True)


cdef object copy_to_gpu "fu_copy_to_gpu" (object self, object n):
    return copy_between(self, "cpu", "gpu", n)


cdef object copy_to_cpu "fu_copy_to_cpu" (object self, object n):
    return copy_between(self, "gpu", "cpu", n)


cdef extern from *:
    """
    static PyObject *fu_copy_to_gpu(PyObject *, PyObject *), *fu_copy_to_cpu(PyObject *, PyObject *);
    FU_METHOD_OF_N(copy_to_gpu)
    FU_METHOD_OF_N(copy_to_cpu)
    """
    object method_copy_to_gpu "fu_method_copy_to_gpu" ()
    object method_copy_to_cpu "fu_method_copy_to_cpu" ()


class CpuGpuBuffer(_twin.CpuGpuBuffer):
    __doc__ = _twin.CpuGpuBuffer.__doc__

    copy_to_gpu, copy_to_cpu = method_copy_to_gpu(), method_copy_to_cpu()
    _staging_module = "fastutils.tensors._staging"


cdef object _Buffer = CpuGpuBuffer
cdef object _own_copy = CpuGpuBuffer.copy_to_gpu


# A round of plain copies, planned ahead. It holds what it names: the bridge may release the GIL, and any code then run.
cdef struct Round:
    Py_ssize_t filled
    PyObject* source[FU_ROUND]
    PyObject* target[FU_ROUND]
    int64_t rows[FU_ROUND]


# Puts entry i of `entries` into the round. False if only its Python form can say what it means. What is in a tuple of
# ours stays there; what lies in a buffer's dictionary is held before anything can run. `planned` takes references.
ctypedef bint (*reader)(tuple entries, tuple counts, Py_ssize_t i, Round* plan) noexcept


cdef inline bint planned(Round* plan, PyObject* source, PyObject* target, int64_t rows) noexcept:
    if Py_TYPE(source) != Tensor or Py_TYPE(target) != Tensor:
        Py_DECREF(source)
        Py_DECREF(target)
        return False
    plan.source[plan.filled], plan.target[plan.filled], plan.rows[plan.filled] = source, target, rows
    plan.filled += 1
    return True


cdef bint read_triple(tuple triples, tuple counts, Py_ssize_t i, Round* plan) noexcept:
    cdef long long rows
    entry = triples[i]
    if type(entry) is not tuple or len(<tuple>entry) != 3:  # whoever found the list of them put it there
        return False
    source, target, length = <tuple>entry
    if not row_count(<PyObject*>length, &rows):
        return False
    Py_INCREF(<PyObject*>source)
    Py_INCREF(<PyObject*>target)
    return planned(plan, <PyObject*>source, <PyObject*>target, rows)


# The version of our class while it is as we made it: a patched one may make anything of its copies.
cdef unsigned int usual_version = 0


cdef bint read_buffer(tuple buffers, tuple counts, Py_ssize_t i, Round* plan) noexcept:
    cdef PyObject* source
    cdef PyObject* target
    cdef long long rows = FU_ALL_ROWS
    buffer, n = buffers[i], counts[i]
    if type(buffer) is not _Buffer or usual_version == 0 or class_version(_Buffer) != usual_version:
        return False
    if n is not None and not row_count(<PyObject*>n, &rows):
        return False
    if not plain_tensors(buffer, "cpu", "gpu", "copy_to_gpu", &source, &target):
        return False
    return planned(plan, source, target, rows)


cdef int run(tuple entries, tuple counts, reader read, object one) except -1:
    """Copy in rounds what `read` finds plain, and by ``one(entry, count)`` what it does not or the bridge refuses.

    What comes after such an entry is read after it: its code may change what there is to copy.
    """
    cdef Py_ssize_t first = 0, done, i, limit = FU_ROUND
    cdef Round plan
    while first < len(entries):
        plan.filled = 0
        while plan.filled < limit and first + plan.filled < len(entries) and read(
            entries, counts, first + plan.filled, &plan
        ):
            pass
        done = 0
        if plan.filled:
            done = bridge.copy_many(plan.filled, <void**>plan.source, <void**>plan.target, plan.rows)
        for i in range(plan.filled):  # letting go may run code, but not change this plan
            Py_DECREF(plan.source[i])
            Py_DECREF(plan.target[i])
        first += done
        if done == limit:
            limit = min(2 * limit, <Py_ssize_t>FU_ROUND)
        elif first < len(entries):
            one(entries[first], counts[first])
            first += 1
            limit = 1  # not again 64 read in vain where none is plain
    return 0


cdef object as_triple = _copy_twin._as_triple
cdef object copy_one_triple = lambda triple, ignored: copy_slice(*triple)
cdef object copy_one_buffer = lambda buffer, n: buffer.copy_to_gpu(n)


# No list comprehensions: Cython's release an item twice where the list cannot grow (test_lists_that_cannot_grow).
def copy_slices(pairs, *, views=False):
    cdef tuple entries = as_tuple(pairs)
    cdef list triples = []
    for i, entry in enumerate(entries):
        triples.append(entry if type(entry) is tuple and len(<tuple>entry) == 3 else as_triple(entry, i, len(entries)))
    if views:
        return list(map(copy_one_triple, triples, triples))
    run(as_tuple(triples), entries, read_triple, copy_one_triple)


def copy_to_gpu_many(buffers, ns=None, *, views=False):
    global usual_version
    cdef tuple several = as_tuple(buffers), counts
    if type(ns) is not list and (ns is None or isinstance(ns, Integral)):  # asking an ABC costs as much as two copies
        counts = (ns,) * len(several)
    else:
        counts = as_tuple(ns)
    if len(counts) != len(several):
        raise ValueError(
            f"copy_to_gpu_many() got {len(several)} buffers but {len(counts)} row counts; give one per buffer"
        )
    if views:
        return list(map(copy_one_buffer, several, counts))
    usual_version = class_version(_Buffer) if is_plain(_Buffer) and _Buffer.copy_to_gpu is _own_copy else 0
    run(several, counts, read_buffer, copy_one_buffer)


cdef tuple _pairs = (
    (copy_slice, _copy_twin.copy_slice),
    (copy_slices, _copy_twin.copy_slices),
    (copy_to_gpu_many, _copy_twin.copy_to_gpu_many),
    (CpuGpuBuffer.copy_to_gpu, _twin.CpuGpuBuffer.copy_to_gpu),
    (CpuGpuBuffer.copy_to_cpu, _twin.CpuGpuBuffer.copy_to_cpu),
)
for _compiled, _python in _pairs:
    share_doc(_compiled, _python)
_tracing.make_traceable(*_pairs)
for _public in (copy_slice, copy_slices, copy_to_gpu_many, CpuGpuBuffer):
    _public.__module__ = "fastutils"
