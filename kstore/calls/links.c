#include "native.h"

#include <sys/ioctl.h>

enum { FICLONE = 0x40049409 }; /* ioctl_ficlone(2); not every libc has <linux/fs.h> beside it */

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

static int is_unchanged(const struct stat *found, const struct look *expected) {
    return S_ISREG(found->st_mode) && (uint64_t)found->st_size == expected->size &&
           found->st_mtim.tv_nsec == expected->fraction_ns;
}

int link_one(const char *source, const char *target, const struct look *expected) {
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

int clone_one(const char *source, const char *target, const struct look *expected) {
    struct stat found;
    const int fd = open_source(source);
    if (fd < 0) return is_no_file(errno) ? CHANGED : errno;
    const int error = !fstat(fd, &found) && is_unchanged(&found, expected)
                          ? clone_open(fd, &found, target, (mode_t)expected->mode) : CHANGED;
    close(fd);
    return error;
}

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
