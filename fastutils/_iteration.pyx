# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
# cython: boundscheck=False, wraparound=False
"""compute_iteration_details, compiled. ``iteration`` holds the Python form, which says what this one must do."""

from cpython.object cimport PyObject

from fastutils import _phases
from fastutils import iteration as _twin
from fastutils import tracing as _tracing
from fastutils.iteration import IterationDetails
from fastutils.iteration import _ask as ask_in_python


cdef extern from "Python.h":
    int PyDict_Next(object dict, Py_ssize_t* position, PyObject** key, PyObject** value) noexcept
    PyObject* PyDict_GetItemWithError(object dict, PyObject* key) except? NULL
    int PyObject_GenericSetAttr(object object, object name, object value) except -1
    PyObject* PyObject_GenericGetDict(object object, void* context) noexcept
    void PyErr_Clear()


cdef extern from "exact.h":
    bint small_int "fu_small_int" (PyObject* object, Py_ssize_t* value) noexcept
    Py_ssize_t list_size "FU_LIST_SIZE" (object list) noexcept
    PyObject* list_item "FU_LIST_ITEM" (object list, Py_ssize_t i) noexcept
    Py_ssize_t dict_size "FU_DICT_SIZE" (object dict) noexcept
    bint is_exact_str "PyUnicode_CheckExact" (PyObject* object) noexcept


cdef extern from "objects.h":
    object stolen "(PyObject*)" (PyObject* reference)
    object new_instance "fu_new_instance" (object type, tuple no_arguments)
    unsigned int class_version "fu_class_version" (object type) noexcept
    unsigned int give_version "fu_give_version" (object type, object name) noexcept
    bint has_plain_attributes "fu_has_plain_attributes" (object type) noexcept
    PyObject* code_of "fu_code_of" (object function) noexcept
    int share_doc "fu_share_doc" (object function, object twin) except -1


# A small int has at most 30 bits, so no sum of them can overflow.
ctypedef struct Counts:
    Py_ssize_t requests
    Py_ssize_t tokens
    Py_ssize_t ctx_requests
    Py_ssize_t ctx_tokens


cdef bint in_step(dict tokens, list req_ids, list outputs, list new_ids, Counts* counts) noexcept:
    """Count if `tokens` names the cached and the new requests, each once and both in their own order.

    vLLM fills all of them in one pass, with the same id objects, so that this is the usual case. Nothing but
    identities is compared, so no code can run and change what is borrowed here. As the keys of a dict are distinct and
    there are as many as ids in the lists, each request is in one list, and there once. False if it is otherwise.
    """
    cdef Py_ssize_t position = 0, cached = 0, new = 0, num_tokens, num_outputs
    cdef Py_ssize_t all_tokens = 0, ctx_requests = 0, ctx_tokens = 0
    cdef Py_ssize_t num_cached = list_size(req_ids), num_new = list_size(new_ids)
    cdef PyObject* key
    cdef PyObject* value
    if dict_size(tokens) != num_cached + num_new or list_size(outputs) != num_cached:
        return False
    while PyDict_Next(tokens, &position, &key, &value):
        if not small_int(value, &num_tokens) or not is_exact_str(key):
            return False
        if cached < num_cached and list_item(req_ids, cached) == key:
            if not small_int(list_item(outputs, cached), &num_outputs):
                return False
            cached += 1
        elif new < num_new and list_item(new_ids, new) == key:
            num_outputs = 0
            new += 1
        else:
            return False
        all_tokens += num_tokens
        if num_outputs == 0:
            ctx_requests += 1
            ctx_tokens += num_tokens
    counts[0] = Counts(num_cached + num_new, all_tokens, ctx_requests, ctx_tokens)
    return True


cdef bint fill_from_lists(set context, list req_ids, list outputs) except -1:
    """Put the ids in context phase into `context`, in which a repeated id counts by its last entry.

    No code can run here, though `context` was allocated after the lists were last looked at: exact strs are hashed,
    compared and let go without any, and a set's table is not an object that the collector counts.
    """
    cdef Py_ssize_t i, num_outputs
    if list_size(req_ids) != list_size(outputs):
        return False
    for i in range(list_size(req_ids)):
        if not small_int(list_item(outputs, i), &num_outputs) or not is_exact_str(list_item(req_ids, i)):
            return False
        if num_outputs == 0:
            context.add(<object>list_item(req_ids, i))
        elif context:
            context.discard(<object>list_item(req_ids, i))
    return True


cdef bint fill_from_map(set context, dict outputs_of) except -1:
    """The same by the map that somebody has already made of the lists: it is what counts then. No code can run here."""
    cdef Py_ssize_t position = 0, num_outputs
    cdef PyObject* key
    cdef PyObject* value
    while PyDict_Next(outputs_of, &position, &key, &value):
        if not small_int(value, &num_outputs) or not is_exact_str(key):
            return False
        if num_outputs == 0:
            context.add(<object>key)
    return True


