/* Alg. 1–3 on a chunk of numbers: a sample; or ①, ②, momentum, metric, bound and g·exp(−αM♯).
 *
 * Every formula is one of `rule/` and `groups/`, which explain it; `optim/store.py` does the same in torch. This file is
 * compiled once for every instruction set, with CHUNK_FUNCTION as the name of its function. */
#include "job.h"
#include "noise.h"
#include "vector.h"

#define AHEAD 512 /* how far ahead of the current number to prefetch */

/* Infinite or NaN. */
INLINE ints not_finite(floats x) { return x * 0.0f != 0.0f; }

/* What a step writes, or only tries to. */
INLINE void keep(float *memory, floats x, int lanes, int what, ints *count) {
    if (what & TRY)
        *count -= not_finite(x);
    else
        store(memory, x, lanes);
}

/* M ← (1 − β)·covector + βM. */
INLINE floats accumulated(float *memory, floats covector, float beta, float rest, int lanes, int what, ints *count) {
    floats M = beta * load(memory, lanes) + rest * covector;
    keep(memory, M, lanes, what, count);
    return M;
}

/* The root of the adaptive metric: v ← βv + (1 − β)·covector², divided by the sum of its weights. */
INLINE floats adapted_root(const job *j, const tensor *t, float *memory, floats covector, int lanes, int what, ints *count) {
    floats v = j->beta_second * load(memory, lanes) + j->rest_second * (covector * covector);
    keep(memory, v, lanes, what, count);
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
                 const float *noise, ints *count, floats *squares) {
    ints uncounted = {0}, *limited = what & TRY ? &uncounted : count;
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
            gradient = (j->ascend ? -gradient : gradient) + j->prior * theta;
            if (has_scale) U = (has_shift ? theta - point : theta) * gradient - j->temperature;
            if (has_shift) V = group == AFFINE ? scale * gradient : gradient;
        } else {
            if (has_scale) U = load(t->sum_scale + i, lanes) * j->share;
            if (has_shift) V = load(t->sum_shift + i, lanes) * j->share;
        }
        if (what & FOLD) {
            if (!(j->what & FIRST)) {
                if (has_scale) U += load(t->sum_scale + i, lanes);
                if (has_shift) V += load(t->sum_shift + i, lanes);
            }
            if (has_scale) store(t->sum_scale + i, U, lanes);
            if (has_shift) store(t->sum_shift + i, V, lanes);
            squares[0] += U * U;
            squares[1] += V * V;
            return;
        }
        floats root_scale = {0}, root_shift = {0}, X = {0}, y = {0};
        if (adaptive) {
            if (has_scale) root_scale = adapted_root(j, t, t->second_scale + i, U, lanes, what, count);
            if (has_shift) root_shift = adapted_root(j, t, t->second_shift + i, V, lanes, what, count);
        }
        if (has_scale) U = accumulated(t->momentum_scale + i, U, j->beta_scale, j->rest_scale, lanes, what, count);
        if (has_shift) V = accumulated(t->momentum_shift + i, V, j->beta_shift, j->rest_shift, lanes, what, count);
        if (has_scale) X = bounded(j, -j->lr_scale * (adaptive ? U / root_scale : j->sharp[0] * U + j->sharp[1] * V), limited);
        if (has_shift) y = adaptive ? V / root_shift : j->sharp[2] * U + j->sharp[3] * V;
        if (group == ADDITIVE) {
            if (isinf(j->max_step))
                point = point - j->lr_shift * y; /* rounded once, as in SGD */
            else
                point = point + bounded(j, -j->lr_shift * y, limited);
        } else if (group == AFFINE) {
            y = bounded(j, -j->lr_shift * y, limited);
            point = point + scale * (expm1_ratio(X, j->max_step <= SMALL) * y);
            log_scale = log_scale + X;
        } else {
            /* The point is rounded; the logarithm keeps what rounding has lost. */
            if (what & TRY) *count -= ~(point > 0.0f);
            floats moved = clamp(scale_of(log_scale + X) * point, 1.17549435e-38f, 3.40282347e38f);
            floats change = (moved - point) / point;
            floats taken = log1p_of(change); /* accurate for small steps; far below -1/2 it has no digits left */
            ints large = magnitude(change) > 0.5f;
            if (__builtin_expect(any(large), 0)) taken = pick(large, logarithm(moved) - logarithm(point), taken);
            log_scale = (log_scale + X) - taken;
            point = moved;
        }
        keep(t->point + i, point, lanes, what, count);
        if (has_scale) keep(t->log_scale + i, log_scale, lanes, what, count);
    }
    if (what & SAMPLE) {
        floats epsilon = load(noise + i % PIECE, WIDTH);
        floats theta = group == ADDITIVE ? point + epsilon
                 : group == AFFINE   ? point + scale * epsilon
                                     : scale * (epsilon * (point * j->over_mean));
        store(t->sample + i, theta, lanes);
        squares[0] += theta * theta;
        if (what & ALL_SIZES) {
            squares[1] += point * point;
            if (has_scale) squares[2] += scale * scale;
        }
        if (group == MULTIPLICATIVE) *count -= ~(point > 0.0f);
    }
}

