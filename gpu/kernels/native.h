/* The native CPU kernels: types shared by all files, and the C ABI that gpu/native/backend.py calls.
 *
 * A "unit" is 32 bits: one float32, or two consecutive bfloat16. Packed forms, in units (KS = elements per unit):
 *   weight   [columns / 32][ceil(K / KS)][32]           zero-padded in both directions
 *   K group  [head_dim / KS][16 tokens]                  16 consecutive positions of one KV head
 *   V group  [16 tokens / KS][head_dim]
 * A slot is [kv_heads][K of the page, V of the page]. Where the page length or head_dim is no multiple of 16 the page
 * holds plain rows [token][head_dim] instead, and attention gathers them into groups.
 * Every output is summed over k in one fixed order, whatever the batch: this is what makes results invariant.
 *
 * A call is a list of phases, a phase a list of pieces (pieces.c). Which thread computes a piece, and how often, changes no bit.
 */
#ifndef BW_NATIVE_H
#define BW_NATIVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* glibc 2.34 gave these two a second version, no different here. Asking for the first lets what is built there be loaded by every
 * glibc since 2.17. (The sanitiser for races stands in for them by name, and is left its way.) */
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
#endif

#define BW_PIECE 256 /* positions whose softmax is taken at once; pieces follow each other in ascending order */
#define BW_GROUP 16  /* positions of one group of keys */
#define BW_LINE (BW_PIECE + 64) /* elements of a row of scores: a piece, and what tiles that begin inside it write beyond */
#define BW_PANEL 32  /* columns of one weight panel */
#define BW_HALF 16   /* columns of the last panel of a low-rank A, if it has no more */
#define BW_PARTS 3   /* weights that one product takes at most */
#define BW_VIRTUAL -1 /* id of a token that is none: a delta fills its position */

enum { BW_EMBEDDING, BW_ATTENTION, BW_MLP, BW_HEAD };
enum { BW_RMS, BW_LAYER };                /* norms */
enum { BW_SILU, BW_GELU, BW_GELU_TANH, BW_RELU }; /* activations; the last of bottlenecks alone */
enum { BW_OUTPUT, BW_SUM, BW_INPUT };     /* what a bottleneck reads: what is added to the residual, both, the residual */
enum { BW_HALVES, BW_NEIGHBOURS };        /* the pairs that are rotated */
enum { BW_ALONE, BW_KEEP, BW_JOIN }; /* attention that is kept aside, feed-forward that it is added to */
enum { BW_OK, BW_BAD_COUNT, BW_BAD_ROW, BW_BAD_POSITION, BW_BAD_TOKEN, BW_TOO_MANY, BW_BAD_GROUP };

/* One component of a run: numbers and pointers only. gpu/native/backend.py mirrors the order of the fields. */
typedef struct {
    int32_t kind, width;                         /* width: of the hidden states */
    int32_t heads, kv_heads, head_dim, window;   /* window 0: none */
    int32_t kv_layer, page_size, inner, rotary;  /* inner: intermediate width, or vocabulary; rotary: elements that turn */
    int32_t rope, qk_whole, activation, gated;   /* qk_whole: queries and keys are normed over all heads together */
    int32_t norm_kind, side, adapted;            /* adapted: columns of the widest bottleneck behind it; 0: none */
    float eps, scale;
    float softcap, factor;                       /* factor: of the embedding or of what is added; divisor of logits */
    int64_t slot_bytes;
    const void *w[BW_PARTS], *w_out;             /* table | q, k, v, output | gate (or null), up, down | projection */
    const float *b[BW_PARTS], *b_out;            /* float32, padded like the columns; null: none, as below */
    const float *norm, *norm_bias, *post_norm, *q_norm, *k_norm;
    const float *cos, *sin;                      /* [max_length][rotary / 2] */
    char *arena;
} bw_comp;

/* What a delta changes in one component: low-rank terms and shifts, y += B (scale * (A x)) + shift; a bottleneck behind it; what
 * virtual tokens have. Zero: nothing. */
