/* The two products of attention over groups of keys and values, for some rows at a time. Included by attention.h.
 *
 * A sum goes over elements, or positions, in ascending order in one chain, whatever the number of rows.
 */
#define AHEAD 4 /* groups that are fetched before they are needed */

typedef struct {
    const uint32_t *k[BW_PIECE / BW_GROUP], *v[BW_PIECE / BW_GROUP];
    const uint32_t *next[AHEAD]; /* keys that will be read after these groups */
    long ld_v;                   /* units between the rows of V */
} groups;

#define GV (BW_GROUP / VW)
#define HALF_UNIT 0xffffu /* the even position of a unit of two */

/* Scores of `rows` queries with SCORE_GROUPS groups of keys. */
AI void score_tile(const int rows, const at *q, long dim, const uint32_t *const k[], float *scores,
                   const char *const ahead[]) {
    vf sum[SCORE_ROWS][SCORE_GROUPS * GV];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < SCORE_GROUPS * GV; j++) sum[r][j] = splat(0.0f);
    }
    for (long s = 0; s < dim / KS; s++) {
        pair ks[SCORE_GROUPS * GV];
        UNROLL for (int j = 0; j < SCORE_GROUPS * GV; j++) {
            ks[j] = load_w(k[j / GV] + s * BW_GROUP + j % GV * VW);
            if (j % GV == 0)
                __builtin_prefetch(ahead[j / GV] + s * BW_GROUP * 4, 0, 3);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            pair qs = load_x(q + r * dim, s);
            UNROLL for (int j = 0; j < SCORE_GROUPS * GV; j++) sum[r][j] = dot(sum[r][j], ks[j], qs);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < SCORE_GROUPS * GV; j++) store(scores + r * BW_LINE + j * VW, sum[r][j]);
    }
}

/* out[rows][width] += weights times V, over the groups first..last, in one chain; the last group holds `tail` positions. */
AI void value_tile(const int rows, const int width, const at *weights, const groups *g, int first, int last, int tail,
                   long column, float *out, long ld_out) {
    const int n = width / VW;
    vf sum[SCORE_ROWS][64 / VW];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) sum[r][j] = load(out + r * ld_out + j * VW);
    }
    for (int i = first; i <= last; i++) {
        const uint32_t *v = g->v[i] + column;
        const uint32_t *ahead = (i + AHEAD <= last ? g->v[i + AHEAD] : g->next[i + AHEAD - last - 1]) + column;
        long units = i < last ? BW_GROUP / KS : tail / KS;
        const at *w = weights + i * BW_GROUP;
        for (long s = 0; s < units; s++) {
            pair vs[64 / VW];
            UNROLL for (int j = 0; j < n; j++) {
                vs[j] = load_w(v + s * g->ld_v + j * VW);
                if (j * VW % 16 == 0)
                    __builtin_prefetch(ahead + s * g->ld_v + j * VW, 0, 3);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                pair ws = load_x(w + r * BW_LINE, s);
                UNROLL for (int j = 0; j < n; j++) sum[r][j] = dot(sum[r][j], vs[j], ws);
            }
        }
        if (units * KS < (i < last ? BW_GROUP : tail)) { /* half a pair: the other half was never written */
            UNROLL for (int j = 0; j < n; j++) {
                pair vs = expand(*(const vu_u *)(v + units * g->ld_v + j * VW) & HALF_UNIT);
                UNROLL for (int r = 0; r < rows; r++) sum[r][j] = dot(sum[r][j], vs, load_x(w + r * BW_LINE, units));
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) store(out + r * ld_out + j * VW, sum[r][j]);
    }
}

#if SCORE_ROWS > 3
#define ALL_CASES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define ALL_CASES(X) X(1) X(2) X(3)
#endif

static void score_any(int rows, const at *q, long dim, const uint32_t *const k[], float *scores, const char *const ahead[]) {
#define X(n)                                      \
    case n:                                       \
        score_tile(n, q, dim, k, scores, ahead);  \
        break;
    switch (rows) { ALL_CASES(X) }
#undef X
}

#define VALUE_ANY(width)                                                                                         \
    static void value_any_##width(int rows, const at *weights, const groups *g, int first, int last, int tail,   \
                                  long column, float *out, long ld_out) {                                        \
        switch (rows) { ALL_CASES(X) }                                                                           \
    }
#define X(n)                                                                              \
    case n:                                                                               \
        value_tile(n, WIDTH, weights, g, first, last, tail, column, out, ld_out);         \
        break;
#define WIDTH 16
VALUE_ANY(16)
#undef WIDTH
#if VW == 16
#define WIDTH 32
VALUE_ANY(32)
#undef WIDTH
#define WIDTH 64
VALUE_ANY(64)
#undef WIDTH
#endif
#undef X
