/* Paged attention of one item: some query tokens of a batch row, and the query heads of one KV head. Included by body.h.
 *
 * Positions are cut into pieces of BW_PIECE at absolute limits: in a piece all scores, one maximum, one pass of exp, one
 * product with V; pieces are merged in ascending order. A position outside a row's range has weight exactly zero, so a
 * row's bits do not depend on the other rows of its tile, on chunking, or on what lies in unused places.
 */
typedef struct {
    const bw_comp *m;
    const int32_t *slots; /* of this batch row and KV layer */
    int head, rows, group;
    int start;     /* position of the first query token */
    int low, high; /* positions that any of the rows sees */
    const at *q;   /* [rows][head_dim], query tokens x heads of the group */
    at *to;        /* output of the first row; rows of a token lie head_dim apart, tokens ld_to */
    long ld_to;
} item;

#define AHEAD 4 /* groups that are fetched before they are needed */

typedef struct {
    const uint32_t *k[BW_PIECE / BW_GROUP], *v[BW_PIECE / BW_GROUP];
    const uint32_t *next[AHEAD]; /* keys that will be read after these groups */
    long ld_v;                   /* units between the rows of V */
} groups;

typedef struct {
    float *scores, *out, *part; /* [rows][BW_LINE]; [rows][padded head_dim] twice */
    float *top, *total;         /* [rows]: maximum and sum so far; total 0: nothing seen yet */
    at *weights;                /* [rows][BW_LINE] */
    uint32_t *gather_k, *gather_v;
} space;

#define GV (BW_GROUP / VW)

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

/* part[rows][16 * blocks] = weights times V, over the groups first..last; the last holds `tail` positions. */
AI void value_tile(const int rows, const int width, const at *weights, const groups *g, int first, int last, int tail,
                   long column, float *part, long ld_part) {
    const int n = width / VW;
    vf sum[SCORE_ROWS][64 / VW];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < n; j++) sum[r][j] = splat(0.0f);
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
                pair vs = expand(*(const vu_u *)(v + units * g->ld_v + j * VW) & 0xffffu);
                UNROLL for (int r = 0; r < rows; r++) sum[r][j] = dot(sum[r][j], vs, load_x(w + r * BW_LINE, units));
            }
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

static void score_any(int rows, const at *q, long dim, const uint32_t *const k[], float *scores, const char *const ahead[]) {
#define X(n)                                          \
    case n:                                           \
        score_tile(n, q, dim, k, scores, ahead);      \
        break;
    switch (rows) { ALL_CASES(X) }
#undef X
}

#define VALUE_ANY(width)                                                                                             \
    static void value_any_##width(int rows, const at *weights, const groups *g, int first, int last, int tail,       \
                                  long column, float *part, long ld_part) {                                          \
        switch (rows) { ALL_CASES(X) }                                                                               \
    }
#define X(n)                                                                               \
    case n:                                                                                \
        value_tile(n, WIDTH, weights, g, first, last, tail, column, part, ld_part);        \
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

/* Weights of one row from its scores; columns c0..c1 of the piece are seen, the groups first..last computed. */
static void softmax_row(const float *scores, at *weights, int first, int last, int c0, int c1, float scale, float *top,
                        float *total) {
    const vf low = splat(-INFINITY);
    const vi lane = lanes();
    int begin = first * BW_GROUP, end = (last + 1) * BW_GROUP;
    vf best = low;
    for (int c = begin; c < end; c += VW) {
        vi seen = (lane + c >= c0) & (lane + c < c1);
        best = vmax(best, pick(seen, load(scores + c), low));
    }
    float most = lanes_max(best) * scale;
    vf sum = splat(0.0f);
    for (int c = begin; c < end; c += VW) {
        vi seen = (lane + c >= c0) & (lane + c < c1);
        vf weight = pick(seen, vexp(load(scores + c) * scale - most), splat(0.0f));
        sum = sum + weight;
        store_at(weights + c, weight);
    }
    *top = most;
    *total = lanes_sum(sum);
}

/* Scores become cap * tanh(score * scale / cap), rounded after each operation, as transformers has them. */
static void cap_row(float *scores, int first, int last, float scale, float cap) {
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW) {
        vf score = rounded(rounded(rounded(load(scores + c)) * scale) / cap);
        store(scores + c, rounded(rounded(vtanh(score)) * cap));
    }
}

/* Where the group of keys that begins at a position lies; its values lie one half of the head's page further. */
static const uint32_t *keys_at(const item *t, int position) {
    const bw_comp *m = t->m;
    long page = (long)m->page_size * m->head_dim / KS, group = (long)BW_GROUP * m->head_dim / KS;
    const char *slot = m->arena + t->slots[position / m->page_size] * m->slot_bytes;
    return (const uint32_t *)slot + t->head * 2 * page + position % m->page_size / BW_GROUP * group;
}

/* Copies plain rows of K and V into groups; positions low..high of a piece that begins at `base`. */
static void gather(const item *t, const bw_layout *l, const space *s, int base, int low, int high, groups *g) {
    const bw_comp *m = t->m;
    long dim = m->head_dim, padded = l->padded_dim;
    int first = (low - base) / BW_GROUP, last = (high - 1 - base) / BW_GROUP;
    for (int i = first; i <= last; i++) {
        uint32_t *k = s->gather_k + i * BW_GROUP * dim / KS, *v = s->gather_v + i * BW_GROUP / KS * padded;
        memset(v, 0, BW_GROUP / KS * padded * 4);
        g->k[i] = k;
        g->v[i] = v;
        for (int c = 0; c < BW_GROUP; c++) {
            int position = base + i * BW_GROUP + c;
            if (position < low || position >= high)
                continue;
            const char *head = m->arena + t->slots[position / m->page_size] * m->slot_bytes +
                               (long)t->head * 2 * m->page_size * dim * sizeof(st);
            const st *row = (const st *)head + position % m->page_size * dim;
            for (long d = 0; d < dim / KS; d++)
                k[d * BW_GROUP + c] = ((const u32 *)row)[d];
            row += m->page_size * dim;
            for (long d = 0; d < dim; d++)
                ((st *)v)[c / KS * KS * padded + d * KS + c % KS] = row[d];
        }
    }
    g->ld_v = padded;
}

