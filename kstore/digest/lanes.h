/* LANES blocks side by side: word w of lane n is element n of vector w.
 *
 * eight.c and sixteen.c include this, each for one kind of processor. Before that they define LANES, `vector` (as many
 * words), OF_PROCESSOR (which the functions need), `rotate` and `transpose`.
 */
#include <string.h>

enum { ROUNDS = 7, WORDS = BLOCK / WORD, NODE_WORDS = DIGEST / WORD };

static const uint32_t IV[NODE_WORDS] = {
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
};
/* Which words of the message each round takes: the paper's permutation, applied again and again. */
static const uint8_t SCHEDULE[ROUNDS][WORDS] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
};

IN_LINE static void mix(vector *v, int a, int b, int c, int d, vector x, vector y) {
    v[a] = v[a] + v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] = v[c] + v[d];
    v[b] = rotate(v[b] ^ v[c], 12);
    v[a] = v[a] + v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 8);
    v[c] = v[c] + v[d];
    v[b] = rotate(v[b] ^ v[c], 7);
}

IN_LINE static void mix_all(vector *v, const vector *m, const uint8_t *s) {
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
}

/* What changes from block to block, one for each lane. */
struct blocks {
    vector words[WORDS]; /* Of each lane as many words as fit a vector, then the next words of the same lanes. */
    vector low, high, size, flags, busy;
};

IN_LINE static void compress(vector *state, struct blocks *blocks) {
    vector v[WORDS];
    for (int at = 0; at < WORDS; at += LANES) transpose(blocks->words + at);
    for (int i = 0; i < 8; i++) v[i] = state[i];
    for (int i = 0; i < 4; i++) v[8 + i] = (vector){0} + IV[i];
    v[12] = blocks->low;
    v[13] = blocks->high;
    v[14] = blocks->size;
    v[15] = blocks->flags;
#pragma GCC unroll 7
    for (int round = 0; round < ROUNDS; round++) mix_all(v, blocks->words, SCHEDULE[round]);
    for (int i = 0; i < 8; i++) state[i] = ((v[i] ^ v[8 + i]) & blocks->busy) | (state[i] & ~blocks->busy);
}

static size_t blocks_of(const struct node *node) { return node->size ? (node->size + BLOCK - 1) / BLOCK : 1; }

/* Takes block number `at` of a node, if it has that many. */
IN_LINE static int take_block(const struct node *node, size_t at, int lane, struct blocks *blocks) {
    const size_t count = blocks_of(node);
    blocks->busy[lane] = at < count ? ~0u : 0;
    if (at >= count) return 0;
    const size_t left = node->size - at * BLOCK, size = left < BLOCK ? left : BLOCK;
    const uint8_t *data = node->data + at * BLOCK;
    uint8_t last[BLOCK] = {0};
    if (size < BLOCK) data = size ? memcpy(last, data, size) : last;
    for (int part = 0; part < WORDS; part += LANES) memcpy(&blocks->words[part + lane], data + part * WORD, sizeof(vector));
    blocks->low[lane] = (uint32_t)node->counter;
    blocks->high[lane] = (uint32_t)(node->counter >> 32);
    blocks->size[lane] = (uint32_t)size;
    blocks->flags[lane] = node->every | (at ? 0 : node->first) | (at + 1 < count ? 0 : node->last);
    return 1;
}

/* Hashes up to as many nodes as there are lanes. */
OF_PROCESSOR static void hash_some(const struct node *nodes, size_t count) {
    vector state[LANES] = {0};
    struct blocks blocks = {0};
    for (int i = 0; i < NODE_WORDS; i++) state[i] = (vector){0} + IV[i];
    for (size_t at = 0;; at++) {
        int busy = 0;
        for (size_t lane = 0; lane < count; lane++) busy += take_block(&nodes[lane], at, (int)lane, &blocks);
        if (!busy) break;
        compress(state, &blocks);
    }
    transpose(state);
    for (size_t lane = 0; lane < count; lane++) memcpy(nodes[lane].digest, &state[lane], DIGEST);
}

static void hash_by_lanes(const struct node *nodes, size_t count) {
    for (size_t at = 0; at < count; at += LANES) hash_some(nodes + at, count - at < LANES ? count - at : LANES);
}
