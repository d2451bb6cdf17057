# cython: language_level=3, binding=False, embedsignature=False
# cython: auto_pickle=False, wraparound=False
"""Uploads through event-guarded slots, compiled. ``staging.uploads`` holds the Python form, which says what this must
do, and does what is no plain upload of plain tensors."""

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from fastutils.tensors.bridge cimport (
    FU_ALL_ROWS, FU_DONE, FU_FALLBACK, FU_NEEDS_SLOT, FU_ROUND, fu_bridge, fu_place, fu_staging_stats
)

import torch

from fastutils.tensors import _copy
from fastutils.tensors import runtime as _runtime
from fastutils.tensors.staging import buffer as _buffer
from fastutils.tensors.staging import forks as _forks
from fastutils.tensors.staging import group as _twin
from fastutils.tensors.staging import uploads as _torch_way
from fastutils.tensors.staging.stats import StagingStats


cdef extern from "Python.h":
    PyObject* PyTuple_GET_ITEM(object several, Py_ssize_t i) noexcept
    PyTypeObject* Py_TYPE(PyObject* thing) noexcept


cdef extern from "exact.h":
    tuple as_tuple "fu_tuple" (object given)


cdef extern from "tensor_objects.h":
    object stolen "fu_stolen" (void* thing)
    bint row_count "fu_row_count" (PyObject* n, long long* rows) noexcept


cdef extern from "objects.h":
    int share_doc "fu_share_doc" (object function, object twin) except -1


cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()


cdef object _loaded = _runtime.load()  # raises what `fastutils` then reports as the reason
cdef const fu_bridge* bridge = <const fu_bridge*><size_t>_loaded.table
cdef list generation = _forks.generation
cdef object _Tensor = torch.Tensor

cdef enum:
    NOT_ASKED = -1

cdef object _name_of = lambda spec: spec.name
cdef object _is_scalar = lambda spec: not spec.shape


# How many rows are asked of each buffer. On the stack, since a finaliser may flush the same group in the middle.
cdef struct Rows:
    int64_t of[FU_ROUND]