typedef struct {
    const void *a[2];      /* for the first and the second product: the As of its terms as columns, packed as a weight but
                              for its last panel, which may be half a one */
    const float *scale[2]; /* of each of these columns, padded like them */
    const void *b[BW_PARTS + 1]; /* packed as the weight that it is added to: those of the first product, then the second's */
    const float *shift[BW_PARTS + 1]; /* added to each row, padded like the columns */
    const void *down, *up; /* of a bottleneck: packed as weights */
    const float *down_bias, *up_bias; /* padded like their columns */
    const void *filled;    /* instead of what virtual tokens compute, in the model's type: [virtual][width] of an embedding, of
                              an attention [virtual][kv_heads][key, value] */
    int32_t columns[2];          /* of a, padded to whole half panels */
    int32_t units[BW_PARTS + 1]; /* of k in b */
    int32_t from[BW_PARTS + 1];  /* columns of a at which the k of b begins */
    int32_t virtual;             /* positions from 0 on whose rows are `filled` */
    int32_t bottleneck, up_units, activation, reads; /* columns of down, in whole panels, 0: none; units of k in up */
    float bottleneck_scale;
} bw_delta;

/* Consecutive tokens of a call with the same deltas. */
typedef struct {
    int32_t first, last;    /* last: exclusive */
    const bw_delta *deltas; /* [components of the run] */
    int32_t virtual;        /* most of these */
} bw_group;

#define BW_LOW_ROWS 48 /* most tokens of a `bw_low` */

/* Tokens of a group that are multiplied with its A at once. */
typedef struct {
    int32_t group, first, rows;
} bw_low;

/* Where the scratch of a component lies, in bytes from the start. */
typedef struct {
    int64_t side, x, y, c, q, o, shared;
    int64_t ld_x, ld_c, ld_o;                                /* elements between rows; ld_x also of side and y */
    int64_t scores, weights, out, top, sums, gather_k, gather_v, own; /* of one thread */
    int32_t tile_size, padded_dim, direct;                   /* tile_size: log2 of the query tokens of a tile */
} bw_layout;

enum { BW_EMBED, BW_NORM, BW_QKV, BW_NORM_WHOLE, BW_ROTATE, BW_ATTEND, BW_PROJECT, BW_UP, BW_ADD, BW_LOGITS, BW_ARGMAX,
       BW_LOW_FIRST, BW_LOW_SECOND, BW_ADAPT };

/* Part of a call whose pieces may be computed in any order: they read only what earlier phases stored. */
typedef struct {
    int32_t comp, stage;
    int32_t items, each; /* rows, panels, heads or tiles; so many of them in a piece */
    int32_t pieces;
} bw_phase;

/* Query tokens of a batch row that attention takes at once. */
typedef struct {
    int32_t n, first; /* batch row, first token of it */
} bw_tile;

#define BW_TILE_SIZES 5 /* 1, 2, 4, 8 and 16 tokens */

typedef struct bw_ctx bw_ctx;
typedef struct bw_call bw_call;
typedef void (*bw_run_phase)(bw_ctx *, const bw_call *, const bw_phase *, int thread, uint64_t now);

/* A call's own copy of its arguments: a thread that comes back late may still read them. Sizes: max_tokens, but for comps,
 * layouts and phases, which grow with the longest run. */
struct bw_call {
    atomic_uint_fast64_t number;
    bw_run_phase run;
    bw_comp *comps;
    bw_layout *layouts;
    bw_phase *phases;
    int32_t n_phases, rows, tokens, vocabulary;
    int32_t *row, *start, *count, *offset;    /* by batch row; offset: its first token in the call */
    int32_t *tok_batch, *tok_pos, *tok_id;    /* by token */
    bw_tile *tiles[BW_TILE_SIZES];            /* filled where a component has this size */
    int32_t n_tiles[BW_TILE_SIZES];
    bw_group *groups;                         /* ascending; tokens of none have no deltas */
    bw_low *lows;
    int32_t n_groups, n_lows;
    int32_t virtual;                          /* most of any group */
    void *hidden;
    float *logits;
    int32_t *best;
};

/* Kernels of one instruction set and one model type. */
typedef struct {
    const char *name;
    void (*plan)(const bw_ctx *, bw_call *, const bw_comp *, int comp); /* appends the phases of a component */
    bw_run_phase run;
} bw_kernels;

