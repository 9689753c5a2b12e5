/* The native CPU kernels: types shared by all files, and the C ABI that gpu/native.py calls.
 *
 * A "unit" is 32 bits: one float32, or two consecutive bfloat16. Packed forms, in units (KS = elements per unit):
 *   weight   [columns / 32][ceil(K / KS)][32]           zero-padded in both directions
 *   K group  [head_dim / KS][16 tokens]                  16 consecutive positions of one KV head
 *   V group  [16 tokens / KS][head_dim]
 * A slot is [kv_heads][K of the page, V of the page]. Where the page length or head_dim is no multiple of 16 the page
 * holds plain rows [token][head_dim] instead, and attention gathers them into groups.
 * Every output is summed over k in one fixed order, whatever the batch: this is what makes results invariant.
 */
#ifndef BW_NATIVE_H
#define BW_NATIVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#define BW_PIECE 256 /* positions whose softmax is taken at once; pieces follow each other in ascending order */
#define BW_GROUP 16  /* positions of one group of keys */
#define BW_LINE (BW_PIECE + 64) /* elements of a row of scores: a piece, and what tiles that begin inside it write beyond */
#define BW_PANEL 32  /* columns of one weight panel */

enum { BW_EMBEDDING, BW_ATTENTION, BW_MLP, BW_HEAD };
enum { BW_RMS, BW_LAYER };                /* norms */
enum { BW_SILU, BW_GELU, BW_GELU_TANH };  /* activations */
enum { BW_HALVES, BW_NEIGHBOURS };        /* the pairs that are rotated */
enum { BW_ALONE, BW_KEEP, BW_JOIN }; /* attention that is kept aside, feed-forward that it is added to */
enum { BW_OK, BW_BAD_COUNT, BW_BAD_ROW, BW_BAD_POSITION, BW_BAD_TOKEN, BW_TOO_MANY };

/* One component of a run: numbers and pointers only. gpu/native.py mirrors the order of the fields. */
typedef struct {
    int32_t kind, width;                         /* width: of the hidden states */
    int32_t heads, kv_heads, head_dim, window;   /* window 0: none */
    int32_t kv_layer, page_size, inner, rotary;  /* inner: intermediate width, or vocabulary; rotary: elements that turn */
    int32_t rope, qk_whole, activation, gated;   /* qk_whole: queries and keys are normed over all heads together */
    int32_t norm_kind, side;
    float eps, scale;
    float softcap, factor;                       /* factor: of the embedding or of what is added; divisor of logits */
    int64_t slot_bytes;
    const void *w0, *w1;                         /* table | qkv, output | (gate-)up, down | projection */
    const float *b0, *b1;                        /* float32, padded like the columns; null: none, as below */
    const float *norm, *norm_bias, *post_norm, *q_norm, *k_norm;
    const float *cos, *sin;                      /* [max_length][rotary / 2] */
    char *arena;
} bw_comp;

/* The batch of a call; tok_* are filled by bw_forward. */
typedef struct {
    const bw_comp *comps;
    int32_t n_comps, rows, tokens;
    const int32_t *row, *start, *count;
    void *hidden;
    float *logits;
    int32_t *best;
    int32_t vocabulary;
} bw_call;

typedef struct bw_ctx bw_ctx;
typedef void (*bw_job)(bw_ctx *, int thread);

/* Kernels of one instruction set and one model type. */
typedef struct {
    const char *name;
    bw_job forward, head;
} bw_kernels;

typedef struct {
    bw_ctx *ctx;
    int index;
    pthread_t id;
} bw_worker;

struct bw_ctx {
    bw_call call;
    const bw_kernels *kernels;
    int threads;
    /* tables and scratch, given once */
    const int32_t *tokens_RM, *slots_RLP;
    int32_t table_rows, table_length, table_layers, table_pages, max_tokens;
    int32_t *tok_batch, *tok_pos; /* [max_tokens] */
    char *scratch;
    int64_t scratch_bytes;
    /* pool */
    bw_job job;
    bw_worker *workers;
    pid_t owner; /* the process that the threads live in */
    _Alignas(64) atomic_uint region; /* counts jobs; workers wait for a change */
    atomic_int region_sleepers, stop;
    _Alignas(64) atomic_uint phase; /* counts barriers passed */
    atomic_int phase_sleepers;
    _Alignas(64) atomic_int arrived;
};

/* pool.c */
int bw_pool_start(bw_ctx *ctx);
void bw_pool_stop(bw_ctx *ctx);
void bw_pool_run(bw_ctx *ctx, bw_job job);
void bw_barrier(bw_ctx *ctx);

/* set_*.c; an absent set is a null table */
extern const bw_kernels bw_avx512bf16_bf16, bw_avx512_bf16, bw_avx512_f32, bw_avx2_bf16, bw_avx2_f32;
extern const bw_kernels bw_generic_bf16, bw_generic_f32;

/* Where the scratch of a component lies, in bytes from the start; `thread` parts follow each other. */
typedef struct {
    int64_t side, x, y, c, q, o, thread, thread_bytes, total;
    int64_t ld_x, ld_c, ld_o;      /* elements between rows; ld_x also of side and y */
    int64_t scores, weights, out, top, total_seen, gather_k, gather_v; /* inside a thread's part */
    int32_t tile_tokens, padded_dim, direct;
} bw_layout;

/* Whether the last product goes straight into the hidden states. */
static inline int bw_plain(const bw_comp *m) { return !m->post_norm && m->factor == 1.0f && m->side == BW_ALONE; }

static inline int64_t bw_round(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
/* Elements between rows of scratch: not a power of two, so that the rows of a tile fall into different cache sets. */
static inline int64_t bw_stride(int64_t n) { return bw_round(n, 32) + 32; }
bw_layout bw_scratch_layout(const bw_comp *m, int max_tokens, int threads);

#endif
