/* The two products of attention over groups of keys and values, for some rows at a time. Included by attention.h.
 *
 * A sum goes over elements, or positions, in ascending order in one chain. In bfloat16 torch has another order for few rows,
 * whose results differ in the last bits and then in rounded weights: these are the tiles that say "lanes".
 */
#define PIECE BW_PIECE(sizeof(st))
#define LINE BW_LINE(sizeof(st))

#define AHEAD 4 /* groups that are fetched before they are needed */

typedef struct {
    const uint32_t *k[PIECE / BW_GROUP + 1], *v[PIECE / BW_GROUP + 1]; /* a piece may begin inside its first group */
    const uint32_t *next[AHEAD]; /* keys that will be read after these groups */
    long ld_v;                   /* units between the rows of V */
    uint32_t half[2];            /* masks of the even and of the odd position's half of a unit */
    int from;                    /* column of the first key of torch's call, or of its piece */
} groups;

#define GV (BW_GROUP / VW)
#define LANE_ROWS 3 /* rows, and groups, whose lanes fit the registers */
#define LANE_GROUPS (SCORE_GROUPS > 2 ? 2 : SCORE_GROUPS)

/* Scores of `rows` queries with SCORE_GROUPS groups of keys, summed in stretches of so many units. */
AI void score_tile(const int rows, const at *q, long dim, long stretch, const uint32_t *const k[], float *scores,
                   const char *const ahead[]) {
    for (long from = 0; from < dim / KS; from += stretch) {
        long to = from + stretch < dim / KS ? from + stretch : dim / KS;
        vf sum[SCORE_ROWS][SCORE_GROUPS * GV];
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < SCORE_GROUPS * GV; j++) sum[r][j] = splat(0.0f);
        }
        for (long s = from; s < to; s++) {
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
            UNROLL for (int j = 0; j < SCORE_GROUPS * GV; j++) {
                float *place = scores + r * LINE + j * VW;
                store(place, from ? load(place) + sum[r][j] : sum[r][j]);
            }
        }
    }
}

/* The same in four sums, of every fourth element each: the order of torch's product of few rows. */
AI void score_lanes(const int rows, const int groups, const at *q, long dim, const uint32_t *const k[], float *scores,
                    const char *const ahead[]) {
    vf sum[4][LANE_ROWS][LANE_GROUPS * GV];
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < groups * GV; j++) sum[i][r][j] = splat(0.0f);
        }
    }
    for (long s = 0; s < dim / KS; s += 2) {
        UNROLL for (int i = 0; i < 4; i += 2) {
            long unit = s + i / 2;
            if (unit < dim / KS) {
                pair ks[LANE_GROUPS * GV];
                UNROLL for (int j = 0; j < groups * GV; j++) {
                    ks[j] = load_w(k[j / GV] + unit * BW_GROUP + j % GV * VW);
                    if (j % GV == 0)
                        __builtin_prefetch(ahead[j / GV] + unit * BW_GROUP * 4, 0, 3);
                }
                UNROLL for (int r = 0; r < rows; r++) {
                    pair qs = load_x(q + r * dim, unit);
                    UNROLL for (int j = 0; j < groups * GV; j++) {
                        sum[i][r][j] = dot_half(0, sum[i][r][j], ks[j], qs);
                        sum[i + 1][r][j] = dot_half(1, sum[i + 1][r][j], ks[j], qs);
                    }
                }
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < groups * GV; j++)
            store(scores + r * LINE + j * VW, (sum[0][r][j] + sum[2][r][j]) + (sum[1][r][j] + sum[3][r][j]));
    }
}

static void score_few(int rows, const at *q, long dim, const uint32_t *const k[], float *scores, const char *const ahead[]) {
    for (int j = 0; j < SCORE_GROUPS; j += LANE_GROUPS) {
        for (int r = 0; r < rows; r += LANE_ROWS) {
            float *to = scores + r * LINE + j * BW_GROUP;
            if (rows - r == 1)
                score_lanes(1, LANE_GROUPS, q + r * dim, dim, k + j, to, ahead + j);
            else if (rows - r == 2)
                score_lanes(2, LANE_GROUPS, q + r * dim, dim, k + j, to, ahead + j);
            else
                score_lanes(3, LANE_GROUPS, q + r * dim, dim, k + j, to, ahead + j);
        }
    }
}

/* The values of one column alone: the other half of its units may never have been written. */
AI pair value_at(const groups *g, int c, long column) {
    const uint32_t *v = g->v[c / BW_GROUP] + c % BW_GROUP / KS * g->ld_v + column;
    return expand(*(const vu_u *)v & g->half[c % 2]);
}

/* part[rows][width] += weights times V, over the groups first..last, in one chain; the last group holds `tail` positions. */
AI void value_tile(const int rows, const int width, const at *weights, const groups *g, int first, int last, int tail,
                   long column, float *part, long ld_part) {
    const int n = width / VW;
    vf sum[SCORE_ROWS][64 / VW];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) sum[r][j] = load(part + r * ld_part + j * VW);
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
                pair ws = load_x(w + r * LINE, s);
                UNROLL for (int j = 0; j < n; j++) sum[r][j] = dot(sum[r][j], vs[j], ws);
            }
        }
        if (units * KS < (i < last ? BW_GROUP : tail)) { /* half a pair: the other half was never written */
            UNROLL for (int j = 0; j < n; j++) {
                pair vs = expand(*(const vu_u *)(v + units * g->ld_v + j * VW) & g->half[0]);
                UNROLL for (int r = 0; r < rows; r++) sum[r][j] = dot(sum[r][j], vs, load_x(w + r * LINE, units));
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) store(part + r * ld_part + j * VW, sum[r][j]);
    }
}