typedef struct {
    bw_ctx *ctx;
    int index;
    pthread_t id;
    uint64_t dice;   /* of bw_delay */
    int64_t settled; /* time before which the thread stays where it is */
    atomic_int cpu;  /* where it was last seen */
    _Alignas(64) _Atomic(bw_call *) in; /* the call that the thread may be reading */
    _Alignas(64) atomic_uint_fast64_t done; /* the last phase whose pieces of this thread's stretch are all stored */
    atomic_uint_fast64_t progress;          /* the piece of its stretch that the thread is at */
} bw_member;

struct bw_ctx {
    const bw_kernels *kernels;
    int threads;
    /* tables, given once */
    const int32_t *tokens_RM, *slots_RLP;
    int32_t table_rows, table_length, table_layers, table_pages, max_tokens;
    /* memory that grows with the largest component */
    char *scratch, *own; /* shared by a component's phases; [threads][own_bytes], of one thread each */
    int64_t scratch_bytes, own_bytes;
    char *low; /* [max_tokens][ld_low] of 4 bytes: what the low-rank As of a product made of its rows */
    int64_t low_bytes, ld_low;
    int32_t low_panels; /* most of an A */
    atomic_uint_fast64_t *words; /* [threads][stretch] */
    int32_t stretch;             /* most pieces of a phase in one thread's stretch */
    /* calls */
    bw_call *calls; /* one more than threads, so that one is always free */
    int32_t most_comps, most_phases;
    uint64_t number;
    bw_member *team;
    pid_t owner;                        /* the process that the threads live in */
    unsigned delay_every, delay_micros; /* tests: one in so many points of a piece is delayed */
    _Alignas(64) atomic_uint region;    /* counts calls; threads without one wait for a change */
    atomic_int sleepers, stop;
    _Atomic(bw_call *) current;
    _Alignas(64) atomic_uint_fast64_t phase; /* call number << 16 | phase, or | BW_DONE */
    _Alignas(64) atomic_int left;            /* stretches of this phase that are not done; not where all look for the phase */
};

#define BW_DONE 0xffffu

/* pool.c */
int bw_pool_start(bw_ctx *x);
void bw_pool_stop(bw_ctx *x);
bw_call *bw_free_call(bw_ctx *x);
void bw_run(bw_ctx *x, bw_call *call);
void bw_settle(bw_ctx *x);
uint64_t bw_progress(const bw_ctx *x);
void bw_pause(void);

/* pieces.c: all pieces of a phase; compute() writes only what belongs to its thread, and returns 0 if it found itself late */
typedef int (*bw_compute)(void *work, int piece);
typedef void (*bw_store)(void *work, int piece);
void bw_pieces(bw_ctx *x, const bw_call *call, const bw_phase *phase, int thread, uint64_t now, bw_compute compute,
               bw_store store, void *work);

/* Whether a phase is over. What was read from tables before this was asked belongs to the phase if it is not. */
static inline int bw_late(const bw_ctx *x, uint64_t now) {
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&x->phase, memory_order_relaxed) != now;
}

/* GCC knows tile registers since 11, Clang since 12. */
#if defined(__x86_64__) && defined(__linux__) && ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define BW_HAS_AMX 1
extern const bw_kernels bw_amx_bf16;
#else
#define BW_HAS_AMX 0
#endif

/* set_*.c; an absent set is a null table */
extern const bw_kernels bw_avx512bf16_bf16, bw_avx512_bf16, bw_avx512_f32, bw_avx2_bf16, bw_avx2_f32;
extern const bw_kernels bw_generic_bf16, bw_generic_f32;

#define BW_ADAPT_ROWS 8 /* of a group, that pass a bottleneck at once */

#define BW_OWN 32768 /* bytes in which a thread keeps what a piece computed until it is stored; more where one row needs it */

/* Whether the last product goes straight into the hidden states. */
static inline int bw_plain(const bw_comp *m) {
    return !m->post_norm && m->factor == 1.0f && m->side == BW_ALONE && !m->adapted;
}

static inline int64_t bw_round(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
/* Elements between rows of scratch: not a power of two, so that the rows of a tile fall into different cache sets. */
static inline int64_t bw_stride(int64_t n) { return bw_round(n, 32) + 32; }
bw_layout bw_layout_of(const bw_comp *m, int max_tokens);

#endif
