/* Rows times packed weights. Included by body.h. Each output is summed with k ascending, in stretches of fixed size,
 * whatever the number of rows.
 *
 * With several row tiles, the first two prefetch the next panel, one cache line per unit of k each, so that memory and
 * arithmetic overlap. With tile registers both prefetch all of it, and the second finds most of it there: sharing the work
 * gained nothing. Every loop over the accumulators needs its unroll pragma: without one, they live in memory.
 */
#ifndef AMX
#define AMX 0
#endif
#define NV (BW_PANEL / VW)
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))
#define ROW_BLOCK (AMX ? 384 : 192) /* rows for which a panel stays in the cache; processors with tiles have 2 MB */
#define CHUNK_ROWS (AMX ? 64 : 48) /* rows of a piece; tile registers take 32 at once */
#define BLOCK_CHUNKS (ROW_BLOCK / CHUNK_ROWS)
#define PIECE_STEPS 768  /* steps of k times tiles in a piece: some microseconds */
/* Units of k that are summed before they are added to the total: half the rounding error of one sum. A tile instruction
 * adds 16 at once. */
#define SUM_UNITS (AMX ? 2048 : 256)
#define ONE_TILE 8       /* rows up to which memory is the limit: one tile, which prefetches its own panel further on */
#define FETCH_BYTES 4096 /* prefetch distance: the processor's own prefetching stops at each 4 KB page */

/* Computes out[rows][BW_PANEL] of a panel of nv vectors. */
AI void tile(const int rows, const int nv, const at *x, long ld, const uint32_t *w, long units, float *out,
             const char *ahead) {
    for (long from = 0; from < units; from += SUM_UNITS) {
        long to = from + SUM_UNITS < units ? from + SUM_UNITS : units;
        vf sum[TILE_ROWS][NV];
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < nv; j++) sum[r][j] = splat(0.0f);
        }
        const at *some[(TILE_ROWS + 2) / 3]; /* every third row; the next two are reached with `ld` in a register */
        UNROLL for (int i = 0; i < (rows + 2) / 3; i++) some[i] = x + 3 * i * ld + from * KS;
        for (long s = from; s < to; s++) {
            pair ws[NV];
            UNROLL for (int j = 0; j < nv; j++) ws[j] = load_w(w + (s * nv + j) * VW);
            __builtin_prefetch(ahead + s * nv * VW * 4, 0, 2);
            UNROLL for (int i = 0; i < (rows + 2) / 3; i++) OPAQUE(some[i]);
            UNROLL for (int r = 0; r < rows; r++) {
                pair xs = load_x(some[r / 3] + r % 3 * ld, 0);
                UNROLL for (int j = 0; j < nv; j++) sum[r][j] = dot(sum[r][j], ws[j], xs);
            }
            UNROLL for (int i = 0; i < (rows + 2) / 3; i++) some[i] += KS;
        }
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < nv; j++) {
                float *place = out + r * BW_PANEL + j * VW;
                store(place, from ? load(place) + sum[r][j] : sum[r][j]);
            }
        }
    }
}

#define TILE_CASE(n)                                   \
    case n:                                            \
        tile(n, nv, x, ld, w, units, out, ahead); \
        break;
AI void tile_rows(int rows, const int nv, const at *x, long ld, const uint32_t *w, long units, float *out,
                  const char *ahead) {
    switch (rows) {
        TILE_CASE(1)
#if TILE_ROWS > 1
        TILE_CASE(2)
#endif
#if TILE_ROWS > 2
        TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6) TILE_CASE(7) TILE_CASE(8)
        TILE_CASE(9) TILE_CASE(10) TILE_CASE(11) TILE_CASE(12)
#endif
    }
}

static void tile_any(int rows, const at *x, long ld, const uint32_t *w, long units, float *out, const char *ahead) {
    tile_rows(rows, NV, x, ld, w, units, out, ahead);
}

static void half_any(int rows, const at *x, long ld, const uint32_t *w, long units, float *out, const char *ahead) {
    tile_rows(rows, NV / 2, x, ld, w, units, out, ahead);
}

#if AMX
#define PRODUCT_ROWS 32
#include "amx.h"
#else
#define PRODUCT_ROWS TILE_ROWS
#define product_any(shaped, ...) tile_any(__VA_ARGS__)
#define release_tiles(shaped) (void)(shaped)
#endif
#define STRIPS (TILE_ROWS < 12 && !AMX)
#if STRIPS
#include "strips.h"
#endif

