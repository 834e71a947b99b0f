/* Sixteen lanes, for processors with AVX-512. */
#include "wide.h"

#ifdef __x86_64__
#include <immintrin.h>

#define OF_PROCESSOR __attribute__((target("avx512f")))
#define IN_LINE OF_PROCESSOR inline __attribute__((always_inline))

enum { LANES = 16 };
typedef uint32_t vector __attribute__((vector_size(LANES * WORD), may_alias));

/* Rotates to the right: the compiler makes one step of it. */
IN_LINE static vector rotate(vector x, int bits) { return x >> bits | x << (32 - bits); }

/* Lanes become words, and words lanes. */
IN_LINE static void transpose(vector *rows) {
    __m512i *r = (__m512i *)rows;
    const __m512i number = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int step = LANES / 2; step; step /= 2) {
        const __m512i steps = _mm512_set1_epi32(step);
        const __mmask16 odd = _mm512_test_epi32_mask(number, steps);
        const __m512i low = _mm512_mask_add_epi32(number, odd, number, _mm512_set1_epi32(LANES - step));
        const __m512i high = _mm512_mask_add_epi32(_mm512_add_epi32(number, steps), odd, number, _mm512_set1_epi32(LANES));
        for (int i = 0; i < LANES; i++)
            if (!(i & step)) {
                const __m512i a = r[i], b = r[i + step];
                r[i] = _mm512_permutex2var_epi32(a, low, b);
                r[i + step] = _mm512_permutex2var_epi32(a, high, b);
            }
    }
}

#include "lanes.h"

void hash_by_sixteen(const struct node *nodes, size_t count) { hash_by_lanes(nodes, count); }
#endif
