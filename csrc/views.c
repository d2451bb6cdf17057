/* ConstantList, compiled. fastutils/views.py holds the Python form, which says what this one must do.
 *
 * In C because it is all type slots: a heap type's name, its instance dictionary and an attribute that may be missing
 * behave as those of a Python class do, which Cython's extension types do not give.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "arguments.h"
#include "exact.h"
#include "single_interpreter.h"

/* Where `_x` is kept: in `x`, or in `dict` as any attribute of a Python class is.
 * In `dict` it is for a subclass, which may make `_x` something else, and while somebody outside has the dictionary in
 * hand and could see or change it there (test_state_is_in_the_dictionary). */
typedef struct {
  PyObject_HEAD PyObject* x;
  PyObject* dict;
  PyObject* weakrefs;
} View;

static PyTypeObject* view_type;
static PyObject* sequence_count; /* collections.abc.Sequence.count */
static PyObject* registration;   /* the ABC that makes the type a Sequence; Sequence itself holds it weakly */
static PyObject *str_x, *str_index, *str_count, *str_copy, *int_zero;

static int dict_is_in_other_hands(View* view) {
#ifdef Py_GIL_DISABLED
  return view->dict != NULL;
#else
  return view->dict != NULL && Py_REFCNT(view->dict) > 1;
#endif
}

/* A new reference to what is viewed: whatever Python code does to the view meanwhile, it stays alive. */
static PyObject* viewed(PyObject* self) {
  View* view = (View*)self;
  PyObject* x = view->x;
  if (x != NULL) {
    Py_INCREF(x);
    return x;
  }
  x = PyObject_GetAttr(self, str_x);
  if (x != NULL && Py_TYPE(self) == view_type && view->x == NULL && view->dict != NULL &&
      !dict_is_in_other_hands(view)) { /* the dictionary is nobody else's any more: back to where reading is quick */
    if (PyDict_DelItem(view->dict, str_x) < 0) {
      PyErr_Clear();
    } else {
      Py_INCREF(x);
      view->x = x;
    }
  }
  return x;
}

/* What goes through another object's slot may come back here: a view of itself, or a long chain of views. */
#define ENTER_OR(failed) \
  if (Py_EnterRecursiveCall(" while reading a constant list")) return (failed)

/* ---- reading -------------------------------------------------------------------------------------------------- */

FU_APART static Py_ssize_t length_of_any(PyObject* self) {
  ENTER_OR(-1);
  PyObject* x = viewed(self);
  Py_ssize_t size = x ? PyObject_Size(x) : -1;
  Py_XDECREF(x);
  Py_LeaveRecursiveCall();
  return size;
}

static Py_ssize_t view_length(PyObject* self) {
  PyObject* x = ((View*)self)->x;
  return fu_is_exact_list(x) ? FU_LIST_SIZE(x) : length_of_any(self);
}

FU_APART static PyObject* subscript_any(PyObject* self, PyObject* key) {
  ENTER_OR(NULL);
  PyObject* x = viewed(self);
  PyObject* result = x && PyList_CheckExact(x) && PySlice_Check(key) ? fu_plain_slice(x, key) : NULL;
  if (x && result == NULL) result = PyObject_GetItem(x, key);
  Py_XDECREF(x);
  Py_LeaveRecursiveCall();
  return result;
}

static PyObject* view_subscript(PyObject* self, PyObject* key) {
  PyObject* x = ((View*)self)->x;
  Py_ssize_t i;
  if (fu_is_exact_list(x) && fu_small_int(key, &i)) {
    Py_ssize_t size = FU_LIST_SIZE(x);
    if (i < 0) i += size;
    if (0 <= i && i < size) {
      PyObject* item = FU_LIST_ITEM(x, i);
      Py_INCREF(item);
      return item;
    }
  }
  return subscript_any(self, key);
}

static PyObject* view_item(PyObject* self, Py_ssize_t i) {
  PyObject* key = PyLong_FromSsize_t(i);
  if (key == NULL) return NULL;
  PyObject* item = view_subscript(self, key);
  Py_DECREF(key);
  return item;
}

