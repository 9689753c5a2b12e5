/* Bottlenecks behind a component: y += scale * up(act(down(x))), for rows of groups that have one. Included by body.h.
 *
 * y is the term that the component adds to the residual; it is kept apart if a call has any bottleneck. The sums of a row
 * are taken in the order of every other product, so its bits do not depend on other rows.
 */
#define ADAPT_PARTS (BW_LOW_ROWS / BW_ADAPT_ROWS)

typedef struct {
    const bw_ctx *x;
    const bw_call *call;
    const bw_comp *m;
    const bw_layout *l;
    char *own; /* [rows][ld_x] read, [rows][stride of the widest bottleneck] inside, [rows][ld_x] computed; of 4 bytes each */
    int comp;
} adapt_work;

/* Rows of a piece, and their bottleneck; rows is 0 if there is none. */
typedef struct {
    const bw_delta *delta;
    long first;
    int rows;
} adapted_rows;

static adapted_rows adapted_of(const adapt_work *w, int piece) {
    const bw_low *p = w->call->lows + piece / ADAPT_PARTS;
    const bw_delta *d = w->call->groups[p->group].deltas + w->comp;
    int from = piece % ADAPT_PARTS * BW_ADAPT_ROWS, left = p->rows - from;
    if (!d->bottleneck || left <= 0)
        return (adapted_rows){d, 0, 0};
    return (adapted_rows){d, p->first + from, left < BW_ADAPT_ROWS ? left : BW_ADAPT_ROWS};
}

/* Computes sums[rows][BW_PANEL] of one panel. */
static void panel_sums(int rows, const at *x, long ld, const uint32_t *w, long units, float *sums) {
    for (int row = 0, n; row < rows; row += n) {
        n = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
        tile_any(n, x + row * ld, ld, w, units, sums + row * BW_PANEL, (const char *)w + FETCH_BYTES);
    }
}

AI vf bend(int activation, vf v) { return activation == BW_RELU ? vmax(v, splat(0.0f)) : activate(activation, v); }

static int adapt_rows(void *work, int piece) {
    const adapt_work *w = work;
    const bw_comp *m = w->m;
    const adapted_rows p = adapted_of(w, piece);
    const bw_delta *d = p.delta;
    long ld = w->l->ld_x, ld_in = bw_stride(m->adapted), units = (m->width + KS - 1) / KS;
    float sums[BW_ADAPT_ROWS * BW_PANEL], *out = (float *)w->own + BW_ADAPT_ROWS * (ld + ld_in);
    at *read = (at *)w->own, *inside = (at *)((float *)w->own + BW_ADAPT_ROWS * ld);
    for (int r = 0; r < p.rows; r++) {
        const float *y = (const float *)(w->x->scratch + w->l->y) + (p.first + r) * ld;
        const st *residual = (const st *)w->call->hidden + (p.first + r) * m->width;
        for (int i = 0; i < m->width; i += VW) {
            vf v = d->reads == BW_INPUT ? splat(0.0f) : norm_in(1, y, i, m->width - i);
            if (d->reads != BW_OUTPUT)
                v = v + norm_in(0, residual, i, m->width - i);
            store_at(read + r * ld + i, v);
        }
    }
    for (int column = 0; p.rows && column < d->bottleneck; column += BW_PANEL) {
        panel_sums(p.rows, read, ld, (const uint32_t *)d->down + column * units, units, sums);
        for (int r = 0; r < p.rows; r++)
            for (int j = 0; j < BW_PANEL; j += VW)
                store_at(inside + r * ld_in + column + j,
                         bend(d->activation, load(sums + r * BW_PANEL + j) + load(d->down_bias + column + j)));
    }
    for (int column = 0; p.rows && column < m->width; column += BW_PANEL) {
        panel_sums(p.rows, inside, ld_in, (const uint32_t *)d->up + (long)column * d->up_units, d->up_units, sums);
        for (int r = 0; r < p.rows; r++)
            for (int j = 0; j < BW_PANEL; j += VW)
                store(out + r * ld + column + j,
                      (load(sums + r * BW_PANEL + j) + load(d->up_bias + column + j)) * d->bottleneck_scale);
    }
    return 1;
}

static void put_adapted(void *work, int piece) {
    const adapt_work *w = work;
    const adapted_rows p = adapted_of(w, piece);
    const float *from = (const float *)w->own + BW_ADAPT_ROWS * (w->l->ld_x + bw_stride(w->m->adapted));
    for (int r = 0; r < p.rows; r++, from += w->l->ld_x) {
        float *y = (float *)(w->x->scratch + w->l->y) + (p.first + r) * w->l->ld_x;
        for (int i = 0; i < w->m->width; i++)
            y[i] += from[i];
    }
}
