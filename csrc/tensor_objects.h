/* What the core looks at in Python objects without knowing torch's headers. */
#ifndef FASTUTILS_TENSOR_OBJECTS_H
#define FASTUTILS_TENSOR_OBJECTS_H

#include <Python.h>
#include <stddef.h>
#include <structmember.h>

/* A reference that C++ made becomes Cython's. */
static inline PyObject* fu_stolen(void* object) { return (PyObject*)object; }

/* An exact int that fits, and is not negative. */
static inline int fu_row_count(PyObject* n, long long* rows) {
  int overflow;
  if (!PyLong_CheckExact(n)) return 0;
  *rows = PyLong_AsLongLongAndOverflow(n, &overflow);
  return !overflow && *rows >= 0;
}

typedef struct {
  Py_ssize_t weak_references; /* __weakrefoffset__ of torch.Tensor */
  Py_ssize_t hooks[2];
} fu_tensor_layout;

/* Whether nobody but the one reference we hold can reach this tensor object, or has left anything on it. */
static inline int fu_is_only_ours(PyObject* tensor, const fu_tensor_layout* layout) {
#ifdef Py_GIL_DISABLED
  return 0; /* another thread may be about to take a reference */
#else
  const char* at = (const char*)tensor;
  PyObject* dict;
  int empty;
  if (Py_REFCNT(tensor) != 1 || *(PyObject* const*)(at + layout->weak_references) ||
      *(PyObject* const*)(at + layout->hooks[0]) || *(PyObject* const*)(at + layout->hooks[1])) {
    return 0;
  }
  dict = PyObject_GenericGetDict(tensor, NULL);
  if (!dict) {
    PyErr_Clear();
    return 0;
  }
  empty = PyDict_Size(dict) == 0 && Py_REFCNT(dict) == 2;
  Py_DECREF(dict);
  return empty;
#endif
}

/* Attributes that Python reads as fast as slots: Cython's own public attributes cost a function call. */
static inline PyObject* fu_member(PyTypeObject* type, PyMemberDef* member, const char* name, Py_ssize_t offset) {
  member->name = name;
  member->type = T_OBJECT_EX;
  member->offset = offset;
  return PyDescr_NewMember(type, member);
}

#endif
