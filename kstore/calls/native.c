/* The functions of plain.py, compiled: see there for what each does.
 *
 * Nothing is done here but the system calls. They are made without the interpreter's lock, so threads make them side by
 * side. Only Python's limited API is used: one build serves every version from 3.11 on.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SECOND = 1000000000,
    CHANGED = -1, /* as in plain.py */
    SKIPPED = -2,
    FICLONE = 0x40049409, /* ioctl_ficlone(2); not every libc has <linux/fs.h> beside it */
    FORM = 8, /* another one when a function takes or returns something else; __init__.py says which one it knows */
};

/* ---- What Python gives, and what it gets */

struct names {
    PyObject *owner; /* a list of bytes objects */
    const char **texts;
    Py_ssize_t count;
};

static void release_names(struct names *names) {
    PyMem_Free((void *)names->texts);
    Py_CLEAR(names->owner);
}

/* Any sequence of strings; false with an exception set if it holds anything else. */
static int take_names(PyObject *paths, struct names *names) {
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
static PyObject *room(size_t size, void *start) {
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (made) *(void **)start = PyBytes_AsString(made);
    return made;
}

static int error_of(int answer) { return answer ? errno : 0; }

/* ---- Links and clones: how many were made and the error number that ended it, or an error number for each */

static PyObject *link_first(PyObject *module, PyObject *arguments) {
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

/* A stamp may lie ahead of now: as an access time it would tell of a read, so that has no fraction. */
static int set_times(int fd, struct timespec modified) {
    const struct timespec times[2] = {{.tv_sec = modified.tv_sec}, modified};
    return error_of(futimens(fd, times));
}

static int create(const char *path, mode_t mode) {
    int fd;
    do fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
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

static PyObject *link_each(PyObject *module, PyObject *arguments) {
    (void)module;
    return make_each(link_one, arguments);
}

static PyObject *clone_each(PyObject *module, PyObject *arguments) {
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

static PyObject *link_rows(PyObject *module, PyObject *arguments) {
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

static PyObject *mkdir_each(PyObject *module, PyObject *paths) {
    (void)module;
    return call_each(paths, make_folder);
}

static PyObject *unlink_each(PyObject *module, PyObject *paths) {
    (void)module;
    return call_each(paths, unlink);
}

static struct timespec timespec_of(int64_t ns) {
    const int64_t seconds = ns / SECOND, fraction = ns % SECOND;
    if (fraction < 0) return (struct timespec){.tv_sec = seconds - 1, .tv_nsec = fraction + SECOND};
    return (struct timespec){.tv_sec = seconds, .tv_nsec = fraction};
}

static PyObject *utime_each(PyObject *module, PyObject *arguments) {
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

/* The nearest that can be said of a time beyond the years 1677 and 2262. */
static int64_t nanoseconds(struct timespec moment) {
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

static struct status status_of(int error, const struct stat *found) {
    if (error) return (struct status){.error = error};
    return (struct status){
        .mode = found->st_mode,
        .size = found->st_size,
        .mtime_ns = nanoseconds(found->st_mtim),
        .ctime_ns = nanoseconds(found->st_ctim),
        .inode = found->st_ino,
    };
}

static struct status look(int folder, const char *path, int follows) {
    struct stat found;
    return status_of(error_of(fstatat(folder, path, &found, follows ? 0 : AT_SYMLINK_NOFOLLOW)), &found);
}

static PyObject *stat_each(PyObject *module, PyObject *arguments) {
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

/* How many names there are in text that has a NUL between each two, and one behind the last as all of Python's has. */
static Py_ssize_t count_names(const char *text, Py_ssize_t size) {
    Py_ssize_t count = 1;
    for (Py_ssize_t i = 0; i < size; i++) count += !text[i];
    return count;
}

/* Of content and status. */
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

static PyObject *times_below(PyObject *module, PyObject *arguments) {
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

/* The names in a folder, a NUL behind each, and the status of the folder and then of each. */
struct listing {
    char *names;
    struct status *statuses;
    size_t size, names_room, count, statuses_room;
};

/* Memory for one more thing behind `count` of them. */
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

/* Of a folder that cannot be listed there is the error alone. */
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

static PyObject *list_each(PyObject *module, PyObject *paths) {
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

/* ---- Whole files */

static int open_unnoticed(const char *path) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd;
    do fd = open(path, flags | O_NOATIME);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && (errno == EPERM || errno == EACCES || errno == EINVAL)) fd = open(path, flags);
    return fd;
}

/* As many bytes as there are, up to `left`; an error number if none can be had. */
static int read_all(int fd, char *data, Py_ssize_t left) {
    while (left > 0) {
        const ssize_t done = read(fd, data, (size_t)left);
        if (done < 0 && errno != EINTR) return errno;
        if (done == 0) return EAGAIN;
        if (done > 0) data += done, left -= done;
    }
    return 0;
}

static int is_same(const struct stat *before, const struct stat *after, Py_ssize_t size) {
    return before->st_size == size && after->st_size == size && before->st_mtim.tv_sec == after->st_mtim.tv_sec &&
           before->st_mtim.tv_nsec == after->st_mtim.tv_nsec;
}

static struct status read_file(const char *path, char *data, Py_ssize_t size) {
    struct stat before, after;
    const int fd = open_unnoticed(path);
    if (fd < 0) return status_of(errno, NULL);
    int error = error_of(fstat(fd, &before));
    if (!error && !(S_ISREG(before.st_mode) && before.st_size == size)) error = EAGAIN;
    if (!error) error = read_all(fd, data, size);
    if (!error) error = error_of(fstat(fd, &after));
    if (!error && !is_same(&before, &after, size)) error = EAGAIN;
    close(fd);
    return status_of(error, &after);
}

struct content {
    char *data;
    Py_ssize_t size;
};

/* A list of new bytes objects that are to be filled, of the sizes that a sequence holds. */
static PyObject *take_sizes(PyObject *sizes, Py_ssize_t count, struct content *contents) {
    PyObject *list = PySequence_List(sizes);
    if (list && PyList_Size(list) != count) {
        PyErr_SetString(PyExc_ValueError, "as many sizes as paths are needed");
        Py_CLEAR(list);
    }
    for (Py_ssize_t i = 0; list && i < count; i++) {
        contents[i].size = PyLong_AsSsize_t(PyList_GetItem(list, i));
        PyObject *made = PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(NULL, contents[i].size);
        if (made) {
            contents[i].data = PyBytes_AsString(made);
            PyList_SetItem(list, i, made);
        } else Py_CLEAR(list);
    }
    return list;
}

/* Of what could not be read there are no bytes. */
static void empty_failed(PyObject *read, const struct status *status, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (status[i].error) PyList_SetItem(read, i, PyBytes_FromStringAndSize(NULL, 0));
}

static PyObject *read_files(const struct names *names, PyObject *sizes) {
    struct status *status;
    struct content *contents = PyMem_Calloc((size_t)names->count + 1, sizeof *contents);
    if (!contents) return PyErr_NoMemory();
    PyObject *read = take_sizes(sizes, names->count, contents);
    PyObject *statuses = read ? room((size_t)names->count * sizeof *status, &status) : NULL;
    if (statuses) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < names->count; i++)
            status[i] = read_file(names->texts[i], contents[i].data, contents[i].size);
        Py_END_ALLOW_THREADS
        empty_failed(read, status, names->count);
    } else Py_CLEAR(read);
    PyMem_Free(contents);
    return read ? Py_BuildValue("NN", read, statuses) : NULL;
}

static PyObject *read_each(PyObject *module, PyObject *arguments) {
    PyObject *paths, *sizes, *read;
    struct names names;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &paths, &sizes) || !take_names(paths, &names)) return NULL;
    read = read_files(&names, sizes);
    release_names(&names);
    return read;
}

/* ---- New files */

struct file {
    PyObject *path;
    Py_buffer data;
    long mode;
    int is_stamped;
    struct timespec modified;
};

static void release_files(struct file *files, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_CLEAR(files[i].path);
        if (files[i].data.obj) PyBuffer_Release(&files[i].data);
    }
    PyMem_Free(files);
}

static int take_time(PyObject *mtime, struct file *file) {
    if (mtime == Py_None) return 1;
    const long long ns = PyLong_AsLongLong(mtime);
    if (ns == -1 && PyErr_Occurred()) return 0;
    file->is_stamped = 1;
    file->modified = timespec_of(ns);
    return 1;
}

/* A tuple of path, bytes, mode and modification time. */
static int take_file(PyObject *item, struct file *file) {
    PyObject *path, *data, *mtime;
    return PyArg_ParseTuple(item, "OOlO", &path, &data, &file->mode, &mtime) &&
           PyUnicode_FSConverter(path, &file->path) && !PyObject_GetBuffer(data, &file->data, PyBUF_SIMPLE) &&
           take_time(mtime, file);
}

static struct file *take_files(PyObject *items, Py_ssize_t count) {
    struct file *files = PyMem_Calloc((size_t)count + 1, sizeof *files);
    if (!files) return (struct file *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        if (!take_file(PyList_GetItem(items, i), &files[i])) {
            release_files(files, count);
            return NULL;
        }
    return files;
}

static int write_all(int fd, const char *data, Py_ssize_t left) {
    while (left > 0) {
        const ssize_t done = write(fd, data, (size_t)left);
        if (done < 0 && errno != EINTR) return errno;
        if (done > 0) data += done, left -= done;
    }
    return 0;
}

static int write_file(const char *path, const struct file *file) {
    const int fd = create(path, (mode_t)file->mode);
    if (fd < 0) return errno;
    int error = write_all(fd, file->data.buf, file->data.len);
    if (!error && file->is_stamped) error = set_times(fd, file->modified);
    const int at_close = error_of(close(fd)); /* on NFS the first to tell of a full disk */
    return error ? error : at_close == EINTR ? 0 : at_close;
}

static int is_descriptors(int error) { return error == EMFILE || error == ENFILE; }

static PyObject *write_first(PyObject *module, PyObject *arguments) {
    int error = 0;
    Py_ssize_t done = 0;
    PyObject *made = NULL, *items = PySequence_List(arguments);
    (void)module;
    if (!items) return NULL;
    const Py_ssize_t count = PyList_Size(items);
    struct file *files = take_files(items, count);
    if (files) {
        const char **paths = PyMem_Calloc((size_t)count + 1, sizeof *paths);
        for (Py_ssize_t i = 0; paths && i < count; i++) paths[i] = PyBytes_AsString(files[i].path);
        if (paths) {
            Py_BEGIN_ALLOW_THREADS
            while (done < count && !(error = write_file(paths[done], &files[done]))) done++;
            Py_END_ALLOW_THREADS
        }
        if (!paths) PyErr_NoMemory();
        else if (error && !is_descriptors(error)) {
            errno = error;
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, PyTuple_GetItem(PyList_GetItem(items, done), 0));
        } else made = Py_BuildValue("ni", done, error);
        PyMem_Free((void *)paths);
        release_files(files, count);
    }
    Py_DECREF(items);
    return made;
}

static PyMethodDef methods[] = {
    {"link_first", link_first, METH_VARARGS, NULL},
    {"link_each", link_each, METH_VARARGS, NULL},
    {"clone_each", clone_each, METH_VARARGS, NULL},
    {"link_rows", link_rows, METH_VARARGS, NULL},
    {"mkdir_each", mkdir_each, METH_O, NULL},
    {"unlink_each", unlink_each, METH_O, NULL},
    {"utime_each", utime_each, METH_VARARGS, NULL},
    {"stat_each", stat_each, METH_VARARGS, NULL},
    {"times_below", times_below, METH_VARARGS, NULL},
    {"list_each", list_each, METH_O, NULL},
    {"read_each", read_each, METH_VARARGS, NULL},
    {"write_first", write_first, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "native", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit_native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "FORM", FORM)) Py_CLEAR(module);
    return module;
}
