/* Native CPU kernels: the types that all files share, and the C ABI that gpu/cpu/native/ calls.
 *
 * A "unit" is 32 bits: one float32, or two consecutive bfloat16. Packed forms, in units (KS = elements per unit):
 *   weight   [columns / 32][ceil(K / KS)][32]           zero-padded in both directions
 *   K group  [head_dim / KS][16 tokens]                  16 consecutive positions of one KV head
 *   V group  [16 tokens / KS][head_dim]
 * A slot is [kv_heads][K of the page, V of the page]. If the page length or head_dim is not a multiple of 16, the page holds
 * plain rows [token][head_dim] instead, and attention gathers them into groups. Every output is summed over k in one fixed
 * order, whatever the batch: this makes results batch-invariant.
 *
 * A call is a list of phases, a phase a list of pieces (pieces.c). Results do not depend on which thread computes a piece,
 * or how often.
 */
#ifndef BW_NATIVE_H
#define BW_NATIVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* glibc 2.34 gave these two functions a second version, with no difference here. Requesting the first one lets every
 * glibc since 2.17 load a library that was built there. (The thread sanitiser replaces them by name, so it is left
 * alone.) */
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
#endif

#define BW_PIECE 256 /* positions whose softmax is taken at once; pieces follow each other in ascending order */
#define BW_GROUP 16  /* positions of one group of keys */
#define BW_LINE (BW_PIECE + 64) /* elements of a row of scores: a piece, and the overhang of tiles that begin inside it */
#define BW_PANEL 32  /* columns of one weight panel */
#define BW_HALF 16   /* columns of the last panel of a low-rank A, if it has no more */
#define BW_PARTS 3   /* most weights in one product */
#define BW_VIRTUAL -1 /* id of a virtual token: a delta fills its position */

enum { BW_EMBEDDING, BW_ATTENTION, BW_MLP, BW_HEAD };
enum { BW_RMS, BW_LAYER };                /* norms */
enum { BW_SILU, BW_GELU, BW_GELU_TANH, BW_RELU }; /* activations; the last one is for bottlenecks only */
/* input of a bottleneck: the term that is added to the residual, the sum, the residual */
enum { BW_OUTPUT, BW_SUM, BW_INPUT };
enum { BW_HALVES, BW_NEIGHBOURS };        /* the pairs that are rotated */
enum { BW_ALONE, BW_KEEP, BW_JOIN }; /* attention that is kept aside, feed-forward that it is added to */
enum { BW_OK, BW_BAD_COUNT, BW_BAD_ROW, BW_BAD_POSITION, BW_BAD_TOKEN, BW_TOO_MANY, BW_BAD_GROUP };

/* One component of a run: numbers and pointers only. gpu/cpu/native/library.py mirrors the order of the fields. */
typedef struct {
    int32_t kind, width;                         /* width: of the hidden states */
    int32_t heads, kv_heads, head_dim, window;   /* window 0: none */
    int32_t kv_layer, page_size, inner, rotary;  /* inner: intermediate width, or vocabulary; rotary: elements that are rotated */
    int32_t rope, qk_whole, activation, gated;   /* qk_whole: queries and keys are normed over all heads together */
    int32_t norm_kind, side, adapted;            /* adapted: columns of the widest bottleneck behind it; 0: none */
    float eps, scale;
    float softcap, factor;                       /* factor: of the embedding or of the term that is added; divisor of logits */
    int64_t slot_bytes;
    const void *w[BW_PARTS], *w_out;             /* table | q, k, v, output | gate (or null), up, down | projection */
    const float *b[BW_PARTS], *b_out;            /* float32, padded like the columns; null: none, as below */
    const float *norm, *norm_bias, *post_norm, *q_norm, *k_norm;
    const float *cos, *sin;                      /* [max_length][rotary / 2] */
    char *arena;
} bw_comp;

/* The changes that a delta makes to one component: low-rank terms and shifts, y += B (scale * (A x)) + shift; a
 * bottleneck behind it; rows of virtual tokens. Zero: none. */
