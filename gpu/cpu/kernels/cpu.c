/* The C ABI of the native back end: one context per back end, used by one thread at a time. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PHASES 10 /* most phases of a component */
#define LOW_SMALL 12  /* tokens of a piece of A; BW_LOW_ROWS if there are many */
#define LOW_FEW 96    /* most tokens of a call with small pieces */

#if BW_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
#endif
#if defined(__x86_64__)
#define HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define HAS_AVX512                                                                                                   \
    (HAS_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&                          \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
#endif

#if BW_HAS_AMX
/* Whether the processor has tile registers and the system lets this process use them. Linux since 5.16 must be asked for
 * it. */
static int has_amx(void) {
    unsigned a, b, c, d;
    if (!HAS_AVX512 || !__builtin_cpu_supports("avx512bf16") || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    return (d >> 22 & 1) && (d >> 24 & 1) && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}
#endif

typedef struct {
    const char *name;
    int present;
    const bw_kernels *bf16, *f32;
} candidate;

/* The first set, best first, that the processor has and whose name is `wanted` (any if empty); null if there is none. */
static const bw_kernels *choose(const char *wanted, int bfloat16) {
    const candidate sets[] = {
#if BW_HAS_AMX
        {"amx", bfloat16 && (!*wanted || !strcmp(wanted, "amx")) && has_amx(), &bw_amx_bf16, NULL},
#endif
#if defined(__x86_64__)
        {"avx512_bf16", HAS_AVX512 && __builtin_cpu_supports("avx512bf16"), &bw_avx512bf16_bf16, NULL},
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
int bw_delta_bytes(void) { return sizeof(bw_delta); }

/* Returns a context with its own threads; null if there is no such instruction set here or no threads can be started. */
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

static void free_calls(bw_ctx *x) {
    for (bw_call *c = x->calls; c && c <= x->calls + x->threads; c++) {
        free(c->comps);
        free(c->layouts);
        free(c->phases);
        free(c->row);
        free(c->tiles[0]);
        free(c->groups);
        free(c->lows);
    }
    free(x->calls);
}

void bw_destroy(bw_ctx *x) {
    bw_pool_stop(x);
    free_calls(x);
    free(x->words);
    free(x->scratch);
    free(x->low);
    free(x->own);
    free(x);
}

const char *bw_name(const bw_ctx *x) { return x->kernels->name; }

/* Sets the tables; the arrays stay the caller's. Called again when they have grown, with the same max_tokens; runs
 * described before are void then. Returns 0, or -1 if there is no memory. */
int bw_tables(bw_ctx *x, const int32_t *tokens, const int32_t *slots, int rows, int length, int layers, int pages,
              int max_tokens) {
    if (x->calls)
        bw_settle(x); /* a late thread may still read the old ones */
    x->tokens_RM = tokens;
    x->slots_RLP = slots;
    x->table_rows = rows;
    x->table_length = length;
    x->table_layers = layers;
    x->table_pages = pages;
    x->max_tokens = max_tokens;
    if (x->calls)
        return 0;
    x->calls = calloc(x->threads + 1, sizeof *x->calls);
    for (bw_call *c = x->calls; c && c <= x->calls + x->threads; c++) {
        int32_t *numbers = c->row = calloc(7l * max_tokens, sizeof(int32_t));
        bw_tile *tiles = c->tiles[0] = calloc((long)BW_TILE_SIZES * max_tokens, sizeof(bw_tile));
        c->groups = calloc(max_tokens, sizeof *c->groups);
        c->lows = calloc(max_tokens, sizeof *c->lows);
        if (!numbers || !tiles || !c->groups || !c->lows)
            return -1;
        int32_t **columns[] = {&c->row, &c->start, &c->count, &c->offset, &c->tok_batch, &c->tok_pos, &c->tok_id};
        for (int i = 0; i < 7; i++)
            *columns[i] = numbers + (long)i * max_tokens;
        for (int i = 0; i < BW_TILE_SIZES; i++)
            c->tiles[i] = tiles + (long)i * max_tokens;
    }
    return x->calls ? 0 : -1;
}

static char *grown(char *old, int64_t *size, int64_t need) {
    if (need <= *size)
        return old;
    free(old);
    *size = bw_round(need, 4096);
    return aligned_alloc(64, *size);
}

/* Copies the components into the call; its groups must be filled. */
static void copy_comps(const bw_ctx *x, bw_call *c, const bw_comp *comps, int n) {
    for (int i = 0; i < n; i++) {
        c->comps[i] = comps[i];
        for (int j = 0; j < c->n_groups; j++) {
            int columns = c->groups[j].deltas[i].bottleneck;
            c->comps[i].adapted = columns > c->comps[i].adapted ? columns : c->comps[i].adapted;
        }
        c->layouts[i] = bw_layout_of(comps + i, x->max_tokens);
    }
}

/* Appends the phases of a call; components, tiles and columns must be filled. */
static void plan(const bw_ctx *x, bw_call *c, int n_comps) {
    c->n_phases = 0;
    for (int i = 0; i < n_comps; i++)
        x->kernels->plan(x, c, c->comps + i, i);
}

/* Reserves a word for each piece of the longest phase. */
static int reserve_words(bw_ctx *x, int64_t pieces) {
    int stretch = (int)bw_round(pieces / x->threads + 1, 8) + 8; /* a cache line between neighbours */
    if (stretch > x->stretch) {
        free(x->words);
        x->words = calloc((long)stretch * x->threads, sizeof *x->words);
        x->stretch = stretch;
    }
    return x->words ? 0 : -1;
}

/* Reserves memory for runs of these components. Waits until no thread reads what moves. Returns 0, or -1 if there is no
 * memory. */
int bw_reserve(bw_ctx *x, const bw_comp *comps, int n) {
    int64_t shared = 64, own = BW_OWN, pieces = x->max_tokens; /* pieces of argmax */
    bw_settle(x);
    for (int i = 0; i < n; i++) {
        bw_layout l = bw_layout_of(comps + i, x->max_tokens);
        shared = l.shared > shared ? l.shared : shared;
        own = l.own > own ? l.own : own;
    }
    own = bw_round(own, 4096);
    if (own > x->own_bytes) {
        free(x->own);
        x->own = aligned_alloc(64, own * x->threads);
        x->own_bytes = own;
    }
    x->scratch = grown(x->scratch, &x->scratch_bytes, shared);
    if (!x->own || !x->scratch)
        return -1;
    if (n > x->most_comps || !x->most_comps) {
        x->most_comps = n > 0 ? n : 1;
        for (bw_call *c = x->calls; c <= x->calls + x->threads; c++) {
            free(c->comps);
            free(c->layouts);
            free(c->phases);
            c->comps = calloc(x->most_comps, sizeof *c->comps);
            c->layouts = calloc(x->most_comps, sizeof *c->layouts);
            c->phases = calloc(x->most_comps * MOST_PHASES, sizeof *c->phases);
            if (!c->comps || !c->layouts || !c->phases)
                return -1;
        }
    }
    bw_call *c = x->calls; /* the largest possible call: every token a row, and a group */
    c->rows = c->tokens = c->n_lows = x->max_tokens;
    c->n_groups = 0;
    copy_comps(x, c, comps, n);
    for (int i = 0; i < BW_TILE_SIZES; i++)
        c->n_tiles[i] = x->max_tokens;
    plan(x, c, n);
    for (int i = 0; i < c->n_phases; i++)
        pieces = c->phases[i].pieces > pieces ? c->phases[i].pieces : pieces;
    return reserve_words(x, pieces);
}

/* Reserves memory for deltas with As of this many panels. Returns 0, or -1 if there is no memory. */
int bw_reserve_low(bw_ctx *x, int panels) {
    bw_settle(x);
    if (panels <= x->low_panels)
        return 0;
    x->low_panels = panels;
    x->ld_low = bw_stride((int64_t)panels * BW_PANEL);
    x->low = grown(x->low, &x->low_bytes, 4 * x->ld_low * x->max_tokens);
    return x->low ? reserve_words(x, (int64_t)x->max_tokens * panels) : -1;
}

/* For tests: delays one in `every` points of a piece by `micros` microseconds; 0 for none. */
void bw_delay(bw_ctx *x, int every, int micros) {
    x->delay_every = every;
    x->delay_micros = micros;
}

static void list_tiles(bw_call *c, int size) {
    if (c->n_tiles[size])
        return;
    for (int n = 0; n < c->rows; n++)
        for (int first = 0; first < c->count[n]; first += 1 << size)
            c->tiles[size][c->n_tiles[size]++] = (bw_tile){n, first};
}

/* Fills the columns of a call and checks that every index stays inside its table. */
static int fill(const bw_ctx *x, bw_call *c, const bw_comp *first, const int32_t *row, const int32_t *start,
                const int32_t *count, int rows, int tokens) {
    int t = 0;
    c->rows = rows;
    c->tokens = tokens;
    memset(c->n_tiles, 0, sizeof c->n_tiles);
    for (int n = 0; n < rows; n++) {
        if (row[n] < 0 || row[n] >= x->table_rows)
            return BW_BAD_ROW;
        if (count[n] < 1 || count[n] > tokens - t)
            return BW_BAD_COUNT;
        if (start[n] < 0 || start[n] > x->table_length - count[n])
            return BW_BAD_POSITION;
        c->row[n] = row[n];
        c->start[n] = start[n];
        c->count[n] = count[n];
        c->offset[n] = t;
        for (int i = 0; i < count[n]; i++, t++) {
            c->tok_batch[t] = n;
            c->tok_pos[t] = start[n] + i;
            if (first->kind != BW_EMBEDDING)
                continue;
            c->tok_id[t] = x->tokens_RM[(int64_t)row[n] * x->table_length + c->tok_pos[t]];
            if (c->tok_id[t] < BW_VIRTUAL || c->tok_id[t] >= first->inner)
                return BW_BAD_TOKEN;
        }
    }
    return t == tokens ? BW_OK : BW_BAD_COUNT;
}

/* Fills the call's groups, and the pieces in which their As are multiplied. */
static int fill_groups(bw_call *c, const bw_group *groups, int n, int tokens) {
    int most = tokens > LOW_FEW ? BW_LOW_ROWS : LOW_SMALL, end = 0;
    c->n_groups = n;
    c->n_lows = c->virtual = 0;
    for (int i = 0; i < n; i++) {
        if (groups[i].first < end || groups[i].last <= groups[i].first || groups[i].last > tokens)
            return BW_BAD_GROUP;
        c->groups[i] = groups[i];
        c->virtual = groups[i].virtual > c->virtual ? groups[i].virtual : c->virtual;
        end = groups[i].last;
        for (int t = groups[i].first; t < end; t += most)
            c->lows[c->n_lows++] = (bw_low){i, t, end - t < most ? end - t : most};
    }
    return BW_OK;
}

/* Runs all components over the batch. hidden [tokens][width], of the model type, is read and overwritten. It must stay
 * readable until bw_settle(), and so must the memory of components and deltas. */
int bw_forward(bw_ctx *x, const bw_comp *comps, int n_comps, const int32_t *row, const int32_t *start, const int32_t *count,
               int rows, void *hidden, int tokens, const bw_group *groups, int n_groups) {
    if (tokens > x->max_tokens || rows > x->max_tokens || n_comps > x->most_comps)
        return BW_TOO_MANY;
    bw_call *c = bw_free_call(x);
    int error = fill(x, c, comps, row, start, count, rows, tokens);
    error = error ? error : fill_groups(c, groups, n_groups, tokens);
    if (error || !tokens)
        return error;
    copy_comps(x, c, comps, n_comps);
    for (int i = 0; i < n_comps; i++)
        if (comps[i].kind == BW_ATTENTION)
            list_tiles(c, c->layouts[i].tile_size);
    c->hidden = hidden;
    c->run = x->kernels->run;
    plan(x, c, n_comps);
    bw_run(x, c);
    return BW_OK;
}

/* Computes logits [rows][vocabulary] float32 from hidden [rows][width]; both as in bw_forward. */
int bw_logits(bw_ctx *x, const bw_comp *head, void *hidden, int rows, float *logits, const bw_group *groups, int n_groups) {
    if (rows > x->max_tokens)
        return BW_TOO_MANY;
    bw_call *c = bw_free_call(x);
    if (fill_groups(c, groups, n_groups, rows))
        return BW_BAD_GROUP;
    copy_comps(x, c, head, 1);
    c->rows = c->tokens = rows;
    c->hidden = hidden;
    c->logits = logits;
    c->run = x->kernels->run;
    plan(x, c, 1);
    if (rows)
        bw_run(x, c);
    return BW_OK;
}

typedef struct {
    const bw_call *call;
    int (*choose)(const float *row, int n, const uint32_t *mask);
    int best;
} argmax_work;

static int argmax_row(void *work, int r) {
    argmax_work *w = work;
    const bw_call *c = w->call;
    const uint32_t *mask = c->masks && c->row[r] >= 0 ? c->masks + (int64_t)c->row[r] * c->words : NULL;
    w->best = w->choose(c->logits + (int64_t)r * c->vocabulary, c->vocabulary, mask);
    return 1;
}

static void put_best(void *work, int r) {
    argmax_work *w = work;
    w->call->best[r] = w->best;
}

static void run_argmax(bw_ctx *x, const bw_call *c, const bw_phase *phase, int thread, uint64_t now) {
    argmax_work w = {.call = c, .choose = x->kernels->best};
    bw_pieces(x, c, phase, thread, now, argmax_row, put_best, &w);
}

/* Finds the lowest index of each row's maximum, of its allowed tokens if it has a mask; -1 if a mask allows none. Row r has
 * mask which[r] of `masks` [..][words], none if that is -1; without masks all rows are free. Masks must stay readable until
 * bw_settle(). */
void bw_argmax(bw_ctx *x, const float *logits, int rows, int vocabulary, const uint32_t *masks, int words,
               const int32_t *which, int32_t *best) {
    bw_call *c = bw_free_call(x);
    c->logits = (float *)logits;
    c->vocabulary = vocabulary;
    c->masks = masks;
    c->words = words;
    if (masks)
        memcpy(c->row, which, rows * sizeof *which);
    c->best = best;
    c->run = run_argmax;
    c->phases[0] = (bw_phase){.stage = BW_ARGMAX, .items = rows, .each = 1, .pieces = rows};
    c->n_phases = 1;
    if (rows)
        bw_run(x, c);
}

/* Writes the tokens that a mask allows, ascending, and their logits; returns how many there are. */
int bw_allowed(const bw_ctx *x, const float *row, int vocabulary, const uint32_t *mask, int32_t *ids, float *logits) {
    return x->kernels->allowed(row, vocabulary, mask, ids, logits);
}
