/* Paged attention of one item: some query tokens of a batch row, and the query heads of one KV head. Included by body.h.
 *
 * Positions are cut into pieces at absolute limits. For each piece there are all scores, one maximum, one pass of exp, and
 * one product with V, which is added to the result of the earlier pieces after that is rescaled to the new maximum. A
 * position outside a row's range has weight exactly zero, so a row's bits do not depend on the other rows of its tile, on
 * chunking, or on the content of unused places.
 */
#define AHEAD 4 /* groups that are prefetched */

typedef struct {
    const uint32_t *k[BW_PIECE / BW_GROUP], *v[BW_PIECE / BW_GROUP];
    const uint32_t *next[AHEAD]; /* keys that will be read after these groups */
    long ld_v;                   /* units between the rows of V */
} groups;

#define HALF_UNIT 0xffffu /* the even position of a unit of two */

typedef struct {
    const bw_comp *m;
    const int32_t *slots; /* slots of this batch row and KV layer */
    int head, rows, group;
    int start;     /* position of the first query token */
    int low, high; /* range of positions that any of the rows sees */
    const at *q;   /* [rows][head_dim], query tokens x heads of the group */
    at *to;        /* output of the first row; a token's rows are head_dim apart, tokens ld_to */
    long ld_to;
} item;

typedef struct {
    float *scores, *out; /* [rows][BW_LINE]; [rows][padded head_dim] */
    float *top, *total;  /* [rows]: maximum of the scaled scores so far, sum of the weights relative to it; 0: nothing seen */
    at *weights;         /* [rows][BW_LINE] */
    uint32_t *gather_k, *gather_v;
    const bw_ctx *x;
    uint64_t now; /* the current phase */
} space;

static const char *slot_at(const item *t, int position) {
    return t->m->arena + t->slots[position / t->m->page_size] * t->m->slot_bytes;
}

/* Returns the address of the group of keys that begins at a position. Its values are one half of the head's page further. */
static const uint32_t *keys_at(const item *t, int position) {
    const bw_comp *m = t->m;
    long page = (long)m->page_size * m->head_dim / KS, group = (long)BW_GROUP * m->head_dim / KS;
    return (const uint32_t *)slot_at(t, position) + t->head * 2 * page + position % m->page_size / BW_GROUP * group;
}

/* Copies plain rows of K and V into groups, for positions low..high of a piece that begins at `base`. Returns 0 if late. */
static int gather(const item *t, const bw_layout *l, const space *s, int base, int low, int high, groups *g) {
    const bw_comp *m = t->m;
    long dim = m->head_dim, padded = l->padded_dim;
    int first = (low - base) / BW_GROUP, last = (high - 1 - base) / BW_GROUP;
    const char *slots[BW_PIECE];
    for (int position = low; position < high; position++)
        slots[position - base] = slot_at(t, position);
    if (bw_late(s->x, s->now))
        return 0;
    for (int i = first; i <= last; i++) {
        uint32_t *k = s->gather_k + i * BW_GROUP * dim / KS, *v = s->gather_v + i * BW_GROUP / KS * padded;
        memset(v, 0, BW_GROUP / KS * padded * 4);
        g->k[i] = k;
        g->v[i] = v;
        for (int c = 0; c < BW_GROUP; c++) {
            int position = base + i * BW_GROUP + c;
            if (position < low || position >= high)
                continue;
            const char *head = slots[position - base] + (long)t->head * 2 * m->page_size * dim * sizeof(st);
            const st *row = (const st *)head + position % m->page_size * dim;
            for (long d = 0; d < dim / KS; d++)
                k[d * BW_GROUP + c] = ((const u32 *)row)[d];
            row += m->page_size * dim;
            for (long d = 0; d < dim; d++)
                ((st *)v)[c / KS * KS * padded + d * KS + c % KS] = row[d];
        }
    }
    g->ld_v = padded;
    return 1;
}

