/* record_function_or_nullcontext, compiled. fastutils/scopes.py holds the Python form, which says what this one must
 * do, and makes the choice for both.
 *
 * When nobody profiles, all the work of a `with` lies in the objects that it makes: the context manager and the two
 * bound methods that the interpreter asks it for. Here the context manager is taken from the freed ones, the bound
 * __enter__ lies within it, and __exit__ is one object for all, since it needs nothing of the scope.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "arguments.h"
#include "objects.h"
#include "single_interpreter.h"

typedef struct {
  PyObject_HEAD vectorcallfunc call;
} ScopeMethod;

typedef struct {
  PyObject_HEAD PyObject* name; /* an exact str, so that no cycle can lead through it, and its release runs no code */
  ScopeMethod entering; /* the bound __enter__; alive, and then holding the scope, while its references are not 0 */
} NullScope;

static PyTypeObject* null_scope_type;
static PyObject* chosen;                    /* makes the scopes; NULL until the first use */
static int is_off;                          /* chosen is contextlib.nullcontext */
static PyObject *python_form, *nullcontext; /* the module fastutils.scopes, and what it chooses when they are off */

#if defined(Py_GIL_DISABLED) || defined(Py_REF_DEBUG)
#define FREE_SCOPES 0
#else
#define FREE_SCOPES 32
static NullScope* free_scopes[FREE_SCOPES]; /* their type's references stay with them */
static int free_count;
#endif

/* Needs nothing of the scope: one object for all, a plain function, which does not bind. */
static PyObject* null_scope_exit(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  (void)self, (void)args, (void)count;
  Py_RETURN_NONE;
}

static PyMethodDef exit_definition = {"__exit__", FU_METHOD(null_scope_exit), METH_FASTCALL, NULL};

static PyObject* refuse(const char* message) {
  PyErr_SetString(PyExc_TypeError, message);
  return NULL;
}

static PyTypeObject* entering_type; /* kept for good: the bound methods within the scopes hold no reference to it */

static NullScope* scope_of(PyObject* entering) { return (NullScope*)((char*)entering - offsetof(NullScope, entering)); }

static PyObject* entering_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  (void)args;
  if (PyVectorcall_NARGS(nargsf) != 0 || keywords != NULL) return refuse("a scope's __enter__() takes no arguments");
  PyObject* name = scope_of(self)->name;
  Py_INCREF(name);
  return name;
}

static void entering_dealloc(PyObject* self) { Py_DECREF((PyObject*)scope_of(self)); }

/* The objects that stand in the type under __enter__ and __exit__.
 * __enter__, asked for through a scope, is what lies within that scope; asked for through the type, as
 * contextlib.ExitStack does, it is this object, which is then called with the scope. __exit__ does not bind. */
static PyObject* enter_get(PyObject* self, PyObject* scope, PyObject* type) {
  (void)type;
  if (scope == NULL) {
    Py_INCREF(self);
    return self;
  }
  if (Py_TYPE(scope) != null_scope_type) return refuse("NullScope.__enter__ binds to scopes only");
  PyObject* entering = (PyObject*)&((NullScope*)scope)->entering;
  if (Py_REFCNT(entering) > 0) {
    Py_INCREF(entering);
    return entering;
  }
  Py_INCREF(scope);
  Py_SET_REFCNT(entering, 1);
  return entering;
}

static PyObject* enter_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  (void)self;
  if (PyVectorcall_NARGS(nargsf) != 1 || keywords != NULL || Py_TYPE(args[0]) != null_scope_type)
    return refuse("NullScope.__enter__() takes one scope");
  PyObject* name = ((NullScope*)args[0])->name;
  Py_INCREF(name);
  return name;
}

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ScopeMethod, call), READONLY, NULL}, {NULL, 0, 0, 0, NULL}};
static PyType_Slot enter_slots[] = {
    {Py_tp_descr_get, enter_get}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, method_members}, {0, NULL}};
static PyType_Slot entering_slots[] = {
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_dealloc, entering_dealloc}, {Py_tp_members, method_members}, {0, NULL}};
/* Sealed: with a __new__ put into them, object.__new__ would make objects that have nothing of what these rely on
 * (test_nobody_can_make_one_otherwise). */
#define SEALED Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE
static PyType_Spec enter_spec = {"fastutils._scopes.ScopeEnter", sizeof(ScopeMethod), 0,
                                 SEALED | Py_TPFLAGS_HAVE_VECTORCALL, enter_slots};
static PyType_Spec entering_spec = {"fastutils._scopes.ScopeEntering", sizeof(ScopeMethod), 0,
                                    SEALED | Py_TPFLAGS_HAVE_VECTORCALL, entering_slots};

static PyObject* make_enter(void) {
  PyObject* type = PyType_FromSpec(&enter_spec);
  ScopeMethod* method = type ? PyObject_New(ScopeMethod, (PyTypeObject*)type) : NULL;
  if (method != NULL) method->call = enter_call;
  Py_XDECREF(type);
  return (PyObject*)method;
}

static void null_scope_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(((NullScope*)self)->name);
#if FREE_SCOPES
  if (free_count < FREE_SCOPES) {
    free_scopes[free_count++] = (NullScope*)self;
    return;
  }
#endif
  PyObject_Free(self);
  Py_DECREF(type);
}