static PyObject* view_iter(PyObject* self) {
  ENTER_OR(NULL);
  PyObject* x = viewed(self);
  PyObject* iterator = x ? PyObject_GetIter(x) : NULL;
  Py_XDECREF(x);
  Py_LeaveRecursiveCall();
  return iterator;
}

/* As list.__contains__, from `start` on: the length is read anew after every comparison, which may run any code. */
FU_APART static int contains_from(PyObject* list, PyObject* needle, Py_ssize_t start) {
  int found = 0;
  Py_INCREF(list);
  for (Py_ssize_t i = start; !found && i < FU_LIST_SIZE(list); i++) {
    PyObject* item = FU_LIST_ITEM(list, i);
    Py_INCREF(item);
    found = PyObject_RichCompareBool(item, needle, Py_EQ);
    Py_DECREF(item);
  }
  Py_DECREF(list);
  return found;
}

FU_APART static int contains_any(PyObject* self, PyObject* item) {
  ENTER_OR(-1);
  PyObject* x = viewed(self);
  int found = x ? PySequence_Contains(x, item) : -1;
  Py_XDECREF(x);
  Py_LeaveRecursiveCall();
  return found;
}

static int view_contains(PyObject* self, PyObject* item) {
  PyObject* x = ((View*)self)->x;
  Py_ssize_t value, undecided;
  if (!fu_is_exact_list(x) || !fu_small_int(item, &value)) return contains_any(self, item);
  if (fu_find_small_int(x, item, value, 0, FU_LIST_SIZE(x), &undecided) >= 0) return 1;
  return undecided < 0 ? 0 : contains_from(x, item, undecided);
}

static PyObject* view_repr(PyObject* self) {
  ENTER_OR(NULL);
  PyObject* x = viewed(self);
  PyObject* text = x ? PyObject_Format(x, NULL) : NULL;
  Py_XDECREF(x);
  Py_LeaveRecursiveCall();
  if (text == NULL) return NULL;
  PyObject* result = PyUnicode_FromFormat("ConstantList(%U)", text);
  Py_DECREF(text);
  return result;
}

PyDoc_STRVAR(
    index_doc,
    "index($self, item, start=0, stop=None)\n--\n\n"
    "The first position of `item` in the viewed list from `start` up to, not including, `stop` (None: its end)."
    "\n\nRaises ValueError if it is not there.");

/* list.index from `start` on. A given `stop` goes to the list as it is: a comparison may make the list longer. */
static PyObject* index_by_list(PyObject* x, PyObject* item, Py_ssize_t start, PyObject* stop, Py_ssize_t size) {
  PyObject *first = PyLong_FromSsize_t(start), *end = PyLong_FromSsize_t(size), *result = NULL;
  if (first && end) result = PyObject_CallMethodObjArgs(x, str_index, item, first, stop == Py_None ? end : stop, NULL);
  Py_XDECREF(first);
  Py_XDECREF(end);
  return result;
}

static PyObject* view_index(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const char* const names[] = {"item", "start", "stop", NULL};
  PyObject* values[] = {NULL, int_zero, Py_None};
  if (fu_bind("ConstantList.index", names, args, count, keywords, values) < 0) return NULL;
  ENTER_OR(NULL);
  PyObject *item = values[0], *x = viewed(self), *result = NULL;
  Py_ssize_t value, start, stop = PY_SSIZE_T_MAX;
  if (x == NULL) goto done;
  if (PyList_CheckExact(x) && fu_small_int(item, &value) && fu_small_int(values[1], &start) &&
      (values[2] == Py_None || fu_small_int(values[2], &stop))) {
    Py_ssize_t size = FU_LIST_SIZE(x), undecided;
    if (start < 0) start = start + size < 0 ? 0 : start + size;
    if (stop < 0) stop = stop + size < 0 ? 0 : stop + size;
    if (stop > size) stop = size;
    Py_ssize_t position = fu_find_small_int(x, item, value, start, stop, &undecided);
    /* Nothing before `undecided` matches, so the list itself goes on from there, or says that nothing was found. */
    if (position >= 0)
      result = PyLong_FromSsize_t(position);
    else
      result = index_by_list(x, item, undecided < 0 ? stop : undecided, values[2], size);
  } else if (values[2] != Py_None) {
    result = PyObject_CallMethodObjArgs(x, str_index, item, values[1], values[2], NULL);
  } else {
    PyObject* method = PyObject_GetAttr(x, str_index); /* before the length, as Python evaluates it */
    Py_ssize_t size = method ? view_length(self) : -1;
    PyObject* end = size < 0 ? NULL : PyLong_FromSsize_t(size);
    result = end ? PyObject_CallFunctionObjArgs(method, item, values[1], end, NULL) : NULL;
    Py_XDECREF(end);
    Py_XDECREF(method);
  }
  Py_DECREF(x);
done:
  Py_LeaveRecursiveCall();
  return result;
}

