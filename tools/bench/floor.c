/* The bare system calls of a restore or a commit, in one thread and nothing else: no tool is faster in one.
 *
 *   floor link SOURCE TARGET    the folders of SOURCE, a hard link for each file that has another name, and a create,
 *                               a write and a close for each file that has none
 *   floor copy SOURCE TARGET    the folders, and a create, a write and a close for each file
 *   floor store SOURCE TARGET   256 folders, and for each file an open, read, close, create, write, link and close: the
 *                               file is whole before it gets its name, and replaces no other
 *
 * Names are collected first, which is not timed. `link` and `copy` also read contents before the time starts. Prints
 * seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct node { char *source, *target, *data; size_t size; int folder, linked; };

static struct node *nodes;
static size_t count, room;
static const char *source, *target;
static int copying, storing;

static void fail(const char *what) { perror(what); exit(1); }

static void load(struct node *node) {
    int fd = open(node->source, O_RDONLY);
    if (fd < 0 || !(node->data = malloc(node->size + 1)) || read(fd, node->data, node->size) != (ssize_t)node->size)
        fail(node->source);
    close(fd);
}

static int visit(const char *path, const struct stat *status, int type, struct FTW *where) {
    (void)where;
    if ((type != FTW_D && type != FTW_F) || strstr(path, "/.kstore")) return 0;
    if (count == room && !(nodes = realloc(nodes, (room = room ? 2 * room : 1024) * sizeof *nodes))) fail("realloc");
    struct node *node = &nodes[count++];
    node->folder = type == FTW_D;
    node->linked = !copying && !storing && status->st_nlink > 1;
    node->source = strdup(path);
    node->size = status->st_size;
    int length = storing ? asprintf(&node->target, "%s/%02zx/%zu", target, count % 256, count)
                         : asprintf(&node->target, "%s%s", target, path + strlen(source));
    if (length < 0) fail("asprintf");
    if (!storing && !node->folder && !node->linked) load(node);
    return 0;
}

/* Before Linux 6.10, only the second way works without a capability. */
static int name(int fd, const char *path) {
    char link[32];
    if (!linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

static void make(struct node *node) {
    if (node->folder && storing) return;
    if (node->folder) { if (mkdir(node->target, 0755)) fail(node->target); return; }
    if (storing) load(node);
    if (node->linked) { if (link(node->source, node->target)) fail(node->target); return; }
    int fd = storing ? open(target, O_WRONLY | O_TMPFILE, 0644) : open(node->target, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd < 0 || write(fd, node->data, node->size) != (ssize_t)node->size) fail(node->target);
    if (storing && name(fd, node->target)) fail(node->target);
    if (close(fd)) fail(node->target);
    if (storing) free(node->data);
}

static void make_folders(void) {
    char path[4096];
    for (int i = -1; i < 256; i++) {
        snprintf(path, sizeof path, i < 0 ? "%s" : "%s/%02x", target, i);
        if (mkdir(path, 0755)) fail(path);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) { fputs("usage: floor link|copy|store SOURCE TARGET\n", stderr); return 2; }
    copying = !strcmp(argv[1], "copy");
    storing = !strcmp(argv[1], "store");
    source = argv[2];
    target = argv[3];
    if (nftw(source, visit, 64, FTW_PHYS)) fail(source);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (storing) make_folders();
    for (size_t i = 0; i < count; i++) make(&nodes[i]);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\n", (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9);
    return 0;
}
