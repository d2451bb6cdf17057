/* For modules that keep their state in static variables. */
#ifndef FASTUTILS_SINGLE_INTERPRETER_H
#define FASTUTILS_SINGLE_INTERPRETER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The module slot that keeps interpreters with a GIL of their own out (they get the ImportError from Python). */
#if PY_VERSION_HEX >= 0x030C0000 && (!defined(Py_LIMITED_API) || Py_LIMITED_API >= 0x030C0000)
#define FU_ONE_INTERPRETER {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#else
#define FU_ONE_INTERPRETER
#endif

/* The first interpreter to load the module keeps it; in every other one this raises ImportError, upon which
 * the Python form serves there. 0 or -1. */
static int fu_claim_interpreter(const char* module) {
  static int64_t owner = -1;
  int64_t current = PyInterpreterState_GetID(PyInterpreterState_Get());
  if (owner < 0) owner = current;
  if (owner == current) return 0;
  PyErr_Format(PyExc_ImportError, "%s serves only one interpreter per process, and another one has loaded it", module);
  return -1;
}

#endif
