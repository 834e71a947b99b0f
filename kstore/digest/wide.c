/* BLAKE3 of many byte strings at once, for processors with AVX-512.
 *
 * A library hashes one after the other. Most artifacts are of a few KiB: too short to fill sixteen lanes by themselves,
 * and each call would take the interpreter's lock again. Here sixteen chunks are hashed side by side, whichever
 * strings they are of, then the nodes above them, level by level, as the BLAKE3 paper defines them.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __x86_64__
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WIDE __attribute__((target("avx512f")))
#define WIDE_INLINE WIDE inline __attribute__((always_inline))

enum { LANES = 16, BLOCK = 64, CHUNK = 1024, DIGEST = 32, ROUNDS = 7 };
enum { CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8 };

static const uint32_t IV[8] = {
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
};
/* Which word of the message each round takes: the permutation of the paper, applied again and again. */
static const uint8_t SCHEDULE[ROUNDS][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
};

/* A chunk, or the two nodes below a parent: blocks that are compressed one after the other. */
struct node {
    const uint8_t *data;
    uint8_t *digest;
    size_t size;
    uint64_t counter;
    uint32_t first, every, last; /* flags of the first block, of all, and of the last */
};

static size_t blocks_of(const struct node *node) { return node->size ? (node->size + BLOCK - 1) / BLOCK : 1; }

/* ---- Sixteen blocks side by side: word w of lane n is element n of vector w */

WIDE_INLINE static void mix(__m512i *v, int a, int b, int c, int d, __m512i x, __m512i y) {
    v[a] = _mm512_add_epi32(_mm512_add_epi32(v[a], v[b]), x);
    v[d] = _mm512_ror_epi32(_mm512_xor_si512(v[d], v[a]), 16);
    v[c] = _mm512_add_epi32(v[c], v[d]);
    v[b] = _mm512_ror_epi32(_mm512_xor_si512(v[b], v[c]), 12);
    v[a] = _mm512_add_epi32(_mm512_add_epi32(v[a], v[b]), y);
    v[d] = _mm512_ror_epi32(_mm512_xor_si512(v[d], v[a]), 8);
    v[c] = _mm512_add_epi32(v[c], v[d]);
    v[b] = _mm512_ror_epi32(_mm512_xor_si512(v[b], v[c]), 7);
}

WIDE_INLINE static void mix_all(__m512i *v, const __m512i *m, const uint8_t *s) {
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
}

/* Lanes become words, and words lanes. */
WIDE_INLINE static void transpose(__m512i *rows) {
    const __m512i number = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int step = LANES / 2; step; step /= 2) {
        const __m512i steps = _mm512_set1_epi32(step);
        const __mmask16 odd = _mm512_test_epi32_mask(number, steps);
        const __m512i low = _mm512_mask_add_epi32(number, odd, number, _mm512_set1_epi32(LANES - step));
        const __m512i high = _mm512_mask_add_epi32(_mm512_add_epi32(number, steps), odd, number, _mm512_set1_epi32(LANES));
        for (int i = 0; i < LANES; i++)
            if (!(i & step)) {
                const __m512i a = rows[i], b = rows[i + step];
                rows[i] = _mm512_permutex2var_epi32(a, low, b);
                rows[i + step] = _mm512_permutex2var_epi32(a, high, b);
            }
    }
}

/* What changes from block to block, one of each lane. */
struct block {
    __m512i words[LANES];
    uint32_t low[LANES], high[LANES], size[LANES], flags[LANES];
};

WIDE_INLINE static void compress(__m512i *state, struct block *block, __mmask16 busy) {
    __m512i v[16];
    transpose(block->words);
    for (int i = 0; i < 8; i++) v[i] = state[i];
    for (int i = 0; i < 4; i++) v[8 + i] = _mm512_set1_epi32((int)IV[i]);
    v[12] = _mm512_loadu_si512(block->low);
    v[13] = _mm512_loadu_si512(block->high);
    v[14] = _mm512_loadu_si512(block->size);
    v[15] = _mm512_loadu_si512(block->flags);
#pragma GCC unroll 7
    for (int round = 0; round < ROUNDS; round++) mix_all(v, block->words, SCHEDULE[round]);
    for (int i = 0; i < 8; i++) state[i] = _mm512_mask_xor_epi32(state[i], busy, v[i], v[8 + i]);
}

/* Block number `at` of a node, if it has so many. */
WIDE_INLINE static int take_block(const struct node *node, size_t at, int lane, struct block *block) {
    const size_t count = blocks_of(node);
    if (at >= count) return 0;
    const size_t left = node->size - at * BLOCK, size = left < BLOCK ? left : BLOCK;
    block->words[lane] = size == BLOCK ? _mm512_loadu_si512(node->data + at * BLOCK) : _mm512_setzero_si512();
    if (size && size < BLOCK) memcpy(&block->words[lane], node->data + at * BLOCK, size);
    block->low[lane] = (uint32_t)node->counter;
    block->high[lane] = (uint32_t)(node->counter >> 32);
    block->size[lane] = (uint32_t)size;
    block->flags[lane] = node->every | (at ? 0 : node->first) | (at + 1 < count ? 0 : node->last);
    return 1;
}