static PyMemberDef null_scope_members[] = {
    {"enter_result", T_OBJECT, offsetof(NullScope, name), READONLY, "What `with` yields: the name."},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot null_scope_slots[] = {{Py_tp_doc, "A scope that does nothing; ``with`` yields its name."},
                                         {Py_tp_dealloc, null_scope_dealloc},
                                         {Py_tp_members, null_scope_members},
                                         {0, NULL}};

static PyType_Spec null_scope_spec = {"fastutils._scopes.NullScope", sizeof(NullScope), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, null_scope_slots};

/* Nothing can run here: scopes are no objects that the collector counts. */
static PyObject* new_null_scope(PyObject* name) {
  NullScope* scope;
#if FREE_SCOPES
  if (free_count > 0) {
    scope = free_scopes[--free_count];
    Py_SET_REFCNT((PyObject*)scope, 1);
  } else
#endif
  {
    scope = PyObject_New(NullScope, null_scope_type);
    if (scope == NULL) return NULL;
    memset(&scope->entering, 0, sizeof(ScopeMethod)); /* not Py_SET_REFCNT: it heeds a count that is not there yet */
    scope->entering.call = entering_call;
    Py_SET_TYPE((PyObject*)&scope->entering, entering_type);
  }
  Py_INCREF(name);
  scope->name = name;
  return (PyObject*)scope;
}

/* The choice, as a new reference: what runs meanwhile may have it forgotten again. */
static PyObject* choose(void) {
  PyObject *choice = PyObject_CallMethod(python_form, "_chosen", NULL), *before = chosen;
  if (choice == NULL) return NULL;
  is_off = choice == nullcontext;
  Py_INCREF(choice);
  chosen = choice; /* another thread may have come first */
  Py_XDECREF(before);
  return choice;
}

static PyObject* record_function_or_nullcontext(PyObject* module, PyObject* const* args, Py_ssize_t count,
                                                PyObject* keywords) {
  (void)module;
  PyObject* name = fu_bind_one("record_function_or_nullcontext", "name", args, count, keywords);
  if (name == NULL) return NULL;
  if (is_off && PyUnicode_CheckExact(name)) return new_null_scope(name);
  PyObject* maker = chosen;
  Py_XINCREF(maker);
  if (maker == NULL && (maker = choose()) == NULL) return NULL;
  PyObject* scope =
      is_off && PyUnicode_CheckExact(name) ? new_null_scope(name) : PyObject_CallFunctionObjArgs(maker, name, NULL);
  Py_DECREF(maker);
  return scope;
}

static PyObject* forget(PyObject* module, PyObject* ignored) {
  (void)module, (void)ignored;
  is_off = 0;
  Py_CLEAR(chosen);
  Py_RETURN_NONE;
}

static PyMethodDef scopes_methods[] = {
    {"record_function_or_nullcontext", FU_METHOD(record_function_or_nullcontext), METH_FASTCALL | METH_KEYWORDS,
     "record_function_or_nullcontext($module, name)\n--\n\n"},
    {"_forget", forget, METH_NOARGS,
     "_forget($module)\n--\n\nForget the choice. For tests, by fastutils.scopes._reset."},
    {NULL, NULL, 0, NULL}};

static int give(PyObject* type, const char* name, PyObject* value) {
  int failed = value == NULL || PyObject_SetAttrString(type, name, value) < 0;
  Py_XDECREF(value);
  return failed ? -1 : 0;
}

static int make_types(void) {
  PyObject* type = PyType_FromSpec(&null_scope_spec);
  int failed = type == NULL || (python_form = PyImport_ImportModule("fastutils.scopes")) == NULL ||
               (nullcontext = PyObject_GetAttrString(python_form, "nullcontext")) == NULL ||
               give(type, "__aenter__", PyObject_GetAttrString(nullcontext, "__aenter__")) < 0 ||
               give(type, "__aexit__", PyObject_GetAttrString(nullcontext, "__aexit__")) < 0 ||
               give(type, "__exit__", PyCFunction_New(&exit_definition, NULL)) < 0 ||
               (entering_type = (PyTypeObject*)PyType_FromSpec(&entering_spec)) == NULL ||
               give(type, "__enter__", make_enter()) < 0;
  if (failed) {
    Py_XDECREF(type);
    return -1;
  }
  null_scope_type = (PyTypeObject*)type;
  null_scope_type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE; /* last: nothing can be added any more */
  return 0;
}

static int scopes_exec(PyObject* module) {
  if (fu_claim_interpreter("fastutils._scopes") < 0) return -1;
  if (null_scope_type == NULL && make_types() < 0) return -1; /* a second import uses what the first one made */
  PyObject *function = PyObject_GetAttrString(module, "record_function_or_nullcontext"), *done = NULL,
           *twin = PyObject_GetAttrString(python_form, "record_function_or_nullcontext");
  if (function && twin && fu_share_doc(function, twin) == 0)
    done = PyObject_CallMethod(python_form, "_complete", "O", function);
  Py_XDECREF(function);
  Py_XDECREF(twin);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

static PyModuleDef_Slot scopes_slots[] = {{Py_mod_exec, scopes_exec}, FU_ONE_INTERPRETER{0, NULL}};

static struct PyModuleDef scopes_module = {PyModuleDef_HEAD_INIT, .m_name = "fastutils._scopes",
                                           .m_doc = "record_function_or_nullcontext, compiled.",
                                           .m_methods = scopes_methods, .m_slots = scopes_slots};

PyMODINIT_FUNC PyInit__scopes(void) { return PyModuleDef_Init(&scopes_module); }