PyDoc_STRVAR(count_doc,
             "count($self, value)\n--\n\n"
             "How many items of the view are, or are equal to, `value`.");

static PyObject* view_count(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  PyObject* value = fu_bind_one("ConstantList.count", "value", args, count, keywords);
  PyObject* x = ((View*)self)->x;
  if (value == NULL) return NULL;
  if (Py_TYPE(self) != view_type || !fu_is_exact_list(x))
    return PyObject_CallFunctionObjArgs(sequence_count, self, value, NULL);
  Py_INCREF(x);
  PyObject* result = PyObject_CallMethodObjArgs(x, str_count, value, NULL);
  Py_DECREF(x);
  return result;
}

PyDoc_STRVAR(copy_doc,
             "copy($self)\n--\n\n"
             "A shallow copy of the viewed list; a plain list, not a view.");

static PyObject* view_copy(PyObject* self, PyObject* ignored) {
  (void)ignored;
  ENTER_OR(NULL);
  PyObject *x = viewed(self), *result = NULL;
  if (x != NULL)
    result =
        PyList_CheckExact(x) ? PyList_GetSlice(x, 0, PY_SSIZE_T_MAX) : PyObject_CallMethodObjArgs(x, str_copy, NULL);
  Py_XDECREF(x);
  Py_LeaveRecursiveCall();
  return result;
}

/* ---- refusing ------------------------------------------------------------------------------------------------- */

#define REFUSAL(signature) signature "\n--\n\nRaise TypeError: the view is read-only."

