/* ε as a function of (seed, parameter, step, sample, place); `bases/philox.py` is the same in torch.
 *
 * Places come in groups of 32: four rows of eight lanes. PHILOX computes the words of a group from its own counters (Salmon
 * and others 2011). XOSHIRO (xoshiro128++, Blackman and Vigna 2021) has eight generators, one for each lane, which PHILOX
 * seeds for every CHUNK of numbers: that costs as much as 32 numbers of PHILOX, and each number then about a third. */
#ifndef LIEBAYES_NOISE_H
#define LIEBAYES_NOISE_H

#include "job.h"
#include "vector.h"

#define ROWS 4
#define LANES 8
#define GROUP (ROWS * LANES)
#define PIECE 128
#define SECOND_WORD 0x80000000u

typedef uint32_t word8 __attribute__((vector_size(4 * LANES)));

INLINE void multiply(word8 a, uint32_t b, word8 *high, word8 *low) {
#ifdef LIEBAYES_AVX2
    __m256i m = _mm256_set1_epi32((int)b);
    __m256i even = _mm256_mul_epu32((__m256i)a, m);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), m);
    *low = (word8)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    *high = (word8)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
#else
    for (int i = 0; i < LANES; i++) {
        uint64_t product = (uint64_t)a[i] * b;
        (*high)[i] = (uint32_t)(product >> 32);
        (*low)[i] = (uint32_t)product;
    }
#endif
}

/* Philox4x32-10 at eight counters (first, first + 1, …; number; step; stream). */
INLINE void philox(const job *j, uint32_t first, uint32_t number, word8 words[ROWS]) {
    word8 c0 = first + (word8){0, 1, 2, 3, 4, 5, 6, 7};
    word8 c1 = (word8){0} + number, c2 = (word8){0} + j->step, c3 = (word8){0} + j->stream;
    uint32_t k0 = (uint32_t)j->seed, k1 = (uint32_t)(j->seed >> 32);
    for (int round = 0; round < 10; round++) {
        word8 high0, low0, high1, low1;
        multiply(c0, 0xD2511F53u, &high0, &low0);
        multiply(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

INLINE word8 rotated(word8 x, int k) { return (x << k) | (x >> (32 - k)); }

/* Words for one chunk, row by row. */
typedef struct {
    word8 state[ROWS];
    uint32_t number, counter;
} source;

/* `second` is for bases that need two words per number. */
typedef struct {
    source first, second;
} sources;

INLINE source open_source(const job *j, uint32_t number, int64_t start) {
    source s = {.number = number, .counter = (uint32_t)(start / GROUP * LANES)};
    if (j->stream_kind == XOSHIRO) philox(j, (uint32_t)(start / CHUNK * LANES), number, s.state);
    return s;
}

INLINE void next_group(const job *j, source *s, word8 words[ROWS]) {
    if (j->stream_kind == PHILOX) {
        philox(j, s->counter, s->number, words);
        s->counter += LANES;
        return;
    }
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) {
        word8 *x = s->state;
        words[row] = rotated(x[0] + x[3], 7) + x[0];
        word8 shifted = x[1] << 9;
        x[2] ^= x[0];
        x[3] ^= x[1];
        x[1] ^= x[2];
        x[0] ^= x[3];
        x[2] ^= shifted;
        x[3] = rotated(x[3], 11);
    }
}

/* In (0, 1), from 31 bits: small values keep their digits, and 0 and 1 do not occur, so logarithms are neither −∞ nor 0. */
INLINE floats uniform(words w) {
    floats u = (__builtin_convertvector((ints)(w & 0x7FFFFFFFu), floats) + 0.5f) * 0x1p-31f;
    return at_most(u, all(1.0f - 0x1p-24f));
}

INLINE floats with_sign_of(words w, floats x) { return (floats)((words)x ^ (w & 0x80000000u)); }

INLINE floats centred(words w) { return __builtin_convertvector((ints)w, floats) * 0x1p-31f; }

/* ε from two vectors of words, as Box–Muller needs. `second` has the second words of bases that need two per number. */
INLINE void transform(int base, float scale, float shape, const words w[2], const words second[2], floats e[2]) {
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        floats x, y;
        switch (base) {
        case NORMAL:
        case LOG_NORMAL: /* Box–Muller: both at once */
            if (k) continue;
            turn(w[1], &x, &y);
            floats radius = scale * root(-2.0f * logarithm(uniform(w[0])));
            e[0] = x * radius;
            e[1] = y * radius;
            if (base == LOG_NORMAL) {
                e[0] = exponential(e[0] + shape);
                e[1] = exponential(e[1] + shape);
            }
            break;
        case LAPLACE: e[k] = with_sign_of(w[k], -scale * logarithm(uniform(w[k]))); break;
        case UNIFORM: e[k] = scale * centred(w[k]); break;
        case CAUCHY: /* by the cotangent: large values come from small u, which keep all their digits */
            e[k] = with_sign_of(w[k], scale * cotangent(uniform(w[k])));
            break;
        case STUDENT_T: /* Bailey 1994 */
            turn(second[k], &x, &y);
            e[k] = scale * x * root(shape * expm1_of(logarithm(uniform(w[k])) * (-2.0f / shape)));
            break;
        case GUMBEL: e[k] = -scale * logarithm(-logarithm(uniform(w[k]))); break;
        case RAYLEIGH: e[k] = scale * root(-2.0f * logarithm(uniform(w[k]))); break;
        case EXPONENTIAL: e[k] = -scale * logarithm(uniform(w[k])); break;
        default: e[k] = all(0.0f);
        }
    }
}

/* Box–Muller pairs rows 0 and 1, and rows 2 and 3; vectors of sixteen hold both pairs. */
#define PAIRS (WIDTH / LANES)

INLINE words gathered(const word8 *rows) {
#if WIDTH == 16
    return (words)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)rows[0]), (__m256i)rows[2], 1);