/* Notes the first groups of keys of an item from a position on, to be prefetched; without an item, harmless addresses. */
static void peek(const item *t, const bw_layout *l, int position, groups *g, int last) {
    for (int j = 0; j < AHEAD; j++) {
        g->next[j] = g->v[last];
        int at_group = position / BW_GROUP * BW_GROUP + j * BW_GROUP;
        if (t && l->direct && at_group < t->high)
            g->next[j] = keys_at(t, at_group);
    }
}

/* Looks up the groups of a piece. The slots read from the table belong to this call unless the thread is late: then
 * returns 0. */
static int find_groups(const item *t, const bw_layout *l, const space *s, int base, int low, int high, groups *g) {
    const bw_comp *m = t->m;
    if (!l->direct)
        return gather(t, l, s, base, low, high, g);
    for (int i = (low - base) / BW_GROUP; i <= (high - 1 - base) / BW_GROUP; i++) {
        g->k[i] = keys_at(t, base + i * BW_GROUP);
        g->v[i] = g->k[i] + (long)m->page_size * m->head_dim / KS;
    }
    g->ld_v = m->head_dim;
    return !bw_late(s->x, s->now);
}

#if AMX
#include "amx_attention.h"
#else
#include "tiles.h"
#endif

/* Columns of a piece, from its base, that a row sees. */
typedef struct {
    int from, to;
} span;

static span seen_by(const item *t, int row, int base, int high) {
    int position = t->start + row / t->group, window = t->m->window;
    int from = window && position >= window ? position - window + 1 : 0, to = position + 1 < high ? position + 1 : high;
    return (span){(from > base ? from : base) - base, to - base};
}

AI vi in_span(span seen, int c) { return (lanes() + c >= seen.from) & (lanes() + c < seen.to); }

static void cap_row(float *scores, int first, int last, float scale, float cap) {
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW)
        store(scores + c, vtanh(load(scores + c) * scale / cap) * cap);
}

/* Returns the largest score of groups first..last that the row sees. */
static float most_of(const float *scores, int first, int last, span seen) {
    vf most = splat(-INFINITY);
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW)
        most = vmax(most, pick(in_span(seen, c), load(scores + c), most));
    return lanes_max(most);
}

/* Computes one row's weights in one piece, e^(score * scale - top). Returns the sum of the weights as the product with V
 * uses them. */
static float weigh_row(const float *scores, at *weights, int first, int last, span seen, float scale, float top) {
    vf sum = splat(0.0f);
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW) {
        vf weight = as_stored(pick(in_span(seen, c), vexp(mul_add(load(scores + c), splat(scale), splat(-top))), splat(0.0f)));
        sum = sum + weight;
        store_at(weights + c, weight);
    }
    return lanes_sum(sum);
}

/* Rescales a row's result so far to a larger maximum. */
static void rescale_row(float *out, int width, float *top, float *total, float most) {
    float old = exp1(*top - most);
    for (int d = 0; d < width; d += VW)
        store(out + d, load(out + d) * old);
    *total *= old;
    *top = most;
}

static void softmax_row(const item *t, const bw_layout *l, const space *s, int row, int first, int last, span seen) {
    float *scores = s->scores + row * BW_LINE, *top = s->top + row, *total = s->total + row;
    at *weights = s->weights + row * BW_LINE;
    if (seen.from >= seen.to) { /* only other rows of the tile see this piece */
        memset(weights + first * BW_GROUP, 0, (last + 1 - first) * BW_GROUP * sizeof(at));
        return;
    }
    float scale = t->m->softcap ? 1.0f : t->m->scale;
    if (t->m->softcap)
        cap_row(scores, first, last, t->m->scale, t->m->softcap);
    float most = most_of(scores, first, last, seen) * scale;
    if (*total == 0.0f)
        *top = most;
    else if (most > *top)
        rescale_row(s->out + row * (long)l->padded_dim, l->padded_dim, top, total, most);
    *total += weigh_row(scores, weights, first, last, seen, scale, *top);
}

