# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
# cython: boundscheck=False, wraparound=False
"""compute_iteration_details, compiled. ``iteration`` holds the Python form, which says what this one must do."""

from cpython.object cimport PyObject

from functools import cached_property

from fastutils import _phases
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
    list attribute_of_each "fu_attribute_of_each" (list objects, object name, PyObject** others)
    object stolen "(PyObject*)" (PyObject* reference)
    object new_instance "fu_new_instance" (object type, tuple no_arguments)
    PyObject* class_attribute "fu_class_attribute" (object object, object name) noexcept
    bint has_plain_attributes "fu_has_plain_attributes" (object object) noexcept
    PyObject* code_of "fu_code_of" (PyObject* function) noexcept
    void Py_XDECREF(PyObject* object) noexcept


# A small int has at most 30 bits, so no sum of them can overflow.
ctypedef struct Counts:
    Py_ssize_t requests
    Py_ssize_t tokens
    Py_ssize_t ctx_requests
    Py_ssize_t ctx_tokens


cdef bint in_step(dict tokens, list req_ids, list outputs, list new_ids, Counts* counts) noexcept:
    """Count if `tokens` names the cached and the new requests, each once and both in their own order.

    vLLM fills all of them in one pass, with the same id objects, so that this is the usual case. Nothing but
    identities is compared. As the keys of a dict are distinct and there are as many as ids in the lists, each request
    is in one list, and there once. False if it is otherwise.
    """
    cdef Py_ssize_t position = 0, cached = 0, new = 0, num_tokens, num_outputs
    cdef Py_ssize_t all_tokens = 0, ctx_requests = 0, ctx_tokens = 0
    cdef Py_ssize_t num_cached = list_size(req_ids), num_new = list_size(new_ids)
    cdef PyObject* key
    cdef PyObject* value
    if dict_size(tokens) != num_cached + num_new:
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


cdef bint in_any_order(dict tokens, list req_ids, list outputs, list new_ids, Counts* counts) except -1:
    """Count by the set of all ids in context, which is small while most requests generate. False: not all is plain."""
    cdef Py_ssize_t i, position = 0, num_tokens, num_outputs
    cdef Py_ssize_t all_tokens = 0, ctx_requests = 0, ctx_tokens = 0
    cdef PyObject* key
    cdef PyObject* value
    cdef set context = set()
    for i in range(list_size(req_ids)):
        if not small_int(list_item(outputs, i), &num_outputs) or not is_exact_str(list_item(req_ids, i)):
            return False
        if num_outputs == 0:
            context.add(<object>list_item(req_ids, i))
        elif context:
            context.discard(<object>list_item(req_ids, i))  # a repeated id counts by its last entry
    context.update(new_ids)
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


cdef bint by_map(dict tokens, dict outputs_of, list new_ids, Counts* counts) except -1:
    """Count by the map that somebody has already made of the cached requests: it is what counts then, not the lists."""
    cdef Py_ssize_t position = 0, num_tokens, num_outputs
    cdef Py_ssize_t all_tokens = 0, ctx_requests = 0, ctx_tokens = 0
    cdef PyObject* key
    cdef PyObject* value
    cdef set new = set(new_ids)
    while PyDict_Next(outputs_of, &position, &key, &value):
        if not is_exact_str(key):
            return False
    position = 0
    while PyDict_Next(tokens, &position, &key, &value):
        if not small_int(value, &num_tokens) or not is_exact_str(key):
            return False
        num_outputs = 1
        value = PyDict_GetItemWithError(outputs_of, key)
        if value != NULL and not small_int(value, &num_outputs):
            return False
        all_tokens += num_tokens
        if num_outputs == 0 or (new and <object>key in new):
            ctx_requests += 1
            ctx_tokens += num_tokens
    counts[0] = Counts(dict_size(tokens), all_tokens, ctx_requests, ctx_tokens)
    return True


# The class attributes that were judged last, kept alive so that their addresses stay theirs.
cdef object judged_phase = None, judged_code = None, judged_map = None
cdef bint judged_well = False


cdef bint judge(PyObject* phase, PyObject* code, PyObject* mapping) except -1:
    global judged_phase, judged_code, judged_map, judged_well
    well = bool(_phases.is_recognised(<object>phase, <object>code, <object>mapping))
    judged_phase, judged_code, judged_map, judged_well = <object>phase, <object>code, <object>mapping, well
    return well


cdef bint asks_only_the_lists(object cached) except -1:
    """Whether ``cached.is_context_phase`` is of a recognised class. Looked up each time: a class can be changed."""
    cdef PyObject* phase = class_attribute(cached, "is_context_phase")
    cdef PyObject* mapping = class_attribute(cached, "_req_id_to_num_output_tokens")
    cdef PyObject* code = code_of(phase) if phase != NULL else NULL
    try:
        if code == NULL or mapping == NULL or not has_plain_attributes(cached):
            return False  # the method is no Python function, or there is more to finding it
        if (
            phase == <PyObject*>judged_phase
            and code == <PyObject*>judged_code
            and mapping == <PyObject*>judged_map
        ):
            return judged_well
        if type(<object>mapping) is not cached_property:
            return False
        return judge(phase, code, mapping)
    finally:
        Py_XDECREF(phase)
        Py_XDECREF(mapping)
        Py_XDECREF(code)