typedef struct {
    const void *a[2];      /* for the first and the second product: the As of its terms as columns, packed as a weight,
                              except that the last panel may be half a panel */
    const float *scale[2]; /* one for each of these columns, padded like them */
    const void *b[BW_PARTS + 1]; /* packed as the weight that it is added to: the first product's, then the second's */
    const float *shift[BW_PARTS + 1]; /* added to each row, padded like the columns */
    const void *down, *up; /* a bottleneck's, packed as weights */
    const float *down_bias, *up_bias; /* padded like their columns */
    const void *filled;    /* replaces the computation for virtual tokens, in the model's type: [virtual][width] for an
                              embedding, [virtual][kv_heads][key, value] for an attention */
    int32_t columns[2];          /* columns of a, padded to whole half panels */
    int32_t units[BW_PARTS + 1]; /* units of k in b */
    int32_t from[BW_PARTS + 1];  /* columns of a at which the k of b begins */
    int32_t virtual;             /* positions from 0 on whose rows are `filled` */
    int32_t bottleneck, up_units, activation, reads; /* columns of down, in whole panels, 0: none; units of k in up */
    float bottleneck_scale;
} bw_delta;

/* Consecutive tokens of a call with the same deltas. */
typedef struct {
    int32_t first, last;    /* last: exclusive */
    const bw_delta *deltas; /* [components of the run] */
    int32_t virtual;        /* most virtual tokens of any of these */
} bw_group;

#define BW_LOW_ROWS 48 /* most tokens of a `bw_low` */

/* Tokens of a group that are multiplied with its A at once. */
typedef struct {
    int32_t group, first, rows;
} bw_low;

/* Offsets of a component's scratch, in bytes from the start. */
typedef struct {
    int64_t side, x, y, c, q, o, shared;
    int64_t ld_x, ld_c, ld_o;                                /* elements between rows; ld_x also for side and y */
    int64_t scores, weights, out, top, sums, gather_k, gather_v, own; /* one thread's */
    int32_t tile_size, padded_dim, direct;                   /* tile_size: log2 of the query tokens of a tile */
} bw_layout;

enum { BW_EMBED, BW_NORM, BW_QKV, BW_NORM_WHOLE, BW_ROTATE, BW_ATTEND, BW_PROJECT, BW_UP, BW_ADD, BW_LOGITS, BW_ARGMAX,
       BW_LOW_FIRST, BW_LOW_SECOND, BW_ADAPT };

/* Part of a call whose pieces may be computed in any order, since they read only what earlier phases stored. */
typedef struct {
    int32_t comp, stage;
    int32_t items, each; /* rows, panels, heads or tiles; number of these in a piece */
    int32_t pieces;
} bw_phase;

/* Query tokens of a batch row that attention processes at once. */
typedef struct {
    int32_t n, first; /* batch row, first token of it */
} bw_tile;

#define BW_TILE_SIZES 5 /* 1, 2, 4, 8 and 16 tokens */

typedef struct bw_ctx bw_ctx;
typedef struct bw_call bw_call;
typedef void (*bw_run_phase)(bw_ctx *, const bw_call *, const bw_phase *, int thread, uint64_t now);

/* A call's own copy of its arguments: a thread that comes back late may still read them. Arrays have max_tokens elements,
 * except comps, layouts and phases, which grow with the longest run. */
struct bw_call {
    atomic_uint_fast64_t number;
    bw_run_phase run;
    bw_comp *comps;
    bw_layout *layouts;
    bw_phase *phases;
    int32_t n_phases, rows, tokens, vocabulary;
    int32_t *row, *start, *count, *offset;    /* by batch row; offset: its first token in the call */
    int32_t *tok_batch, *tok_pos, *tok_id;    /* by token */
    bw_tile *tiles[BW_TILE_SIZES];            /* filled if a component uses this size */
    int32_t n_tiles[BW_TILE_SIZES];
    bw_group *groups;                         /* ascending; tokens outside all groups have no deltas */
    bw_low *lows;
    int32_t n_groups, n_lows;
    int32_t virtual;                          /* most virtual tokens of any group */
    void *hidden;
    float *logits;
    const uint32_t *masks;                    /* of allowed tokens, [..][words]; row r has number row[r], none: -1 */
    int32_t words;
    int32_t *best;
};