#define REFUSE_ITEM(method, message)                                                                            \
  static PyObject* view_##method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) { \
    (void)self;                                                                                                 \
    if (fu_bind_one("ConstantList." #method, "item", args, count, keywords))                                    \
      PyErr_SetString(PyExc_TypeError, message);                                                                \
    return NULL;                                                                                                \
  }

REFUSE_ITEM(append, "Cannot append to a constant list")
REFUSE_ITEM(extend, "Cannot extend a constant list")
REFUSE_ITEM(insert, "Cannot insert into a constant list")
REFUSE_ITEM(pop, "Cannot pop from a constant list")
REFUSE_ITEM(remove, "Cannot remove from a constant list")

static PyObject* view_clear(PyObject* self, PyObject* ignored) {
  (void)self, (void)ignored;
  PyErr_SetString(PyExc_TypeError, "Cannot clear a constant list");
  return NULL;
}

static int view_assign_subscript(PyObject* self, PyObject* key, PyObject* value) {
  (void)self, (void)key;
  PyErr_SetString(PyExc_TypeError,
                  value ? "Cannot set item in a constant list" : "Cannot delete item from a constant list");
  return -1;
}

static int view_assign_item(PyObject* self, Py_ssize_t i, PyObject* value) {
  (void)i;
  return view_assign_subscript(self, NULL, value);
}

/* ---- making and unmaking -------------------------------------------------------------------------------------- */

static PyObject* get_x(PyObject* self, void* ignored) {
  (void)ignored;
  View* view = (View*)self;
  PyObject* x = view->x;
  if (x == NULL && view->dict != NULL) {
    x = PyDict_GetItemWithError(view->dict, str_x);
    if (x == NULL && PyErr_Occurred()) return NULL;
  }
  if (x == NULL) {
    PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '_x'", FU_TYPE_NAME(Py_TYPE(self)));
    return NULL;
  }
  Py_INCREF(x);
  return x;
}

static int set_x(PyObject* self, PyObject* value, void* ignored) {
  View* view = (View*)self;
  PyObject* old = view->x;
  if (old == NULL && value == NULL) { /* deleting what is in the dictionary, or nowhere */
    PyObject* present = get_x(self, ignored);
    if (present == NULL) return -1;
    Py_DECREF(present);
    return PyDict_DelItem(view->dict, str_x);
  }
  if (value != NULL && (Py_TYPE(self) != view_type || dict_is_in_other_hands(view))) {
    PyObject* dict = PyObject_GenericGetDict(self, NULL);
    int failed = dict == NULL || PyDict_SetItem(dict, str_x, value) < 0;
    Py_XDECREF(dict);
    if (failed) return -1;
    value = NULL;
  } else if (old == NULL && view->dict != NULL) { /* it may still lie in a dictionary that was let go */
    int there = PyDict_Contains(view->dict, str_x);
    if (there < 0 || (there && PyDict_DelItem(view->dict, str_x) < 0)) return -1;
  }
  old = view->x; /* whatever Python code has done since */
  Py_XINCREF(value);
  view->x = value;
  Py_XDECREF(old);
  return 0;
}

static PyObject* get_dict(PyObject* self, void* ignored) {
  (void)ignored;
  View* view = (View*)self;
  PyObject *dict = PyObject_GenericGetDict(self, NULL), *x = view->x;
  if (dict != NULL && x != NULL) {
    if (PyDict_SetItem(dict, str_x, x) < 0) {
      Py_CLEAR(dict);
    } else {
      view->x = NULL;
      Py_DECREF(x);
    }
  }
  return dict;
}

static int set_dict(PyObject* self, PyObject* value, void* ignored) {
  (void)ignored;
  View* view = (View*)self;
  if (value != NULL && !PyDict_Check(value)) {
    PyErr_Format(PyExc_TypeError, "__dict__ must be set to a dictionary, not a '%s'", FU_TYPE_NAME(Py_TYPE(value)));
    return -1;
  }
  PyObject *old_dict = view->dict, *old_x = view->x;
  Py_XINCREF(value);
  view->dict = value;
  view->x = NULL;
  Py_XDECREF(old_dict);
  Py_XDECREF(old_x);
  return 0;
}

static int view_init(PyObject* self, PyObject* args, PyObject* keywords) {
  static char* names[] = {"x", NULL};
  PyObject* x;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:ConstantList", names, &x)) return -1;
  return PyObject_SetAttr(self, str_x, x); /* a subclass may redefine `_x` */
}

/* Freed views are kept for the next ones. Their type's references stay with them. */
#if defined(Py_LIMITED_API) || defined(Py_GIL_DISABLED) || defined(Py_REF_DEBUG)
#define FREE_VIEWS 0
#else
#define FREE_VIEWS 32
static View* free_views[FREE_VIEWS];
static int free_count;
#endif

static void release(PyObject* self) {
  View* view = (View*)self;
  PyTypeObject* type = Py_TYPE(self);
  if (view->weakrefs != NULL) PyObject_ClearWeakRefs(self);
  Py_CLEAR(view->dict);
  Py_CLEAR(view->x);
#if FREE_VIEWS
  if (type == view_type && free_count < FREE_VIEWS) {
    free_views[free_count++] = view;
    return;
  }
#endif
#ifdef Py_LIMITED_API
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
#else
  type->tp_free(self);
#endif
  Py_DECREF(type);
}

static void view_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
#ifdef Py_LIMITED_API
  /* Not recursively along a chain of views, each of which is the next one's only holder. */
  PyObject* x = ((View*)self)->x;
  ((View*)self)->x = NULL;
  release(self);
  while (x != NULL && Py_TYPE(x) == view_type && Py_REFCNT(x) == 1) {
    PyObject* next = ((View*)x)->x;
    ((View*)x)->x = NULL;
    Py_DECREF(x);
    x = next;
  }
  Py_XDECREF(x);
#else
  /* A list bounds the depth of its own deallocation; a long chain of views of views needs the same. */
  if (fu_is_exact_list(((View*)self)->x)) {
    release(self);
    return;
  }
  Py_TRASHCAN_BEGIN(self, view_dealloc) release(self);
  Py_TRASHCAN_END
#endif
}

