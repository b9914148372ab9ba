/* Alg. 1–3 on a chunk of numbers: a sample; or ①, ②, momentum, metric, bound and g·exp(−αM♯).
 *
 * Every formula is one of `rule/` and `groups/`, which explain it; `optim/store.py` does the same in torch. This file is
 * compiled once for every instruction set, with CHUNK_FUNCTION and FINITE_FUNCTION as the names of its functions. */
#include "job.h"
#include "noise.h"
#include "vector.h"

#define AHEAD 512 /* how far ahead of the current number to prefetch */

/* M ← (1 − β)·covector + βM. */
INLINE floats accumulated(float *memory, floats covector, float beta, float rest, int lanes) {
    floats M = beta * load(memory, lanes) + rest * covector;
    store(memory, M, lanes);
    return M;
}

/* The root of the adaptive metric: v ← βv + (1 − β)·covector², divided by the sum of its weights. */
INLINE floats adapted_root(const job *j, const tensor *t, float *memory, floats covector, int lanes) {
    floats v = j->beta_second * load(memory, lanes) + j->rest_second * (covector * covector);
    store(memory, v, lanes);
    return root(v * (float)(1 / t->gathered)) + j->epsilon;
}

INLINE floats bounded(const job *j, floats step, ints *count) {
    floats within = clamp(step, -j->max_step, j->max_step);
    *count -= within != step;
    return within;
}

/* Six streams at once are more than the hardware prefetcher follows. */
INLINE void fetch_ahead(const tensor *t, int64_t i, int has_scale, int has_shift, int from_sums) {
    __builtin_prefetch(t->point + i, 1);
    if (has_scale) __builtin_prefetch(t->log_scale + i, 1);
    if (has_scale) __builtin_prefetch(t->momentum_scale + i, 1);
    if (has_shift) __builtin_prefetch(t->momentum_shift + i, 1);
    if (!from_sums) {
        __builtin_prefetch(t->sample + i);
        __builtin_prefetch(t->gradient + i);
    }
}

/* `group`, `adaptive` and `what` are constants where this is inlined, so the compiler removes blocks that do not apply. */
INLINE void work(const job *j, const tensor *t, int64_t i, int lanes, int group, int adaptive, int what, int from_sums,
                 const float *noise, ints *count) {
    const int has_scale = group != ADDITIVE, has_shift = group != MULTIPLICATIVE;
    floats point = load(t->point + i, lanes), log_scale = {0}, scale = {0};
    if (has_scale) {
        log_scale = load(t->log_scale + i, lanes);
        scale = scale_of(log_scale);
    }
    if ((what & STEP) && lanes == WIDTH) fetch_ahead(t, i + AHEAD, has_scale, has_shift, from_sums);
    if (what & (FOLD | STEP)) {
        floats U = {0}, V = {0}; /* the covector's blocks: of the scale, of the shift */
        if ((what & FOLD) || !from_sums) {
            floats theta = {0};
            if (has_scale || j->prior != 0.0f) theta = load(t->sample + i, lanes);
            floats gradient = load(t->gradient + i, lanes);
            if (what & FOLD) *count -= gradient * 0.0f != 0.0f; /* infinite or NaN */
            gradient = (j->ascend ? -gradient : gradient) + j->prior * theta;
            if (has_scale) U = (has_shift ? theta - point : theta) * gradient - j->temperature;
            if (has_shift) V = group == AFFINE ? scale * gradient : gradient;
        } else {
            if (has_scale) U = load(t->sum_scale + i, lanes) * j->share;
            if (has_shift) V = load(t->sum_shift + i, lanes) * j->share;
        }
        if (what & FOLD) {
            int first = j->what & FIRST;
            if (has_scale) store(t->sum_scale + i, first ? U : load(t->sum_scale + i, lanes) + U, lanes);
            if (has_shift) store(t->sum_shift + i, first ? V : load(t->sum_shift + i, lanes) + V, lanes);
            return;
        }
        floats root_scale = {0}, root_shift = {0}, X = {0}, y = {0};
        if (adaptive) {
            if (has_scale) root_scale = adapted_root(j, t, t->second_scale + i, U, lanes);
            if (has_shift) root_shift = adapted_root(j, t, t->second_shift + i, V, lanes);
        }
        if (has_scale) U = accumulated(t->momentum_scale + i, U, j->beta_scale, j->rest_scale, lanes);
        if (has_shift) V = accumulated(t->momentum_shift + i, V, j->beta_shift, j->rest_shift, lanes);
        if (has_scale) X = bounded(j, -j->lr_scale * (adaptive ? U / root_scale : j->sharp[0] * U + j->sharp[1] * V), count);
        if (has_shift) y = adaptive ? V / root_shift : j->sharp[2] * U + j->sharp[3] * V;
        if (group == ADDITIVE) {
            if (isinf(j->max_step))
                point = point - j->lr_shift * y; /* rounded once, as in SGD */
            else
                point = point + bounded(j, -j->lr_shift * y, count);
        } else if (group == AFFINE) {
            y = bounded(j, -j->lr_shift * y, count);
            point = point + scale * (expm1_ratio(X, j->max_step <= SMALL) * y);
            log_scale = log_scale + X;
        } else {
            /* The point is rounded; the logarithm keeps what rounding has lost. */
            floats moved = clamp(scale_of(log_scale + X) * point, 1.17549435e-38f, 3.40282347e38f);
            floats change = (moved - point) / point;
            floats taken = log1p_of(change); /* accurate for small steps; far below -1/2 it has no digits left */
            ints large = magnitude(change) > 0.5f;
            if (__builtin_expect(any(large), 0)) taken = pick(large, logarithm(moved) - logarithm(point), taken);
            log_scale = (log_scale + X) - taken;
            point = moved;
        }
        store(t->point + i, point, lanes);
        if (has_scale) store(t->log_scale + i, log_scale, lanes);
    }
    if (what & SAMPLE) {
        floats epsilon = load(noise + i % PIECE, WIDTH);
        floats theta = group == ADDITIVE ? point + epsilon
                 : group == AFFINE   ? point + scale * epsilon
                                     : scale * (epsilon * (point * j->over_mean));
        store(t->sample + i, theta, lanes);
    }
}