/* Kernels of one instruction set and one model type. */
typedef struct {
    const char *name;
    void (*plan)(const bw_ctx *, bw_call *, const bw_comp *, int comp); /* appends the phases of a component */
    bw_run_phase run;
    int (*best)(const float *row, int n, const uint32_t *mask); /* of a row's logits; without a mask all are allowed */
    int (*allowed)(const float *row, int n, const uint32_t *mask, int32_t *ids, float *logits);
} bw_kernels;

typedef struct {
    bw_ctx *ctx;
    int index;
    pthread_t id;
    uint64_t dice;   /* random state for bw_delay */
    int64_t settled; /* time before which the thread is not moved again */
    atomic_int cpu;  /* core on which it was last seen */
    _Alignas(64) _Atomic(bw_call *) in; /* the call that the thread may be reading */
    _Alignas(64) atomic_uint_fast64_t done; /* the last phase for which all pieces of this thread's stretch are stored */
    atomic_uint_fast64_t progress;          /* the piece of its stretch that the thread is working on */
} bw_member;

struct bw_ctx {
    const bw_kernels *kernels;
    int threads;
    /* tables, set once */
    const int32_t *tokens_RM, *slots_RLP;
    int32_t table_rows, table_length, table_layers, table_pages, max_tokens;
    /* memory that grows with the largest component */
    char *scratch, *own; /* shared by a component's phases; [threads][own_bytes], private to one thread each */
    int64_t scratch_bytes, own_bytes;
    char *low; /* [max_tokens][ld_low] of 4 bytes: the rows times the low-rank As of a product */
    int64_t low_bytes, ld_low;
    int32_t low_panels; /* most panels of an A */
    atomic_uint_fast64_t *words; /* [threads][stretch] */
    int32_t stretch;             /* most pieces of a phase in one thread's stretch */
    /* calls */
    bw_call *calls; /* one more than threads, so that one is always free */
    int32_t most_comps, most_phases;
    uint64_t number;
    bw_member *team;
    pid_t owner;                        /* the process that the threads belong to */
    unsigned delay_every, delay_micros; /* for tests: one in this many points of a piece is delayed */
    _Alignas(64) atomic_uint region;    /* counts calls; threads without one wait for a change */
    atomic_int sleepers, stop;
    _Atomic(bw_call *) current;
    _Alignas(64) atomic_uint_fast64_t phase; /* call number << 16 | phase, or | BW_DONE */
    /* stretches of this phase that are not done; apart from the line that all threads poll for the phase */
    _Alignas(64) atomic_int left;
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

/* pieces.c: computes all pieces of a phase. compute() writes only memory of its own thread, and returns 0 if it was late */
typedef int (*bw_compute)(void *work, int piece);
typedef void (*bw_store)(void *work, int piece);
void bw_pieces(bw_ctx *x, const bw_call *call, const bw_phase *phase, int thread, uint64_t now, bw_compute compute,
               bw_store store, void *work);

/* Whether a phase is over. If it is not, everything read from tables before this call belongs to the phase. */
static inline int bw_late(const bw_ctx *x, uint64_t now) {
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&x->phase, memory_order_relaxed) != now;
}

/* GCC supports tile registers since 11, Clang since 12. */
#if defined(__x86_64__) && defined(__linux__) && ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define BW_HAS_AMX 1
extern const bw_kernels bw_amx_bf16;
#else
#define BW_HAS_AMX 0
#endif

/* set_*.c; a set that does not exist is a null table */
extern const bw_kernels bw_avx512bf16_bf16, bw_avx512_bf16, bw_avx512_f32, bw_avx2_bf16, bw_avx2_f32;
extern const bw_kernels bw_generic_bf16, bw_generic_f32;

#define BW_ADAPT_ROWS 8 /* rows of a group that pass a bottleneck at once */

#define BW_OWN 32768 /* bytes in which a thread keeps a computed piece until it is stored; more if one row needs it */

/* Whether the last product goes straight into the hidden states. */
static inline int bw_plain(const bw_comp *m) {
    return !m->post_norm && m->factor == 1.0f && m->side == BW_ALONE && !m->adapted;
}

static inline int64_t bw_round(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
/* Elements between rows of scratch: not a power of two, so that the rows of a tile fall into different cache sets. */
static inline int64_t bw_stride(int64_t n) { return bw_round(n, 32) + 32; }
bw_layout bw_layout_of(const bw_comp *m, int max_tokens);

#endif
