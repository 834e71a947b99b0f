#include "native.h"

#include <stdio.h>

/* ---- Whole files */

static int open_unnoticed(const char *path) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd;
    do fd = open(path, flags | O_NOATIME);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && (errno == EPERM || errno == EACCES || errno == EINVAL)) fd = open(path, flags);
    return fd;
}

/* Reads `left` bytes: 0, or an error number; EAGAIN if there are fewer. */
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

/* A list of new bytes objects, to be filled, of the sizes that a sequence holds. */
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

/* What could not be read has no bytes. */
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

PyObject *read_each(PyObject *module, PyObject *arguments) {
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

/* For use without the interpreter's lock; NULL with an exception set if there is no memory for them. */
static const char **paths_of(const struct file *files, Py_ssize_t count) {
    const char **paths = PyMem_Calloc((size_t)count + 1, sizeof *paths);
    for (Py_ssize_t i = 0; paths && i < count; i++) paths[i] = PyBytes_AsString(files[i].path);
    if (!paths) PyErr_NoMemory();
    return paths;
}

static int write_all(int fd, const char *data, Py_ssize_t left) {
    while (left > 0) {
        const ssize_t done = write(fd, data, (size_t)left);
        if (done < 0 && errno != EINTR) return errno;
        if (done > 0) data += done, left -= done;
    }
    return 0;
}

int finish_file(int fd, const char *data, Py_ssize_t size, const struct timespec *modified) {
    int error = write_all(fd, data, size);
    if (!error && modified) error = set_times(fd, *modified);
    const int at_close = error_of(close(fd)); /* on NFS the first to report a full disk */
    return error ? error : at_close == EINTR ? 0 : at_close;
}

static int write_file(const char *path, const struct file *file) {
    const int fd = create(path, (mode_t)file->mode);
    if (fd < 0) return errno;
    return finish_file(fd, file->data.buf, file->data.len, file->is_stamped ? &file->modified : NULL);
}

static int is_descriptors(int error) { return error == EMFILE || error == ENFILE; }

PyObject *write_first(PyObject *module, PyObject *arguments) {
    int error = 0;
    Py_ssize_t done = 0;
    PyObject *made = NULL, *items = PySequence_List(arguments);
    (void)module;
    if (!items) return NULL;
    const Py_ssize_t count = PyList_Size(items);
    struct file *files = take_files(items, count);
    if (files) {
        const char **paths = paths_of(files, count);
        if (paths) {
            Py_BEGIN_ALLOW_THREADS
            while (done < count && !(error = write_file(paths[done], &files[done]))) done++;
            Py_END_ALLOW_THREADS
        }
        if (paths && error && !is_descriptors(error)) {
            errno = error;
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, PyTuple_GetItem(PyList_GetItem(items, done), 0));
        } else if (paths) made = Py_BuildValue("ni", done, error);
        PyMem_Free((void *)paths);
        release_files(files, count);
    }
    Py_DECREF(items);
    return made;
}

/* ---- Objects: files that are whole before they have a name */

enum { TOGETHER = 32 };

/* Without a capability, the first way says before Linux 6.10 that there is no such file. */
static int link_open(int fd, const char *target) {
    char name[32];
    if (!linkat(fd, "", AT_FDCWD, target, AT_EMPTY_PATH)) return 0;
    if (errno != ENOENT) return errno;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    return error_of(linkat(AT_FDCWD, name, AT_FDCWD, target, AT_SYMLINK_FOLLOW));
}

static int make_folder_of(const char *path) {
    char folder[MOST_PATH];
    const char *end = strrchr(path, '/');
    if (!end || end - path >= MOST_PATH) return 0;
    memcpy(folder, path, (size_t)(end - path));
    folder[end - path] = 0;
    return !mkdir(folder, 0777) || errno == EEXIST;
}

/* Whether the link is ours after all, and a server has lost its reply. */
static int is_ours(int fd, const char *target) {
    struct stat ours, found;
    return !fstat(fd, &ours) && !lstat(target, &found) && ours.st_dev == found.st_dev && ours.st_ino == found.st_ino;
}

static int name_file(int fd, const char *target) {
    int error = link_open(fd, target);
    if (error == ENOENT && make_folder_of(target)) error = link_open(fd, target);
    return error == EEXIST && is_ours(fd, target) ? 0 : error;
}

/* A descriptor of a whole file without a name, or -1 and an error number. It was closed once, to learn of errors. */
static int write_nameless(const char *folder, const struct file *file, int *error) {
    int fd;
    do fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, (mode_t)file->mode);
    while (fd < 0 && errno == EINTR);
    const int other = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    *error = other < 0 ? errno : finish_file(other, file->data.buf, file->data.len, file->is_stamped ? &file->modified : NULL);
    if (*error && fd >= 0) close(fd);
    return *error ? -1 : fd;
}

/* Publishes as many files as there are descriptors for. None has a name before all are whole: on a full disk their room
 * is free again. */
static Py_ssize_t publish_some(const char *folder, const char **paths, const struct file *files, Py_ssize_t count,
                               int32_t *answers, int *error) {
    int fds[TOGETHER];
    Py_ssize_t written = 0, done = 0;
    while (written < count && (fds[written] = write_nameless(folder, &files[written], error)) >= 0) written++;
    if (written && is_descriptors(*error)) *error = 0;
    for (; !*error && done < written; done++) {
        answers[done] = name_file(fds[done], paths[done]);
        if (answers[done] && answers[done] != EEXIST) {
            *error = answers[done];
            break;
        }
    }
    for (Py_ssize_t i = 0; i < written; i++) close(fds[i]);
    return done;
}

static PyObject *publish_until_error(const char *folder, const char **paths, const struct file *files, Py_ssize_t count) {
    int32_t *answers = PyMem_Calloc((size_t)count + 1, sizeof *answers);
    int error = 0;
    Py_ssize_t done = 0;
    if (!answers) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    while (!error && done < count) {
        const Py_ssize_t left = count - done;
        done += publish_some(folder, paths + done, files + done, left < TOGETHER ? left : TOGETHER, answers + done, &error);
    }
    Py_END_ALLOW_THREADS
    PyObject *made = Py_BuildValue("y#i", answers, done * (Py_ssize_t)sizeof *answers, error);
    PyMem_Free(answers);
    return made;
}

PyObject *publish_first(PyObject *module, PyObject *arguments) {
    PyObject *folder, *given, *made = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O&O", PyUnicode_FSConverter, &folder, &given)) return NULL;
    PyObject *items = PySequence_List(given);
    const Py_ssize_t count = items ? PyList_Size(items) : 0;
    struct file *files = items ? take_files(items, count) : NULL;
    if (files) {
        const char **paths = paths_of(files, count);
        if (paths) made = publish_until_error(PyBytes_AsString(folder), paths, files, count);
        PyMem_Free((void *)paths);
        release_files(files, count);
    }
    Py_XDECREF(items);
    Py_DECREF(folder);
    return made;
}
