/* Arguments of METH_FASTCALL | METH_KEYWORDS functions, checked and worded as Python does for a function written in it.
 */
#ifndef FASTUTILS_ARGUMENTS_H
#define FASTUTILS_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define FU_METHOD(function) ((PyCFunction)(void*)(function))

/* Puts the arguments where the parameters `names` (ended by NULL) want them: positional ones first, then by name.
 * values[] holds the defaults on entry, NULL where an argument is required, borrowed references on return.
 * 0, or -1 with a TypeError. */
static int fu_bind(const char* function, const char* const* names, PyObject* const* args, Py_ssize_t count,
                   PyObject* keywords, PyObject** values) {
  Py_ssize_t parameters = 0, named = keywords ? PyTuple_Size(keywords) : 0;
  while (names[parameters]) parameters++;
  if (count > parameters) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zd argument%s (%zd given)", function, parameters,
                 parameters == 1 ? "" : "s", count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) values[i] = args[i];
  for (Py_ssize_t k = 0; k < named; k++) {
    PyObject* keyword = PyTuple_GetItem(keywords, k);
    Py_ssize_t i = 0;
    while (names[i] && PyUnicode_CompareWithASCIIString(keyword, names[i]) != 0) i++;
    if (!names[i]) {
      PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, keyword);
      return -1;
    }
    if (i < count) {
      PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", function, names[i]);
      return -1;
    }
    values[i] = args[count + k];
  }
  for (Py_ssize_t i = 0; i < parameters; i++) {
    if (values[i] == NULL) {
      PyErr_Format(PyExc_TypeError, "%s() missing 1 required positional argument: '%s'", function, names[i]);
      return -1;
    }
  }
  return 0;
}

/* Kept out of the fast path below, whose callers then need no room for arrays on their stack. */
#ifdef __GNUC__
__attribute__((noinline, cold))
#endif
static PyObject* fu_bind_one_slowly(const char* function, const char* name, PyObject* const* args, Py_ssize_t count,
                                    PyObject* keywords) {
  const char* names[] = {name, NULL};
  PyObject* value = NULL;
  return fu_bind(function, names, args, count, keywords, &value) < 0 ? NULL : value;
}

/* The argument of a function of one parameter, borrowed; NULL with a TypeError. */
static inline PyObject* fu_bind_one(const char* function, const char* name, PyObject* const* args, Py_ssize_t count,
                                    PyObject* keywords) {
  return count == 1 && keywords == NULL ? args[0] : fu_bind_one_slowly(function, name, args, count, keywords);
}

#endif
