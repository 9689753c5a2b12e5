/* Paged attention of one item: some query tokens of a batch row, and the query heads of one KV head. Included by body.h.
 *
 * Positions are cut into pieces at absolute limits: in a piece all scores, one maximum, one pass of exp, one
 * product with V; pieces are merged in ascending order. A position outside a row's range has weight exactly zero, so a
 * row's bits do not depend on the other rows of its tile, on chunking, or on what lies in unused places. In bfloat16 they
 * are those of torch, whose order of sums follows from how many queries and keys a call has: for a token of the prompt the
 * whole prompt at once, for one behind it that token alone, whose pieces begin where its window does.
 */
#include "tiles.h"

#include "softmax.h"

#define FEW_ROWS 4     /* with fewer queries, or with fewer keys, scores are summed by lanes */
#define FEW_COLUMNS 12 /* keys, or elements of a head */
#define LONG_SUM 192 /* terms; what is longer is summed in stretches of at most as many, where there are not few queries */

typedef struct {
    const bw_comp *m;
    const int32_t *slots; /* of this batch row and KV layer */
    int head, rows, group;
    int start;     /* position of the first query token */
    int low, high; /* positions that any of the rows sees */
    int end;       /* positions of the prompt, or for a token behind it those up to itself */
    int tail;      /* the last of these, fewer than a vector: torch takes their e^x one by one; bfloat16, as what follows */
    int origin;    /* position of the first key of torch's call */
    int call;      /* query tokens of that call: the prompt, or one */
    int together;  /* rows that it multiplies at once: query tokens, or the heads of a group where a window is full */
    const at *q;   /* [rows][head_dim], query tokens x heads of the group */
    at *to;        /* output of the first row; rows of a token lie head_dim apart, tokens ld_to */
    long ld_to;
} item;

typedef struct {
    float *scores, *out, *part, *stretch; /* [rows][LINE]; [rows][padded head_dim] three times */
    float *top, *total;         /* [rows]: maximum and sum so far; total 0: nothing seen yet */
    at *weights;                /* [rows][LINE] */
    uint32_t *gather_k, *gather_v;
} space;

/* Scores become cap * tanh(score * scale / cap), rounded after each operation, as transformers has them. */
static void cap_row(float *scores, int first, int last, float scale, float cap) {
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW) {
        vf score = rounded(rounded(rounded(load(scores + c)) * scale) / cap);
        store(scores + c, rounded(rounded(vtanh(score)) * cap));
    }
}

/* Of a position: which half of its unit of values. */
AI int place_of(const bw_comp *m, int position) { return m->softcap ? position % KS : place_in_unit(position); }

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
                ((st *)v)[c / KS * KS * padded + d * KS + place_of(m, c)] = row[d];
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
    for (int i = 0; i < 2; i++)
        g->half[i] = place_of(m, i) ? 0xffff0000u : 0xffffu;
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

/* Terms of a sum that torch takes by themselves. */
static int stretch_of(int terms) { return terms <= LONG_SUM ? terms : terms <= 2 * LONG_SUM ? terms / 2 : LONG_SUM; }

static void score_piece(const item *t, const space *s, const groups *g, int first, int last, int by_lanes) {
    long dim = t->m->head_dim, stretch = (BF16 && !t->m->softcap ? stretch_of((int)dim) : dim) / KS;
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
            float *scores = s->scores + row * LINE + i * BW_GROUP;
            if (by_lanes)
                score_few(n, t->q + row * dim, dim, k, scores, ahead);
            else
                score_any(n, t->q + row * dim, dim, stretch, k, scores, ahead);
        }
    }
}

/* part[rows][padded head_dim] += weights times V over columns c0..c1 of a piece. */
static void value_columns(const item *t, const bw_layout *l, const space *s, const groups *g, int c0, int c1, float *part) {
    int alone = BF16 && t->together == 1 && !t->m->softcap, most = alone ? LANE_ROWS : SCORE_ROWS;
    int first = c0 / BW_GROUP, last = (c1 - 1) / BW_GROUP, tail = c1 - last * BW_GROUP;
    for (int row = 0; row < t->rows; row += most) {
        int n = t->rows - row < most ? t->rows - row : most;
        const at *w = s->weights + row * LINE;
        float *to = part + row * (long)l->padded_dim;
        for (int c = 0; c < l->padded_dim;) {
#if VW == 16
            if (l->padded_dim - c >= 64) {
                value_any_64(n, alone, w, g, first, last, tail, c, to + c, l->padded_dim);
                c += 64;
                continue;
            }
            if (l->padded_dim - c >= 32) {
                value_any_32(n, alone, w, g, first, last, tail, c, to + c, l->padded_dim);
                c += 32;
                continue;
            }
#endif
            value_any_16(n, alone, w, g, first, last, tail, c, to + c, l->padded_dim);
            c += 16;
        }
    }
}

static void clear_rows(const item *t, const bw_layout *l, float *rows) {
    memset(rows, 0, t->rows * l->padded_dim * sizeof *rows);
}

#if BF16
static void add_rows_to(const item *t, const bw_layout *l, const float *rows, float *to) {
    for (long d = 0; d < t->rows * l->padded_dim; d += VW)
        store(to + d, load(to + d) + load(rows + d));
}

/* out += weights times V over a whole piece, in stretches that are summed by themselves where torch has many queries and
 * keys; `keys` are the piece's in that call, of which the columns first..c1 were computed. */
