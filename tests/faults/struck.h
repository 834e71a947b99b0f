/* Included before each source of kstore's compiled calls, so that their system calls are those of struck.c. */
#pragma once
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

int struck_open(const char *path, int flags, ...);
int struck_duplicate(int fd, int command, int from);
int struck_close(int fd);
int struck_fstat(int fd, struct stat *found);
int struck_lstat(const char *path, struct stat *found);
int struck_fstatat(int folder, const char *path, struct stat *found, int flags);
ssize_t struck_read(int fd, void *data, size_t size);
ssize_t struck_write(int fd, const void *data, size_t size);
int struck_link(const char *source, const char *target);
int struck_linkat(int from, const char *source, int to, const char *target, int flags);
int struck_unlink(const char *path);
int struck_mkdir(const char *path, mode_t mode);
int struck_ioctl(int fd, unsigned long request, int argument);
int struck_futimens(int fd, const struct timespec times[2]);
int struck_utimensat(int folder, const char *path, const struct timespec times[2], int flags);

#ifndef STRUCK
#define open(...) struck_open(__VA_ARGS__)
#define fcntl(fd, command, from) struck_duplicate(fd, command, from)
#define close(fd) struck_close(fd)
#define fstat(fd, found) struck_fstat(fd, found)
#define lstat(path, found) struck_lstat(path, found)
#define fstatat(folder, path, found, flags) struck_fstatat(folder, path, found, flags)
#define read(fd, data, size) struck_read(fd, data, size)
#define write(fd, data, size) struck_write(fd, data, size)
#define link(source, target) struck_link(source, target)
#define linkat(from, source, to, target, flags) struck_linkat(from, source, to, target, flags)
#define unlink(path) struck_unlink(path)
#define mkdir(path, mode) struck_mkdir(path, mode)
#define ioctl(fd, request, argument) struck_ioctl(fd, request, argument)
#define futimens(fd, times) struck_futimens(fd, times)
#define utimensat(folder, path, times, flags) struck_utimensat(folder, path, times, flags)
#endif
