/* What the parts of `native` share: see native.c. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECOND = 1000000000 };
enum { MOST_PATH = 4096 };
enum { CHANGED = -1, SKIPPED = -2 }; /* as in plain.py */

/* ---- The functions, in links.c, rows.c, folders.c and files.c */

PyObject *link_first(PyObject *module, PyObject *arguments);
PyObject *link_each(PyObject *module, PyObject *arguments);
PyObject *clone_each(PyObject *module, PyObject *arguments);
PyObject *link_rows(PyObject *module, PyObject *arguments);
PyObject *write_rows(PyObject *module, PyObject *arguments);
PyObject *mkdir_each(PyObject *module, PyObject *paths);
PyObject *unlink_each(PyObject *module, PyObject *paths);
PyObject *utime_each(PyObject *module, PyObject *arguments);
PyObject *stat_each(PyObject *module, PyObject *arguments);
PyObject *times_below(PyObject *module, PyObject *arguments);
PyObject *list_each(PyObject *module, PyObject *paths);
PyObject *read_each(PyObject *module, PyObject *arguments);
PyObject *write_first(PyObject *module, PyObject *arguments);
PyObject *publish_first(PyObject *module, PyObject *arguments);

/* ---- What Python gives, and what it gets */

struct names {
    PyObject *owner; /* a list of bytes objects */
    const char **texts;
    Py_ssize_t count;
};

static inline void release_names(struct names *names) {
    PyMem_Free((void *)names->texts);
    Py_CLEAR(names->owner);
}

/* Takes any sequence of strings; false with an exception set if it holds anything else. */
static inline int take_names(PyObject *paths, struct names *names) {
    *names = (struct names){.owner = PySequence_List(paths)};
    if (!names->owner) return 0;
    names->count = PyList_Size(names->owner);
    names->texts = PyMem_Calloc((size_t)names->count + 1, sizeof *names->texts);
    if (!names->texts) {
        PyErr_NoMemory();
        release_names(names);
        return 0;
    }
    for (Py_ssize_t i = 0; i < names->count; i++) {
        PyObject *encoded;
        if (!PyUnicode_FSConverter(PyList_GetItem(names->owner, i), &encoded)) {
            release_names(names);
            return 0;
        }
        names->texts[i] = PyBytes_AsString(encoded);
        PyList_SetItem(names->owner, i, encoded);
    }
    return 1;
}

/* A new bytes object of `size` bytes that are to be filled before anybody sees it. */
static inline PyObject *room(size_t size, void *start) {
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (made) *(void **)start = PyBytes_AsString(made);
    return made;
}

static inline int error_of(int answer) { return answer ? errno : 0; }

/* ---- Times and statuses */

static inline struct timespec timespec_of(int64_t ns) {
    const int64_t seconds = ns / SECOND, fraction = ns % SECOND;
    if (fraction < 0) return (struct timespec){.tv_sec = seconds - 1, .tv_nsec = fraction + SECOND};
    return (struct timespec){.tv_sec = seconds, .tv_nsec = fraction};
}

/* The nearest that fits, for a time beyond the years 1677 and 2262. */
static inline int64_t nanoseconds(struct timespec moment) {
    int64_t ns;
    if (__builtin_mul_overflow((int64_t)moment.tv_sec, (int64_t)SECOND, &ns) ||
        __builtin_add_overflow(ns, (int64_t)moment.tv_nsec, &ns))
        return moment.tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return ns;
}

struct status {
    int64_t error, mode, size, mtime_ns, ctime_ns;
    uint64_t inode;
};

static inline struct status status_of(int error, const struct stat *found) {
    if (error) return (struct status){.error = error};
    return (struct status){
        .mode = found->st_mode,
        .size = found->st_size,
        .mtime_ns = nanoseconds(found->st_mtim),
        .ctime_ns = nanoseconds(found->st_ctim),
        .inode = found->st_ino,
    };
}

static inline struct status look(int folder, const char *path, int follows) {
    struct stat found;
    return status_of(error_of(fstatat(folder, path, &found, follows ? 0 : AT_SYMLINK_NOFOLLOW)), &found);
}

/* ---- One link, and one new file */

/* What a source must still be, and the permission bits of its clone. */
struct look {
    uint64_t size;
    int64_t fraction_ns, mode;
};

typedef int make_one(const char *source, const char *target, const struct look *expected);
make_one link_one, clone_one;

/* A stamp may lie ahead of now: as an access time it would look like a read, so the access time has no fraction. */
static inline int set_times(int fd, struct timespec modified) {
    const struct timespec times[2] = {{.tv_sec = modified.tv_sec}, modified};
    return error_of(futimens(fd, times));
}

static inline int create(const char *path, mode_t mode) {
    int fd;
    do fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Writes a file, gives it its time, if it has one, and closes it: an error number, or 0. */
int finish_file(int fd, const char *data, Py_ssize_t size, const struct timespec *modified);
