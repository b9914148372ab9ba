/* The raw words of the kernel's noise, without end, on standard output: what `noise_battery.py` feeds to a test battery.
 *
 *     noise_battery SOURCE ORDER SEED [reversed]
 *
 * SOURCE is philox or xoshiro: these are the functions of the kernel's own noise.h. `hash` is a bad generator, which a battery
 * must reject: a good hash of (step + place), so that each step has the words of the one before, shifted by one place.
 *
 * ORDER says which of the counters (seed, tensor, step, stream, place) runs:
 *     places    one tensor from its first place to its last, 2³⁴ of them; then the next tensor
 *     training  step by step, two samples each, the tensors of a small network, all their places
 *     chunks    2,048 places of step 0, the same of step 1, and so on
 *     tensors, steps, streams, seeds    one word each, at the first place: 0, 1, 2, and so on
 * `reversed` turns the 32 bits of each word around: most tests look at the upper bits. */
#include <stdio.h>
#include <stdlib.h>

#ifdef __AVX2__
#define LIEBAYES_AVX2
#endif
#include "../src/liebayes/native/noise.h"

#define PLACES ((int64_t)1 << 34)
#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum order { PLACES_ORDER, TRAINING, CHUNKS, TENSORS, STEPS, STREAMS, SEEDS };
static const char *const orders[] = {"places", "training", "chunks", "tensors", "steps", "streams", "seeds"};
enum { HASH = XOSHIRO + 1 };
static const char *const kinds[] = {"philox", "xoshiro", "hash"};

static uint32_t buffer[1 << 16];
static size_t held;
static int reverse;

static uint32_t turned_around(uint32_t w) {
    w = (w >> 1 & 0x55555555u) | (w & 0x55555555u) << 1;
    w = (w >> 2 & 0x33333333u) | (w & 0x33333333u) << 2;
    w = (w >> 4 & 0x0F0F0F0Fu) | (w & 0x0F0F0F0Fu) << 4;
    return __builtin_bswap32(w);
}

static void put(uint32_t word) {
    buffer[held++] = reverse ? turned_around(word) : word;
    if (held < sizeof buffer / sizeof *buffer) return;
    if (fwrite(buffer, sizeof buffer, 1, stdout) != 1) exit(0); /* the reader has had enough */
    held = 0;
}

static uint32_t hashed(uint32_t x) {
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

/* The words of the places [start, start + count), where start is a multiple of CHUNK. */
static void put_places(const job *j, uint32_t number, int64_t start, int64_t count) {
    if (j->stream_kind == HASH) {
        for (int64_t i = start; i < start + count; i++)
            put(hashed((uint32_t)i + j->step + hashed(number + hashed(j->stream + hashed((uint32_t)j->seed)))));
        return;
    }
    for (int64_t chunk = start; chunk < start + count; chunk += CHUNK) {
        source words_of = open_source(j, number, chunk);
        int64_t stop = chunk + CHUNK < start + count ? chunk + CHUNK : start + count;
        for (int64_t i = chunk; i < stop; i += GROUP) {
            word8 rows[ROWS];
            uint32_t words[GROUP];
            next_group(j, &words_of, rows);
            memcpy(words, rows, sizeof words);
            for (int64_t k = 0; k < GROUP && i + k < stop; k++) put(words[k]);
        }
    }
}

/* Weights and biases of convolutions and a last layer: whole chunks, parts of them, and less than a group. */
static const int64_t network[] = {432, 16, 2304, 16, 4608, 32, 9216, 32, 18432, 64, 36864, 64, 640, 10};

static void put_step(job *j) {
    for (j->stream = 0; j->stream < 2; j->stream++)
        for (int k = 0; k < LENGTH(network); k++) put_places(j, (uint32_t)k, 0, network[k]);
}

static int position(const char *name, const char *const *names, int count) {
    for (int k = 0; k < count; k++)
        if (strcmp(name, names[k]) == 0) return k;
    fprintf(stderr, "unknown: %s\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "noise_battery SOURCE ORDER SEED [reversed]\n"), 2;
    uint64_t seed = strtoull(argv[3], NULL, 10);
    job j = {.stream_kind = position(argv[1], kinds, LENGTH(kinds)), .seed = seed};
    int order = position(argv[2], orders, LENGTH(orders));
    reverse = argc > 4 && strcmp(argv[4], "reversed") == 0;
    for (uint64_t n = 0;; n++) {
        /* A counter of 32 bits (31 for tensors: the last marks second words) goes round; then another chunk is used. */
        int64_t round = (int64_t)(n >> (order == TENSORS ? 31 : 32)) * CHUNK;
        uint32_t number = 0;
        switch (order) {
        case PLACES_ORDER: put_places(&j, (uint32_t)(n / (PLACES / CHUNK)), (int64_t)(n % (PLACES / CHUNK)) * CHUNK, CHUNK); continue;
        case TRAINING: j.step = (uint32_t)n, put_step(&j); continue;
        case CHUNKS: j.step = (uint32_t)n, put_places(&j, 0, round, CHUNK); continue;
        case TENSORS: number = (uint32_t)n & ~SECOND_WORD; break;
        case STEPS: j.step = (uint32_t)n; break;
        case STREAMS: j.stream = (uint32_t)n; break;
        case SEEDS: j.seed = seed + (uint32_t)n; break;
        }
        put_places(&j, number, round, 1);
    }
}