cdef bint count_plain(object cached, dict tokens, list new_ids, Counts* counts) except -1:
    """Count if ``is_context_phase`` is of a recognised class and all it asks is built-in and plain. Else False."""
    cdef list req_ids, outputs
    cdef PyObject* found
    if not asks_only_the_lists(cached):
        return False
    found = PyObject_GenericGetDict(cached, NULL)
    if found == NULL:
        PyErr_Clear()
        return False  # it has slots only, in which nothing can be cached
    attributes = stolen(found)
    if "is_context_phase" in <dict>attributes:
        return False
    if "_req_id_to_num_output_tokens" in <dict>attributes:
        made = (<dict>attributes)["_req_id_to_num_output_tokens"]
        return type(made) is dict and by_map(tokens, made, new_ids, counts)
    given_ids, given_outputs = cached.req_ids, cached.num_output_tokens
    if type(given_ids) is not list or type(given_outputs) is not list:
        return False
    req_ids, outputs = given_ids, given_outputs
    if list_size(req_ids) != list_size(outputs):
        return False
    return in_step(tokens, req_ids, outputs, new_ids, counts) or in_any_order(tokens, req_ids, outputs, new_ids, counts)


cdef object ask(object scheduler_output, object cached, set new_req_ids, dict tokens):
    """Ask ``is_context_phase`` for every request, as the Python form does.

    `cached` is the output's ``scheduled_cached_reqs`` as read for the first request.
    """
    cdef Py_ssize_t num_ctx_requests = 0, num_generation_requests = 0
    num_ctx_tokens = num_generation_tokens = 0
    items = iter(tokens.items())  # Cython's own walk over a dict would miss a key that was exchanged for another
    for req_id, num_tokens in items:
        if cached is None:
            cached = scheduler_output.scheduled_cached_reqs
        context = cached.is_context_phase(req_id)
        cached = None
        if context or req_id in new_req_ids:
            num_ctx_requests += 1
            num_ctx_tokens += num_tokens
        else:
            num_generation_requests += 1
            num_generation_tokens += num_tokens
    return IterationDetails(num_ctx_requests, num_ctx_tokens, num_generation_requests, num_generation_tokens)


cdef tuple no_arguments = ()


def compute_iteration_details(scheduler_output):
    """Count the requests and tokens that `scheduler_output` schedules, by context and generation.

    `scheduler_output` is vLLM's ``SchedulerOutput`` or anything with ``num_scheduled_tokens`` (a mapping of request id
    to tokens), ``scheduled_new_reqs`` (objects with ``req_id``) and ``scheduled_cached_reqs`` (with
    ``is_context_phase(req_id)``). A request counts as context if ``is_context_phase`` says so or if it is new.
    It is only read; whatever its parts raise is raised here.

    Upstream: ``vllm.v1.utils.compute_iteration_details``.
    """
    cdef Counts counts
    cdef list new_ids
    cdef set new_req_ids = None
    cdef PyObject* others = NULL
    # Everything is read in the order of the Python form, so whatever raises does it at the same place. New ids come
    # first; their requests may be of any class, and nothing may change the dict while it is walked.
    requests = scheduler_output.scheduled_new_reqs
    if type(requests) is list:
        new_ids = attribute_of_each(requests, "req_id", &others)
        if others != NULL:
            new_req_ids = stolen(others)
    else:
        new_ids = []
        new_req_ids = {new.req_id for new in requests}
    tokens = scheduler_output.num_scheduled_tokens
    if type(tokens) is not dict or not <dict>tokens:
        return ask_in_python(scheduler_output, set(new_ids) if new_req_ids is None else new_req_ids, tokens)
    cached = scheduler_output.scheduled_cached_reqs
    if new_req_ids is not None or not count_plain(cached, tokens, new_ids, &counts):
        return ask(scheduler_output, cached, set(new_ids) if new_req_ids is None else new_req_ids, tokens)
    details = new_instance(IterationDetails, no_arguments)
    PyObject_GenericSetAttr(details, "num_ctx_requests", counts.ctx_requests)
    PyObject_GenericSetAttr(details, "num_ctx_tokens", counts.ctx_tokens)
    PyObject_GenericSetAttr(details, "num_generation_requests", counts.requests - counts.ctx_requests)
    PyObject_GenericSetAttr(details, "num_generation_tokens", counts.tokens - counts.ctx_tokens)
    return details


compute_iteration_details.__module__ = "fastutils"
