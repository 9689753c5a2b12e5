/* Rows times packed weights. Included by body.h; each output is summed with k ascending, in stretches of fixed size,
 * whatever the number of rows.
 *
 * With several row tiles the first two fetch the next panel, one cache line per unit of k each, so that memory and
 * arithmetic overlap. Every loop over the accumulators needs its unroll pragma: one missing, and they live in memory.
 */
#define NV (BW_PANEL / VW)
#define ROW_BLOCK 192
#define SUM_UNITS 256    /* of k, summed before they are added to the total: half the rounding error of one sum */
#define ONE_TILE 8       /* rows up to which memory is the limit: one tile, which fetches its own panel further on */
#define FETCH_BYTES 4096 /* how far: the processor's own prefetching stops at each 4 KB page */

/* out[rows][BW_PANEL] */
AI void tile(const int rows, const at *x, long ld, const uint32_t *w, long units, float *out,
             const char *ahead) {
    for (long from = 0; from < units; from += SUM_UNITS) {
        long to = from + SUM_UNITS < units ? from + SUM_UNITS : units;
        vf sum[TILE_ROWS][NV];
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < NV; j++) sum[r][j] = splat(0.0f);
        }
        for (long s = from; s < to; s++) {
            pair ws[NV];
            UNROLL for (int j = 0; j < NV; j++) ws[j] = load_w(w + s * BW_PANEL + j * VW);
            __builtin_prefetch(ahead + s * BW_PANEL * 4, 0, 2);
            UNROLL for (int r = 0; r < rows; r++) {
                pair xs = load_x(x + r * ld, s);
                UNROLL for (int j = 0; j < NV; j++) sum[r][j] = dot(sum[r][j], ws[j], xs);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < NV; j++) {
                float *place = out + r * BW_PANEL + j * VW;
                store(place, from ? load(place) + sum[r][j] : sum[r][j]);
            }
        }
    }
}

#define TILE_CASE(n)                                   \
    case n:                                            \
        tile(n, x, ld, w, units, out, ahead); \
        break;
