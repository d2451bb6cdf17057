/* What the core looks at in Python objects. Looking runs no Python code, but in fu_plain_tensors, which says where. */
#ifndef FASTUTILS_TENSOR_OBJECTS_H
#define FASTUTILS_TENSOR_OBJECTS_H

#include <Python.h>

#include "arguments.h"

/* A reference that C++ made becomes Cython's. NULL is an error, which Python does not know yet if memory ran out. */
static inline PyObject* fu_stolen(void* object) {
  if (object == NULL && !PyErr_Occurred()) PyErr_NoMemory();
  return (PyObject*)object;
}

/* An exact int that fits, and is not negative. */
static inline int fu_row_count(PyObject* n, long long* rows) {
  int overflow;
  if (!PyLong_CheckExact(n)) return 0;
  *rows = PyLong_AsLongLongAndOverflow(n, &overflow);
  return !overflow && *rows >= 0;
}

/* What the instance's own dictionary has under `from` and `to`, as new references, if there is both and nothing under
 * `method`. 0, without an error, otherwise, and where only comparing keys could tell: that may run any code.
 * The dictionary may have to be made first, upon which Python <= 3.11 may collect; from then on nothing can run. */
static inline int fu_plain_tensors(PyObject* object, PyObject* from, PyObject* to, PyObject* method,
                                   PyObject** from_value, PyObject** to_value) {
#ifdef Py_LIMITED_API
  return 0; /* whether a str is interned is out of reach */
#else
  PyObject *dict = PyObject_GenericGetDict(object, NULL), *key, *value, *source = NULL, *target = NULL;
  Py_ssize_t position = 0;
  if (dict == NULL) {
    PyErr_Clear();
    return 0;
  }
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (key == from) {
      source = value;
    } else if (key == to) {
      target = value;
    } else if (key == method || !PyUnicode_CheckExact(key) || !PyUnicode_CHECK_INTERNED(key)) {
      source = NULL; /* interned strs, as attribute names are, differ unless they are the same object; others may not */
      break;
    }
  }
  const int plain = source != NULL && target != NULL;
  if (plain) {
    Py_INCREF(source);
    Py_INCREF(target);
    *from_value = source;
    *to_value = target;
  }
  Py_DECREF(dict);
  return plain;
#endif
}

/* A method NAME(n=None) of any class, over `PyObject* fu_NAME(PyObject* self, PyObject* n)`: a descriptor like those of
 * built-in types, which calls without binding and which torch.compile can replace, but one that asks nothing of `self`,
 * as a Python function does. The class that it is homed on in torch.compile's and everybody's eyes is hence object. */
#define FU_METHOD_OF_N(name)                                                                                          \
  static PyObject* fu_call_##name(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {      \
    static const char* const names[] = {"n", NULL};                                                                   \
    PyObject* n = count == 1 ? args[0] : Py_None;                                                                     \
    if ((count > 1 || keywords) && fu_bind("CpuGpuBuffer." #name, names, args, count, keywords, &n) < 0) return NULL; \
    return fu_##name(self, n);                                                                                        \
  }                                                                                                                   \
  static PyObject* fu_method_##name(void) {                                                                           \
    static PyMethodDef method = {#name, FU_METHOD(fu_call_##name), METH_FASTCALL | METH_KEYWORDS,                     \
                                 #name "($self, n=None)\n--\n\n"};                                                    \
    return PyDescr_NewMethod(&PyBaseObject_Type, &method);                                                            \
  }

#endif
