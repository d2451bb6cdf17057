/* Built-in ints and lists, read without running any Python code.
 *
 * Everything here is about *exact* types: a subclass may redefine what it means to be equal or to be indexed.
 * Reading a list's items is safe because no other thread can run meanwhile: on a free-threaded interpreter the modules
 * that include this file do not declare that they do without the GIL, so loading them switches it on.
 */
#ifndef FASTUTILS_EXACT_H
#define FASTUTILS_EXACT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* On the general ways, so that the short ones save no registers for them. */
#ifdef __GNUC__
#define FU_APART __attribute__((noinline))
#else
#define FU_APART
#endif

#ifdef Py_LIMITED_API
#define FU_TYPE_NAME(type) "object" /* a type's name is out of reach before Python 3.11 */
#define FU_LIST_SIZE(list) PyList_Size(list)
#define FU_LIST_ITEM(list, i) PyList_GetItem(list, i)
#define FU_DICT_SIZE(dict) PyDict_Size(dict)
#else
#define FU_TYPE_NAME(type) ((type)->tp_name)
#define FU_LIST_SIZE(list) PyList_GET_SIZE(list)
#define FU_LIST_ITEM(list, i) PyList_GET_ITEM(list, i)
#define FU_DICT_SIZE(dict) PyDict_GET_SIZE(dict)
#endif

/* Whether `object` is an exact int of at most one digit (|value| < 2**30); its value goes to *value. */
static inline int fu_small_int(PyObject* object, Py_ssize_t* value) {
  if (!PyLong_CheckExact(object)) return 0;
#if defined(Py_LIMITED_API)
  int overflow;
  long wide = PyLong_AsLongAndOverflow(object, &overflow);
  *value = (Py_ssize_t)wide;
  return !overflow && wide > -(1L << 30) && wide < (1L << 30);
#elif PY_VERSION_HEX >= 0x030C0000
  if (!PyUnstable_Long_IsCompact((PyLongObject*)object)) return 0;
  *value = PyUnstable_Long_CompactValue((PyLongObject*)object);
  return 1;
#else
  const Py_ssize_t size = Py_SIZE(object); /* with the sign; there is a digit even in a zero */
  if (size < -1 || size > 1) return 0;
  *value = size * (Py_ssize_t)((PyLongObject*)object)->ob_digit[0];
  return 1;
#endif
}

static inline int fu_is_exact_list(PyObject* object) { return object != NULL && PyList_CheckExact(object); }

/* The position of `needle`, whose value is `value`, in list[start:stop], or -1.
 * An item that is no exact int ends the scan, because only Python can compare it: *undecided is then where it stands,
 * and -1 otherwise. */
static inline Py_ssize_t fu_find_small_int(PyObject* list, PyObject* needle, Py_ssize_t value, Py_ssize_t start,
                                           Py_ssize_t stop, Py_ssize_t* undecided) {
  *undecided = -1;
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX < 0x030C0000
  const Py_ssize_t size = Py_SIZE(needle);
  const digit only = size ? ((PyLongObject*)needle)->ob_digit[0] : 0;
  (void)value;
#endif
  for (Py_ssize_t i = start; i < stop; i++) {
    PyObject* item = FU_LIST_ITEM(list, i);
    if (item == needle) return i;
    if (!PyLong_CheckExact(item)) {
      *undecided = i;
      return -1;
    }
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX < 0x030C0000
    if (Py_SIZE(item) == size && (size == 0 || ((PyLongObject*)item)->ob_digit[0] == only)) return i;
#else
    Py_ssize_t other;
    if (fu_small_int(item, &other) && other == value) return i;
#endif
  }
  return -1;
}

/* Python <= 3.11 may collect while it allocates the copy of a list, and then reads on where the list has been
 * shortened. */
#if PY_VERSION_HEX < 0x030C0000
#define FU_UNCOLLECTED(statement)          \
  do {                                     \
    const int collecting = PyGC_Disable(); \
    statement;                             \
    if (collecting) PyGC_Enable();         \
  } while (0)
#else
#define FU_UNCOLLECTED(statement) statement
#endif

/* list[start:stop] of an exact list. NULL, without an error: leave it to the list itself. */
static inline PyObject* fu_slice(PyObject* list, Py_ssize_t start, Py_ssize_t stop) {
  PyObject* result;
  FU_UNCOLLECTED(result = PyList_GetSlice(list, start, stop));
  if (result == NULL) PyErr_Clear();
  return result;
}

/* tuple(given). */
static inline PyObject* fu_tuple(PyObject* given) {
  PyObject* result;
  if (!PyList_CheckExact(given)) return PySequence_Tuple(given);
  FU_UNCOLLECTED(result = PyList_AsTuple(given));
  return result;
}

/* list[slice] for a slice of small ints and Nones with step 1. NULL, without an error: leave it to the list itself. */
static inline PyObject* fu_plain_slice(PyObject* list, PyObject* slice) {
#ifdef Py_LIMITED_API
  (void)list, (void)slice;
  return NULL;
#else
  PySliceObject* bounds = (PySliceObject*)slice;
  Py_ssize_t start = 0, stop = PY_SSIZE_T_MAX, step = 1;
  if (bounds->step != Py_None && (!fu_small_int(bounds->step, &step) || step != 1)) return NULL;
  if (bounds->start != Py_None && !fu_small_int(bounds->start, &start)) return NULL;
  if (bounds->stop != Py_None && !fu_small_int(bounds->stop, &stop)) return NULL;
  const Py_ssize_t length = PySlice_AdjustIndices(PyList_GET_SIZE(list), &start, &stop, 1);
  return fu_slice(list, start, start + length);
#endif
}

#endif
