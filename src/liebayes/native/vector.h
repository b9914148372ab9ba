/* Eight floats at a time, in the vector extensions of GCC and Clang, and the functions the rule needs of them.
 *
 * The polynomials were fitted at Chebyshev nodes on the intervals named. libm's vector functions would need -ffast-math, and a
 * library linked with that flushes denormal numbers for the whole process. */
#ifndef LIEBAYES_VECTOR_H
#define LIEBAYES_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef LIEBAYES_AVX2
#include <immintrin.h>
#endif

#define WIDTH 8
#define INLINE static inline __attribute__((always_inline))

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef uint32_t u8 __attribute__((vector_size(32)));

INLINE f8 load(const float *p, int lanes) {
    f8 x = {0};
    if (lanes == WIDTH)
        memcpy(&x, p, sizeof x);
    else
        memcpy(&x, p, (size_t)lanes * sizeof *p);
    return x;
}

INLINE void store(float *p, f8 x, int lanes) {
    if (lanes == WIDTH)
        memcpy(p, &x, sizeof x);
    else
        memcpy(p, &x, (size_t)lanes * sizeof *p);
}

INLINE f8 all(float x) { return (f8){x, x, x, x, x, x, x, x}; }

INLINE f8 pick(i8 mask, f8 yes, f8 no) {
#ifdef LIEBAYES_AVX2
    return (f8)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (f8)((mask & (i8)yes) | (~mask & (i8)no));
#endif
}

/* NaN stays NaN: of two numbers that cannot be compared the instructions give the second. */
INLINE f8 at_most(f8 x, f8 high) {
#ifdef LIEBAYES_AVX2
    return (f8)_mm256_min_ps((__m256)high, (__m256)x);
#else
    return pick(x > high, high, x);
#endif
}

INLINE f8 at_least(f8 x, f8 low) {
#ifdef LIEBAYES_AVX2
    return (f8)_mm256_max_ps((__m256)low, (__m256)x);
#else
    return pick(x < low, low, x);
#endif
}

INLINE f8 clamp(f8 x, float low, float high) { return at_most(at_least(x, all(low)), all(high)); }

INLINE f8 magnitude(f8 x) { return (f8)((i8)x & 0x7FFFFFFF); }

