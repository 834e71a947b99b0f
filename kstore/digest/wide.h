/* What the parts of `wide` share: see wide.c. */
#ifdef __x86_64__
#include <stddef.h>
#include <stdint.h>

enum { BLOCK = 64, CHUNK = 1024, DIGEST = 32, WORD = 4 };
enum { CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8 };

/* A chunk, or the two nodes below a parent: blocks that are compressed one after the other. */
struct node {
    const uint8_t *data;
    uint8_t *digest;
    size_t size;
    uint64_t counter;
    uint32_t first, every, last; /* flags of the first block, of all, and of the last */
};

/* Hash all nodes, eight or sixteen at a time. */
void hash_by_eight(const struct node *nodes, size_t count);
void hash_by_sixteen(const struct node *nodes, size_t count);
#endif
