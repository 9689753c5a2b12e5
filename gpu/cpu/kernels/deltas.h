/* Deltas of some rows: low-rank terms that are added to products, and rows of virtual tokens that replace a computation.
 * Included by gemm.h.
 *
 * A phase before the product computes t = scale * (A x) for all its groups. The product adds B t to a row's sums, and then
 * continues as always. A sum runs over the rank in ascending order in one chain, whatever other rows and groups there are.
 */
#if VW == 16
#define LOW_ROWS 4 /* rows whose sums are in registers at once */
#elif VW == 8
#define LOW_ROWS 2
#else
#define LOW_ROWS 1
#endif

/* sums[rows][BW_PANEL] += x times a panel of B. */
AI void low_tile(const int rows, const at *x, long ld, const uint32_t *w, long units, float *sums) {
    vf sum[LOW_ROWS][NV];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < NV; j++) sum[r][j] = splat(0.0f);
    }
    for (long s = 0; s < units; s++) {
        pair ws[NV];
        UNROLL for (int j = 0; j < NV; j++) ws[j] = load_w(w + s * BW_PANEL + j * VW);
        __builtin_prefetch(w + (units + s) * BW_PANEL, 0, 2); /* the next panel, which is also this group's next */
        __builtin_prefetch(w + (units + s) * BW_PANEL + BW_PANEL / 2, 0, 2);
        UNROLL for (int r = 0; r < rows; r++) {
            pair xs = load_x(x + r * ld, s);
            UNROLL for (int j = 0; j < NV; j++) sum[r][j] = dot(sum[r][j], ws[j], xs);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < NV; j++) {
            float *place = sums + r * BW_PANEL + j * VW;
            store(place, load(place) + sum[r][j]);
        }
    }
}

#define LOW_CASE(n)                                    \
    case n:                                            \
        low_tile(n, x, ld, w, units, sums);            \
        break;
static void low_any(int rows, const at *x, long ld, const uint32_t *w, long units, float *sums) {
    switch (rows) {
        LOW_CASE(1)
#if LOW_ROWS > 1
        LOW_CASE(2)
#endif
#if LOW_ROWS > 2
        LOW_CASE(3) LOW_CASE(4)
#endif
    }
}

/* Returns the row that replaces the computation for a virtual token, `each` elements long; null for other tokens. */
static const st *filled_of(const bw_call *c, int comp, long token, long each) {
    int position = c->tok_pos[token];
    if (position >= c->virtual)
        return NULL;
    for (const bw_group *g = c->groups; g < c->groups + c->n_groups && g->first <= token; g++)
        if (token < g->last && position < g->deltas[comp].virtual)
            return (const st *)g->deltas[comp].filled + position * each;
    return NULL;
}

static void shift_rows(const float *shift, int rows, float *sums) {
    for (int r = 0; r < rows; r++, sums += BW_PANEL)
        for (int j = 0; j < BW_PANEL; j += VW)
            store(sums + j, load(sums + j) + load(shift + j));
}

/* Adds the terms of rows `row` .. `row + rows` in one panel of a weight to sums[rows][BW_PANEL]. */
static void add_terms(const changes *h, const packed *p, int row, int rows, float *sums) {
    int term = h->second ? BW_PARTS : p->part;
    for (const bw_group *g = h->call->groups; g < h->call->groups + h->call->n_groups; g++) {
        const bw_delta *d = g->deltas + h->comp;
        int first = g->first > row ? g->first : row, last = g->last < row + rows ? g->last : row + rows;
        if (first >= last)
            continue;
        if (d->shift[term])
            shift_rows(d->shift[term] + p->panel * BW_PANEL, last - first, sums + (first - row) * BW_PANEL);
        if (!d->b[term])
            continue;
        const uint32_t *w = (const uint32_t *)d->b[term] + (long)p->panel * d->units[term] * BW_PANEL;
        for (int n; first < last; first += n) {
            n = last - first < LOW_ROWS ? last - first : LOW_ROWS;
            low_any(n, h->t + first * h->ld + d->from[term], h->ld, w, d->units[term], sums + (first - row) * BW_PANEL);
        }
    }
}

/* The phase before the product: some rows of a group times a panel of its A. */
typedef struct {
    const bw_call *call;
    const at *x;
    at *t;
    float *own; /* [rows of a piece][BW_PANEL] */
    long ld_x, ld_t, units;
    int comp, second, panels;
} low_work;

/* The panel of a piece, or half a panel; 0 columns if there is none. */
typedef struct {
    const bw_low *rows;
    const uint32_t *a;
    const float *scale;
    int first, columns;
} low_panel;

static low_panel low_of_piece(const low_work *w, int piece) {
    const bw_low *p = w->call->lows + piece / w->panels;
    const bw_delta *d = w->call->groups[p->group].deltas + w->comp;
    int first = piece % w->panels * BW_PANEL, left = d->columns[w->second] - first;
    if (left <= 0)
        return (low_panel){p, NULL, NULL, 0, 0};
    return (low_panel){p, (const uint32_t *)d->a[w->second] + first * w->units, d->scale[w->second] + first, first,
                       left < BW_PANEL ? BW_HALF : BW_PANEL};
}

static int low_rows(void *work, int piece) {
    const low_work *w = work;
    const low_panel p = low_of_piece(w, piece);
    for (int row = 0, n; p.columns && row < p.rows->rows; row += n) {
        n = p.rows->rows - row < TILE_ROWS ? p.rows->rows - row : TILE_ROWS;
        (p.columns == BW_PANEL ? tile_any : half_any)(n, w->x + (p.rows->first + row) * w->ld_x, w->ld_x, p.a, w->units,
                                                      w->own + row * BW_PANEL, (const char *)p.a + FETCH_BYTES);
    }
    return 1;
}

static void put_low(void *work, int piece) {
    const low_work *w = work;
    const low_panel p = low_of_piece(w, piece);
    const float *from = w->own;
    for (int row = 0; row < p.rows->rows; row++, from += BW_PANEL)
        for (int j = 0; j < p.columns; j += VW)
            store_at(w->t + (p.rows->first + row) * w->ld_t + p.first + j, load(from + j) * load(p.scale + j));
}
