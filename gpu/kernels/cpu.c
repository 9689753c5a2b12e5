/* The C ABI of the native back end: one context per back end, used by one thread at a time. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define HAS_AVX512                                                                                                   \
    (HAS_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&                          \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
#endif

typedef struct {
    const char *name;
    int present;
    const bw_kernels *bf16, *f32;
} candidate;

/* The first set, best first, that the processor has and whose name is `wanted` (any if empty); null if there is none. */
static const bw_kernels *choose(const char *wanted, int bfloat16) {
    const candidate sets[] = {
#if defined(__x86_64__)
        {"avx512bf16", HAS_AVX512 && __builtin_cpu_supports("avx512bf16"), &bw_avx512bf16_bf16, NULL},
        {"avx512", HAS_AVX512, &bw_avx512_bf16, &bw_avx512_f32},
        {"avx2", HAS_AVX2, &bw_avx2_bf16, &bw_avx2_f32},
#endif
        {"generic", 1, &bw_generic_bf16, &bw_generic_f32},
    };
    for (unsigned i = 0; i < sizeof sets / sizeof *sets; i++) {
        const bw_kernels *kernels = bfloat16 ? sets[i].bf16 : sets[i].f32;
        if (sets[i].present && kernels && (!*wanted || !strcmp(wanted, sets[i].name)))
            return kernels;
    }
    return NULL;
}

int bw_component_bytes(void) { return sizeof(bw_comp); }

/* A context with its own threads, or null: no such instruction set here, or no room for threads. */
bw_ctx *bw_create(int threads, int bfloat16, const char *set) {
    const bw_kernels *kernels = choose(set, bfloat16);
    bw_ctx *x = kernels ? aligned_alloc(64, bw_round(sizeof *x, 64)) : NULL;
    if (!x)
        return NULL;
    memset(x, 0, sizeof *x);
    x->kernels = kernels;
    x->threads = threads;
    if (bw_pool_start(x)) {
        free(x);
        return NULL;
    }
    return x;
}

void bw_destroy(bw_ctx *x) {
    bw_pool_stop(x);
    free(x->tok_batch);
    free(x->tok_pos);
    free(x);
}

const char *bw_name(const bw_ctx *x) { return x->kernels->name; }

/* Learns the tables; the arrays stay the caller's. 0, or -1 when there is no memory. */
int bw_tables(bw_ctx *x, const int32_t *tokens, const int32_t *slots, int rows, int length, int layers, int pages,
              int max_tokens) {
    x->tokens_RM = tokens;
    x->slots_RLP = slots;
    x->table_rows = rows;
    x->table_length = length;
    x->table_layers = layers;
    x->table_pages = pages;
    x->max_tokens = max_tokens;
    x->tok_batch = malloc(max_tokens * sizeof(int32_t));
    x->tok_pos = malloc(max_tokens * sizeof(int32_t));
    return x->tok_batch && x->tok_pos ? 0 : -1;
}

int64_t bw_scratch_need(const bw_ctx *x, const bw_comp *comps, int n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        bw_layout l = bw_scratch_layout(comps + i, x->max_tokens, x->threads);
        most = l.total > most ? l.total : most;
    }
    return most;
}

void bw_scratch(bw_ctx *x, char *memory) { x->scratch = memory; }

/* Fills the token columns and checks that every index stays inside its table. */
static int prepare(bw_ctx *x) {
    const bw_call *c = &x->call;
    const bw_comp *first = c->comps;
    int t = 0;
    for (int n = 0; n < c->rows; n++) {
        if (c->row[n] < 0 || c->row[n] >= x->table_rows)
            return BW_BAD_ROW;
        if (c->count[n] < 0 || c->count[n] > c->tokens - t)
            return BW_BAD_COUNT;
        if (c->start[n] < 0 || c->start[n] > x->table_length - c->count[n])
            return BW_BAD_POSITION;
        for (int i = 0; i < c->count[n]; i++, t++) {
            x->tok_batch[t] = n;
            x->tok_pos[t] = c->start[n] + i;
            if (first->kind == BW_EMBEDDING) {
                int32_t token = x->tokens_RM[(int64_t)c->row[n] * x->table_length + x->tok_pos[t]];
                if (token < 0 || token >= first->inner)
                    return BW_BAD_TOKEN;
            }
        }
    }
    return t == c->tokens ? BW_OK : BW_BAD_COUNT;
}

/* All components over the batch; hidden [tokens][width] of the model type is read and overwritten. */
int bw_forward(bw_ctx *x, const bw_comp *comps, int n_comps, const int32_t *row, const int32_t *start, const int32_t *count,
               int rows, void *hidden, int tokens) {
    if (tokens > x->max_tokens)
        return BW_TOO_MANY;
    x->call = (bw_call){.comps = comps, .n_comps = n_comps, .rows = rows, .tokens = tokens,
                        .row = row, .start = start, .count = count, .hidden = hidden};
    int error = prepare(x);
    if (!error && tokens)
        bw_pool_run(x, x->kernels->forward);
    return error;
}

/* logits [rows][vocabulary] float32 from hidden [rows][width] */
int bw_logits(bw_ctx *x, const bw_comp *head, void *hidden, int rows, float *logits) {
    if (rows > x->max_tokens)
        return BW_TOO_MANY;
    x->call = (bw_call){.comps = head, .n_comps = 1, .rows = rows, .hidden = hidden, .logits = logits};
    bw_pool_run(x, x->kernels->head);
    return BW_OK;
}

static void argmax_rows(bw_ctx *x, int thread) {
    const bw_call *c = &x->call;
    for (int r = c->rows * thread / x->threads; r < c->rows * (thread + 1) / x->threads; r++) {
        const float *row = c->logits + (int64_t)r * c->vocabulary;
        float lane[16];
        int best = 0, i = 0;
        for (int j = 0; j < 16; j++)
            lane[j] = row[0];
        for (; i + 16 <= c->vocabulary; i += 16)
            for (int j = 0; j < 16; j++)
                lane[j] = row[i + j] > lane[j] ? row[i + j] : lane[j];
        for (; i < c->vocabulary; i++)
            lane[0] = row[i] > lane[0] ? row[i] : lane[0];
        for (int j = 1; j < 16; j++)
            lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
        while (best < c->vocabulary - 1 && row[best] != lane[0])
            best++;
        c->best[r] = best;
    }
}

/* The lowest index of each row's maximum. */
void bw_argmax(bw_ctx *x, const float *logits, int rows, int vocabulary, int32_t *best) {
    x->call = (bw_call){.rows = rows, .vocabulary = vocabulary, .logits = (float *)logits, .best = best};
    bw_pool_run(x, argmax_rows);
}
