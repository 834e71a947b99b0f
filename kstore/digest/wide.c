/* BLAKE3 of many byte strings at once, for processors with AVX2 or AVX-512.
 *
 * A library hashes one after the other. Most artifacts have a few KiB: too short to fill eight or sixteen lanes by
 * themselves, and each call would take the interpreter's lock again. Here that many chunks are hashed side by side (see
 * lanes.h), from whichever strings, then the nodes above them, level by level, as the BLAKE3 paper defines them.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "wide.h"

#ifdef __x86_64__
#include <stdlib.h>
#include <string.h>

enum { EIGHT = 8, SIXTEEN = 16 };
typedef void hash_nodes(const struct node *nodes, size_t count);

static unsigned most_lanes(void) {
    return __builtin_cpu_supports("avx512f") ? SIXTEEN : __builtin_cpu_supports("avx2") ? EIGHT : 0;
}

/* ---- Whole strings: their chunks, and the nodes above */

struct text {
    Py_buffer content;
    uint8_t *digests; /* of its nodes, which become fewer with each level */
    size_t nodes;
};

static size_t chunks_of(const struct text *text) {
    return text->content.len ? ((size_t)text->content.len + CHUNK - 1) / CHUNK : 1;
}

static size_t add_chunks(const struct text *text, struct node *nodes) {
    const size_t count = chunks_of(text), size = (size_t)text->content.len;
    for (size_t i = 0; i < count; i++)
        nodes[i] = (struct node){
            .data = (const uint8_t *)text->content.buf + i * CHUNK,
            .digest = text->digests + i * DIGEST,
            .size = i + 1 < count ? CHUNK : size - i * CHUNK,
            .counter = i,
            .first = CHUNK_START,
            .last = count == 1 ? CHUNK_END | ROOT : CHUNK_END,
        };
    return count;
}

/* Adds a parent for each pair of nodes. It takes the place of a node that was read before the parent is written. */
static size_t add_parents(const struct text *text, struct node *nodes) {
    const size_t pairs = text->nodes / 2;
    for (size_t i = 0; i < pairs; i++)
        nodes[i] = (struct node){
            .data = text->digests + 2 * i * DIGEST,
            .digest = text->digests + i * DIGEST,
            .size = BLOCK,
            .every = text->nodes == 2 ? PARENT | ROOT : PARENT,
        };
    return pairs;
}

/* If the number of nodes is odd, the last one goes up with the parents of the others. */
static void rise(struct text *text) {
    const size_t pairs = text->nodes / 2, odd = text->nodes % 2;
    if (odd) memmove(text->digests + pairs * DIGEST, text->digests + 2 * pairs * DIGEST, DIGEST);
    text->nodes = pairs + odd;
}

static void hash_texts(struct text *texts, size_t count, struct node *nodes, hash_nodes *hash_all) {
    size_t added = 0;
    for (size_t i = 0; i < count; i++) added += texts[i].nodes = add_chunks(&texts[i], nodes + added);
    hash_all(nodes, added);
    do {
        added = 0;
        for (size_t i = 0; i < count; i++) added += add_parents(&texts[i], nodes + added);
        hash_all(nodes, added);
        for (size_t i = 0; i < count; i++) rise(&texts[i]);
    } while (added);
}

/* ---- For Python */

static int take_texts(PyObject *list, struct text *texts, size_t *nodes) {
    const Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyObject_GetBuffer(PyList_GetItem(list, i), &texts[i].content, PyBUF_SIMPLE)) return 0;
        *nodes += chunks_of(&texts[i]);
    }
    return 1;
}

static PyObject *digests_of(struct text *texts, size_t count, size_t total, hash_nodes *hash_all) {
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * DIGEST));
    struct node *nodes = malloc(total * sizeof *nodes + 1);
    uint8_t *digests = malloc(total * DIGEST + 1);
    if (answer && nodes && digests) {
        char *out = PyBytes_AsString(answer);
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0, at = 0; i < count; at += chunks_of(&texts[i++])) texts[i].digests = digests + at * DIGEST;
        hash_texts(texts, count, nodes, hash_all);
        for (size_t i = 0; i < count; i++) memcpy(out + i * DIGEST, texts[i].digests, DIGEST);
        Py_END_ALLOW_THREADS
    } else {
        Py_CLEAR(answer);
        PyErr_NoMemory();
    }
    free(nodes);
    free(digests);
    return answer;
}

static PyObject *digest_list(PyObject *list, hash_nodes *hash_all) {
    PyObject *answer = NULL;
    const size_t count = (size_t)PyList_Size(list);
    size_t nodes = 0;
    struct text *texts = calloc(count + 1, sizeof *texts);
    if (!texts) PyErr_NoMemory();
    else if (take_texts(list, texts, &nodes)) answer = digests_of(texts, count, nodes, hash_all);
    for (size_t i = 0; texts && i < count; i++)
        if (texts[i].content.obj) PyBuffer_Release(&texts[i].content);
    free(texts);
    return answer;
}

static PyObject *digest_each(PyObject *module, PyObject *arguments) {
    PyObject *contents;
    unsigned lanes;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OI", &contents, &lanes)) return NULL;
    if ((lanes != EIGHT && lanes != SIXTEEN) || lanes > most_lanes())
        return PyErr_Format(PyExc_ValueError, "this processor has no %u lanes", lanes);
    PyObject *list = PySequence_List(contents);
    PyObject *answer = list ? digest_list(list, lanes == EIGHT ? hash_by_eight : hash_by_sixteen) : NULL;
    Py_XDECREF(list);
    return answer;
}

static PyMethodDef methods[] = {{"digest_each", digest_each, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
#else
static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};

static unsigned most_lanes(void) { return 0; }
#endif

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "wide", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit_wide(void) {
    const unsigned lanes = most_lanes();
    if (!lanes) {
        PyErr_SetString(PyExc_ImportError, "this processor has neither AVX2 nor AVX-512");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "MOST_LANES", (long)lanes)) Py_CLEAR(module);
    return module;
}