INLINE f8 root(f8 x) {
#ifdef LIEBAYES_AVX2
    return (f8)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < WIDTH; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* 2^n for whole n in [−126, 127], given as floats. */
INLINE f8 power_of_two(f8 n) {
    i8 k = __builtin_convertvector(n, i8);
    return (f8)((k + 127) << 23);
}

/* (e^r − 1 − r)/r² for |r| ≤ ln 2 / 2. */
INLINE f8 expm1_tail(f8 r) {
    f8 square = r * r; /* pairs of terms, as below: chains of operations half as long */
    f8 high = (0.000198993919f * r + 0.00139337336f) * square + (0.00833329838f * r + 0.041666463f);
    return high * square + (0.166666672f * r + 0.5f);
}

/* x = n·ln 2 + r with |r| ≤ ln 2 / 2; returns e^r − 1. ln 2 is split so that n times its first part is exact. */
INLINE f8 reduced_expm1(f8 x, f8 *n) {
    const float rounder = 12582912.0f; /* 1.5·2²³: adding it leaves a whole number */
    *n = (x * 1.44269504f + rounder) - rounder;
    f8 r = (x - *n * 0.693359375f) + *n * 2.12194440e-4f;
    return (expm1_tail(r) * r) * r + r;
}

/* The range of `scale_of` in groups/exponential.py: a scale is positive and finite for every finite logarithm. */
INLINE f8 scale_of(f8 log_scale) {
    f8 n, p = reduced_expm1(clamp(log_scale, -78.602890f, 79.850555f), &n);
    f8 s = power_of_two(n);
    return p * s + s;
}

INLINE f8 exponential(f8 x) {
    f8 n, p = reduced_expm1(clamp(x, -87.0f, 88.0f), &n);
    f8 s = power_of_two(n);
    return p * s + s;
}

INLINE f8 expm1_of(f8 x) {
    f8 n, p = reduced_expm1(clamp(x, -87.0f, 88.0f), &n);
    f8 s = power_of_two(n);
    return p * s + (s - 1.0f);
}

INLINE int any(i8 mask) {
#ifdef LIEBAYES_AVX2
    return _mm256_movemask_ps((__m256)mask);
#else
    for (int i = 0; i < WIDTH; i++)
        if (mask[i]) return 1;
    return 0;
#endif
}

#define SMALL 0.346f

/* (e^x − 1)/x. Small steps need no division, and where all are bounded to be so, no question. */
INLINE f8 expm1_ratio(f8 x, int all_small) {
    f8 ratio = expm1_tail(x) * x + 1.0f;
    if (all_small) return ratio;
    i8 large = magnitude(x) > SMALL;
    return __builtin_expect(any(large), 0) ? pick(large, expm1_of(x) / x, ratio) : ratio;
}

/* log(1 + f) for f in [√½ − 1, √2 − 1], with a small relative error also near 0. */
INLINE f8 log_near_one(f8 f) {
    f8 square = f * f, fourth = square * square;
    f8 low = (0.200007081f - 0.166684806f * f) * square + (0.333333313f - 0.249999896f * f);
    f8 high = (0.116615109f - 0.115712009f * f) * square + (0.142499372f - 0.124110505f * f);
    f8 p = (0.0714975372f * fourth + high) * fourth + low;
    return (p * f * square - 0.5f * square) + f;
}

/* log x for normal, positive x. */
INLINE f8 logarithm(f8 x) {
    i8 bits = (i8)x;
    i8 exponent = (bits - 0x3F3504F3) >> 23; /* the mantissa then lies in [√½, √2) */
    f8 mantissa = (f8)(bits - (exponent << 23));
    f8 e = __builtin_convertvector(exponent, f8);
    return (log_near_one(mantissa - 1.0f) - e * 2.12194440e-4f) + e * 0.693359375f;
}

INLINE f8 log1p_of(f8 x) {
    i8 large = (x < -0.29f) | (x > 0.41f);
    f8 near = log_near_one(x);
    return __builtin_expect(any(large), 0) ? pick(large, logarithm(1.0f + x), near) : near;
}

/* cos and sin of x in [−π/4, π/4]. */
INLINE void cos_sin(f8 x, f8 *cosine, f8 *sine) {
    f8 z = x * x;
    f8 s = 2.72496573e-06f * z - 0.000198400841f;
    s = s * z + 0.00833333191f;
    s = s * z - 0.166666672f;
    *sine = s * z * x + x;
    f8 c = -2.73007316e-07f * z + 2.48005981e-05f;
    c = c * z - 0.00138888881f;
    c = c * z + 0.0416666679f;
    *cosine = c * (z * z) + (1.0f - 0.5f * z);
}

/* cos and sin of πw·2⁻³¹. The quarter turn comes from the two top bits of w, exactly. */
INLINE void turn(u8 w, f8 *cosine, f8 *sine) {
    u8 quarter = (w + 0x20000000u) >> 30;
    f8 c, s, x = __builtin_convertvector((i8)(w - (quarter << 30)), f8);
    cos_sin(x * 1.46291808e-9f, &c, &s); /* (π/2)·2⁻³⁰ */
    i8 odd = -(i8)(quarter & 1u);
    *cosine = (f8)((u8)pick(odd, s, c) ^ (((quarter + 1u) & 2u) << 30));
    *sine = (f8)((u8)pick(odd, c, s) ^ ((quarter & 2u) << 30));
}

/* cot(πu/2) for u in (0, 1). */
INLINE f8 cotangent(f8 u) {
    i8 late = u > 0.5f;
    f8 c, s;
    cos_sin(pick(late, 1.0f - u, u) * 1.57079633f, &c, &s);
    return pick(late, s, c) / pick(late, c, s);
}

#endif
