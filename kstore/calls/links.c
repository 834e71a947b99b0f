#include "native.h"

#include <stdio.h>
#include <sys/ioctl.h>

enum {
    CHANGED = -1, /* as in plain.py */
    SKIPPED = -2,
    FICLONE = 0x40049409, /* ioctl_ficlone(2); not every libc has <linux/fs.h> beside it */
};

/* ---- Links and clones: how many were made and the error number that ended it, or an error number for each */

PyObject *link_first(PyObject *module, PyObject *arguments) {
    PyObject *from, *to, *made = NULL;
    struct names sources, targets;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &from, &to) || !take_names(from, &sources)) return NULL;
    if (take_names(to, &targets)) {
        if (sources.count != targets.count)
            PyErr_SetString(PyExc_ValueError, "as many targets as sources are needed");
        else {
            int error = 0;
            Py_ssize_t done = 0;
            Py_BEGIN_ALLOW_THREADS
            while (done < sources.count && !(error = error_of(link(sources.texts[done], targets.texts[done])))) done++;
            Py_END_ALLOW_THREADS
            made = Py_BuildValue("ni", done, error);
        }
        release_names(&targets);
    }
    release_names(&sources);
    return made;
}

/* What a source must still be, and the permission bits of its clone. */
struct look {
    uint64_t size;
    int64_t fraction_ns, mode;
};

static int is_unchanged(const struct stat *found, const struct look *expected) {
    return S_ISREG(found->st_mode) && (uint64_t)found->st_size == expected->size &&
           found->st_mtim.tv_nsec == expected->fraction_ns;
}

static int link_one(const char *source, const char *target, const struct look *expected) {
    struct stat found;
    if (lstat(source, &found) || !is_unchanged(&found, expected)) return CHANGED;
    return error_of(link(source, target));
}

static int clone_open(int source, const struct stat *found, const char *target, mode_t mode) {
    const int fd = create(target, mode);
    if (fd < 0) return errno;
    int error = error_of(ioctl(fd, FICLONE, source));
    if (!error) error = set_times(fd, found->st_mtim);
    close(fd); /* nothing was written that could fail as late as here */
    if (error) unlink(target);
    return error;
}

static int is_no_file(int error) {
    const int known[] = {ENOENT, EISDIR, ELOOP, ENOTDIR, ENXIO, ESPIPE, EINVAL};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (error == known[i]) return 1;
    return 0;
}

static int open_source(const char *path) {
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int clone_one(const char *source, const char *target, const struct look *expected) {
    struct stat found;
    const int fd = open_source(source);
    if (fd < 0) return is_no_file(errno) ? CHANGED : errno;
    const int error = !fstat(fd, &found) && is_unchanged(&found, expected)
                          ? clone_open(fd, &found, target, (mode_t)expected->mode) : CHANGED;
    close(fd);
    return error;
}

typedef int make_one(const char *source, const char *target, const struct look *expected);

static PyObject *make_named(make_one make, const struct names *sources, const struct names *targets, Py_buffer *looks) {
    const struct look *expected = looks->buf;
    int32_t *error;
    if (sources->count != targets->count || sources->count * (Py_ssize_t)sizeof *expected != looks->len) {
        PyErr_SetString(PyExc_ValueError, "a target and a look are needed for each source");
        return NULL;
    }
    PyObject *errors = room((size_t)sources->count * sizeof *error, &error);
    if (errors) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < sources->count; i++)
            error[i] = make(sources->texts[i], targets->texts[i], &expected[i]);
        Py_END_ALLOW_THREADS
    }
    return errors;
}

static PyObject *make_each(make_one make, PyObject *arguments) {
    PyObject *from, *to, *errors = NULL;
    struct names sources, targets;
    Py_buffer looks;
    if (!PyArg_ParseTuple(arguments, "OOy*", &from, &to, &looks)) return NULL;
    if (take_names(from, &sources)) {
        if (take_names(to, &targets)) {
            errors = make_named(make, &sources, &targets, &looks);
            release_names(&targets);
        }
        release_names(&sources);
    }
    PyBuffer_Release(&looks);
    return errors;
}

PyObject *link_each(PyObject *module, PyObject *arguments) {
    (void)module;
    return make_each(link_one, arguments);
}

PyObject *clone_each(PyObject *module, PyObject *arguments) {
    (void)module;
    return make_each(clone_one, arguments);
}

/* ---- Links and clones of loose blobs, as the rows of a manifest name them */

enum { DIGEST = 32, ROW = 52, MOST_PATH = 4096 };

/* A record of a manifest, of which kstore/published/manifest.py has the form. */
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
    if (snprintf(target, sizeof target, "%s/%s", place->stage, name) >= (int)sizeof target) return ENAMETOOLONG;
    const struct look look = {.size = row->size, .fraction_ns = stamp_of(row->digest), .mode = (row->mode & 0777) | 0600};
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