static int view_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(((View*)self)->x);
  Py_VISIT(((View*)self)->dict);
  return 0;
}

static int view_gc_clear(PyObject* self) {
  Py_CLEAR(((View*)self)->x);
  Py_CLEAR(((View*)self)->dict);
  return 0;
}

#ifndef Py_LIMITED_API
/* Calling the type itself, not a subclass: without an argument tuple, __new__ and __init__. */
static PyObject* view_construct(PyObject* cls, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  PyTypeObject* type = (PyTypeObject*)cls;
  Py_ssize_t count = PyVectorcall_NARGS(nargsf), named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  if (type == view_type && count == 1 && named == 0) {
    View* view;
#if FREE_VIEWS
    if (free_count > 0) {
      view = free_views[--free_count];
      Py_SET_REFCNT((PyObject*)view, 1);
    } else
#endif
    {
      view = PyObject_GC_New(View, type);
      if (view == NULL) return NULL;
      view->dict = NULL;
      view->weakrefs = NULL;
    }
    Py_INCREF(args[0]);
    view->x = args[0];
    PyObject_GC_Track((PyObject*)view);
    return (PyObject*)view;
  }
  PyObject *result = NULL, *named_args = PyDict_New(), *positional = PyTuple_New(count);
  if (positional == NULL || named_args == NULL) goto done;
  for (Py_ssize_t i = 0; i < count; i++) {
    Py_INCREF(args[i]);
    PyTuple_SET_ITEM(positional, i, args[i]);
  }
  for (Py_ssize_t i = 0; i < named; i++)
    if (PyDict_SetItem(named_args, PyTuple_GET_ITEM(keywords, i), args[count + i]) < 0) goto done;
  result = PyType_Type.tp_call(cls, positional, named_args);
done:
  Py_XDECREF(positional);
  Py_XDECREF(named_args);
  return result;
}
#endif

/* ---- the type ------------------------------------------------------------------------------------------------- */

static PyMethodDef view_methods[] = {
    {"append", FU_METHOD(view_append), METH_FASTCALL | METH_KEYWORDS, REFUSAL("append($self, item)")},
    {"extend", FU_METHOD(view_extend), METH_FASTCALL | METH_KEYWORDS, REFUSAL("extend($self, item)")},
    {"insert", FU_METHOD(view_insert), METH_FASTCALL | METH_KEYWORDS, REFUSAL("insert($self, item)")},
    {"pop", FU_METHOD(view_pop), METH_FASTCALL | METH_KEYWORDS, REFUSAL("pop($self, item)")},
    {"remove", FU_METHOD(view_remove), METH_FASTCALL | METH_KEYWORDS, REFUSAL("remove($self, item)")},
    {"clear", view_clear, METH_NOARGS, REFUSAL("clear($self)")},
    {"index", FU_METHOD(view_index), METH_FASTCALL | METH_KEYWORDS, index_doc},
    {"count", FU_METHOD(view_count), METH_FASTCALL | METH_KEYWORDS, count_doc},
    {"copy", view_copy, METH_NOARGS, copy_doc},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL}};

static PyMemberDef view_members[] = {{"__dictoffset__", T_PYSSIZET, offsetof(View, dict), READONLY, NULL},
                                     {"__weaklistoffset__", T_PYSSIZET, offsetof(View, weakrefs), READONLY, NULL},
                                     {NULL, 0, 0, 0, NULL}};

