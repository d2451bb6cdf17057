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
#include "objects.h"
#include "single_interpreter.h"

/* `_x` lies in the slot `x` from a view's construction on. In a subclass, which may make it something else, and in a
 * view whose `_x` was deleted or whose `__dict__` was assigned, it is an entry of the dictionary as any attribute of a
 * Python class is, and the slot stays empty: the short ways below need look at nothing but the slot. */
typedef struct {
  PyObject_HEAD PyObject* x;
  PyObject* dict;
  PyObject* weakrefs;
} View;

static PyTypeObject* view_type;
static PyObject* sequence_count; /* collections.abc.Sequence.count */
static PyObject* registration;   /* the ABC that makes the type a Sequence; Sequence itself holds it weakly */
static PyObject *str_x, *str_index, *str_copy, *int_zero;

/* A new reference to what is viewed: whatever Python code does to the view meanwhile, it stays alive. */
static PyObject* viewed(PyObject* self) {
  PyObject* x = ((View*)self)->x;
  if (x == NULL) return PyObject_GetAttr(self, str_x);
  Py_INCREF(x);
  return x;
}

/* A function of a view: `expression` of what it views, `x`, held meanwhile. What goes through another object's slot may
 * come back here, from a view of itself or along a chain of views, hence the count of recursions. */
#define OF_VIEWED(type, name, parameters, failed, expression)                     \
  FU_APART static type name parameters {                                          \
    if (Py_EnterRecursiveCall(" while reading a constant list")) return (failed); \
    PyObject* x = viewed(self);                                                   \
    type result = x ? (expression) : (failed);                                    \
    Py_XDECREF(x);                                                                \
    Py_LeaveRecursiveCall();                                                      \
    return result;                                                                \
  }

/* The short ways below borrow `x` and its items: nothing can run between reading the slot and taking the reference that
 * is returned, since exact lists and ints are looked into without a call, an allocation or a release. */

/* ---- reading -------------------------------------------------------------------------------------------------- */

OF_VIEWED(Py_ssize_t, length_of_any, (PyObject * self), -1, PyObject_Size(x))

static Py_ssize_t view_length(PyObject* self) {
  PyObject* x = ((View*)self)->x;
  return fu_is_exact_list(x) ? FU_LIST_SIZE(x) : length_of_any(self);
}

static PyObject* item_or_slice(PyObject* x, PyObject* key) {
  PyObject* part = PyList_CheckExact(x) && PySlice_Check(key) ? fu_plain_slice(x, key) : NULL;
  return part ? part : PyObject_GetItem(x, key);
}

OF_VIEWED(PyObject*, subscript_any, (PyObject * self, PyObject* key), NULL, item_or_slice(x, key))

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

OF_VIEWED(PyObject*, view_iter, (PyObject * self), NULL, PyObject_GetIter(x))

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

OF_VIEWED(int, contains_any, (PyObject * self, PyObject* item), -1, PySequence_Contains(x, item))

static int view_contains(PyObject* self, PyObject* item) {
  PyObject* x = ((View*)self)->x;
  Py_ssize_t value, undecided;
  if (!fu_is_exact_list(x) || !fu_small_int(item, &value)) return contains_any(self, item);
  if (fu_find_small_int(x, item, value, 0, FU_LIST_SIZE(x), &undecided) >= 0) return 1;
  return undecided < 0 ? 0 : contains_from(x, item, undecided);
}

static PyObject* index_in(PyObject* self, PyObject* x, PyObject** values) {
  Py_ssize_t value, start, stop = PY_SSIZE_T_MAX, position = -1, undecided;
  PyObject *method, *end = values[2], *result = NULL;
  /* Where `_x` is read by a class's own code, it is read again for its length. */
  if (x == ((View*)self)->x && PyList_CheckExact(x) && fu_small_int(values[0], &value) &&
      fu_small_int(values[1], &start) && (end == Py_None || fu_small_int(end, &stop))) {
    PySlice_AdjustIndices(FU_LIST_SIZE(x), &start, &stop, 1); /* brings them within the list, as list.index does */
    position = fu_find_small_int(x, values[0], value, start, stop, &undecided);
    if (position >= 0) return PyLong_FromSsize_t(position); /* else nothing compared so far could be noticed */
  }
  if ((method = PyObject_GetAttr(x, str_index)) == NULL) return NULL;
  if (end == Py_None) { /* asked for after the method was looked up, as Python evaluates it */
    const Py_ssize_t size = view_length(self);
    end = size < 0 ? NULL : PyLong_FromSsize_t(size);
  } else {
    Py_INCREF(end);
  }
  if (end) result = PyObject_CallFunctionObjArgs(method, values[0], values[1], end, NULL);
  Py_XDECREF(end);
  Py_DECREF(method);
  return result;
}