/* Lanes beyond the end have worked on zeros, and must not count. */
INLINE int64_t counted(ints count, ints last, int64_t lanes) {
    int64_t total = 0;
    if (!any((count | last) != 0)) return 0;
    for (int lane = 0; lane < WIDTH; lane++) total += count[lane] + (lane < lanes ? last[lane] : 0);
    return total;
}

INLINE void remember(findings *found, int k, floats squares) {
    floats largest = load(found->squares[k], WIDTH);
    store(found->squares[k], at_least(largest, squares) + squares * 0.0f, WIDTH); /* NaN and infinity leave NaN, for good */
}

INLINE void sweep(const job *asked, const tensor *which, int64_t start, int64_t stop, int group, int adaptive, int what,
                  int from_sums, const float *noise, findings *found) {
    const job j = *asked; /* copies that no store can alias, so the compiler keeps them in registers */
    const tensor t = *which;
    ints count = {0}, last = {0};
    floats squares[3] = {{0}};
    int64_t i = start;
    for (; i + WIDTH <= stop; i += WIDTH) work(&j, &t, i, WIDTH, group, adaptive, what, from_sums, noise, &count, squares);
    if (i < stop) work(&j, &t, i, (int)(stop - i), group, adaptive, what, from_sums, noise, &last, squares);
    found->count += counted(count, last, stop - i);
    for (int k = 0; k < (what & STEP ? 0 : what == SAMPLE ? 1 : 3); k++) remember(found, k, squares[k]);
}

#define SWEEP(adaptive, what, from_sums) sweep(j, t, start, stop, group, adaptive, what, from_sums, noise, found)

INLINE void work_on_group(const job *j, const tensor *t, int64_t start, int64_t stop, int group, const float *noise,
                          findings *found) {
    switch (j->what & (SAMPLE | ALL_SIZES | FOLD | STEP | TRY)) {
    case SAMPLE: SWEEP(0, SAMPLE, 0); break;
    case SAMPLE | ALL_SIZES: SWEEP(0, SAMPLE | ALL_SIZES, 0); break;
    case FOLD: SWEEP(0, FOLD, 0); break;
    case STEP:
        if (j->adaptive)
            j->from_sums ? SWEEP(1, STEP, 1) : SWEEP(1, STEP, 0);
        else
            j->from_sums ? SWEEP(0, STEP, 1) : SWEEP(0, STEP, 0);
        break;
    default: SWEEP(j->adaptive, STEP | TRY, j->from_sums); /* rare: one function for all of them */
    }
}

static void work_on(const job *j, const tensor *t, int64_t start, int64_t stop, const float *noise, findings *found) {
    switch (j->group) {
    case ADDITIVE: work_on_group(j, t, start, stop, ADDITIVE, noise, found); break;
    case MULTIPLICATIVE: work_on_group(j, t, start, stop, MULTIPLICATIVE, noise, found); break;
    default: work_on_group(j, t, start, stop, AFFINE, noise, found);
    }
}

