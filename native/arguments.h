// The door of compiled functions: how the wrappers that mypyc writes ask blockwright.arguments about an argument that is
// not exactly of the type of its parameter. native/rewrite.py puts the calls into the wrappers.
#pragma once
#include <Python.h>

// The arguments of the call that is being made again with what was admitted: they are not looked at twice. The vector
// lives until that call ends, so no other call has the same address meanwhile.
static const void *Blockwright_entered = &Blockwright_entered;

static inline int Blockwright_IsList(PyObject *given) { return PyList_CheckExact(given); }

#define BLOCKWRIGHT_EVERY(name, test)                                       \
    static inline int name(PyObject *given) {                               \
        if (!PyList_CheckExact(given)) return 0;                            \
        for (Py_ssize_t at = 0; at < PyList_GET_SIZE(given); at++) {        \
            PyObject *item = PyList_GET_ITEM(given, at);                    \
            if (!(test)) return 0;                                          \
        }                                                                   \
        return 1;                                                           \
    }
BLOCKWRIGHT_EVERY(Blockwright_IsInts, PyLong_CheckExact(item))
BLOCKWRIGHT_EVERY(Blockwright_IsBytes, PyBytes_CheckExact(item))
BLOCKWRIGHT_EVERY(Blockwright_IsIntLists, Blockwright_IsInts(item))

// Whether all items of a list are of the type that was admitted last.
static inline int Blockwright_IsSeen(PyObject *given, PyTypeObject *seen) {
    if (!PyList_CheckExact(given)) return 0;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(given); at++)
        if (Py_TYPE(PyList_GET_ITEM(given, at)) != seen) return 0;
    return 1;
}

// Whether an argument has items, and is of the type that was admitted last as it came: an array with one dimension or
// more. (Without any, one of numpy is an integer, and has no length.)
static inline int Blockwright_IsSized(PyObject *given, PyTypeObject *seen) {
    if (Py_TYPE(given) != seen) return 0;
    if (PyObject_Size(given) >= 0) return 1;
    PyErr_Clear();
    return 0;
}

static inline int Blockwright_IsCounts(PyObject *given) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (!PyDict_CheckExact(given)) return 0;
    while (PyDict_Next(given, &at, &key, &value))
        if (!PyUnicode_CheckExact(key) || !PyLong_CheckExact(value)) return 0;
    return 1;
}

static inline void Blockwright_Remember(PyTypeObject **seen, PyObject *given) {
    PyTypeObject *type = Py_TYPE(given);
    Py_INCREF(type);
    Py_XSETREF(*seen, type);
}

static void Blockwright_RememberItem(PyTypeObject **seen, PyObject *given) {
    if (PyList_CheckExact(given) && PyList_GET_SIZE(given) > 0) Blockwright_Remember(seen, PyList_GET_ITEM(given, 0));
}

// An object with an index may be admitted as an integer one time and as it comes the next; of arrays a length tells.
static void Blockwright_RememberSized(PyTypeObject **seen, PyObject *given) {
    PyNumberMethods *number = Py_TYPE(given)->tp_as_number;
    if (number == NULL || number->nb_index == NULL || PyObject_CheckBuffer(given)) Blockwright_Remember(seen, given);
}

// Return a list of what was admitted, positional arguments first.
static PyObject *Blockwright_Admitted(const char *signature, const char *module, PyObject *given, PyObject *named) {
    PyObject *arguments = PyImport_ImportModule("blockwright.arguments");
    PyObject *found = NULL;
    if (arguments != NULL && given != NULL && named != NULL)
        found = PyObject_CallMethod(arguments, "admitted", "ssOO", signature, module, given, named);
    Py_XDECREF(arguments);
    return found;
}

static int Blockwright_IsAgain(const void *given, const char *signature) {
    if (given != Blockwright_entered) return 0;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_SystemError, "admitted, and yet of another type: %s", signature);
    return 1;
}

// Return NULL, with the error of a constructor that could not take its arguments: one that names the class.
static PyObject *Blockwright_Refuse(PyObject *self, PyObject *args, PyObject *kw, const char *parameters) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *arguments = PyImport_ImportModule("blockwright.arguments");
    PyObject *named = kw == NULL ? PyDict_New() : Py_NewRef(kw), *done = NULL;
    if (arguments != NULL && named != NULL)
        // The class, not the object: that is half made, and whoever shows a traceback with its locals would read it.
        done = PyObject_CallMethod(arguments, "misused", "OsOO", PyType_Check(self) ? self : (PyObject *)Py_TYPE(self),
                                   parameters, args, named);
    Py_XDECREF(arguments);
    Py_XDECREF(named);
    if (done == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return NULL;
    }
    Py_DECREF(done);
    PyErr_Restore(type, value, traceback);  // none of these: what was said stands
    return NULL;
}