OF_VIEWED(PyObject*, index_of_any, (PyObject * self, PyObject** values), NULL, index_in(self, x, values))

static PyObject* view_index(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const char* const names[] = {"item", "start", "stop", NULL};
  PyObject* values[] = {NULL, int_zero, Py_None};
  return fu_bind("ConstantList.index", names, args, count, keywords, values) < 0 ? NULL : index_of_any(self, values);
}

static PyObject* view_count(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  PyObject* value = fu_bind_one("ConstantList.count", "value", args, count, keywords);
  PyObject* x = ((View*)self)->x;
  Py_ssize_t wanted, position, undecided, found = 0;
  if (value == NULL) return NULL;
  if (fu_is_exact_list(x) && fu_small_int(value, &wanted)) {
    const Py_ssize_t size = FU_LIST_SIZE(x); /* nothing can run, and change the list, while only ints are compared */
    for (Py_ssize_t start = 0; start <= size; start = position + 1, found++) {
      position = fu_find_small_int(x, value, wanted, start, size, &undecided);
      if (undecided >= 0) break;
      if (position < 0) return PyLong_FromSsize_t(found);
    }
  }
  return PyObject_CallFunctionObjArgs(sequence_count, self, value, NULL);
}

static PyObject* copy_of(PyObject* x) {
  PyObject* copy = PyList_CheckExact(x) ? fu_slice(x, 0, FU_LIST_SIZE(x)) : NULL;
  return copy ? copy : PyObject_CallMethodObjArgs(x, str_copy, NULL);
}

OF_VIEWED(PyObject*, view_copy, (PyObject * self, PyObject* Py_UNUSED(ignored)), NULL, copy_of(x))

static int refuse_missing(PyObject* self) {
  PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '_x'", FU_TYPE_NAME(Py_TYPE(self)));
  return -1;
}

/* ---- making and unmaking -------------------------------------------------------------------------------------- */

static PyObject* get_x(PyObject* self, void* ignored) {
  (void)ignored;
  PyObject *x = ((View*)self)->x, *dict = ((View*)self)->dict;
  Py_XINCREF(x);
  if (x == NULL && dict != NULL) {
    Py_INCREF(dict); /* comparing with a key may replace it (test_intruders) */
    x = PyDict_GetItemWithError(dict, str_x);
    Py_XINCREF(x);
    Py_DECREF(dict);
  }
  if (x == NULL && !PyErr_Occurred()) refuse_missing(self);
  return x;
}

