/* WIDTH floats at a time, with the vector extensions of GCC and Clang, and the functions that the rule needs.
 *
 * The polynomials were fitted at Chebyshev nodes on the intervals named. libm's vector functions would need -ffast-math, and a
 * library linked with that flushes denormal numbers for the whole process. */
#ifndef LIEBAYES_VECTOR_H
#define LIEBAYES_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(LIEBAYES_AVX512)
#include <immintrin.h>
#define WIDTH 16
#elif defined(LIEBAYES_AVX2)
#include <immintrin.h>
#define WIDTH 8
#else
#define WIDTH 8
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t words __attribute__((vector_size(4 * WIDTH)));

INLINE floats load(const float *p, int lanes) {
    floats x = {0};
    if (lanes == WIDTH)
        memcpy(&x, p, sizeof x);
    else
        memcpy(&x, p, (size_t)lanes * sizeof *p);
    return x;
}

INLINE void store(float *p, floats x, int lanes) {
    if (lanes == WIDTH)
        memcpy(p, &x, sizeof x);
    else
        memcpy(p, &x, (size_t)lanes * sizeof *p);
}

INLINE floats all(float x) { return x + (floats){0}; }

INLINE floats pick(ints mask, floats yes, floats no) {
#if WIDTH == 16
    return (floats)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)no, (__m512)yes);
#elif defined(LIEBAYES_AVX2)
    return (floats)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (floats)((mask & (ints)yes) | (~mask & (ints)no));
#endif
}

/* NaN stays NaN: if two numbers cannot be compared, the instructions return the second. */
INLINE floats at_most(floats x, floats high) {
#if WIDTH == 16
    return (floats)_mm512_min_ps((__m512)high, (__m512)x);
#elif defined(LIEBAYES_AVX2)
    return (floats)_mm256_min_ps((__m256)high, (__m256)x);
#else
    return pick(x > high, high, x);
#endif
}

INLINE floats at_least(floats x, floats low) {
#if WIDTH == 16
    return (floats)_mm512_max_ps((__m512)low, (__m512)x);
#elif defined(LIEBAYES_AVX2)
    return (floats)_mm256_max_ps((__m256)low, (__m256)x);
#else
    return pick(x < low, low, x);
#endif
}

INLINE floats clamp(floats x, float low, float high) { return at_most(at_least(x, all(low)), all(high)); }

INLINE floats magnitude(floats x) { return (floats)((ints)x & 0x7FFFFFFF); }