static PyObject *Blockwright_RefuseFast(PyObject *self, PyObject *const *args, size_t nargs, PyObject *kwnames,
                                        const char *parameters) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *given = PyTuple_New((Py_ssize_t)nargs), *named = PyDict_New();
    for (size_t at = 0; given != NULL && at < nargs; at++) PyTuple_SET_ITEM(given, at, Py_NewRef(args[at]));
    for (Py_ssize_t at = 0; named != NULL && kwnames != NULL && at < PyTuple_GET_SIZE(kwnames); at++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, at), args[nargs + at]) < 0) Py_CLEAR(named);
    if (given != NULL && named != NULL) {
        PyErr_Restore(type, value, traceback);
        Blockwright_Refuse(self, given, named, parameters);
    }
    Py_XDECREF(given);
    Py_XDECREF(named);
    return NULL;
}

typedef PyObject *(*Blockwright_Fast)(PyObject *, PyObject *const *, size_t, PyObject *);

// Make a call again with what is admitted of its arguments, or raise.
static PyObject *Blockwright_EnterFast(Blockwright_Fast call, PyObject *self, PyObject *const *args, size_t nargs,
                                       PyObject *kwnames, const char *signature, const char *module) {
    if (Blockwright_IsAgain(args, signature)) return NULL;
    PyErr_Clear();
    PyObject *given = PyTuple_New((Py_ssize_t)nargs), *named = PyDict_New(), *result = NULL;
    for (size_t at = 0; given != NULL && at < nargs; at++) PyTuple_SET_ITEM(given, at, Py_NewRef(args[at]));
    for (Py_ssize_t at = 0; named != NULL && kwnames != NULL && at < PyTuple_GET_SIZE(kwnames); at++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, at), args[nargs + at]) < 0) Py_CLEAR(named);
    PyObject *found = Blockwright_Admitted(signature, module, given, named);
    if (found != NULL) {
        const void *outer = Blockwright_entered;
        Blockwright_entered = PySequence_Fast_ITEMS(found);
        result = call(self, PySequence_Fast_ITEMS(found), nargs, kwnames);
        Blockwright_entered = outer;
    }
    Py_XDECREF(found);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

// The same for a constructor.
static PyObject *Blockwright_EnterInit(PyCFunctionWithKeywords call, PyObject *self, PyObject *args, PyObject *kw,
                                       const char *signature, const char *module) {
    if (Blockwright_IsAgain(kw, signature)) return NULL;
    PyErr_Clear();
    PyObject *named = kw == NULL ? PyDict_New() : Py_NewRef(kw), *result = NULL;
    PyObject *found = Blockwright_Admitted(signature, module, args, named);
    if (found != NULL) {
        Py_ssize_t count = PyTuple_GET_SIZE(args), at = 0, next = count;
        PyObject *key, *value, *given = NULL, *kept = PyDict_New();
        PyObject *head = PyList_GetSlice(found, 0, count);
        if (head != NULL) given = PyList_AsTuple(head);
        while (kept != NULL && named != NULL && PyDict_Next(named, &at, &key, &value))
            if (PyDict_SetItem(kept, key, PyList_GET_ITEM(found, next++)) < 0) Py_CLEAR(kept);
        if (given != NULL && kept != NULL) {
            const void *outer = Blockwright_entered;
            Blockwright_entered = kept;  // new for this call, unlike an empty tuple
            result = call(self, given, kept);
            Blockwright_entered = outer;
        }
        Py_XDECREF(head);
        Py_XDECREF(given);
        Py_XDECREF(kept);
        Py_DECREF(found);
    }
    Py_XDECREF(named);
    return result;
}

// The same for what sets a property.
static int Blockwright_EnterSetter(setter call, PyObject *self, PyObject *value, void *closure, const char *signature,
                                   const char *module) {
    if (Blockwright_IsAgain(value, signature)) return -1;
    PyErr_Clear();
    PyObject *given = PyTuple_Pack(1, value), *named = PyDict_New();
    PyObject *found = Blockwright_Admitted(signature, module, given, named);
    int result = -1;
    if (found != NULL) {
        const void *outer = Blockwright_entered;
        Blockwright_entered = PyList_GET_ITEM(found, 0);
        result = call(self, PyList_GET_ITEM(found, 0), closure);
        Blockwright_entered = outer;
    }
    Py_XDECREF(found);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}