/* The Gauss–Newton rule on the diagonal affine group, `GaussNewtonRule` in optim/rule.py: what it adds up are the traces. */
INLINE void learn(const job *j, const tensor *t, int64_t i, int lanes, int what, int from_sums, floats *traces, ints *count,
                  floats *sums) {
    floats point = load(t->point + i, lanes), log_scale = load(t->log_scale + i, lanes);
    floats scale = scale_of(log_scale), gradient, square;
    floats share = at_least(1.0f - ((1.0f - j->seen) * (float)t->floor) * (scale * scale), all(j->seen)); /* of the data in A⁻² */
    if ((what & STEP) && lanes == WIDTH) fetch_ahead(t, i + AHEAD, 0, 1, from_sums);
    if (from_sums) {
        gradient = load(t->sum_shift + i, lanes) * j->share;
        square = load(t->sum_scale + i, lanes) * j->share;
    } else {
        gradient = load(t->gradient + i, lanes);
        gradient = (j->ascend ? -gradient : gradient) + (float)t->pull * point;
        square = (scale * gradient) * (scale * gradient);
        traces[0] += (load(t->sample + i, lanes) - point) * gradient;
        traces[1] += square;
        traces[2] += square / share;
    }
    if (what == MEASURE) return;
    if (what == FOLD) {
        if (!(j->what & FIRST)) {
            square += load(t->sum_scale + i, lanes);
            gradient += load(t->sum_shift + i, lanes);
        }
        store(t->sum_scale + i, square, lanes);
        store(t->sum_shift + i, gradient, lanes);
        sums[0] += square * square;
        sums[1] += gradient * gradient;
        return;
    }
    floats M = accumulated(t->momentum_shift + i, gradient, j->beta_shift, j->rest_shift, lanes, what, count);
    floats S = at_most((float)t->curvature * square + (float)t->spread * (scale * scale), all(1e30f));
    floats data = at_least(1.0f - (float)t->floor * (scale * scale), all(0.0f));
    floats growth = (float)t->rate * (S - 1.0f) + (float)t->level_change * data, logarithm_of_growth = log1p_of(growth);
    ints large = growth > 0.5f;
    if (__builtin_expect(any(large), 0)) logarithm_of_growth = pick(large, logarithm(1.0f + growth), logarithm_of_growth);
    floats step = clamp((float)t->step * (scale * M / root(share)), -(float)t->limit, (float)t->limit);
    keep(t->point + i, point - step, lanes, what, count);
    keep(t->log_scale + i, log_scale - 0.5f * logarithm_of_growth, lanes, what, count);
}

INLINE void learn_all(const job *asked, const tensor *which, int64_t start, int64_t stop, int what, int from_sums,
                      findings *found) {
    const job j = *asked;
    const tensor t = *which;
    ints count = {0}, last = {0};
    floats traces[TRACES] = {{0}}, sums[2] = {{0}};
    int64_t i = start;
    for (; i + WIDTH <= stop; i += WIDTH) learn(&j, &t, i, WIDTH, what, from_sums, traces, &count, sums);
    if (i < stop) learn(&j, &t, i, (int)(stop - i), what, from_sums, traces, &last, sums);
    found->count += counted(count, last, stop - i);
    for (int k = 0; k < (what == FOLD ? 2 : 0); k++) remember(found, k, sums[k]);
    if (!from_sums) {
        double *partial = j.partials + TRACES * (t.first_chunk + start / CHUNK);
        for (int k = 0; k < TRACES; k++) {
            partial[k] = 0.0;
            for (int lane = 0; lane < WIDTH; lane++) partial[k] += traces[k][lane];
        }
    }
}

static void learn_on(const job *j, const tensor *t, int64_t start, int64_t stop, findings *found) {
    switch (j->what & (MEASURE | FOLD | STEP | TRY)) {
    case MEASURE: learn_all(j, t, start, stop, MEASURE, 0, found); break;
    case FOLD: learn_all(j, t, start, stop, FOLD, 0, found); break;
    case STEP: j->from_sums ? learn_all(j, t, start, stop, STEP, 1, found) : learn_all(j, t, start, stop, STEP, 0, found); break;
    default: learn_all(j, t, start, stop, STEP | TRY, j->from_sums, found);
    }
}

static void measure(const float *x, int64_t count, findings *found) {
    floats squares[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        for (int k = 0; k < 4; k++) {
            floats next = load(x + i + k * WIDTH, WIDTH);
            squares[k] += next * next;
        }
    for (; i < count; i += WIDTH) {
        floats next = load(x + i, i + WIDTH <= count ? WIDTH : (int)(count - i));
        squares[0] += next * next;
    }
    remember(found, 0, (squares[0] + squares[1]) + (squares[2] + squares[3]));
}

void CHUNK_FUNCTION(const job *j, const tensor *t, int64_t start, int64_t stop, findings *found) {
    if (j->what & SIZE) return measure(t->gradient + start, stop - start, found);
    if (!(j->what & (SAMPLE | NOISE)))
        return j->gauss_newton ? learn_on(j, t, start, stop, found) : work_on(j, t, start, stop, 0, found);
    /* Noise in small pieces, so that computing it and waiting for memory alternate often enough to overlap. */
    float noise[PIECE] __attribute__((aligned(64)));
    sources from = open_sources(j, (uint32_t)t->number, t->offset + start);
    for (; start < stop; start += PIECE) {
        int64_t end = start + PIECE < stop ? start + PIECE : stop;
        draw(j, &from, end - start, noise);
        if (j->what & NOISE)
            memcpy(t->sample + start, noise, (size_t)(end - start) * sizeof *noise);
        else
            work_on(j, t, start, end, noise, found);
    }
}