static PyGetSetDef view_getset[] = {{"_x", get_x, set_x, "What is viewed.", NULL},
                                    {"__dict__", get_dict, set_dict, NULL, NULL},
                                    {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(
    view_doc,
    "ConstantList(x)\n--\n\n"
    "A read-only live view of the list `x`: nothing is copied, later changes of `x` show, `x` is kept alive.\n\n"
    "Reading goes to `x` and raises what `x` raises; every way of changing it raises TypeError. Equality and hash "
    "are\nthose of the view's identity. `x` need not be a list: what it supports, the view supports.\n"
    "The view itself is as safe to share between threads as `x` is.\n\n"
    "Upstream: ``vllm.v1.utils.ConstantList``.");

static PyType_Slot view_slots[] = {{Py_tp_doc, (void*)view_doc},
                                   {Py_tp_init, view_init},
                                   {Py_tp_dealloc, view_dealloc},
                                   {Py_tp_traverse, view_traverse},
                                   {Py_tp_clear, view_gc_clear},
                                   {Py_tp_methods, view_methods},
                                   {Py_tp_members, view_members},
                                   {Py_tp_getset, view_getset},
                                   {Py_tp_repr, view_repr},
                                   {Py_tp_iter, view_iter},
                                   {Py_mp_length, view_length},
                                   {Py_mp_subscript, view_subscript},
                                   {Py_mp_ass_subscript, view_assign_subscript},
                                   {Py_sq_length, view_length},
                                   {Py_sq_item, view_item},
                                   {Py_sq_ass_item, view_assign_item},
                                   {Py_sq_contains, view_contains},
                                   {0, NULL}};

/* Pickles find the type as fastutils.ConstantList, in whichever form serves there. */
static PyType_Spec view_spec = {"fastutils.ConstantList", sizeof(View), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, view_slots};

static int make_type(void) {
  PyObject *abc = NULL, *sequence = NULL, *views = NULL, *type = NULL, *done = NULL;
  if (!(str_x = PyUnicode_InternFromString("_x")) || !(str_index = PyUnicode_InternFromString("index")) ||
      !(str_count = PyUnicode_InternFromString("count")) || !(str_copy = PyUnicode_InternFromString("copy")) ||
      !(int_zero = PyLong_FromLong(0)) || !(abc = PyImport_ImportModule("collections.abc")) ||
      !(sequence = PyObject_GetAttrString(abc, "Sequence")) ||
      !(sequence_count = PyObject_GetAttrString(sequence, "count")) ||
      !(views = PyImport_ImportModule("fastutils.views")) || !(type = PyType_FromSpec(&view_spec)))
    goto end;
#ifndef Py_LIMITED_API
  ((PyTypeObject*)type)->tp_vectorcall = view_construct;
  ((PyTypeObject*)type)->tp_name = "ConstantList"; /* in messages as for a Python class: without the module */
#endif
  done = PyObject_CallMethod(views, "_complete", "O", type);
#ifndef Py_LIMITED_API
  /* As built-in types are, and last, because nothing can be added any more: the interpreter calls only the vectorcall
   * of an immutable type directly. */
  if (done != NULL) ((PyTypeObject*)type)->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
#endif
  if (done != NULL) {
    registration = done;
    Py_INCREF(registration);
    Py_INCREF(type);
    view_type = (PyTypeObject*)type;
  }
end:
  Py_XDECREF(abc);
  Py_XDECREF(sequence);
  Py_XDECREF(views);
  Py_XDECREF(type);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

static int views_exec(PyObject* module) {
  if (fu_claim_interpreter("fastutils._views") < 0) return -1;
  if (view_type == NULL && make_type() < 0) return -1; /* a second import finds the type made by the first */
  return PyObject_SetAttrString(module, "ConstantList", (PyObject*)view_type);
}

static PyModuleDef_Slot views_slots[] = {{Py_mod_exec, views_exec}, FU_ONE_INTERPRETER{0, NULL}};

static struct PyModuleDef views_module = {PyModuleDef_HEAD_INIT, .m_name = "fastutils._views",
                                          .m_doc = "ConstantList, compiled.", .m_slots = views_slots};

PyMODINIT_FUNC PyInit__views(void) { return PyModuleDef_Init(&views_module); }
