/* Instances of Python classes, made and looked into without calling what the classes define. */
#ifndef FASTUTILS_OBJECTS_H
#define FASTUTILS_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "exact.h"

/* An instance of the plain Python class `type` whose __init__ has not run. */
static inline PyObject* fu_new_instance(PyObject* type, PyObject* no_arguments) {
#ifdef Py_LIMITED_API
  return ((newfunc)PyType_GetSlot(&PyBaseObject_Type, Py_tp_new))((PyTypeObject*)type, no_arguments, NULL);
#else
  return PyBaseObject_Type.tp_new((PyTypeObject*)type, no_arguments, NULL);
#endif
}

/* What the class of `object` has under `name`, unbound; NULL without an error if there is nothing. A new reference. */
static inline PyObject* fu_class_attribute(PyObject* object, PyObject* name) {
#ifdef Py_LIMITED_API
  PyObject* found = PyObject_GetAttr((PyObject*)Py_TYPE(object), name);
  if (found == NULL) PyErr_Clear();
  return found;
#else
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name);
  Py_XINCREF(found);
  return found;
#endif
}

/* Whether the attributes of `object` are found in the usual way: its class has no __getattribute__ and no __getattr__.
 */
static inline int fu_has_plain_attributes(PyObject* object) {
#ifdef Py_LIMITED_API
  return PyType_GetSlot(Py_TYPE(object), Py_tp_getattro) == (void*)PyObject_GenericGetAttr;
#else
  return Py_TYPE(object)->tp_getattro == PyObject_GenericGetAttr;
#endif
}

/* The code of a Python function, a new reference; NULL without an error for anything else. */
static inline PyObject* fu_code_of(PyObject* function) {
#ifdef Py_LIMITED_API
  PyObject* code = PyObject_GetAttrString(function, "__code__");
  if (code == NULL) PyErr_Clear();
  return code;
#else
  if (!PyFunction_Check(function)) return NULL;
  PyObject* code = PyFunction_GET_CODE(function);
  Py_INCREF(code);
  return code;
#endif
}

/* [each.name for each in list] for an exact list, which may change meanwhile: an attribute may run any code.
 * From the first value that is no exact str on, the values go to the set *others instead, which then begins with those
 * of the list: only hashing a str runs no code, and Python would hash each before it reads the next. */
static inline PyObject* fu_attribute_of_each(PyObject* list, PyObject* name, PyObject** others) {
  const Py_ssize_t room = PyList_Size(list);
  PyObject* result = PyList_New(room);
  Py_ssize_t i = 0;
  *others = NULL;
  for (; result != NULL && i < FU_LIST_SIZE(list); i++) {
    PyObject* each = FU_LIST_ITEM(list, i);
    Py_INCREF(each);
    PyObject* value = PyObject_GetAttr(each, name);
    Py_DECREF(each);
    int failed = value == NULL;
    if (value != NULL && *others == NULL && !PyUnicode_CheckExact(value)) {
      if (i < room) failed = PyList_SetSlice(result, i, room, NULL) < 0;
      failed = failed || (*others = PySet_New(result)) == NULL;
    }
    if (!failed && *others != NULL) {
      failed = PySet_Add(*others, value) < 0;
      Py_DECREF(value);
    } else if (!failed && i < room) {
      failed = PyList_SetItem(result, i, value) < 0; /* takes the reference */
    } else if (!failed) {
      failed = PyList_Append(result, value) < 0;
      Py_DECREF(value);
    } else {
      Py_XDECREF(value);
    }
    if (failed) Py_CLEAR(result);
  }
  if (result != NULL && *others == NULL && i < room && PyList_SetSlice(result, i, room, NULL) < 0) Py_CLEAR(result);
  if (result == NULL) Py_CLEAR(*others);
  return result;
}

#endif