/* Destination of the sums: float; `at` after an activation, alone or times the other branch; added to `st`. */
typedef enum { TO_FLOAT, TO_ACTIVATED, TO_GATED, TO_RESIDUAL } target;

typedef struct {
    const uint32_t *w;
    const float *bias; /* one per packed column, or null */
    int panels;
    int part, panel; /* for one panel: its weight's number, and its place in the weight */
} packed;

/* The changes that the groups of a call make to a product. */
typedef struct {
    const bw_call *call;
    const at *t; /* [tokens][ld]: the rows times the As */
    long ld;
    int comp, second; /* number of the component; whether this is its second product */
} changes;

#include "deltas.h"

/* One product. Several weights may read the same rows: one behind the other (q, k, v), or as two branches, a gate and the
 * branch that it scales, whose panels are taken in pairs. */
typedef struct {
    target kind;
    int activation, branches;
    const at *x;
    packed part[BW_PARTS];
    void *to;
    long ld_x, units, ld_to;
    int rows, columns, panels;  /* columns of `to` that exist; panels of `to`, to which weight columns are padded */
    float divisor, softcap;     /* for logits; 1 and 0 elsewhere */
    int each;                   /* panels of a piece */
    float *own;                 /* [panels of a piece][branches][rows of a piece][BW_PANEL] */
    const changes *changed;     /* null: none */
} product;

/* Returns panel `i` in reading order: one of each branch in turn, or part after part. */
static packed panel_of(const product *g, int i) {
    int part = 0;
    if (g->branches > 1) {
        part = i % g->branches;
        i /= g->branches;
    } else {
        for (; part < BW_PARTS - 1 && i >= g->part[part].panels && g->part[part + 1].w; part++)
            i -= g->part[part].panels;
    }
    const packed *p = g->part + part;
    return (packed){p->w + i * g->units * BW_PANEL, p->bias ? p->bias + (long)i * BW_PANEL : NULL, 1, part, i};
}

static int groups_of(const product *g) { return (g->panels + g->each - 1) / g->each; }

/* Returns the number of pieces of a product; panels are taken `each` at a time. */
static int product_pieces(const product *g) {
    int whole = g->rows / ROW_BLOCK, rest = g->rows % ROW_BLOCK;
    return groups_of(g) * (whole * BLOCK_CHUNKS + (rest + CHUNK_ROWS - 1) / CHUNK_ROWS);
}