static int set_x(PyObject* self, PyObject* value, void* ignored) {
  (void)ignored;
  View* view = (View*)self;
  PyObject* old = view->x;
  if (old != NULL || (Py_TYPE(self) == view_type && view->dict == NULL)) {
    if (old == NULL && value == NULL) return refuse_missing(self);
    Py_XINCREF(value);
    view->x = value;
    Py_XDECREF(old);
    return 0;
  }
  PyObject* dict = PyObject_GenericGetDict(self, NULL);
  if (dict == NULL) return -1;
  int failed = value != NULL ? PyDict_SetItem(dict, str_x, value) : PyDict_DelItem(dict, str_x);
  if (failed && value == NULL && PyErr_ExceptionMatches(PyExc_KeyError)) refuse_missing(self);
  Py_DECREF(dict);
  return failed;
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

/* Freed views are kept for the next ones. Their type's references stay with them. */
#if defined(Py_LIMITED_API) || defined(Py_GIL_DISABLED) || defined(Py_REF_DEBUG)
#define FREE_VIEWS 0
#else
#define FREE_VIEWS 32
static View* free_views[FREE_VIEWS];
static int free_count;
#endif

/* What is released here may run any code, which can no longer reach `self`: it goes to the freed ones afterwards. */
static inline void release(PyObject* self) {
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

/* Not recursively along a chain of views, whatever lies between two of them: not every type bounds the depth of its own
 * release, as a list does (test_a_long_chain_of_views_is_freed_on_a_small_stack). */
static void view_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
#ifdef Py_LIMITED_API /* has no trashcan: only views in a row are bounded there */
  PyObject *x = ((View*)self)->x, *next;
  ((View*)self)->x = NULL;
  release(self);
  for (; x != NULL && Py_TYPE(x) == view_type && Py_REFCNT(x) == 1; x = next) {
    next = ((View*)x)->x;
    ((View*)x)->x = NULL;
    Py_DECREF(x);
  }
  Py_XDECREF(x);
#else
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
/* Calling the type itself, not a subclass, which does not inherit this: without an argument tuple, __new__ and
 * __init__. Allocating comes first, since it may collect: nothing is half-made then, and the argument is the caller's.
 */
static PyObject* view_construct(PyObject* type, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  PyObject* x = fu_bind_one("ConstantList.__init__", "x", args, PyVectorcall_NARGS(nargsf), keywords);
  View* view;
  if (x == NULL) return NULL;
#if FREE_VIEWS
  if (free_count > 0) {
    view = free_views[--free_count];
    Py_SET_REFCNT((PyObject*)view, 1);
  } else
#endif
  {
    view = PyObject_GC_New(View, (PyTypeObject*)type);
    if (view == NULL) return NULL;
    view->dict = NULL;
    view->weakrefs = NULL;
  }
  Py_INCREF(x);
  view->x = x;
  PyObject_GC_Track((PyObject*)view);
  return (PyObject*)view;
}
#endif

/* ---- the type ------------------------------------------------------------------------------------------------- */

/* Their docstrings are those of the Python form. */
static PyMethodDef view_methods[] = {
    {"index", FU_METHOD(view_index), METH_FASTCALL | METH_KEYWORDS, "index($self, item, start=0, stop=None)\n--\n\n"},
    {"count", FU_METHOD(view_count), METH_FASTCALL | METH_KEYWORDS, "count($self, value)\n--\n\n"},
    {"copy", view_copy, METH_NOARGS, "copy($self)\n--\n\n"},
    {NULL, NULL, 0, NULL}};

static PyMemberDef view_members[] = {{"__dictoffset__", T_PYSSIZET, offsetof(View, dict), READONLY, NULL},
                                     {"__weaklistoffset__", T_PYSSIZET, offsetof(View, weakrefs), READONLY, NULL},
                                     {NULL, 0, 0, 0, NULL}};

static PyGetSetDef view_getset[] = {{"_x", get_x, set_x, "What is viewed.", NULL},
                                    {"__dict__", PyObject_GenericGetDict, set_dict, NULL, NULL},
                                    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot view_slots[] = {{Py_tp_doc, (void*)"ConstantList(x)\n--\n\n"},
                                   {Py_tp_dealloc, view_dealloc},
                                   {Py_tp_traverse, view_traverse},
                                   {Py_tp_clear, view_gc_clear},
                                   {Py_tp_methods, view_methods},
                                   {Py_tp_members, view_members},
                                   {Py_tp_getset, view_getset},
                                   {Py_tp_iter, view_iter},
                                   {Py_mp_length, view_length},
                                   {Py_mp_subscript, view_subscript},
                                   {Py_sq_length, view_length},
                                   {Py_sq_item, view_item},
                                   {Py_sq_contains, view_contains},
                                   {0, NULL}};

/* Pickles find the type as fastutils.ConstantList, in whichever form serves there. */
static PyType_Spec view_spec = {"fastutils.ConstantList", sizeof(View), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, view_slots};

static int share_docs(PyObject* type, PyObject* twin) {
  int failed = 0;
  for (PyMethodDef* each = view_methods; !failed && each->ml_name; each++) {
    PyObject *ours = PyObject_GetAttrString(type, each->ml_name), *theirs = PyObject_GetAttrString(twin, each->ml_name);
    failed = ours == NULL || theirs == NULL || fu_share_doc(ours, theirs) < 0;
    Py_XDECREF(ours);
    Py_XDECREF(theirs);
  }
  return failed ? -1 : 0;
}

static int make_type(void) {
  PyObject *views = PyImport_ImportModule("fastutils.views"), *generic = NULL, *sequence = NULL, *twin = NULL, *type;
  if (!views || !(str_x = PyUnicode_InternFromString("_x")) || !(str_index = PyUnicode_InternFromString("index")) ||
      !(str_copy = PyUnicode_InternFromString("copy")) || !(int_zero = PyLong_FromLong(0)) ||
      !(generic = PyObject_GetAttrString(views, "Generic")) ||
      !(sequence = PyObject_GetAttrString(views, "Sequence")) ||
      !(sequence_count = PyObject_GetAttrString(sequence, "count")) ||
      !(twin = PyObject_GetAttrString(views, "ConstantList")) ||
      !(type = PyType_FromSpecWithBases(&view_spec, generic)))
    goto end;
#ifndef Py_LIMITED_API
  ((PyTypeObject*)type)->tp_vectorcall = view_construct;
  ((PyTypeObject*)type)->tp_name = "ConstantList"; /* in messages as for a Python class: without the module */
#endif
  if (share_docs(type, twin) == 0) registration = PyObject_CallMethod(views, "_complete", "O", type);
  if (registration == NULL) {
    Py_DECREF(type);
    goto end;
  }
#ifndef Py_LIMITED_API
  /* As built-in types are, and last, because nothing can be added any more: the interpreter calls only the vectorcall
   * of an immutable type directly. */
  ((PyTypeObject*)type)->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
#endif
  view_type = (PyTypeObject*)type;
end:
  Py_XDECREF(views);
  Py_XDECREF(generic);
  Py_XDECREF(sequence);
  Py_XDECREF(twin);
  return view_type ? 0 : -1;
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
