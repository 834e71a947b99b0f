#include "native.h"

#include <stdio.h>

/* ---- A row of a manifest: a path and a record, whose form is in kstore/published/manifest.py */

enum { DIGEST = 32, ROW = 52 };

struct row {
    const unsigned char *digest;
    uint64_t size;
    uint16_t mode;
    uint8_t flags;
};

static struct row row_at(const char *record) {
    struct row row = {.digest = (const unsigned char *)record};
    for (int i = 7; i >= 0; i--) row.size = row.size << 8 | (unsigned char)record[DIGEST + i];
    row.mode = (uint16_t)((unsigned char)record[48] | (unsigned char)record[49] << 8);
    row.flags = (uint8_t)record[50];
    return row;
}

static int64_t stamp_of(const unsigned char *digest) {
    const uint32_t head = digest[0] | (uint32_t)digest[1] << 8 | (uint32_t)digest[2] << 16 | (uint32_t)digest[3] << 24;
    return head % (SECOND - 1) + 1;
}

static mode_t mode_of(const struct row *row) { return (row->mode & 0777) | 0600; }

static int write_target(char *path, const char *stage, const char *name) {
    return snprintf(path, MOST_PATH, "%s/%s", stage, name) < MOST_PATH;
}

/* ---- Links and clones of loose blobs */

static int write_blob_path(char *path, const char *folder, const unsigned char *digest) {
    static const char digits[] = "0123456789abcdef";
    char text[2 * DIGEST + 1] = {0};
    for (int i = 0; i < DIGEST; i++) text[2 * i] = digits[digest[i] >> 4], text[2 * i + 1] = digits[digest[i] & 15];
    return snprintf(path, MOST_PATH, "%s/%.2s/%s", folder, text, text) < MOST_PATH;
}

struct place {
    const char *blobs, *stage;
    int needed, refused; /* flags of rows that are linked: all of the first, none of the second */
    make_one *make;
};

static int make_row(const struct place *place, const char *name, const struct row *row) {
    char source[MOST_PATH], target[MOST_PATH];
    if ((row->flags & place->needed) != place->needed || row->flags & place->refused) return SKIPPED;
    if (!write_blob_path(source, place->blobs, row->digest)) return ENAMETOOLONG;
    if (!write_target(target, place->stage, name)) return ENAMETOOLONG;
    const struct look look = {.size = row->size, .fraction_ns = stamp_of(row->digest), .mode = mode_of(row)};
    return place->make(source, target, &look);
}

static PyObject *make_rows(const struct place *place, const struct names *names, const char *records) {
    int32_t *error;
    PyObject *errors = room((size_t)names->count * sizeof *error, &error);
    if (errors) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < names->count; i++) {
            const struct row row = row_at(records + i * ROW);
            error[i] = make_row(place, names->texts[i], &row);
        }
        Py_END_ALLOW_THREADS
    }
    return errors;
}

PyObject *link_rows(PyObject *module, PyObject *arguments) {
    PyObject *paths, *blobs = NULL, *stage = NULL, *errors = NULL;
    Py_buffer records;
    struct place place;
    struct names names;
    int clones;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Oy*O&O&iip", &paths, &records, PyUnicode_FSConverter, &blobs, PyUnicode_FSConverter,
                          &stage, &place.needed, &place.refused, &clones))
        return NULL;
    place.blobs = PyBytes_AsString(blobs);
    place.stage = PyBytes_AsString(stage);
    place.make = clones ? clone_one : link_one;
    if (take_names(paths, &names)) {
        if (names.count * ROW == records.len) errors = make_rows(&place, &names, records.buf);
        else PyErr_SetString(PyExc_ValueError, "a record is needed for each path");
        release_names(&names);
    }
    PyBuffer_Release(&records);
    Py_DECREF(blobs);
    Py_DECREF(stage);
    return errors;
}

/* ---- Contents of packed blobs */

static int write_row(const char *stage, int64_t second_ns, const char *name, const char *record, const Py_buffer *data) {
    char target[MOST_PATH];
    const struct row row = row_at(record);
    if (!write_target(target, stage, name)) return ENAMETOOLONG;
    const struct timespec modified = timespec_of(second_ns + stamp_of(row.digest));
    const int fd = create(target, mode_of(&row));
    if (fd < 0) return errno;
    const int error = finish_file(fd, data->buf, data->len, &modified);
    if (error) unlink(target);
    return error;
}

struct contents {
    PyObject *owner; /* a list */
    Py_buffer *each;
    Py_ssize_t count;
};

static void release_contents(struct contents *contents) {
    for (Py_ssize_t i = 0; i < contents->count; i++) PyBuffer_Release(&contents->each[i]);
    PyMem_Free(contents->each);
    Py_CLEAR(contents->owner);
}

/* Takes a sequence of as many contents as paths; false with an exception set if it holds anything else. */
static int take_contents(PyObject *given, Py_ssize_t count, struct contents *contents) {
    *contents = (struct contents){.owner = PySequence_List(given)};
    if (!contents->owner) return 0;
    contents->each = PyMem_Calloc((size_t)count + 1, sizeof *contents->each);
    if (!contents->each) PyErr_NoMemory();
    else if (PyList_Size(contents->owner) != count) PyErr_SetString(PyExc_ValueError, "contents are needed for each path");
    else
        for (Py_buffer *next = contents->each; contents->count < count; next++, contents->count++)
            if (PyObject_GetBuffer(PyList_GetItem(contents->owner, contents->count), next, PyBUF_SIMPLE)) break;
    if (!PyErr_Occurred()) return 1;
    release_contents(contents);
    return 0;
}

static PyObject *write_until_error(const struct names *names, const char *records, const Py_buffer *contents,
                                   const char *stage, int64_t second_ns) {
    int error = 0;
    Py_ssize_t done = 0;
    Py_BEGIN_ALLOW_THREADS
    while (done < names->count &&
           !(error = write_row(stage, second_ns, names->texts[done], records + done * ROW, &contents[done])))
        done++;
    Py_END_ALLOW_THREADS
    return Py_BuildValue("ni", done, error);
}

PyObject *write_rows(PyObject *module, PyObject *arguments) {
    PyObject *paths, *list, *stage = NULL, *made = NULL;
    Py_buffer records;
    struct names names;
    struct contents contents;
    long long second_ns;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Oy*OO&L", &paths, &records, &list, PyUnicode_FSConverter, &stage, &second_ns))
        return NULL;
    if (take_names(paths, &names)) {
        if (names.count * ROW != records.len) PyErr_SetString(PyExc_ValueError, "a record is needed for each path");
        else if (take_contents(list, names.count, &contents)) {
            made = write_until_error(&names, records.buf, contents.each, PyBytes_AsString(stage), second_ns);
            release_contents(&contents);
        }
        release_names(&names);
    }
    PyBuffer_Release(&records);
    Py_DECREF(stage);
    return made;
}
