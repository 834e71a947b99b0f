/* The functions of plain.py, compiled: see there for what each does.
 *
 * Nothing is done here but the system calls. They are made without the interpreter's lock, so threads can make them
 * side by side. Only Python's limited API is used: one build serves every version from 3.11 on.
 */
#include "native.h"

/* Changes whenever a function takes or returns something else; __init__.py says which form it knows. */
enum { FORM = 11 };

static PyMethodDef methods[] = {
    {"link_first", link_first, METH_VARARGS, NULL},
    {"link_each", link_each, METH_VARARGS, NULL},
    {"clone_each", clone_each, METH_VARARGS, NULL},
    {"link_rows", link_rows, METH_VARARGS, NULL},
    {"write_rows", write_rows, METH_VARARGS, NULL},
    {"mkdir_each", mkdir_each, METH_O, NULL},
    {"unlink_each", unlink_each, METH_O, NULL},
    {"utime_each", utime_each, METH_VARARGS, NULL},
    {"stat_each", stat_each, METH_VARARGS, NULL},
    {"times_below", times_below, METH_VARARGS, NULL},
    {"list_each", list_each, METH_O, NULL},
    {"read_each", read_each, METH_VARARGS, NULL},
    {"write_first", write_first, METH_O, NULL},
    {"publish_first", publish_first, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "native", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit_native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "FORM", FORM)) Py_CLEAR(module);
    return module;
}
