/* record_function_or_nullcontext, compiled. fastutils/scopes.py holds the Python form, which says what this one must
 * do, and makes the choice for both.
 *
 * When nobody profiles, all the work of a `with` lies in the objects that it makes: the context manager and the two
 * bound methods that the interpreter asks it for. Here the context manager, taken from the freed ones, is also both
 * bound methods: it tells entry from exit by the number of arguments.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "arguments.h"
#include "single_interpreter.h"

typedef struct {
  PyObject_HEAD PyObject* name; /* an exact str, so that no cycle can lead through it */
#ifndef Py_LIMITED_API
  vectorcallfunc call;
#endif
} NullScope;

static PyTypeObject* null_scope_type;
static PyObject* chosen; /* makes the scopes; NULL until the first use */
static int is_off;       /* chosen is contextlib.nullcontext */

#if defined(Py_LIMITED_API) || defined(Py_GIL_DISABLED) || defined(Py_REF_DEBUG)
#define FREE_SCOPES 0
#else
#define FREE_SCOPES 32
static NullScope* free_scopes[FREE_SCOPES]; /* their type's references stay with them */
static int free_count;
#endif

/* ---- the scope that does nothing ------------------------------------------------------------------------------ */

#ifdef Py_LIMITED_API
static PyObject* null_scope_enter(PyObject* self, PyObject* ignored) {
  (void)ignored;
  PyObject* name = ((NullScope*)self)->name;
  Py_INCREF(name);
  return name;
}

static PyObject* null_scope_exit(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  (void)self, (void)args, (void)count;
  Py_RETURN_NONE;
}

static PyMethodDef null_scope_methods[] = {{"__enter__", null_scope_enter, METH_NOARGS, NULL},
                                           {"__exit__", FU_METHOD(null_scope_exit), METH_FASTCALL, NULL},
                                           {NULL, NULL, 0, NULL}};
#else
static PyObject* refuse(const char* message) {
  PyErr_SetString(PyExc_TypeError, message);
  return NULL;
}

/* A scope called is a scope entered. */
static PyObject* null_scope_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  (void)args;
  if (PyVectorcall_NARGS(nargsf) != 0 || keywords != NULL) return refuse("a scope's __enter__() takes no arguments");
  PyObject* name = ((NullScope*)self)->name;
  Py_INCREF(name);
  return name;
}

/* The objects that stand in the type under __enter__ and __exit__.
 * __enter__, asked for through a scope, is that scope; asked for through the type, as contextlib.ExitStack does, it is
 * this object, which is then called with the scope. __exit__ does not bind: it needs nothing of the scope. */
typedef struct {
  PyObject_HEAD vectorcallfunc call;
} ScopeMethod;

static PyObject* enter_get(PyObject* self, PyObject* scope, PyObject* type) {
  (void)type;
  PyObject* bound = scope == NULL ? self : scope;
  Py_INCREF(bound);
  return bound;
}

static PyObject* enter_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  (void)self;
  if (PyVectorcall_NARGS(nargsf) != 1 || Py_TYPE(args[0]) != null_scope_type)
    return refuse("NullScope.__enter__() takes one scope");
  return null_scope_call(args[0], NULL, 0, keywords);
}

static PyObject* exit_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  (void)self, (void)args, (void)nargsf;
  if (keywords != NULL) return refuse("a scope's __exit__() takes no keyword arguments");
  Py_RETURN_NONE;
}

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ScopeMethod, call), READONLY, NULL}, {NULL, 0, 0, 0, NULL}};
static PyType_Slot enter_slots[] = {
    {Py_tp_descr_get, enter_get}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, method_members}, {0, NULL}};
static PyType_Slot exit_slots[] = {{Py_tp_call, PyVectorcall_Call}, {Py_tp_members, method_members}, {0, NULL}};
static PyType_Spec enter_spec = {"fastutils._scopes.ScopeEnter", sizeof(ScopeMethod), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, enter_slots};
static PyType_Spec exit_spec = {"fastutils._scopes.ScopeExit", sizeof(ScopeMethod), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, exit_slots};

static int add_method(PyObject* owner, const char* name, PyType_Spec* spec, vectorcallfunc call) {
  PyObject* type = PyType_FromSpec(spec);
  ScopeMethod* method = type ? PyObject_New(ScopeMethod, (PyTypeObject*)type) : NULL;
  if (method != NULL) method->call = call;
  int failed = method == NULL || PyObject_SetAttrString(owner, name, (PyObject*)method) < 0;
  Py_XDECREF((PyObject*)method);
  Py_XDECREF(type);
  return failed ? -1 : 0;
}
#endif

/* Without it, object.__new__ would make scopes without a name, and they would end among the freed ones. */
static PyObject* null_scope_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  (void)type, (void)args, (void)keywords;
  PyErr_SetString(PyExc_TypeError, "a scope is made by record_function_or_nullcontext(name)");
  return NULL;
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
#ifndef Py_LIMITED_API
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(NullScope, call), READONLY, NULL},
#endif
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot null_scope_slots[] = {{Py_tp_doc, "A scope that does nothing; ``with`` yields its name."},
                                         {Py_tp_new, null_scope_new},
                                         {Py_tp_dealloc, null_scope_dealloc},
                                         {Py_tp_members, null_scope_members},
#ifdef Py_LIMITED_API
                                         {Py_tp_methods, null_scope_methods},
#else
                                         {Py_tp_call, PyVectorcall_Call},
#endif
                                         {0, NULL}};

