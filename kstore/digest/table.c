/* A hash table of digests: each has a number, in the order in which they came. It takes some forty bytes for each, where
   a dict of bytes takes a hundred and sixty. A digest may be anything that a store says, so where it is looked for
   depends on numbers that nobody else knows. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST 32
#define NONE UINT32_MAX
#define FEWEST 16

struct table {
    PyObject_HEAD
    uint64_t secret[4];
    uint8_t *digests;
    uint32_t *slots; /* The number of a digest and one more; 0 if there is none. */
    size_t count, room, mask;
};

static uint64_t folded(uint64_t one, uint64_t two) {
    const unsigned __int128 product = (unsigned __int128)one * two;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static size_t hash_of(const struct table *table, const uint8_t *digest) {
    uint64_t word[4];
    memcpy(word, digest, DIGEST);
    for (int i = 0; i < 4; i++) word[i] ^= table->secret[i];
    return (size_t)folded(folded(word[0], word[1]), folded(word[2], word[3]) ^ table->secret[0]);
}

/* The slot that a digest has, or would have. */
static uint32_t *slot_of(const struct table *table, const uint8_t *digest) {
    for (size_t at = hash_of(table, digest);; at++) {
        uint32_t *slot = &table->slots[at & table->mask];
        if (!*slot || !memcmp(table->digests + (*slot - 1) * (size_t)DIGEST, digest, DIGEST)) return slot;
    }
}

static int make_slots(struct table *table, size_t slots) {
    uint32_t *made = calloc(slots, sizeof *made);
    if (!made) return 0;
    free(table->slots);
    table->slots = made;
    table->mask = slots - 1;
    for (size_t i = 0; i < table->count; i++) *slot_of(table, table->digests + i * DIGEST) = (uint32_t)(i + 1);
    return 1;
}

static int make_room(struct table *table) {
    const size_t room = table->room + table->room / 2 + FEWEST;
    uint8_t *digests = realloc(table->digests, room * DIGEST);
    if (!digests) return 0;
    table->digests = digests;
    table->room = room;
    return 1;
}

/* A number for a digest; NONE if there is no memory for one more. */
static uint32_t number_for(struct table *table, const uint8_t *digest) {
    uint32_t *slot = slot_of(table, digest);
    if (*slot) return *slot - 1;
    if (table->count >= NONE - 1) return NONE;
    if (table->count == table->room && !make_room(table)) return NONE;
    memcpy(table->digests + table->count * DIGEST, digest, DIGEST);
    *slot = (uint32_t)++table->count;
    if (table->count * 4 > table->mask * 3 && !make_slots(table, 2 * (table->mask + 1))) {
        *slot_of(table, digest) = 0; /* It is the last one that came, so nothing is behind it. */
        table->count--;
        return NONE;
    }
    return (uint32_t)(table->count - 1);
}

/* ---- For Python */

static PyObject *each(struct table *table, PyObject *argument, int adds) {
    Py_buffer given;
    if (PyObject_GetBuffer(argument, &given, PyBUF_SIMPLE)) return NULL;
    const size_t count = (size_t)given.len / DIGEST;
    PyObject *answer = NULL;
    if (given.len % DIGEST) PyErr_Format(PyExc_ValueError, "%zd bytes are not digests", given.len);
    else answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint32_t)));
    for (size_t i = 0; answer && i < count; i++) {
        const uint8_t *digest = (const uint8_t *)given.buf + i * DIGEST;
        const uint32_t number = adds ? number_for(table, digest) : *slot_of(table, digest) - 1; /* 0 - 1 is NONE. */
        if (adds && number == NONE) {
            Py_CLEAR(answer);
            PyErr_NoMemory();
        } else {
            memcpy(PyBytes_AsString(answer) + i * sizeof number, &number, sizeof number);
        }
    }
    PyBuffer_Release(&given);
    return answer;
}

static PyObject *add(PyObject *self, PyObject *digests) { return each((struct table *)self, digests, 1); }

static PyObject *find(PyObject *self, PyObject *digests) { return each((struct table *)self, digests, 0); }

static Py_ssize_t length(PyObject *self) { return (Py_ssize_t)((struct table *)self)->count; }

static PyObject *item(PyObject *self, Py_ssize_t number) {
    const struct table *table = (struct table *)self;
    if (number < 0 || (size_t)number >= table->count) {
        PyErr_SetString(PyExc_IndexError, "no digest has that number");
        return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)table->digests + number * DIGEST, DIGEST);
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    const char *secret;
    Py_ssize_t size;
    (void)named;
    if (!PyArg_ParseTuple(arguments, "y#", &secret, &size)) return NULL;
    if (size != DIGEST) return PyErr_Format(PyExc_ValueError, "a secret of %zd bytes", size);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct table *table = (struct table *)allocate(type, 0);
    if (!table) return NULL;
    memcpy(table->secret, secret, DIGEST);
    if (make_slots(table, FEWEST)) return (PyObject *)table;
    Py_DECREF((PyObject *)table);
    return PyErr_NoMemory();
}

static void drop(PyObject *self) {
    struct table *table = (struct table *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free(table->digests);
    free(table->slots);
    release(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef methods[] = {{"add", add, METH_O, NULL}, {"find", find, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_new, make},          {Py_tp_dealloc, drop}, {Py_tp_methods, methods},
    {Py_sq_length, length},     {Py_sq_item, item},    {0, NULL},
};

static PyType_Spec specification = {
    .name = "kstore.digest.table.Table", .basicsize = sizeof(struct table), .flags = Py_TPFLAGS_DEFAULT, .slots = slots};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "table", .m_size = 0};

PyMODINIT_FUNC PyInit_table(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module ? PyType_FromSpec(&specification) : NULL;
    if (type && !PyModule_AddObjectRef(module, "Table", type)) {
        Py_DECREF(type);
        return module;
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    return NULL;
}