@cython.no_gc_clear  # the bridge borrows the tensors: they must last as long as this does
cdef class Uploads:
    cdef readonly object slabs
    cdef object torch_way  # for what the bridge hands over, with slots of its own
    cdef void* staging
    cdef Py_ssize_t count
    cdef int64_t* limits
    cdef bytearray left
    # Of a kind that nobody can change, whoever comes by them.
    cdef bytes scalar
    cdef tuple cpus, gpus, names
    cdef bint on_host, pin_memory
    cdef int made_in

    # Not __init__, which anybody may call again, or not at all. `count` is 0 until everything is there.
    def __cinit__(self, slabs, *, int slots, int max_slots, bint pin_memory, rules):
        cdef Py_ssize_t count, i
        cdef fu_place* places = NULL
        cdef void** tensors = NULL
        self.slabs, self.left, self.pin_memory, self.made_in = slabs, slabs.left, pin_memory, generation[0]
        self.torch_way = _torch_way.Uploads(slabs, slots=0, max_slots=max_slots, pin_memory=pin_memory, rules=rules)
        self.on_host = self.torch_way.on_host
        self.cpus, self.gpus, host, device = as_tuple(slabs.cpus), as_tuple(slabs.gpus), slabs.host, slabs.device
        cdef tuple specs = as_tuple(slabs.specs), given = as_tuple(slabs.places)
        self.names, self.scalar = tuple(map(_name_of, specs)), bytes(map(_is_scalar, specs))
        count = len(specs)
        if not count == len(given) == len(self.cpus) == len(self.gpus) == len(self.names) == len(self.scalar):
            raise ValueError("the slabs do not agree on how many buffers there are")
        for tensor in (host, device, *self.cpus, *self.gpus):
            if type(tensor) is not torch.Tensor:
                raise TypeError(f"slabs are made of torch.Tensor, not of {type(tensor).__name__}")
        try:
            self.limits = <int64_t*>PyMem_Malloc((count + 1) * sizeof(int64_t))
            places = <fu_place*>PyMem_Malloc((count + 1) * sizeof(fu_place))
            tensors = <void**>PyMem_Malloc((2 * count + 1) * sizeof(void*))
            if self.limits == NULL or places == NULL or tensors == NULL:
                raise MemoryError
            for i in range(count):
                self.limits[i] = specs[i].rows
                place = given[i]
                places[i] = fu_place(place.offset, place.capacity, place.pitch)
                tensors[i], tensors[count + i] = <void*>self.cpus[i], <void*>self.gpus[i]
            # Tensors on a device that the bridge has no runtime for are torch's.
            self.staging = bridge.staging_new(
                <void*>host, <void*>device, count, tensors, tensors + count, places, max_slots
            )
        finally:
            PyMem_Free(places)
            PyMem_Free(tensors)
        self.configure(rules)
        if self.staging != NULL and not self.on_host:
            for _ in range(slots):
                self.add_slot()
        self.count = count

    def __dealloc__(self):
        # What a fork has of a device cannot be given back to it.
        if self.staging != NULL and (self.on_host or generation[0] == self.made_in):
            bridge.staging_free(self.staging)
        PyMem_Free(self.limits)

    cdef int add_slot(self) except -1:
        with torch.inference_mode(False):
            memory = torch.empty(self.slabs.bytes, dtype=torch.uint8, device="cpu", pin_memory=self.pin_memory)
        bridge.staging_add_slot(self.staging, <void*>memory)  # refused if another thread was first: then it is dropped
        return 0

    def configure(self, rules):
        self.torch_way.configure(rules)
        if self.staging != NULL:
            bridge.staging_configure(self.staging, rules.pack, rules.gap)

    def flush(self, request):
        cdef Rows few
        cdef int64_t* rows = &few.of[0]
        if self.count > FU_ROUND or not self.read(request, rows):
            return self.send(self.slabs.rows(request))
        self.run(rows)

    def send(self, asked):
        cdef int64_t* rows = <int64_t*>PyMem_Malloc((self.count + 1) * sizeof(int64_t))
        try:
            if rows == NULL:
                raise MemoryError
            self.fill(as_tuple(asked), rows)
            self.run(rows)
        finally:
            PyMem_Free(rows)

    def send_one(self, Py_ssize_t i, int64_t n):
        cdef Rows rows
        cdef Py_ssize_t k
        if not 0 <= i < self.count:
            raise IndexError(f"there is no buffer {i}")
        if self.count > FU_ROUND:
            asked = [NOT_ASKED] * self.count
            asked[i] = n
            return self.send(asked)
        for k in range(self.count):
            rows.of[k] = NOT_ASKED
        rows.of[i] = n
        self.run(&rows.of[0])

    cdef int fill(self, tuple asked, int64_t* rows) except -1:
        cdef Py_ssize_t i
        if len(asked) != self.count:
            raise ValueError(f"{len(asked)} counts were given for {self.count} buffers")
        for i in range(self.count):
            rows[i] = asked[i]
        return 0

    # The requests that engines make, without running any code: exact ints, None, and exact dicts of names to these.
    # Interned strs, as names in programs are, are the same object if they are equal. False for every other request,
    # wrong ones included, which `Slabs.rows` reads or refuses.
    cdef bint read(self, request, int64_t* rows) except -1:
        cdef long long n = -1
        cdef Py_ssize_t i, k, next = 0, position = 0
        cdef PyObject* name
        cdef PyObject* given
        cdef const unsigned char* left = self.left
        if len(self.left) != self.count:
            return False
        if request is None or row_count(<PyObject*>request, &n):
            for i in range(self.count):
                if left[i]:
                    rows[i] = NOT_ASKED
                elif n > self.limits[i]:
                    return False
                else:
                    rows[i] = self.limits[i] if request is None else n
            return True
        if type(request) is not dict:
            return False
        for i in range(self.count):
            rows[i] = NOT_ASKED
        while PyDict_Next(request, &position, &name, &given):
            for k in range(self.count):  # where the last one was found, or behind it, first
                i = next + k if next + k < self.count else next + k - self.count
                if PyTuple_GET_ITEM(self.names, i) == name:
                    break
            else:
                return False
            next = i
            if left[i]:
                return False
            if given == <PyObject*>None:
                rows[i] = self.limits[i]
            elif row_count(given, &n) and n <= self.limits[i]:
                rows[i] = n
            else:
                return False
        return True

    cdef int run(self, int64_t* rows) except -1:
        cdef Py_ssize_t i
        cdef int outcome = FU_FALLBACK
        cdef const unsigned char* scalar = self.scalar
        cdef PyTypeObject* Tensor = <PyTypeObject*>_Tensor
        if self.staging != NULL and not self.torch_way.closed and (self.on_host or generation[0] == self.made_in):
            for i in range(self.count):
                if rows[i] == NOT_ASKED:
                    continue
                if scalar[i] and 0 <= rows[i] <= 1:
                    rows[i] = FU_ALL_ROWS if rows[i] else NOT_ASKED
                if (  # a subclass, which `__class__ =` makes of them, may change what any operator means
                    Py_TYPE(PyTuple_GET_ITEM(self.cpus, i)) != Tensor
                    or Py_TYPE(PyTuple_GET_ITEM(self.gpus, i)) != Tensor
                ):
                    break
            else:
                outcome = FU_DONE
        if outcome == FU_DONE:
            outcome = bridge.staging_flush(self.staging, rows)
            while outcome == FU_NEEDS_SLOT:
                self.add_slot()
                outcome = bridge.staging_flush(self.staging, rows)
        if outcome == FU_FALLBACK:
            asked = [NOT_ASKED] * self.count  # no comprehension (test_lists_that_cannot_grow)
            for i in range(self.count):
                asked[i] = 1 if rows[i] == FU_ALL_ROWS else rows[i]
            self.torch_way.send(asked)
        return 0

    def stats(self, bint reset):
        cdef fu_staging_stats own
        found = self.torch_way.stats(reset)
        if self.staging == NULL:
            return found
        bridge.staging_stats(self.staging, reset, &own)
        return found + StagingStats(
            own.flushes, own.runtime_calls, own.live_bytes, own.bytes_moved,
            own.waits, own.ns_waited, own.slots, own.peak_slots,
        )

    def close(self):
        self.torch_way.close()
        if self.staging != NULL:
            bridge.staging_close(self.staging)


