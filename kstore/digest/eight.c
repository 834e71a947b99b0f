/* Eight lanes, for processors with AVX2. */
#include "wide.h"

#ifdef __x86_64__
#include <immintrin.h>

#define OF_PROCESSOR __attribute__((target("avx2")))
#define IN_LINE OF_PROCESSOR inline __attribute__((always_inline))

enum { LANES = 8 };
typedef uint32_t vector __attribute__((vector_size(LANES * WORD), may_alias));

/* Rotates to the right. Whole bytes are shuffled, which is one step and not three. */
IN_LINE static vector rotate(vector x, int bits) {
    const __m256i by_two = _mm256_setr_epi8(
        2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
    );
    const __m256i by_one = _mm256_setr_epi8(
        1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12
    );
    if (bits == 16) return (vector)_mm256_shuffle_epi8((__m256i)x, by_two);
    if (bits == 8) return (vector)_mm256_shuffle_epi8((__m256i)x, by_one);
    return x >> bits | x << (32 - bits);
}

/* Lanes become words, and words lanes: pairs of rows become pairs of words, then half rows, then whole rows. */
IN_LINE static void transpose(vector *rows) {
    __m256i *r = (__m256i *)rows, pairs[LANES], halves[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 4)
#pragma GCC unroll 2
        for (int high = 0; high < 2; high++) {
            halves[i + 2 * high] = _mm256_unpacklo_epi64(pairs[i + high], pairs[i + 2 + high]);
            halves[i + 2 * high + 1] = _mm256_unpackhi_epi64(pairs[i + high], pairs[i + 2 + high]);
        }
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
        r[i] = _mm256_permute2x128_si256(halves[i], halves[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(halves[i], halves[i + 4], 0x31);
    }
}

#include "lanes.h"

void hash_by_eight(const struct node *nodes, size_t count) { hash_by_lanes(nodes, count); }
#endif