INLINE int64_t sweep(const job *asked, const tensor *which, int64_t start, int64_t stop, int group, int adaptive, int what,
                     int from_sums, const float *noise) {
    const job j = *asked; /* copies that no store can alias, so the compiler keeps them in registers */
    const tensor t = *which;
    ints count = {0}, last = {0}; /* lanes beyond the end work on zeros, and must not count */
    int64_t i = start, total = 0;
    for (; i + WIDTH <= stop; i += WIDTH) work(&j, &t, i, WIDTH, group, adaptive, what, from_sums, noise, &count);
    if (i < stop) work(&j, &t, i, (int)(stop - i), group, adaptive, what, from_sums, noise, &last);
    for (int lane = 0; lane < WIDTH; lane++) total += count[lane] + (i + lane < stop ? last[lane] : 0);
    return total;
}

#define WORK(group)                                                                                                          \
    (what == FOLD     ? sweep(j, t, start, stop, group, 0, FOLD, 0, noise)                                                   \
     : what == SAMPLE ? sweep(j, t, start, stop, group, 0, SAMPLE, 0, noise)                                                 \
     : j->adaptive    ? (j->from_sums ? sweep(j, t, start, stop, group, 1, STEP, 1, noise)                                   \
                                      : sweep(j, t, start, stop, group, 1, STEP, 0, noise))                                  \
                      : (j->from_sums ? sweep(j, t, start, stop, group, 0, STEP, 1, noise)                                   \
                                      : sweep(j, t, start, stop, group, 0, STEP, 0, noise)))

static int64_t work_on(const job *j, const tensor *t, int64_t start, int64_t stop, const float *noise) {
    int what = j->what & (SAMPLE | FOLD | STEP);
    switch (j->group) {
    case ADDITIVE: return WORK(ADDITIVE);
    case MULTIPLICATIVE: return WORK(MULTIPLICATIVE);
    default: return WORK(AFFINE);
    }
}

