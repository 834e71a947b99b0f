#include "native.h"

#include <dirent.h>

/* ---- Folders, names, times and statuses: an error number for each, 0 where all went well */

static int make_folder(const char *path) { return mkdir(path, 0777); }

static PyObject *call_each(PyObject *paths, int (*call)(const char *)) {
    struct names names;
    int32_t *error;
    if (!take_names(paths, &names)) return NULL;
    PyObject *errors = room((size_t)names.count * sizeof *error, &error);
    if (errors) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < names.count; i++) error[i] = error_of(call(names.texts[i]));
        Py_END_ALLOW_THREADS
    }
    release_names(&names);
    return errors;
}

PyObject *mkdir_each(PyObject *module, PyObject *paths) {
    (void)module;
    return call_each(paths, make_folder);
}

PyObject *unlink_each(PyObject *module, PyObject *paths) {
    (void)module;
    return call_each(paths, unlink);
}

PyObject *utime_each(PyObject *module, PyObject *arguments) {
    PyObject *paths, *errors;
    long long atime_ns, mtime_ns;
    struct names names;
    int32_t *error;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLL", &paths, &atime_ns, &mtime_ns) || !take_names(paths, &names)) return NULL;
    const struct timespec times[2] = {timespec_of(atime_ns), timespec_of(mtime_ns)};
    if ((errors = room((size_t)names.count * sizeof *error, &error))) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < names.count; i++) error[i] = error_of(utimensat(AT_FDCWD, names.texts[i], times, 0));
        Py_END_ALLOW_THREADS
    }
    release_names(&names);
    return errors;
}

PyObject *stat_each(PyObject *module, PyObject *arguments) {
    PyObject *paths, *statuses;
    int follows;
    struct names names;
    struct status *status;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Op", &paths, &follows) || !take_names(paths, &names)) return NULL;
    if ((statuses = room((size_t)names.count * sizeof *status, &status))) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < names.count; i++) status[i] = look(AT_FDCWD, names.texts[i], follows);
        Py_END_ALLOW_THREADS
    }
    release_names(&names);
    return statuses;
}

/* How many names are in a text with NULs between them, and one after the last, as all of Python's texts have. */
static Py_ssize_t count_names(const char *text, Py_ssize_t size) {
    Py_ssize_t count = 1;
    for (Py_ssize_t i = 0; i < size; i++) count += !text[i];
    return count;
}

/* When content and status changed. */
struct changes {
    int64_t mtime_ns, ctime_ns;
};

static int take_changes(int folder, const char *name, Py_ssize_t count, int follows, struct changes *changes) {
    for (Py_ssize_t i = 0; i < count; i++, name += strlen(name) + 1) {
        const struct status status = look(folder, name, follows);
        if (status.error) return (int)status.error;
        changes[i] = (struct changes){.mtime_ns = status.mtime_ns, .ctime_ns = status.ctime_ns};
    }
    return 0;
}

PyObject *times_below(PyObject *module, PyObject *arguments) {
    PyObject *times;
    const char *text;
    Py_ssize_t size;
    int folder, follows, error;
    struct changes *changes;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y#ip", &text, &size, &folder, &follows)) return NULL;
    const Py_ssize_t count = count_names(text, size);
    if (!(times = room((size_t)count * sizeof *changes, &changes))) return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = take_changes(folder, text, count, follows, changes);
    Py_END_ALLOW_THREADS
    if (!error) return times;
    Py_DECREF(times);
    Py_INCREF(Py_None);
    return Py_None;
}

/* ---- What is in folders */

/* The names in a folder, a NUL after each, and the status of the folder and then of each name. */
struct listing {
    char *names;
    struct status *statuses;
    size_t size, names_room, count, statuses_room;
};

/* Makes room for `more` things behind `count` of them. */
static int make_room(void *start, size_t count, size_t more, size_t *room, size_t item) {
    if (count + more <= *room) return 1;
    const size_t larger = 2 * (count + more);
    void *moved = realloc(*(void **)start, larger * item);
    if (!moved) return 0;
    *(void **)start = moved;
    *room = larger;
    return 1;
}

static int add_status(struct listing *listing, struct status status) {
    if (!make_room(&listing->statuses, listing->count, 1, &listing->statuses_room, sizeof status)) return 0;
    listing->statuses[listing->count++] = status;
    return 1;
}

static int add_name(struct listing *listing, int folder, const char *name) {
    const size_t length = strlen(name) + 1;
    if (!make_room(&listing->names, listing->size, length, &listing->names_room, 1)) return 0;
    memcpy(listing->names + listing->size, name, length);
    listing->size += length;
    return add_status(listing, look(folder, name, 0));
}

static int is_another(const char *name) { return strcmp(name, ".") && strcmp(name, ".."); }

static int read_names(DIR *folder, struct listing *listing) {
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(folder)))
        if (is_another(entry->d_name) && !add_name(listing, dirfd(folder), entry->d_name)) return ENOMEM;
    return errno;
}

static int open_listing(const char *path, struct listing *listing) {
    int fd;
    do fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return errno;
    struct stat found;
    int error = error_of(fstat(fd, &found));
    DIR *folder = error ? NULL : fdopendir(fd);
    if (!folder) {
        error = error ? error : errno;
        close(fd);
        return error;
    }
    error = add_status(listing, status_of(0, &found)) ? read_names(folder, listing) : ENOMEM;
    closedir(folder);
    return error;
}

/* For a folder that cannot be listed there is only the error. */
static struct listing list_folder(const char *path) {
    struct listing listing = {0};
    const int error = open_listing(path, &listing);
    if (error) {
        listing.count = listing.size = 0;
        add_status(&listing, status_of(error, NULL));
    }
    return listing;
}

static PyObject *give_listings(const struct listing *listings, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        const struct listing *one = &listings[i];
        PyObject *item = one->count ? Py_BuildValue("y#y#", one->size ? one->names : "", (Py_ssize_t)one->size,
                                                    (const char *)one->statuses,
                                                    (Py_ssize_t)(one->count * sizeof *one->statuses))
                                    : PyErr_NoMemory();
        if (item) PyList_SetItem(list, i, item);
        else Py_CLEAR(list);
    }
    return list;
}

PyObject *list_each(PyObject *module, PyObject *paths) {
    struct names names;
    (void)module;
    if (!take_names(paths, &names)) return NULL;
    struct listing *listings = PyMem_Calloc((size_t)names.count + 1, sizeof *listings);
    PyObject *list = listings ? NULL : PyErr_NoMemory();
    if (listings) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < names.count; i++) listings[i] = list_folder(names.texts[i]);
        Py_END_ALLOW_THREADS
        list = give_listings(listings, names.count);
        for (Py_ssize_t i = 0; i < names.count; i++) free(listings[i].names), free(listings[i].statuses);
    }
    PyMem_Free(listings);
    release_names(&names);
    return list;
}