/* Fetches nothing yet: the first groups of keys of an item from a position on; without an item, something harmless. */
static void peek(const item *t, const bw_layout *l, int position, groups *g, int last) {
    for (int j = 0; j < AHEAD; j++) {
        g->next[j] = g->v[last];
        int at_group = position / BW_GROUP * BW_GROUP + j * BW_GROUP;
        if (t && l->direct && at_group < t->high)
            g->next[j] = keys_at(t, at_group);
    }
}

static void find_groups(const item *t, const bw_layout *l, const space *s, int base, int low, int high, groups *g) {
    const bw_comp *m = t->m;
    if (!l->direct) {
        gather(t, l, s, base, low, high, g);
        return;
    }
    for (int i = (low - base) / BW_GROUP; i <= (high - 1 - base) / BW_GROUP; i++) {
        g->k[i] = keys_at(t, base + i * BW_GROUP);
        g->v[i] = g->k[i] + (long)m->page_size * m->head_dim / KS;
    }
    g->ld_v = m->head_dim;
}

static void score_piece(const item *t, const space *s, const groups *g, int first, int last) {
    long dim = t->m->head_dim;
    for (int row = 0; row < t->rows; row += SCORE_ROWS) {
        int n = t->rows - row < SCORE_ROWS ? t->rows - row : SCORE_ROWS;
        for (int i = first; i <= last; i += SCORE_GROUPS) {
            const uint32_t *k[SCORE_GROUPS]; /* a group too many is computed twice and masked */
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

static void value_piece(const item *t, const bw_layout *l, const space *s, const groups *g, int first, int last, int tail,
                        float *part) {
    for (int row = 0; row < t->rows; row += SCORE_ROWS) {
        int n = t->rows - row < SCORE_ROWS ? t->rows - row : SCORE_ROWS;
        const at *w = s->weights + row * BW_LINE;
        float *to = part + row * (long)l->padded_dim;
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

/* Adds a piece's result to the row's: both are weighted by e^(their maximum - the common one). */
static void merge_row(float *out, const float *part, int width, float *top, float *total, float part_top, float part_total) {
    if (*total == 0.0f) {
        memcpy(out, part, width * sizeof *out);
        *top = part_top;
        *total = part_total;
        return;
    }
    float most = *top > part_top ? *top : part_top;
    float old = exp1(*top - most), new = exp1(part_top - most);
    for (int d = 0; d < width; d += VW)
        store(out + d, load(out + d) * old + load(part + d) * new);
    *top = most;
    *total = *total * old + part_total * new;
}

/* One item; `then` is the item that this thread does next, or null. */
static void attend(const item *t, const item *then, const bw_layout *l, const space *s) {
    const bw_comp *m = t->m;
    for (int row = 0; row < t->rows; row++)
        s->total[row] = 0.0f;
    for (int base = t->low / BW_PIECE * BW_PIECE; base < t->high; base += BW_PIECE) {
        int low = t->low > base ? t->low : base, high = t->high < base + BW_PIECE ? t->high : base + BW_PIECE;
        int first = (low - base) / BW_GROUP, last = (high - 1 - base) / BW_GROUP;
        groups g;
        float top[t->rows], total[t->rows];
        find_groups(t, l, s, base, low, high, &g);
        if (base + BW_PIECE < t->high)
            peek(t, l, base + BW_PIECE, &g, last);
        else
            peek(then, l, then ? then->low : 0, &g, last);
        score_piece(t, s, &g, first, last);
        for (int row = 0; row < t->rows; row++) {
            int position = t->start + row / t->group;
            int from = m->window && position >= m->window ? position - m->window + 1 : 0;
            int c0 = from > base ? from - base : 0, c1 = position + 1 < high ? position + 1 - base : high - base;
            if (m->softcap)
                cap_row(s->scores + row * BW_LINE, first, last, m->scale, m->softcap);
            softmax_row(s->scores + row * BW_LINE, s->weights + row * BW_LINE, first, last, c0, c1,
                        m->softcap ? 1.0f : m->scale, top + row, total + row);
        }
        value_piece(t, l, s, &g, first, last, high - base - last * BW_GROUP, s->part);
        for (int row = 0; row < t->rows; row++)
            if (total[row] != 0.0f)
                merge_row(s->out + row * (long)l->padded_dim, s->part + row * (long)l->padded_dim, l->padded_dim,
                          s->top + row, s->total + row, top[row], total[row]);
    }
    for (int row = 0; row < t->rows; row++) {
        at *to = t->to + row / t->group * t->ld_to + row % t->group * m->head_dim;
        const float *out = s->out + row * (long)l->padded_dim;
        for (int d = 0; d < m->head_dim; d += VW) {
            at part[VW];
            store_at(part, load(out + d) / s->total[row]);
            memcpy(to + d, part, (m->head_dim - d < VW ? m->head_dim - d : VW) * sizeof(at));
        }
    }
}