cdef bint by_context(dict tokens, set context, Counts* counts) except -1:
    """Count by the set of all ids in context, which is small while most requests generate. False: not all is plain.

    No code can run here: the keys of `tokens` are seen to be exact strs before one is looked up, and `context` is ours.
    """
    cdef Py_ssize_t position = 0, num_tokens, all_tokens = 0, ctx_requests = 0, ctx_tokens = 0
    cdef PyObject* key
    cdef PyObject* value
    while PyDict_Next(tokens, &position, &key, &value):
        if not small_int(value, &num_tokens) or not is_exact_str(key):
            return False
        all_tokens += num_tokens
    for req_id in context:
        value = PyDict_GetItemWithError(tokens, <PyObject*>req_id)
        if value != NULL and small_int(value, &num_tokens):
            ctx_requests += 1
            ctx_tokens += num_tokens
    counts[0] = Counts(dict_size(tokens), all_tokens, ctx_requests, ctx_tokens)
    return True


cdef class Known:
    """What `find` says of the class that came last. Holds for as long as that class keeps its version."""

    cdef object find, found
    cdef unsigned int version

    def __init__(self, find):
        self.find = find

    cdef object about(self, object cls):
        cdef unsigned int version
        if self.version == 0 or class_version(cls) != self.version:
            version = give_version(cls, "is_context_phase")
            found = self.find(cls) if has_plain_attributes(cls) else None
            _before = self.found  # let go of last: its end may run code that comes here again
            self.found, self.version = found, version
            return found
        return self.found


cdef Known outputs = Known(_phases.plain_output)
cdef Known phases = Known(_phases.recognised)
cdef Known results = Known(_phases.plain_result)


cdef bint count_plain(object cached, dict tokens, list new_ids, Counts* counts) except -1:
    """Count if ``is_context_phase`` is of a recognised class and all it asks is built-in and plain. Else False."""
    cdef PyObject* found
    cdef set context
    recognised = phases.about(type(cached))
    if recognised is None or stolen(code_of(recognised[0])) is not recognised[1]:
        return False
    found = PyObject_GenericGetDict(cached, NULL)
    if found == NULL:
        PyErr_Clear()
        return False  # it has slots only, in which nothing can be cached
    attributes = stolen(found)
    if "is_context_phase" in <dict>attributes:
        return False
    made = (<dict>attributes).get("_req_id_to_num_output_tokens", no_arguments)
    if made is not no_arguments:
        context = set()
        if type(made) is not dict or not fill_from_map(context, made):
            return False
    else:
        req_ids, outputs = cached.req_ids, cached.num_output_tokens
        if type(req_ids) is not list or type(outputs) is not list:
            return False
        if in_step(tokens, req_ids, outputs, new_ids, counts):
            return True
        context = set()
        if not fill_from_lists(context, req_ids, outputs):
            return False
    context.update(new_ids)
    return by_context(tokens, context, counts)


cdef tuple no_arguments = ()


def compute_iteration_details(scheduler_output):
    cdef Counts counts
    cdef list new_ids
    cdef set other_ids = None
    cdef Py_ssize_t filled = 0
    # Everything is read in the order of the Python form, so whatever raises does it at the same place. New ids come
    # first; their requests may be of any class, and nothing may change the dict while it is walked. From the first id
    # that is no plain str on, each is hashed before the next is read, as in a set: only a str's hash runs no code.
    requests = scheduler_output.scheduled_new_reqs
    new_ids = [None] * len(<list>requests) if type(requests) is list else []  # room; never half-filled
    for request in requests:
        req_id = request.req_id
        if other_ids is None and type(req_id) is str:
            if filled < list_size(new_ids):
                new_ids[filled] = req_id
            else:
                new_ids.append(req_id)
            filled += 1
        else:
            if other_ids is None:
                other_ids = set(new_ids[:filled])
            other_ids.add(req_id)
    if filled < list_size(new_ids):
        del new_ids[filled:]
    tokens = scheduler_output.num_scheduled_tokens
    if (
        other_ids is not None
        or type(tokens) is not dict
        or not <dict>tokens
        or not outputs.about(type(scheduler_output))
        or not results.about(IterationDetails)
        or not count_plain(scheduler_output.scheduled_cached_reqs, tokens, new_ids, &counts)
    ):
        return ask_in_python(scheduler_output, set(new_ids) if other_ids is None else other_ids, tokens)
    details = new_instance(IterationDetails, no_arguments)
    PyObject_GenericSetAttr(details, "num_ctx_requests", counts.ctx_requests)
    PyObject_GenericSetAttr(details, "num_ctx_tokens", counts.ctx_tokens)
    PyObject_GenericSetAttr(details, "num_generation_requests", counts.requests - counts.ctx_requests)
    PyObject_GenericSetAttr(details, "num_generation_tokens", counts.tokens - counts.ctx_tokens)
    return details


compute_iteration_details.__module__ = "fastutils"
share_doc(compute_iteration_details, _twin.compute_iteration_details)
_tracing.make_traceable((compute_iteration_details, _twin.compute_iteration_details))