cdef class Membership:
    cdef readonly object group, name, plain_class, uploads
    cdef readonly Py_ssize_t index
    cdef dict steps

    def __init__(self, group, name, plain_class):
        self.uploads, self.index = None, -1  # from the layout on, and with it the place among its buffers
        self.group, self.name, self.plain_class, self.steps = group, name, plain_class, group._steps

    def laid_out(self, Uploads uploads not None, Py_ssize_t index):
        if not 0 <= index < uploads.count:
            raise IndexError(f"there is no buffer {index}")
        self.uploads, self.index = uploads, index

    def send(self, int64_t rows):
        cdef list collected = None
        if self.steps:
            collected = self.steps.get(PyThread_get_thread_ident())
        if collected is None:
            (<Uploads?>self.uploads).send_one(self.index, rows)
        elif rows > collected[self.index]:
            collected[self.index] = rows


cdef object copy_to_gpu "fu_copy_to_gpu" (object self, object n):
    cdef long long rows = 0
    cdef void* view = NULL
    cdef Membership member
    cdef Uploads uploads
    target, found = self.gpu, self._staging  # in this order: the first use lays the group out
    if type(found) is Membership and (n is None or row_count(<PyObject*>n, &rows)):
        member = found
        uploads = member.uploads
        if uploads is not None and uploads.staging != NULL:
            if n is None:
                rows = uploads.limits[member.index]
            if (
                rows <= uploads.limits[member.index]
                and target is uploads.gpus[member.index]
                and bridge.staging_view(uploads.staging, member.index, rows, &view) != FU_FALLBACK
            ):
                made = stolen(view)
                member.send(rows)
                return target if n is None else made
    return torch_copy_to_gpu(self, n)


cdef extern from *:
    """
    static PyObject *fu_copy_to_gpu(PyObject *, PyObject *);
    FU_METHOD_OF_N(copy_to_gpu)
    """
    object method_copy_to_gpu "fu_method_copy_to_gpu" ()


cdef object torch_copy_to_gpu = _buffer.Staged.copy_to_gpu


class Staged(_buffer.Staged):
    __doc__ = _buffer.Staged.__doc__

    copy_to_gpu = method_copy_to_gpu()


share_doc(Staged.copy_to_gpu, torch_copy_to_gpu)


class StagingGroup(_twin.StagingGroup):
    __doc__ = _twin.StagingGroup.__doc__

    _uploads_class = Uploads
    _buffer_class = _copy.CpuGpuBuffer
    _membership_class = Membership


StagingGroup.__module__ = "fastutils"