static void tile_any(int rows, const at *x, long ld, const uint32_t *w, long units, float *out,
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

/* What becomes of a finished tile. */
typedef enum { TO_FLOAT, TO_ACTIVATED, TO_GATED, TO_RESIDUAL } target;

typedef struct {
    const at *x;
    const uint32_t *w;
    const float *bias; /* one per packed column, or null */
    void *to;          /* float (TO_FLOAT), at (TO_ACTIVATED, TO_GATED), st (TO_RESIDUAL) */
    long ld_x, units, ld_to;
    int rows, columns; /* columns of `to` that exist; weight columns are padded to panels */
    int activation;
} product;

/* to[r][c] = sum + bias */
AI void put_float(const product *g, const float *tile_sums, int row, int rows, int panel) {
    int c0 = panel * BW_PANEL, n = g->columns - c0 < BW_PANEL ? g->columns - c0 : BW_PANEL;
    for (int r = 0; r < rows; r++) {
        float *to = (float *)g->to + (row + r) * g->ld_to + c0;
        const float *sums = tile_sums + r * BW_PANEL;
        if (n == BW_PANEL) {
            for (int j = 0; j < BW_PANEL; j += VW)
                store(to + j, g->bias ? load(sums + j) + load(g->bias + c0 + j) : load(sums + j));
        } else {
            for (int j = 0; j < n; j++)
                to[j] = g->bias ? sums[j] + g->bias[c0 + j] : sums[j];
        }
    }
}

/* The tanh form as v times the logistic function of twice its argument. */
AI vf activate(int kind, vf v) {
    if (kind == BW_GELU)
        return v * 0.5f * (1.0f + verf(v * 0.70710678118654752f));
    vf z = kind == BW_SILU ? v : v * (1.59576912160573071f + v * v * 0.0713548162726f);
    return v / (1.0f + vexp(-z));
}

/* to[r][c] = act(sum + bias); columns beyond the last are those of zero weights */
AI void put_activated(const product *g, const float *tile_sums, int row, int rows, int panel) {
    for (int r = 0; r < rows; r++) {
        at *to = (at *)g->to + (row + r) * g->ld_to + panel * BW_PANEL;
        const float *sums = tile_sums + r * BW_PANEL;
        for (int j = 0; j < BW_PANEL; j += VW) {
            vf sum = load(sums + j);
            if (g->bias)
                sum = sum + load(g->bias + panel * BW_PANEL + j);
            store_at(to + j, activate(g->activation, sum));
        }
    }
}

/* A panel holds 16 columns of the gate, then the same 16 of the other branch: to[r][c] = act(gate) * up */
AI void put_gated(const product *g, const float *tile_sums, int row, int rows, int panel) {
    const int half = BW_PANEL / 2;
    for (int r = 0; r < rows; r++) {
        at *to = (at *)g->to + (row + r) * g->ld_to + panel * half;
        const float *sums = tile_sums + r * BW_PANEL;
        for (int j = 0; j < half; j += VW) {
            vf gate = load(sums + j), up = load(sums + half + j);
            if (g->bias) {
                gate = gate + load(g->bias + panel * BW_PANEL + j);
                up = up + load(g->bias + panel * BW_PANEL + half + j);
            }
            store_at(to + j, activate(g->activation, gate) * up);
        }
    }
}

/* to[r][c] += sum + bias */
AI void put_residual(const product *g, const float *tile_sums, int row, int rows, int panel) {
    int c0 = panel * BW_PANEL, n = g->columns - c0 < BW_PANEL ? g->columns - c0 : BW_PANEL;
    for (int r = 0; r < rows; r++) {
        st *to = (st *)g->to + (row + r) * g->ld_to + c0;
        const float *sums = tile_sums + r * BW_PANEL;
        for (int j = 0; j < n; j += VW) {
            int part = n - j < VW ? n - j : VW;
            vf sum = load(sums + j);
            if (g->bias)
                sum = sum + load(g->bias + c0 + j);
            if (part == VW)
                store_st(to + j, sum + load_st(to + j));
            else
                store_st_part(to + j, sum + load_st_part(to + j, part), part);
        }
    }
}

/* The share of `thread`: a fixed stretch of panels. */
AI void multiply(const product *g, const target kind, int thread, int threads) {
    float sums[TILE_ROWS * BW_PANEL] __attribute__((aligned(64)));
    const int per_panel = kind == TO_GATED ? BW_PANEL / 2 : BW_PANEL; /* columns of `to` */
    long panels = bw_round(g->columns, per_panel) / per_panel;
    long first = panels * thread / threads, last = panels * (thread + 1) / threads;
    for (int block = 0; block < g->rows; block += ROW_BLOCK) {
        int rows = g->rows - block < ROW_BLOCK ? g->rows - block : ROW_BLOCK;
        int tiles = rows > ONE_TILE && rows <= TILE_ROWS ? 2 : (rows + TILE_ROWS - 1) / TILE_ROWS;
        for (long p = first; p < last; p++) {
            const uint32_t *w = g->w + p * g->units * BW_PANEL;
            const char *next = (const char *)(p + 1 < last ? w + g->units * BW_PANEL : w);
            for (int t = 0; t < tiles; t++) {
                int row = rows * t / tiles, n = rows * (t + 1) / tiles - row;
                const char *ahead = (const char *)w + (tiles > 1 ? 0 : FETCH_BYTES);
                if (tiles > 1 && t < 2)
                    ahead = next + 64 * t;
                tile_any(n, g->x + (block + row) * g->ld_x, g->ld_x, w, g->units, sums, ahead);
                if (kind == TO_FLOAT)
                    put_float(g, sums, block + row, n, (int)p);
                else if (kind == TO_ACTIVATED)
                    put_activated(g, sums, block + row, n, (int)p);
                else if (kind == TO_GATED)
                    put_gated(g, sums, block + row, n, (int)p);
                else
                    put_residual(g, sums, block + row, n, (int)p);
            }
        }
    }
}
