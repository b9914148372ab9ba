/* The entry points. Threads share the work of a job in whole chunks, so the result does not depend on their number. */
#include <math.h>

#include "job.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* The fixed cost of a tensor, in elements, so that many small tensors are shared evenly too. */
#define OVERHEAD 64

enum variant { PORTABLE, AVX2, AVX512 };
static int best = AVX512; /* what the user allows */

/* The best instructions that the processor has and the user allows. */
int liebayes_variant(void) {
#if defined(__x86_64__)
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (avx512 && best >= AVX512) return AVX512;
    if (avx2 && best >= AVX2) return AVX2;
#endif
    return PORTABLE;
}

void liebayes_allow(int variant) { best = variant; }

/* VERSION in __init__.py, the version of the job format: Python does not use a library of another version. */
int liebayes_version(void) { return 8; }
int liebayes_job_size(void) { return (int)sizeof(job); }

int liebayes_has_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* NaN is larger than everything. The sums were rounded, and may have lost squares below the smallest number. */
static void report(job *j, const findings *found) {
    for (int k = 0; k < 3; k++)
        for (int lane = 0; lane < MOST_LANES; lane++) {
            float size = 1.01f * sqrtf(found->squares[k][lane]) + 1e-18f;
            if (!isnan(j->sizes[k]) && !(size <= j->sizes[k])) j->sizes[k] = size;
        }
    j->count += found->count;
}

static void share(job *j, int part, int parts) {
    chunk_function *chunk = liebayes_chunk_portable;
#if defined(__x86_64__)
    int variant = liebayes_variant();
    if (variant == AVX2) chunk = liebayes_chunk_avx2;
    if (variant == AVX512) chunk = liebayes_chunk_avx512;
#endif
    int64_t total = 0, before = 0;
    findings found = {{{0}}, 0};
    for (int64_t k = 0; k < j->tensor_count; k++) total += j->tensors[k].count + OVERHEAD;
    int64_t from = total / parts * part, to = part + 1 == parts ? total : total / parts * (part + 1);
    for (int64_t k = 0; k < j->tensor_count && before < to; k++) {
        const tensor *t = &j->tensors[k];
        for (int64_t start = 0; start < t->count; start += CHUNK) {
            int64_t place = before + start, stop = start + CHUNK < t->count ? start + CHUNK : t->count;
            if (place >= from && place < to) chunk(j, t, start, stop, &found);
        }
        before += t->count + OVERHEAD;
    }
#pragma omp critical
    report(j, &found);
}

static void add_traces(const job *j) {
    int keep = (j->what & FOLD) && !(j->what & FIRST); /* covectors of several samples add up */
    for (int64_t k = 0; k < j->tensor_count; k++) {
        const tensor *t = &j->tensors[k];
        const double *partial = j->partials + TRACES * t->first_chunk;
        for (int i = 0; i < TRACES; i++) {
            double sum = keep ? t->traces[i] : 0.0;
            for (int64_t chunk = 0; chunk * CHUNK < t->count; chunk++) sum += partial[TRACES * chunk + i];
            t->traces[i] = sum;
        }
    }
}

void liebayes_run(job *j) {
    j->count = 0;
    j->sizes[0] = j->sizes[1] = j->sizes[2] = 0.0f;
#ifdef _OPENMP
    if (j->threads > 1) {
#pragma omp parallel num_threads(j->threads)
        share(j, omp_get_thread_num(), omp_get_num_threads());
    } else
#endif
        share(j, 0, 1);
    if (j->gauss_newton && !j->from_sums && (j->what & (FOLD | STEP | MEASURE))) add_traces(j);
}