/* The Gauss–Newton rule on the diagonal affine group, `GaussNewtonRule` in optim/rule.py: what it adds up are the traces. */
INLINE void learn(const job *j, const tensor *t, int64_t i, int lanes, int what, int from_sums, floats *exact,
                  floats *squares, ints *count) {
    floats point = load(t->point + i, lanes), log_scale = load(t->log_scale + i, lanes);
    floats scale = scale_of(log_scale), gradient, square;
    if (what == STEP && lanes == WIDTH) fetch_ahead(t, i + AHEAD, 0, 1, from_sums);
    if (from_sums) {
        gradient = load(t->sum_shift + i, lanes) * j->share;
        square = load(t->sum_scale + i, lanes) * j->share;
    } else {
        gradient = load(t->gradient + i, lanes);
        if (what == FOLD) *count -= gradient * 0.0f != 0.0f; /* infinite or NaN */
        gradient = (j->ascend ? -gradient : gradient) + j->prior * point;
        square = (scale * gradient) * (scale * gradient);
        *exact += (load(t->sample + i, lanes) - point) * gradient;
        *squares += square;
    }
    if (what == MEASURE) return;
    if (what == FOLD) {
        int first = j->what & FIRST;
        store(t->sum_scale + i, first ? square : load(t->sum_scale + i, lanes) + square, lanes);
        store(t->sum_shift + i, first ? gradient : load(t->sum_shift + i, lanes) + gradient, lanes);
        return;
    }
    floats M = accumulated(t->momentum_shift + i, gradient, j->beta_shift, j->rest_shift, lanes);
    floats S = at_most((float)t->curvature * square + j->spread * (scale * scale), all(1e30f));
    floats growth = (float)t->rate * (S - 1.0f), logarithm_of_growth = log1p_of(growth);
    ints large = growth > 0.5f;
    if (__builtin_expect(any(large), 0)) logarithm_of_growth = pick(large, logarithm(1.0f + growth), logarithm_of_growth);
    store(t->point + i, point - (float)t->step * (scale * M), lanes);
    store(t->log_scale + i, log_scale - 0.5f * logarithm_of_growth, lanes);
}

INLINE int64_t learn_all(const job *asked, const tensor *which, int64_t start, int64_t stop, int what, int from_sums) {
    const job j = *asked;
    const tensor t = *which;
    ints count = {0}, last = {0};
    floats exact = {0}, squares = {0};
    int64_t i = start, total = 0;
    for (; i + WIDTH <= stop; i += WIDTH) learn(&j, &t, i, WIDTH, what, from_sums, &exact, &squares, &count);
    if (i < stop) learn(&j, &t, i, (int)(stop - i), what, from_sums, &exact, &squares, &last);
    for (int lane = 0; lane < WIDTH; lane++) total += count[lane] + (i + lane < stop ? last[lane] : 0);
    if (!from_sums) {
        double *partial = j.partials + 2 * (t.first_chunk + start / CHUNK);
        partial[0] = partial[1] = 0.0;
        for (int lane = 0; lane < WIDTH; lane++) partial[0] += exact[lane], partial[1] += squares[lane];
    }
    return total;
}

static int64_t learn_on(const job *j, const tensor *t, int64_t start, int64_t stop) {
    if (j->what & MEASURE) return learn_all(j, t, start, stop, MEASURE, 0);
    if (j->what & FOLD) return learn_all(j, t, start, stop, FOLD, 0);
    return j->from_sums ? learn_all(j, t, start, stop, STEP, 1) : learn_all(j, t, start, stop, STEP, 0);
}

int64_t CHUNK_FUNCTION(const job *j, const tensor *t, int64_t start, int64_t stop) {
    if (!(j->what & (SAMPLE | NOISE))) return j->gauss_newton ? learn_on(j, t, start, stop) : work_on(j, t, start, stop, 0);
    /* Noise in small pieces, so that computing it and waiting for memory alternate often enough to overlap. */
    float noise[PIECE] __attribute__((aligned(64)));
    sources from = open_sources(j, (uint32_t)t->number, t->offset + start);
    int64_t bounded = 0;
    for (; start < stop; start += PIECE) {
        int64_t end = start + PIECE < stop ? start + PIECE : stop;
        draw(j, &from, end - start, noise);
        if (j->what & NOISE)
            memcpy(t->sample + start, noise, (size_t)(end - start) * sizeof *noise);
        else
            bounded += work_on(j, t, start, end, noise);
    }
    return bounded;
}

/* A number times 0 is 0 unless it is infinite or NaN. */
int FINITE_FUNCTION(const float *x, int64_t count) {
    floats sum[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        for (int k = 0; k < 4; k++) sum[k] += load(x + i + k * WIDTH, WIDTH) * 0.0f;
    for (; i + WIDTH <= count; i += WIDTH) sum[0] += load(x + i, WIDTH) * 0.0f;
    if (i < count) sum[1] += load(x + i, (int)(count - i)) * 0.0f;
    floats total = sum[0] + sum[1] + sum[2] + sum[3];
    for (int lane = 0; lane < WIDTH; lane++)
        if (total[lane] != 0.0f) return 0;
    return 1;
}