/* Computes one item into s->out and s->total; `then` is the item that may follow. Returns 0 if the thread is late. */
static int attend(const item *t, const item *then, const bw_layout *l, const space *s) {
    memset(s->total, 0, t->rows * sizeof *s->total);
    memset(s->out, 0, t->rows * l->padded_dim * sizeof *s->out);
    for (int low = t->low, high; low < t->high; low = high) {
        int base = low / BW_PIECE * BW_PIECE;
        high = base + BW_PIECE < t->high ? base + BW_PIECE : t->high;
        int first = (low - base) / BW_GROUP, last = (high - 1 - base) / BW_GROUP;
        groups g;
        if (!find_groups(t, l, s, base, low, high, &g))
            return 0;
        if (high < t->high)
            peek(t, l, high, &g, last);
        else
            peek(then, l, then ? then->low : 0, &g, last);
        score_piece(t, s, &g, first, last);
        for (int row = 0; row < t->rows; row++)
            softmax_row(t, l, s, row, first, last, seen_by(t, row, base, high));
        value_piece(t, l, s, &g, first, high - base);
    }
    return 1;
}

typedef struct {
    const bw_call *call;
    const bw_comp *m;
    const bw_layout *l;
    space s;
    int items;
} attention_work;

static attention_work attention_of(const bw_ctx *x, const bw_call *c, const bw_comp *m, const bw_layout *l, char *own,
                                   const bw_phase *f, uint64_t now) {
    space s = {.scores = (float *)(own + l->scores), .out = (float *)(own + l->out), .top = (float *)(own + l->top),
               .total = (float *)(own + l->sums), .weights = (at *)(own + l->weights),
               .gather_k = (uint32_t *)(own + l->gather_k), .gather_v = (uint32_t *)(own + l->gather_v), .x = x, .now = now};
    return (attention_work){c, m, l, s, f->items};
}

/* Returns an item; they are ordered by query tile, then by KV head. */
static item item_at(const attention_work *w, int index) {
    const bw_ctx *x = w->s.x;
    const bw_call *c = w->call;
    const bw_comp *m = w->m;
    const bw_tile tile = c->tiles[w->l->tile_size][index / m->kv_heads];
    int group = m->heads / m->kv_heads, head = index % m->kv_heads, left = c->count[tile.n] - tile.first;
    int tokens = left < 1 << w->l->tile_size ? left : 1 << w->l->tile_size, start = c->start[tile.n] + tile.first;
    long token = c->offset[tile.n] + tile.first;
    return (item){.m = m,
                  .slots = x->slots_RLP + ((long)c->row[tile.n] * x->table_layers + m->kv_layer) * x->table_pages,
                  .head = head,
                  .rows = tokens * group,
                  .group = group,
                  .start = start,
                  .low = m->window && start >= m->window ? start - m->window + 1 : 0,
                  .high = start + tokens,
                  .q = (const at *)(x->scratch + w->l->q) + ((long)head * c->tokens + token) * group * m->head_dim,
                  .to = (at *)(x->scratch + w->l->o) + token * w->l->ld_o + (long)head * group * m->head_dim,
                  .ld_to = w->l->ld_o};
}

static int attend_item(void *work, int index) {
    const attention_work *w = work;
    item t = item_at(w, index), then;
    if (index + 1 < w->items)
        then = item_at(w, index + 1);
    return attend(&t, index + 1 < w->items ? &then : NULL, w->l, &w->s);
}

static void put_item(void *work, int index) {
    const attention_work *w = work;
    const item t = item_at(w, index);
    for (int row = 0; row < t.rows; row++) {
        float share = 1.0f / w->s.total[row];
        at *to = t.to + row / t.group * t.ld_to + row % t.group * w->m->head_dim;
        const float *out = w->s.out + row * (long)w->l->padded_dim;
        for (int d = 0; d < w->m->head_dim; d += VW) {
            at part[VW];
            store_at(part, load(out + d) * share);
            memcpy(to + d, part, (w->m->head_dim - d < VW ? w->m->head_dim - d : VW) * sizeof(at));
        }
    }
}
