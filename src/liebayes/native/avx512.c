/* The rule for processors with AVX-512: vectors of sixteen. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")
#endif
#define LIEBAYES_AVX2
#define LIEBAYES_AVX512
#define CHUNK_FUNCTION liebayes_chunk_avx512
#include "rule.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
