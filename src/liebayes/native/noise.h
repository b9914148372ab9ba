/* ε as a function of (seed, parameter, step, sample, place): `optim/philox.py` is the same in torch.
 *
 * Places come in groups of 32: four rows of eight lanes. PHILOX gives a row's words from a counter of their own (Salmon and
 * others 2011); XOSHIRO (xoshiro128++, Blackman and Vigna 2021) has eight generators, one a lane, whose states PHILOX sets
 * anew for every CHUNK of numbers: the start of a chunk costs what 32 numbers cost, the others about a third. */
#ifndef LIEBAYES_NOISE_H
#define LIEBAYES_NOISE_H

#include "job.h"
#include "vector.h"

#define ROWS 4
#define GROUP (ROWS * WIDTH)
#define PIECE 128
#define SECOND_WORD 0x80000000u

INLINE void multiply(u8 a, uint32_t b, u8 *high, u8 *low) {
#ifdef LIEBAYES_AVX2
    __m256i m = _mm256_set1_epi32((int)b);
    __m256i even = _mm256_mul_epu32((__m256i)a, m);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), m);
    *low = (u8)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    *high = (u8)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
#else
    for (int i = 0; i < WIDTH; i++) {
        uint64_t product = (uint64_t)a[i] * b;
        (*high)[i] = (uint32_t)(product >> 32);
        (*low)[i] = (uint32_t)product;
    }
#endif
}

/* Philox4x32-10 at eight counters (first, first + 1, …; number; step; stream). */
INLINE void philox(const job *j, uint32_t first, uint32_t number, u8 words[ROWS]) {
    u8 c0 = first + (u8){0, 1, 2, 3, 4, 5, 6, 7};
    u8 c1 = (u8){0} + number, c2 = (u8){0} + j->step, c3 = (u8){0} + j->stream;
    uint32_t k0 = (uint32_t)j->seed, k1 = (uint32_t)(j->seed >> 32);
    for (int round = 0; round < 10; round++) {
        u8 high0, low0, high1, low1;
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

INLINE u8 rotated(u8 x, int k) { return (x << k) | (x >> (32 - k)); }

/* Words for one chunk, row by row. */
typedef struct {
    u8 state[ROWS];
    uint32_t number, counter;
} source;

/* `second` serves bases that need two words a number. */
typedef struct {
    source first, second;
} sources;

INLINE source open_source(const job *j, uint32_t number, int64_t start) {
    source s = {.number = number, .counter = (uint32_t)(start / GROUP * WIDTH)};
    if (j->stream_kind == XOSHIRO) philox(j, (uint32_t)(start / CHUNK * WIDTH), number, s.state);
    return s;
}

INLINE void next_group(const job *j, source *s, u8 words[ROWS]) {
    if (j->stream_kind == PHILOX) {
        philox(j, s->counter, s->number, words);
        s->counter += WIDTH;
        return;
    }
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) {
        u8 *x = s->state;
        words[row] = rotated(x[0] + x[3], 7) + x[0];
        u8 shifted = x[1] << 9;
        x[2] ^= x[0];
        x[3] ^= x[1];
        x[1] ^= x[2];
        x[0] ^= x[3];
        x[2] ^= shifted;
        x[3] = rotated(x[3], 11);
    }
}

/* In (0, 1), from 31 bits: small values keep their digits, and 1 is left out, so that logarithms are neither −∞ nor 0. */
INLINE f8 uniform(u8 w) {
    f8 u = (__builtin_convertvector((i8)(w & 0x7FFFFFFFu), f8) + 0.5f) * 0x1p-31f;
    return at_most(u, all(1.0f - 0x1p-24f));
}

INLINE f8 with_sign_of(u8 w, f8 x) { return (f8)((u8)x ^ (w & 0x80000000u)); }

INLINE f8 centred(u8 w) { return __builtin_convertvector((i8)w, f8) * 0x1p-31f; }

/* A group's ε. `second` has the words of bases that need two a number. */
INLINE void transform(int base, float scale, float shape, const u8 w[ROWS], const u8 second[ROWS], f8 e[ROWS]) {
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) {
        f8 x, y;
        switch (base) {
        case NORMAL:
        case LOG_NORMAL: /* Box–Muller: two rows at once */
            if (row & 1) continue;
            turn(w[row + 1], &x, &y);
            f8 radius = scale * root(-2.0f * logarithm(uniform(w[row])));
            e[row] = x * radius;
            e[row + 1] = y * radius;
            if (base == LOG_NORMAL) {
                e[row] = exponential(e[row] + shape);
                e[row + 1] = exponential(e[row + 1] + shape);
            }
            break;
        case LAPLACE: e[row] = with_sign_of(w[row], -scale * logarithm(uniform(w[row]))); break;
        case UNIFORM: e[row] = scale * centred(w[row]); break;
        case CAUCHY: /* by the cotangent: large values come from small u, which have all their digits */
            e[row] = with_sign_of(w[row], scale * cotangent(uniform(w[row])));
            break;
        case STUDENT_T: /* Bailey 1994 */
            turn(second[row], &x, &y);
            e[row] = scale * x * root(shape * expm1_of(logarithm(uniform(w[row])) * (-2.0f / shape)));
            break;
        case GUMBEL: e[row] = -scale * logarithm(-logarithm(uniform(w[row]))); break;
        case RAYLEIGH: e[row] = scale * root(-2.0f * logarithm(uniform(w[row]))); break;
        case EXPONENTIAL: e[row] = -scale * logarithm(uniform(w[row])); break;
        default: e[row] = all(0.0f);
        }
    }
}

INLINE sources open_sources(const job *j, uint32_t number, int64_t start) {
    return (sources){open_source(j, number, start), open_source(j, number | SECOND_WORD, start)};
}

INLINE void fill(const job *j, int base, sources *words, int64_t count, float *noise) {
    sources here = *words; /* in registers */
    for (int64_t i = 0; i < count; i += GROUP) {
        u8 w[ROWS], second[ROWS] = {{0}};
        f8 e[ROWS];
        next_group(j, &here.first, w);
        if (base == STUDENT_T) next_group(j, &here.second, second);
        transform(base, j->base_scale, j->base_shape, w, second, e);
        memcpy(noise + i, e, sizeof e);
    }
    *words = here;
}

/* The next `count` numbers; `noise` has room for whole groups. */
static void draw(const job *j, sources *words, int64_t count, float *noise) {
    switch (j->base) { /* a loop of its own for each base */
    case NORMAL: fill(j, NORMAL, words, count, noise); break;
    case LAPLACE: fill(j, LAPLACE, words, count, noise); break;
    case UNIFORM: fill(j, UNIFORM, words, count, noise); break;
    case CAUCHY: fill(j, CAUCHY, words, count, noise); break;
    case STUDENT_T: fill(j, STUDENT_T, words, count, noise); break;
    case GUMBEL: fill(j, GUMBEL, words, count, noise); break;
    case RAYLEIGH: fill(j, RAYLEIGH, words, count, noise); break;
    case EXPONENTIAL: fill(j, EXPONENTIAL, words, count, noise); break;
    case LOG_NORMAL: fill(j, LOG_NORMAL, words, count, noise); break;
    default: memset(noise, 0, (size_t)count * sizeof *noise);
    }
}

#endif