/* Returns the number of panels in a piece: some microseconds' work, small enough to be kept until it is stored. */
static int panels_together(int rows, long units, int panels, int branches, int threads) {
    int chunk = rows < CHUNK_ROWS ? rows : CHUNK_ROWS, tiles = (chunk + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    long each = PIECE_STEPS / (tiles * units * branches), most = BW_OWN / 2 / (4 * BW_PANEL * branches * chunk);
    long share = (long)panels * ((rows + CHUNK_ROWS - 1) / CHUNK_ROWS) / (2 * threads); /* two pieces for each thread */
    each = each < most ? each : most;
    each = each < share ? each : share;
    for (long fewer = each; fewer > 0 && fewer >= each / 2; fewer--) /* the same number for each thread, if possible */
        if (panels % (fewer * threads) == 0)
            return (int)fewer;
    return each > 1 ? (int)each : 1;
}

typedef struct {
    int row, rows, panel, panels;
    int first; /* the first of the chunks of its rows' block */
} patch;

/* Returns the place of a piece. Blocks of rows follow each other; in a block, groups of panels; in a group, the chunks of
 * rows. So the panels are read from memory once per block. */
static patch patch_of(const product *g, int piece) {
    int per_block = groups_of(g) * BLOCK_CHUNKS, block = piece / per_block, rest = piece % per_block;
    int rows = g->rows - block * ROW_BLOCK < ROW_BLOCK ? g->rows - block * ROW_BLOCK : ROW_BLOCK;
    int chunks = (rows + CHUNK_ROWS - 1) / CHUNK_ROWS, panel = rest / chunks * g->each, chunk = rest % chunks;
    int row = chunk * CHUNK_ROWS, left = g->panels - panel;
    return (patch){.row = block * ROW_BLOCK + row,
                   .rows = rows - row < CHUNK_ROWS ? rows - row : CHUNK_ROWS,
                   .panel = panel,
                   .panels = left < g->each ? left : g->each,
                   .first = !chunk};
}

/* Applies an activation. The tanh form is v times the logistic function of twice its argument. */
AI vf activate(int kind, vf v) {
    if (kind == BW_GELU)
        return v * 0.5f * (1.0f + verf(v * 0.70710678118654752f));
    vf z = kind == BW_SILU ? v : v * mul_add(v * v, splat(0.0713548162726f), splat(1.59576912160573071f));
    return v / (1.0f + vexp(-z));
}

/* Finishes a panel's sums in place: adds the bias, and activates unless another branch has yet to be scaled. */
static void finish(const product *g, int rows, const float *bias, int activated, float *sums) {
    for (int r = 0; r < rows; r++, sums += BW_PANEL) {
        if (bias)
            for (int j = 0; j < BW_PANEL; j += VW)
                store(sums + j, load(sums + j) + load(bias + j));
        if (activated)
            for (int j = 0; j < BW_PANEL; j += VW)
                store(sums + j, activate(g->activation, load(sums + j)));
        if (g->divisor != 1.0f)
            for (int j = 0; j < BW_PANEL; j += VW)
                store(sums + j, load(sums + j) / g->divisor);
        if (g->softcap)
            for (int j = 0; j < BW_PANEL; j += VW)
                store(sums + j, vtanh(load(sums + j) / g->softcap) * g->softcap);
    }
}

/* Multiplies the activated gate with the branch behind it, in the gate's place. */
static void scale_branch(float *gate, const float *branch, int rows) {
    for (int j = 0; j < rows * BW_PANEL; j += VW)
        store(gate + j, load(gate + j) * load(branch + j));
}

static int multiply(void *work, int piece) {
    const product *g = work;
    patch p = patch_of(g, piece);
    int tiles = p.rows > ONE_TILE && p.rows <= PRODUCT_ROWS && !AMX ? 2 : (p.rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    int shaped = 0;
    for (int i = 0; i < p.panels * g->branches; i++) {
        int panel = p.panel * g->branches + i, second = i % g->branches;
        packed this = panel_of(g, panel);
        const char *w = (const char *)this.w, *next = (const char *)panel_of(g, panel + 1).w;
        float *sums = g->own + (long)i * p.rows * BW_PANEL;
#if STRIPS
        if (p.rows >= STRIP_FROM)
            strips(p.rows, g->x + p.row * g->ld_x, g->ld_x, this.w, g->units, sums, p.first ? next : w);
        else
#endif
        for (int t = 0; t < tiles; t++) {
            int row = p.rows * t / tiles, n = p.rows * (t + 1) / tiles - row;
            const char *ahead = w + (tiles > 1 ? 0 : FETCH_BYTES);
            if (tiles > 1 && t < 2 && p.first)
                ahead = next + 64 * t;
            product_any(&shaped, n, g->x + (p.row + row) * g->ld_x, g->ld_x, this.w, g->units, sums + row * BW_PANEL, ahead);
        }
        if (g->changed)
            add_terms(g->changed, &this, p.row, p.rows, sums);
        finish(g, p.rows, this.bias, g->kind == TO_ACTIVATED || (g->kind == TO_GATED && !second), sums);
        if (second)
            scale_branch(sums - (long)p.rows * BW_PANEL, sums, p.rows);
    }
    release_tiles(shaped);
    return 1;
}

AI void put_residual(st *to, const float *sums, int n) {
    for (int j = 0; j < n; j += VW) {
        if (n - j >= VW)
            store_st(to + j, load(sums + j) + load_st(to + j));
        else
            store_st_part(to + j, load(sums + j) + load_st_part(to + j, n - j), n - j);
    }
}

static void put_product(void *work, int piece) {
    const product *g = work;
    const patch p = patch_of(g, piece);
    for (int i = 0; i < p.panels; i++) {
        const float *sums = g->own + (long)i * g->branches * p.rows * BW_PANEL;
        long column = (long)(p.panel + i) * BW_PANEL;
        int n = g->columns - column < BW_PANEL ? (int)(g->columns - column) : BW_PANEL;
        for (int r = 0; r < p.rows; r++, sums += BW_PANEL) {
            long place = (p.row + r) * g->ld_to + column;
            if (g->kind == TO_RESIDUAL)
                put_residual((st *)g->to + place, sums, n);
            else if (g->kind == TO_FLOAT && n < BW_PANEL)
                memcpy((float *)g->to + place, sums, n * sizeof *sums);
            else if (g->kind == TO_FLOAT)
                for (int j = 0; j < BW_PANEL; j += VW)
                    store((float *)g->to + place + j, load(sums + j));
            else /* with the padding, because products read it */
                for (int j = 0; j < BW_PANEL; j += VW)
                    store_at((at *)g->to + place + j, load(sums + j));
        }
    }
}