#else
    return rows[0];
#endif
}

INLINE void scatter(floats e, float *noise) {
#if WIDTH == 16
    _mm256_storeu_ps(noise + 2 * LANES, _mm512_extractf32x8_ps((__m512)e, 1));
    _mm256_storeu_ps(noise, _mm512_castps512_ps256((__m512)e));
#else
    memcpy(noise, &e, sizeof e);
#endif
}

INLINE sources open_sources(const job *j, uint32_t number, int64_t start) {
    return (sources){open_source(j, number, start), open_source(j, number | SECOND_WORD, start)};
}

INLINE void fill(const job *j, int base, sources *from, int64_t count, float *noise) {
    sources here = *from; /* in registers */
    for (int64_t i = 0; i < count; i += GROUP) {
        word8 rows[ROWS], second_rows[ROWS] = {{0}};
        next_group(j, &here.first, rows);
        if (base == STUDENT_T) next_group(j, &here.second, second_rows);
#pragma GCC unroll 2
        for (int pair = 0; pair < ROWS / 2; pair += PAIRS) {
            const word8 *row = rows + 2 * pair, *second_row = second_rows + 2 * pair;
            words w[2] = {gathered(row), gathered(row + 1)};
            words second[2] = {gathered(second_row), gathered(second_row + 1)};
            floats e[2];
            transform(base, j->base_scale, j->base_shape, w, second, e);
            scatter(e[0], noise + i + 2 * pair * LANES);
            scatter(e[1], noise + i + (2 * pair + 1) * LANES);
        }
    }
    *from = here;
}

/* The next `count` numbers; `noise` has room for whole groups. */
static void draw(const job *j, sources *from, int64_t count, float *noise) {
    switch (j->base) { /* a loop of its own for each base */
    case NORMAL: fill(j, NORMAL, from, count, noise); break;
    case LAPLACE: fill(j, LAPLACE, from, count, noise); break;
    case UNIFORM: fill(j, UNIFORM, from, count, noise); break;
    case CAUCHY: fill(j, CAUCHY, from, count, noise); break;
    case STUDENT_T: fill(j, STUDENT_T, from, count, noise); break;
    case GUMBEL: fill(j, GUMBEL, from, count, noise); break;
    case RAYLEIGH: fill(j, RAYLEIGH, from, count, noise); break;
    case EXPONENTIAL: fill(j, EXPONENTIAL, from, count, noise); break;
    case LOG_NORMAL: fill(j, LOG_NORMAL, from, count, noise); break;
    default: memset(noise, 0, (size_t)count * sizeof *noise);
    }
}

#endif