/* Up to sixteen of them. */
WIDE static void hash_some(const struct node *nodes, size_t count) {
    __m512i state[LANES] = {0};
    struct block block = {0};
    for (int i = 0; i < 8; i++) state[i] = _mm512_set1_epi32((int)IV[i]);
    for (size_t at = 0;; at++) {
        __mmask16 busy = 0;
        for (size_t lane = 0; lane < count; lane++)
            if (take_block(&nodes[lane], at, (int)lane, &block)) busy |= (__mmask16)(1u << lane);
        if (!busy) break;
        compress(state, &block, busy);
    }
    transpose(state);
    for (size_t lane = 0; lane < count; lane++) memcpy(nodes[lane].digest, &state[lane], DIGEST);
}

static void hash_all(const struct node *nodes, size_t count) {
    for (size_t at = 0; at < count; at += LANES) hash_some(nodes + at, count - at < LANES ? count - at : LANES);
}

/* ---- Whole strings: their chunks, and the nodes above */

struct text {
    Py_buffer content;
    uint8_t *digests; /* of its nodes, of which there are fewer with each level */
    size_t nodes;
};

static size_t chunks_of(const struct text *text) {
    return text->content.len ? ((size_t)text->content.len + CHUNK - 1) / CHUNK : 1;
}

static size_t add_chunks(const struct text *text, struct node *nodes) {
    const size_t count = chunks_of(text), size = (size_t)text->content.len;
    for (size_t i = 0; i < count; i++)
        nodes[i] = (struct node){
            .data = (const uint8_t *)text->content.buf + i * CHUNK,
            .digest = text->digests + i * DIGEST,
            .size = i + 1 < count ? CHUNK : size - i * CHUNK,
            .counter = i,
            .first = CHUNK_START,
            .last = count == 1 ? CHUNK_END | ROOT : CHUNK_END,
        };
    return count;
}

/* One for each pair of nodes. It takes the place of one that was read before it is written. */
static size_t add_parents(const struct text *text, struct node *nodes) {
    const size_t pairs = text->nodes / 2;
    for (size_t i = 0; i < pairs; i++)
        nodes[i] = (struct node){
            .data = text->digests + 2 * i * DIGEST,
            .digest = text->digests + i * DIGEST,
            .size = BLOCK,
            .every = text->nodes == 2 ? PARENT | ROOT : PARENT,
        };
    return pairs;
}

/* The last one of an odd number goes up with the parents of the others. */
static void rise(struct text *text) {
    const size_t pairs = text->nodes / 2, odd = text->nodes % 2;
    if (odd) memmove(text->digests + pairs * DIGEST, text->digests + 2 * pairs * DIGEST, DIGEST);
    text->nodes = pairs + odd;
}

static void hash_texts(struct text *texts, size_t count, struct node *nodes) {
    size_t added = 0;
    for (size_t i = 0; i < count; i++) added += texts[i].nodes = add_chunks(&texts[i], nodes + added);
    hash_all(nodes, added);
    do {
        added = 0;
        for (size_t i = 0; i < count; i++) added += add_parents(&texts[i], nodes + added);
        hash_all(nodes, added);
        for (size_t i = 0; i < count; i++) rise(&texts[i]);
    } while (added);
}

/* ---- For Python */

static int take_texts(PyObject *list, struct text *texts, size_t *nodes) {
    const Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyObject_GetBuffer(PyList_GetItem(list, i), &texts[i].content, PyBUF_SIMPLE)) return 0;
        *nodes += chunks_of(&texts[i]);
    }
    return 1;
}

static PyObject *digests_of(struct text *texts, size_t count, size_t total) {
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * DIGEST));
    struct node *nodes = malloc(total * sizeof *nodes + 1);
    uint8_t *digests = malloc(total * DIGEST + 1);
    if (answer && nodes && digests) {
        char *out = PyBytes_AsString(answer);
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0, at = 0; i < count; at += chunks_of(&texts[i++])) texts[i].digests = digests + at * DIGEST;
        hash_texts(texts, count, nodes);
        for (size_t i = 0; i < count; i++) memcpy(out + i * DIGEST, texts[i].digests, DIGEST);
        Py_END_ALLOW_THREADS
    } else {
        Py_CLEAR(answer);
        PyErr_NoMemory();
    }
    free(nodes);
    free(digests);
    return answer;
}

static PyObject *digest_each(PyObject *module, PyObject *contents) {
    PyObject *answer = NULL, *list = PySequence_List(contents);
    (void)module;
    if (!list) return NULL;
    const size_t count = (size_t)PyList_Size(list);
    size_t nodes = 0;
    struct text *texts = calloc(count + 1, sizeof *texts);
    if (!texts) PyErr_NoMemory();
    else if (take_texts(list, texts, &nodes)) answer = digests_of(texts, count, nodes);
    for (size_t i = 0; texts && i < count; i++)
        if (texts[i].content.obj) PyBuffer_Release(&texts[i].content);
    free(texts);
    Py_DECREF(list);
    return answer;
}

static PyMethodDef methods[] = {{"digest_each", digest_each, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static int is_usable(void) { return __builtin_cpu_supports("avx512f"); }
#else
static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};

static int is_usable(void) { return 0; }
#endif

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "wide", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit_wide(void) {
    if (is_usable()) return PyModule_Create(&definition);
    PyErr_SetString(PyExc_ImportError, "this processor has no AVX-512");
    return NULL;
}