INLINE floats root(floats x) {
#if WIDTH == 16
    return (floats)_mm512_sqrt_ps((__m512)x);
#elif defined(LIEBAYES_AVX2)
    return (floats)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < WIDTH; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* 2^n for whole n in [−126, 127], given as floats. */
INLINE floats power_of_two(floats n) {
    ints k = __builtin_convertvector(n, ints);
    return (floats)((k + 127) << 23);
}

/* (e^r − 1 − r)/r² for |r| ≤ ln 2 / 2. */
INLINE floats expm1_tail(floats r) {
    floats square = r * r; /* terms in pairs, as below, halve the chain of dependent operations */
    floats high = (0.000198993919f * r + 0.00139337336f) * square + (0.00833329838f * r + 0.041666463f);
    return high * square + (0.166666672f * r + 0.5f);
}

/* x = n·ln 2 + r with |r| ≤ ln 2 / 2; returns e^r − 1. ln 2 is split so that n times its first part is exact. */
INLINE floats reduced_expm1(floats x, floats *n) {
    const float rounder = 12582912.0f; /* 1.5·2²³: adding it leaves a whole number */
    *n = (x * 1.44269504f + rounder) - rounder;
    floats r = (x - *n * 0.693359375f) + *n * 2.12194440e-4f;
    return (expm1_tail(r) * r) * r + r;
}

/* The range of `scale_of` in groups/exponential.py: a scale is positive and finite for every finite logarithm. */
INLINE floats scale_of(floats log_scale) {
    floats n, p = reduced_expm1(clamp(log_scale, -78.602890f, 79.850555f), &n);
    floats s = power_of_two(n);
    return p * s + s;
}

INLINE floats exponential(floats x) {
    floats n, p = reduced_expm1(clamp(x, -87.0f, 88.0f), &n);
    floats s = power_of_two(n);
    return p * s + s;
}

INLINE floats expm1_of(floats x) {
    floats n, p = reduced_expm1(clamp(x, -87.0f, 88.0f), &n);
    floats s = power_of_two(n);
    return p * s + (s - 1.0f);
}

INLINE int any(ints mask) {
#if WIDTH == 16
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(LIEBAYES_AVX2)
    return _mm256_movemask_ps((__m256)mask);
#else
    for (int i = 0; i < WIDTH; i++)
        if (mask[i]) return 1;
    return 0;
#endif
}

#define SMALL 0.346f

/* (e^x − 1)/x. Small steps need no division, and if the bound makes all of them small, no test either. */
INLINE floats expm1_ratio(floats x, int all_small) {
    floats ratio = expm1_tail(x) * x + 1.0f;
    if (all_small) return ratio;
    ints large = magnitude(x) > SMALL;
    return __builtin_expect(any(large), 0) ? pick(large, expm1_of(x) / x, ratio) : ratio;
}

/* log(1 + f) for f in [√½ − 1, √2 − 1], with a small relative error also near 0. */
INLINE floats log_near_one(floats f) {
    floats square = f * f, fourth = square * square;
    floats low = (0.200007081f - 0.166684806f * f) * square + (0.333333313f - 0.249999896f * f);
    floats high = (0.116615109f - 0.115712009f * f) * square + (0.142499372f - 0.124110505f * f);
    floats p = (0.0714975372f * fourth + high) * fourth + low;
    return (p * f * square - 0.5f * square) + f;
}

/* log x for normal, positive x. */
INLINE floats logarithm(floats x) {
    ints bits = (ints)x;
    ints exponent = (bits - 0x3F3504F3) >> 23; /* the mantissa then lies in [√½, √2) */
    floats mantissa = (floats)(bits - (exponent << 23));
    floats e = __builtin_convertvector(exponent, floats);
    return (log_near_one(mantissa - 1.0f) - e * 2.12194440e-4f) + e * 0.693359375f;
}

INLINE floats log1p_of(floats x) {
    ints large = (x < -0.29f) | (x > 0.41f);
    floats near = log_near_one(x);
    return __builtin_expect(any(large), 0) ? pick(large, logarithm(1.0f + x), near) : near;
}

/* cos and sin of x in [−π/4, π/4]. */
INLINE void cos_sin(floats x, floats *cosine, floats *sine) {
    floats z = x * x;
    floats s = 2.72496573e-06f * z - 0.000198400841f;
    s = s * z + 0.00833333191f;
    s = s * z - 0.166666672f;
    *sine = s * z * x + x;
    floats c = -2.73007316e-07f * z + 2.48005981e-05f;
    c = c * z - 0.00138888881f;
    c = c * z + 0.0416666679f;
    *cosine = c * (z * z) + (1.0f - 0.5f * z);
}

/* cos and sin of πw·2⁻³¹. The top two bits of w give the quadrant exactly. */
INLINE void turn(words w, floats *cosine, floats *sine) {
    words quarter = (w + 0x20000000u) >> 30;
    floats c, s, x = __builtin_convertvector((ints)(w - (quarter << 30)), floats);
    cos_sin(x * 1.46291808e-9f, &c, &s); /* (π/2)·2⁻³⁰ */
    ints odd = -(ints)(quarter & 1u);
    *cosine = (floats)((words)pick(odd, s, c) ^ (((quarter + 1u) & 2u) << 30));
    *sine = (floats)((words)pick(odd, c, s) ^ ((quarter & 2u) << 30));
}

/* cot(πu/2) for u in (0, 1). */
INLINE floats cotangent(floats u) {
    ints late = u > 0.5f;
    floats c, s;
    cos_sin(pick(late, 1.0f - u, u) * 1.57079633f, &c, &s);
    return pick(late, s, c) / pick(late, c, s);
}

#endif
