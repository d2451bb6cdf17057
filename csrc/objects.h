/* Instances of Python classes, made and looked into without calling what the classes define. */
#ifndef FASTUTILS_OBJECTS_H
#define FASTUTILS_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "exact.h"

/* Gives a built-in function or method, which has its signature for a docstring, that of its Python form besides. The
 * text is never freed, as the function is not. */
static int fu_share_doc(PyObject* function, PyObject* twin) {
#ifdef Py_LIMITED_API
  (void)function, (void)twin; /* its definition is out of reach: help() shows the signature alone */
#else
  PyMethodDef* definition =
      PyCFunction_Check(function) ? ((PyCFunctionObject*)function)->m_ml : ((PyMethodDescrObject*)function)->d_method;
  if (strcmp(definition->ml_doc + strlen(definition->ml_doc) - 3, "-\n\n") != 0) return 0; /* it has it already */
  PyObject* doc = PyObject_GetAttrString(twin, "__doc__");
  PyObject* whole = doc ? PyUnicode_FromFormat("%s%U", definition->ml_doc, doc) : NULL;
  Py_XDECREF(doc);
  const char* text = whole ? PyUnicode_AsUTF8(whole) : NULL;
  if (text == NULL) return -1;
  definition->ml_doc = text;
#endif
  return 0;
}

/* An instance of the plain Python class `type` whose __init__ has not run. */
static inline PyObject* fu_new_instance(PyObject* type, PyObject* no_arguments) {
#ifdef Py_LIMITED_API
  return ((newfunc)PyType_GetSlot(&PyBaseObject_Type, Py_tp_new))((PyTypeObject*)type, no_arguments, NULL);
#else
  return PyBaseObject_Type.tp_new((PyTypeObject*)type, no_arguments, NULL);
#endif
}

/* A number that changes with every change of the class or of one of its bases; 0 while there is none. What was found
 * out about the class after fu_give_version holds as long as it has the same: a number is never used again, not even
 * for another class. */
static inline unsigned int fu_class_version(PyObject* type) {
#ifdef Py_LIMITED_API
  (void)type;
  return 0;
#else
#if PY_VERSION_HEX < 0x030B0000
  if (!PyType_HasFeature((PyTypeObject*)type, Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return ((PyTypeObject*)type)->tp_version_tag;
#endif
}

/* The same, after a look-up, which gives a class its number. Past the metaclass, whose code may do anything. */
static inline unsigned int fu_give_version(PyObject* type, PyObject* name) {
#ifndef Py_LIMITED_API
  _PyType_Lookup((PyTypeObject*)type, name);
#else
  (void)name;
#endif
  return fu_class_version(type);
}

/* Whether instances of `type` find their attributes in the usual way: it has no __getattribute__ and no __getattr__. */
static inline int fu_has_plain_attributes(PyObject* type) {
#ifdef Py_LIMITED_API
  return PyType_GetSlot((PyTypeObject*)type, Py_tp_getattro) == (void*)PyObject_GenericGetAttr;
#else
  return ((PyTypeObject*)type)->tp_getattro == PyObject_GenericGetAttr;
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

#endif