static void value_piece(const item *t, const bw_layout *l, const space *s, const groups *g, int first, int c1, int keys) {
    int length = t->together >= FEW_ROWS ? stretch_of(keys) : keys;
    if (t->together == 1 || t->m->head_dim < FEW_COLUMNS) { /* their sums go on */
        value_columns(t, l, s, g, first * BW_GROUP, c1, s->out);
        return;
    }
    for (int c0 = first * BW_GROUP, end; c0 < c1; c0 = end) {
        end = g->from + ((c0 - g->from) / length + 1) * length;
        end = end < c1 ? end : c1;
        for (int row = 0; row < t->rows; row++)
            for (int c = c0 / BW_GROUP * BW_GROUP; c < c0; c++) /* these were in the stretch before */
                s->weights[row * LINE + (c ^ DP)] = 0;
        clear_rows(t, l, s->stretch);
        value_columns(t, l, s, g, c0, end, s->stretch);
        add_rows_to(t, l, s->stretch, s->out);
    }
}

/* Weighs what a row has so far by e^(its maximum - the common one), and adds `more` to the sum of its weights. */
static void weigh_row(float *out, int width, float *top, float *total, float most, float more) {
    float old = *total == 0.0f ? 0.0f : vexp_exact(splat(*top - most))[0];
    for (int d = 0; d < width; d += VW)
        store(out + d, *total == 0.0f ? splat(0.0f) : product_of(load(out + d), splat(old)));
    *top = most;
    *total = fmaf(*total, old, more);
}
#else
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
#endif

/* Positions low..high, which are taken at once, in columns from position `base` on; of torch's call the first key is in
 * column `from`, and `keys` are in this piece. */
typedef struct {
    int base, low, high, from, keys;
} piece;

static piece piece_at(const item *t, int low) {
    int shifted = BF16 && t->origin, unit = shifted ? BW_GROUP : PIECE;
    int base = low / unit * unit, begin = shifted ? low : base, high = begin + PIECE, keys = t->end - begin;
    return (piece){base, low, high < t->high ? high : t->high, begin - base, keys < PIECE ? keys : PIECE};
}

/* The positions of a piece that a row sees, as columns. */
typedef struct {
    int from, to;
} span;

static span seen_by(const item *t, int row, const piece *p) {
    int position = t->start + row / t->group, window = t->m->window;
    int from = window && position >= window ? position - window + 1 : 0;
    return (span){(from > p->low ? from : p->low) - p->base, (position + 1 < p->high ? position + 1 : p->high) - p->base};
}

/* Finds the groups of a piece, and those that are needed next. */
static void open_piece(const item *t, const item *then, const bw_layout *l, const space *s, const piece *p, groups *g) {
    int last = (p->high - 1 - p->base) / BW_GROUP;
    find_groups(t, l, s, p->base, p->low, p->high, g);
    g->from = p->from;
    if (p->high < t->high)
        peek(t, l, p->high, g, last);
    else
        peek(then, l, then ? then->low : 0, g, last);
}

static void put_rows(const item *t, const bw_layout *l, const space *s) {
    const bw_comp *m = t->m;
    for (int row = 0; row < t->rows; row++) {
        at *to = t->to + row / t->group * t->ld_to + row % t->group * m->head_dim;
        const float *out = s->out + row * (long)l->padded_dim;
        for (int d = 0; d < m->head_dim; d += VW) {
            at part[VW];
            store_at(part, share_of(load(out + d), s->total[row]));
            memcpy(to + d, part, (m->head_dim - d < VW ? m->head_dim - d : VW) * sizeof(at));
        }
    }
}

#if BF16
#include "capped.h"
#endif

/* One item; `then` is the item that this thread does next, or null. */
static void attend(const item *t, const item *then, const bw_layout *l, const space *s) {
    const bw_comp *m = t->m;
#if BF16
    if (m->softcap) {
        attend_capped(t, then, l, s);
        return;
    }
#endif
    for (int row = 0; row < t->rows; row++)
        s->total[row] = 0.0f;
    for (int low = t->low; low < t->high;) {
        piece p = piece_at(t, low);
        int first = (p.low - p.base) / BW_GROUP, last = (p.high - 1 - p.base) / BW_GROUP;
        groups g;
        float top[t->rows], total[t->rows];
        low = p.high;
        open_piece(t, then, l, s, &p, &g);
        score_piece(t, s, &g, first, last, BF16 && (t->together < FEW_ROWS || p.keys < FEW_COLUMNS));
        for (int row = 0; row < t->rows; row++) {
            span seen = seen_by(t, row, &p);
            if (m->softcap)
                cap_row(s->scores + row * LINE, first, last, m->scale, m->softcap);
            top[row] = s->total[row] == 0.0f ? -INFINITY : s->top[row];
            softmax_row(s->scores + row * LINE, s->weights + row * LINE, first, last, seen.from, seen.to, p.from,
                        t->tail - p.base, m->softcap ? 1.0f : m->scale, top + row, total + row);
        }
#if BF16
        for (int row = 0; row < t->rows; row++) {
            weigh_row(s->out + row * (long)l->padded_dim, l->padded_dim, s->top + row, s->total + row, top[row], total[row]);
        }
        value_piece(t, l, s, &g, first, p.high - p.base, p.keys);
#else
        clear_rows(t, l, s->part);
        value_columns(t, l, s, &g, first * BW_GROUP, p.high - p.base, s->part);
        for (int row = 0; row < t->rows; row++)
            if (total[row] != 0.0f)
                merge_row(s->out + row * (long)l->padded_dim, s->part + row * (long)l->padded_dim, l->padded_dim,
                          s->top + row, s->total + row, top[row], total[row]);
#endif
    }
    put_rows(t, l, s);
}