#if defined(Py_LIMITED_API)
#define NULL_SCOPE_FLAGS Py_TPFLAGS_DEFAULT
#else
#define NULL_SCOPE_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL)
#endif
static PyType_Spec null_scope_spec = {"fastutils._scopes.NullScope", sizeof(NullScope), 0, NULL_SCOPE_FLAGS,
                                      null_scope_slots};

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
#ifndef Py_LIMITED_API
    scope->call = null_scope_call;
#endif
  }
  Py_INCREF(name);
  scope->name = name;
  return (PyObject*)scope;
}

/* ---- choosing and calling ------------------------------------------------------------------------------------- */

static int choose(void) {
  PyObject *scopes = PyImport_ImportModule("fastutils.scopes"), *contextlib = NULL, *nullcontext = NULL, *choice = NULL;
  if (scopes && (contextlib = PyImport_ImportModule("contextlib")) &&
      (nullcontext = PyObject_GetAttrString(contextlib, "nullcontext")) &&
      (choice = PyObject_CallMethod(scopes, "_chosen", NULL))) {
    PyObject* before = chosen; /* another thread may have come first */
    is_off = choice == nullcontext;
    Py_INCREF(choice);
    chosen = choice;
    Py_XDECREF(before);
  }
  int failed = choice == NULL;
  Py_XDECREF(scopes);
  Py_XDECREF(contextlib);
  Py_XDECREF(nullcontext);
  Py_XDECREF(choice);
  return failed ? -1 : 0;
}

PyDoc_STRVAR(
    record_doc,
    "record_function_or_nullcontext($module, name)\n--\n\n"
    "A context manager that shows its body to a profiler under `name`.\n\n"
    "``torch.autograd.profiler.record_function`` if ``VLLM_CUSTOM_SCOPES_FOR_PROFILING`` is on, else "
    "``nvtx.annotate`` if\n``VLLM_NVTX_SCOPES_FOR_PROFILING`` is, else one that does nothing and yields `name`. "
    "Chosen at the first call,\nthen kept. Raises ImportError if nvtx is asked for and missing, ValueError if a "
    "variable is not an integer.\n\n"
    "Upstream: ``vllm.v1.utils.record_function_or_nullcontext``.");

static PyObject* record_function_or_nullcontext(PyObject* module, PyObject* const* args, Py_ssize_t count,
                                                PyObject* keywords) {
  (void)module;
  PyObject* name = fu_bind_one("record_function_or_nullcontext", "name", args, count, keywords);
  if (name == NULL) return NULL;
  if (!is_off && chosen == NULL && choose() < 0) return NULL;
  if (is_off && PyUnicode_CheckExact(name)) return new_null_scope(name);
  PyObject* maker = chosen;
  Py_INCREF(maker);
  PyObject* scope = PyObject_CallFunctionObjArgs(maker, name, NULL);
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
     record_doc},
    {"_forget", forget, METH_NOARGS,
     "_forget($module)\n--\n\nForget the choice. For tests, by fastutils.scopes._reset."},
    {NULL, NULL, 0, NULL}};

/* ---- the module ----------------------------------------------------------------------------------------------- */

static int set_from(PyObject* target, PyObject* source, const char* name) {
  PyObject* value = PyObject_GetAttrString(source, name);
  int failed = value == NULL || PyObject_SetAttrString(target, name, value) < 0;
  Py_XDECREF(value);
  return failed ? -1 : 0;
}

static int make_types(void) {
  PyObject *type = PyType_FromSpec(&null_scope_spec), *contextlib = PyImport_ImportModule("contextlib");
  PyObject* nullcontext = contextlib ? PyObject_GetAttrString(contextlib, "nullcontext") : NULL;
  int failed = type == NULL || nullcontext == NULL || set_from(type, nullcontext, "__aenter__") < 0 ||
               set_from(type, nullcontext, "__aexit__") < 0;
#ifndef Py_LIMITED_API
  failed = failed || add_method(type, "__enter__", &enter_spec, enter_call) < 0 ||
           add_method(type, "__exit__", &exit_spec, exit_call) < 0;
#endif
  if (!failed) {
    null_scope_type = (PyTypeObject*)type;
    type = NULL;
  }
  Py_XDECREF(nullcontext);
  Py_XDECREF(contextlib);
  Py_XDECREF(type);
  return failed ? -1 : 0;
}

static int scopes_exec(PyObject* module) {
  if (fu_claim_interpreter("fastutils._scopes") < 0) return -1;
  if (null_scope_type == NULL && make_types() < 0) return -1; /* a second import uses what the first one made */
  /* The function is pickled by its public name, under which either form is found. */
  PyObject *function = PyObject_GetAttrString(module, "record_function_or_nullcontext"),
           *home = PyUnicode_FromString("fastutils");
  int failed = function == NULL || home == NULL || PyObject_SetAttrString(function, "__module__", home) < 0;
  Py_XDECREF(function);
  Py_XDECREF(home);
  return failed ? -1 : 0;
}

static PyModuleDef_Slot scopes_slots[] = {{Py_mod_exec, scopes_exec}, FU_ONE_INTERPRETER{0, NULL}};

static struct PyModuleDef scopes_module = {PyModuleDef_HEAD_INIT, .m_name = "fastutils._scopes",
                                           .m_doc = "record_function_or_nullcontext, compiled.",
                                           .m_methods = scopes_methods, .m_slots = scopes_slots};

PyMODINIT_FUNC PyInit__scopes(void) { return PyModuleDef_Init(&scopes_module); }