/* The same of single query tokens: four positions at a time, the last ones backwards. */
AI void value_lanes(const int rows, const int width, const at *weights, const groups *g, int first, int last, int tail,
                    long column, float *part, long ld_part) {
    const int n = width / VW;
    vf sum[SCORE_ROWS][64 / VW];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) sum[r][j] = load(part + r * ld_part + j * VW);
    }
    for (int i = first; i <= last; i++) {
        const uint32_t *v = g->v[i] + column;
        const uint32_t *ahead = (i + AHEAD <= last ? g->v[i + AHEAD] : g->next[i + AHEAD - last - 1]) + column;
        int count = i < last ? BW_GROUP : tail, fours = count / 4;
        const at *w = weights + i * BW_GROUP;
        for (long s = 0; s < 2 * fours; s += 2) {
            UNROLL for (int j = 0; j < n; j++) {
                const uint32_t *at_unit = v + s * g->ld_v + j * VW;
                pair one = load_w(at_unit), other = load_w(at_unit + g->ld_v);
                if (j * VW % 16 == 0) {
                    __builtin_prefetch(ahead + s * g->ld_v + j * VW, 0, 3);
                    __builtin_prefetch(ahead + (s + 1) * g->ld_v + j * VW, 0, 3);
                }
                UNROLL for (int r = 0; r < rows; r++) {
                    pair w0 = load_x(w + r * LINE, s), w1 = load_x(w + r * LINE, s + 1);
                    vf even = dot_half(0, dot_half(0, splat(0.0f), one, w0), other, w1);
                    vf odd = dot_half(1, dot_half(1, splat(0.0f), one, w0), other, w1);
                    sum[r][j] = sum[r][j] + (even + odd);
                }
            }
        }
        for (int c = count - 1; c >= 4 * fours; c--) { /* half a pair may never have been written */
            UNROLL for (int j = 0; j < n; j++) {
                pair vs = expand(*(const vu_u *)(v + c / 2 * g->ld_v + j * VW) & g->half[c % 2]);
                UNROLL for (int r = 0; r < rows; r++) {
                    pair ws = load_x(w + r * LINE, c / 2);
                    sum[r][j] = c % 2 ? dot_half(1, sum[r][j], vs, ws) : dot_half(0, sum[r][j], vs, ws);
                }
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) store(part + r * ld_part + j * VW, sum[r][j]);
    }
}

/* The same up to column `to`, where a window begins at no multiple of four. */
AI void value_lanes_shifted(const int rows, const int width, const at *weights, const groups *g, int to, long column, float *part,
                      long ld_part) {
    const int n = width / VW, from = g->from;
    vf sum[SCORE_ROWS][64 / VW];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) sum[r][j] = load(part + r * ld_part + j * VW);
    }
    int rest = to - (to - from) % 4;
    for (int c = from; c < rest; c += 4) {
        UNROLL for (int j = 0; j < n; j++) {
            pair v[4];
            UNROLL for (int i = 0; i < 4; i++) v[i] = value_at(g, c + i, column + j * VW);
            UNROLL for (int r = 0; r < rows; r++) {
                vf half[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    vf before = i < 2 ? splat(0.0f) : half[i - 2];
                    half[i] = dot_half((c + i) % 2, before, v[i], load_x(weights + r * LINE, (c + i) / 2));
                }
                sum[r][j] = sum[r][j] + (half[2] + half[3]);
            }
        }
    }
    for (int c = to - 1; c >= rest; c--) {
        UNROLL for (int j = 0; j < n; j++) {
            pair v = value_at(g, c, column + j * VW);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][j] = dot_half(c % 2, sum[r][j], v, load_x(weights + r * LINE, c / 2));
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) store(part + r * ld_part + j * VW, sum[r][j]);
    }
}

#define ROW_CASES(X)                                            \
    X(1) X(2) X(3)
#if SCORE_ROWS > 3
#define ALL_CASES(X) ROW_CASES(X) X(4) X(5) X(6)
#else
#define ALL_CASES(X) ROW_CASES(X)
#endif

static void score_any(int rows, const at *q, long dim, long stretch, const uint32_t *const k[], float *scores,
                      const char *const ahead[]) {
#define X(n)                                              \
    case n:                                               \
        score_tile(n, q, dim, stretch, k, scores, ahead); \
        break;
    switch (rows) { ALL_CASES(X) }
#undef X
}

#define VALUE_ANY(width)                                                                                             \
    static void value_any_##width(int rows, int alone, const at *weights, const groups *g, int first, int last,      \
                                  int tail, long column, float *part, long ld_part) {                                \
        switch (rows) { ALL_CASES(X) }                                                                               \
    }
#define X(n)                                                                                              \
    case n:                                                                                               \
        if (BF16 && alone && n <= LANE_ROWS && g->from % 4)                                               \
            value_lanes_shifted(n, WIDTH, weights, g, last * BW_GROUP + tail, column, part, ld_part);     \
        else if (BF16 && alone && n <= LANE_ROWS)                                                         \
            value_lanes(n, WIDTH, weights, g, first, last, tail, column, part, ld_part);                  \
        else                                                                                              \
            value_tile(n, WIDTH, weights, g, first, last, tail, column, part, ld_part);                   \
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
