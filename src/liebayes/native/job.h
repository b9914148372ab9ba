/* What Python asks for: one job over many tensors. `optim/native_store.py` writes these records. */
#ifndef LIEBAYES_JOB_H
#define LIEBAYES_JOB_H

#include <stdint.h>

/* Numbers processed at a time: few enough for the L1 cache, and the length of a block of xoshiro noise. */
#define CHUNK 2048
#define TRACES 3

/* TRY: a step that writes nothing, and counts what would not be finite. ALL_SIZES, with SAMPLE: those of point and scale too. */
enum what { SAMPLE = 1, FOLD = 2, FIRST = 4, STEP = 8, SIZE = 16, NOISE = 32, MEASURE = 64, TRY = 128,
            ALL_SIZES = 256 };
enum group { ADDITIVE, MULTIPLICATIVE, AFFINE };
enum stream_kind { PHILOX, XOSHIRO };
enum base { NORMAL, LAPLACE, UNIFORM, CAUCHY, STUDENT_T, GUMBEL, RAYLEIGH, EXPONENTIAL, LOG_NORMAL, DIRAC };

/* One parameter with its state, all in one memory layout. Blocks that a rule does not have are never read. */
typedef struct {
    float *point;
    float *log_scale; /* of the affine group; the remainder of the multiplicative one */
    float *sample;
    const float *gradient;
    float *momentum_scale, *momentum_shift;
    float *second_scale, *second_shift; /* the second moments of the adaptive metric */
    float *sum_scale, *sum_shift;       /* covectors of several samples */
    int64_t count;
    int64_t number;  /* of the parameter in its optimizer; selects its noise */
    int64_t offset;  /* of the first element within its parameter, a multiple of CHUNK */
    double gathered; /* the sum of the weights of the second moments after this step */
    /* Of the Gauss–Newton rule: */
    double *traces; /* out: Σ(θ − b)·∇ℓ, Σw² and Σ(free·w)² */
    double step, curvature, rate; /* of the shift, of w², and of the widths */
    double spread, floor;         /* (δ/τ)·Var(ε), and what A⁻² holds beside the data's part, which steps on the shift leave out */
    double level_change;          /* (1 − rate)·(c/c of the last step − 1) */
    double pull, limit;           /* δ/N; of the change of a weight */
    int64_t first_chunk; /* the number of chunks in the tensors before */
} tensor;

typedef struct {
    const tensor *tensors;
    int64_t tensor_count;
    int64_t count; /* out, of STEP: how many coordinates max_step has bounded; of TRY: how many are not finite after the step;
                      of SAMPLE: how many points of the multiplicative group are not positive */
    uint64_t seed;
    uint32_t step, stream;
    int32_t what, group, base, stream_kind, adaptive, from_sums, ascend, threads, gauss_newton;
    float base_scale, base_shape;
    float over_mean;   /* 1/E[ε], or 1 if there is no mean: from the point to the scale of the multiplicative group */
    float prior;       /* δ/N */
    float temperature; /* τ/N */
    float share;       /* 1/(number of samples in the sums) */
    float lr_scale, lr_shift, max_step;
    float beta_scale, beta_shift, beta_second; /* of the momenta, and of the adaptive metric */
    float rest_scale, rest_shift, rest_second; /* 1 − β, computed in double: float32 would round it */
    float sharp[4];    /* the matrix of a constant metric's sharp: rows scale, shift */
    float epsilon;
    float seen;       /* the share of the floor that steps on the shift see */
    double *partials; /* TRACES numbers for each chunk: summed in their order, they do not depend on threads */
    /* out: bounds of magnitudes, infinite or NaN where one of them is. They are norms of chunks, which cost an instruction.
     * SAMPLE: θ, and with ALL_SIZES the point and the scale; FOLD: the sums of scale and shift; SIZE: the gradient. */
    float sizes[3];
} job;

#define MOST_LANES 16

/* What chunks have found so far, lane by lane. */
typedef struct {
    float squares[3][MOST_LANES]; /* the largest sums of squares, in the order of `sizes` */
    int64_t count;
} findings;

/* Works on the elements [start, stop) of one tensor, at most CHUNK of them. */
typedef void chunk_function(const job *j, const tensor *t, int64_t start, int64_t stop, findings *found);

chunk_function liebayes_chunk_portable, liebayes_chunk_avx2, liebayes_chunk_avx512;

#endif
