/* System calls, one of which fails. They are numbered from 0 in the order in which they are made. */
#define STRUCK
#include "struck.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

enum { REFUSED, LOST, LOST_TO_EXISTS, SHORT }; /* as in compiled.py */

static atomic_int calls;
static int number = -1, code, reply, refuses_nameless_links;
static char what[64];

void struck_arm(int which, int error, int how) {
    calls = 0;
    number = which;
    code = error;
    reply = how;
    *what = 0;
}

/* As Linux before 6.10 does to a process without the capability. */
void struck_refuse_nameless_links(int refuses) { refuses_nameless_links = refuses; }

const char *struck_what(void) { return what; }

/* Whether this call is struck. A call that the fault does not apply to is not counted. */
static int hits(const char *name, int applies) {
    if (!applies || number < 0) return 0;
    const int hit = atomic_fetch_add(&calls, 1) == number;
    if (hit) snprintf(what, sizeof what, "%s", name);
    return hit;
}

static int is_whole(void) { return reply == REFUSED || reply == LOST; }

static int fail(int error) {
    errno = error;
    return -1;
}

#define OR_FAIL(name, call)                                        \
    do {                                                           \
        if (!hits(name, is_whole())) return call;                  \
        if (reply == LOST) (void)!(call);                          \
        return fail(code);                                         \
    } while (0)

static int opened_or_fail(const char *name, int fd) {
    if (fd < 0 || !hits(name, is_whole())) return fd;
    close(fd);
    return fail(code);
}

int struck_open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (!(flags & O_CREAT && reply == REFUSED)) return opened_or_fail("open", open(path, flags, mode));
    return hits("open", 1) ? fail(code) : open(path, flags, mode);
}

int struck_duplicate(int fd, int command, int from) { return opened_or_fail("fcntl", fcntl(fd, command, from)); }

/* A descriptor is closed whatever close(2) says. */
int struck_close(int fd) {
    const int error = close(fd);
    return hits("close", is_whole()) ? fail(code) : error;
}

int struck_fstat(int fd, struct stat *found) { OR_FAIL("fstat", fstat(fd, found)); }

int struck_lstat(const char *path, struct stat *found) { OR_FAIL("lstat", lstat(path, found)); }

int struck_fstatat(int folder, const char *path, struct stat *found, int flags) {
    OR_FAIL("fstatat", fstatat(folder, path, found, flags));
}

ssize_t struck_read(int fd, void *data, size_t size) {
    if (reply == SHORT && hits("read", 1)) size = (size + 1) / 2;
    OR_FAIL("read", read(fd, data, size));
}

ssize_t struck_write(int fd, const void *data, size_t size) {
    if (reply == SHORT && hits("write", 1)) size = (size + 1) / 2;
    OR_FAIL("write", write(fd, data, size));
}

static int named_or_fail(const char *name, int error) {
    if (!error && reply == LOST_TO_EXISTS && hits(name, 1)) return fail(EEXIST);
    return error;
}

int struck_link(const char *source, const char *target) {
    if (reply == LOST_TO_EXISTS) return named_or_fail("link", link(source, target));
    OR_FAIL("link", link(source, target));
}

int struck_linkat(int from, const char *source, int to, const char *target, int flags) {
    if (refuses_nameless_links && flags & AT_EMPTY_PATH) return fail(ENOENT);
    if (reply == LOST_TO_EXISTS) return named_or_fail("linkat", linkat(from, source, to, target, flags));
    OR_FAIL("linkat", linkat(from, source, to, target, flags));
}

int struck_unlink(const char *path) { OR_FAIL("unlink", unlink(path)); }

int struck_mkdir(const char *path, mode_t mode) { OR_FAIL("mkdir", mkdir(path, mode)); }

int struck_ioctl(int fd, unsigned long request, int argument) { OR_FAIL("ioctl", ioctl(fd, request, argument)); }

int struck_futimens(int fd, const struct timespec times[2]) { OR_FAIL("futimens", futimens(fd, times)); }

int struck_utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    OR_FAIL("utimensat", utimensat(folder, path, times, flags));
}
