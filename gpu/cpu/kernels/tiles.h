/* The two products of attention over groups of keys and values, for some rows at a time. Included by attention.h, unless
 * tile registers compute them (amx_attention.h).
 *
 * A sum goes over elements, or positions, in ascending order in one chain, whatever the number of rows.
 */
#define GV (BW_GROUP / VW)

/* Computes the scores of `rows` queries with SCORE_GROUPS groups of keys. */
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

static void score_piece(const item *t, const space *s, const groups *g, int first, int last) {
    long dim = t->m->head_dim;
    for (int row = 0; row < t->rows; row += SCORE_ROWS) {
        int n = t->rows - row < SCORE_ROWS ? t->rows - row : SCORE_ROWS;
        for (int i = first; i <= last; i += SCORE_GROUPS) {
            const uint32_t *k[SCORE_GROUPS]; /* an excess group is computed twice and masked */
            const char *ahead[SCORE_GROUPS];
            for (int j = 0; j < SCORE_GROUPS; j++) {
                int at_group = i + j <= last ? i + j : last, next = i + SCORE_GROUPS + j;
                k[j] = g->k[at_group];
                ahead[j] = (const char *)(next <= last ? g->k[next] : g->v[first + j <= last ? first + j : last]);
            }
            score_any(n, t->q + row * dim, dim, k, s->scores + row * BW_LINE + i * BW_GROUP, ahead);
        }
    }
}

/* out[rows][padded head_dim] += weights times V, over columns up to c1 of a piece, from group `first` on. */
static void value_piece(const item *t, const bw_layout *l, const space *s, const groups *g, int first, int c1) {
    int last = (c1 - 1) / BW_GROUP, tail = c1 - last * BW_GROUP;
    for (int row = 0; row < t->rows; row += SCORE_ROWS) {
        int n = t->rows - row < SCORE_ROWS ? t->rows - row : SCORE_ROWS;
        const at *w = s->weights + row * BW_LINE;
        float *to = s->out + row * (long)l->padded_dim;
        for (int c = 0; c < l->padded_dim;) {
#if VW == 16
            if (l->padded_dim - c >= 64) {
                value_any_64(n, w, g, first, last, tail, c, to + c, l->padded_dim);
                c += 64;
                continue;
            }
            if (l->padded_dim - c >= 32) {
                value_any_32(n, w, g, first, last, tail, c, to + c, l->padded_dim);
                c += 32;
                continue;
            }
#endif
            value_any_16(n, w, g, first, last, tail, c, to + c, l->padded_dim);
            c += 16;
        }
    }
}
