/* The rule for processors with AVX2 and FMA; `kernel.c` checks for them at run time. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define LIEBAYES_AVX2
#define CHUNK_FUNCTION liebayes_chunk_avx2
#include "rule.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
