/* All kernels for one instruction set and one model type. The including file defines VW, BF16, DP, TILE_ROWS, SCORE_ROWS,
 * SCORE_GROUPS and the names FORWARD and HEAD. Each phase of a component ends at a barrier; between barriers threads
 * write disjoint places.
 */
#include "native.h"
#include "vec.h"

#include "gemm.h"

#include "attention.h"

/* RMS norm of one row into a scratch row, with the padding that products read set to zero. */
static void norm_row(const st *x, const float *weight, int width, float eps, at *to) {
    vf sum = splat(0.0f);
    int whole = width / VW * VW, part = width - whole;
    for (int i = 0; i < whole; i += VW) {
        vf v = load_st(x + i);
        sum = v * v + sum;
    }
    if (part) {
        vf v = load_st_part(x + whole, part);
        sum = v * v + sum;
    }
    float factor = 1.0f / sqrtf(lanes_sum(sum) / width + eps);
    for (int i = 0; i < whole; i += VW)
        store_at(to + i, rounded(load_st(x + i) * factor) * load(weight + i));
    if (part)
        store_at(to + whole, rounded(load_st_part(x + whole, part) * factor) * load(weight + whole));
}

static void norm_rows(const void *hidden, const bw_comp *m, int rows, at *to, long ld, int thread, int threads) {
    for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++)
        norm_row((const st *)hidden + (long)r * m->width, m->norm, m->width, m->eps, to + r * ld);
}

static void embed(const bw_ctx *x, const bw_comp *m, int thread) {
    const bw_call *c = &x->call;
    size_t bytes = m->width * sizeof(st);
    for (int t = c->tokens * thread / x->threads; t < c->tokens * (thread + 1) / x->threads; t++) {
        int32_t token = x->tokens_RM[(long)c->row[x->tok_batch[t]] * x->table_length + x->tok_pos[t]];
        memcpy((char *)c->hidden + t * bytes, (const char *)m->w0 + token * bytes, bytes);
    }
}

/* Rotates one head by its position: the halves are the coordinates of the pairs. */
static void rotate(const float *x, const float *cos, const float *sin, int half, float *to) {
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        to[i] = rounded1(a * cos[i]) - rounded1(b * sin[i]);
        to[half + i] = rounded1(b * cos[i]) + rounded1(a * sin[i]);
    }
}

static void round_at(const float *x, int n, at *to) {
    int i = 0;
    for (; i + VW <= n; i += VW)
        store_at(to + i, load(x + i));
    for (; i < n; i++) {
        at lanes[VW];
        store_at(lanes, splat(x[i]));
        to[i] = lanes[0];
    }
}

static void round_st(const float *x, int n, st *to) {
    int i = 0;
    for (; i + VW <= n; i += VW)
        store_st(to + i, load(x + i));
    if (i < n) {
        float rest[VW] = {0};
        memcpy(rest, x + i, (n - i) * sizeof *x);
        store_st_part(to + i, load(rest), n - i);
    }
}

/* Stores key and value of one position of one KV head. Elements are written one by one where two positions share a unit:
 * they may belong to different threads. */
static void write_kv(const bw_comp *m, const bw_layout *l, const int32_t *slots, int position, int head, const st *k,
                     const st *v) {
    long dim = m->head_dim, page = m->page_size * dim;
    int place = position % m->page_size;
    st *keys = (st *)(m->arena + slots[position / m->page_size] * m->slot_bytes) + head * 2 * page, *values = keys + page;
    if (!l->direct) {
        memcpy(keys + place * dim, k, dim * sizeof(st));
        memcpy(values + place * dim, v, dim * sizeof(st));
        return;
    }
    u32 *units = (u32 *)(keys + place / BW_GROUP * BW_GROUP * dim) + place % BW_GROUP;
    for (long d = 0; d < dim / KS; d++)
        units[d * BW_GROUP] = ((const u32 *)k)[d];
    values += place / KS * KS * dim + place % KS;
    for (long d = 0; d < dim; d++)
        values[d * KS] = v[d];
}

/* Queries into [KV head][token][head of the group][head_dim], keys and values into their pages. */
static void rotate_all(const bw_ctx *x, const bw_comp *m, const bw_layout *l, const float *c, at *q, int thread) {
    const bw_call *call = &x->call;
    int dim = m->head_dim, half = dim / 2, group = m->heads / m->kv_heads;
    long k0 = bw_round((long)m->heads * dim, BW_PANEL), v0 = k0 + bw_round((long)m->kv_heads * dim, BW_PANEL);
    long all = (long)call->tokens * m->kv_heads;
    float rotated[dim];
    st key[dim], value[dim];
    for (long i = all * thread / x->threads; i < all * (thread + 1) / x->threads; i++) {
        long t = i / m->kv_heads, head = i % m->kv_heads;
        int position = x->tok_pos[t];
        const float *from = c + t * l->ld_c, *cos = m->cos + (long)position * half, *sin = m->sin + (long)position * half;
        for (long j = 0; j < group; j++) {
            rotate(from + (head * group + j) * dim, cos, sin, half, rotated);
            round_at(rotated, dim, q + ((head * call->tokens + t) * group + j) * dim);
        }
        rotate(from + k0 + head * dim, cos, sin, half, rotated);
        round_st(rotated, dim, key);
        round_st(from + v0 + head * dim, dim, value);
        const int32_t *slots = x->slots_RLP +
                               ((long)call->row[x->tok_batch[t]] * x->table_layers + m->kv_layer) * x->table_pages;
        write_kv(m, l, slots, position, (int)head, key, value);
    }
}

/* Walks over items: by batch row, query tile, KV head. `cost` grows by each item's estimated work. */
typedef struct {
    int n, first, head, token; /* batch row, first query token in it, KV head; rows of hidden states before the batch row */
    int64_t cost;
} cursor;

static int tile_tokens(const bw_call *c, const bw_layout *l, const cursor *at) {
    int left = c->count[at->n] - at->first;
    return left < l->tile_tokens ? left : l->tile_tokens;
}

static int item_low(const bw_call *c, const bw_comp *m, const cursor *at) {
    int start = c->start[at->n] + at->first;
    return m->window && start >= m->window ? start - m->window + 1 : 0;
}

/* Moves on to the next item; 0 at the end. A fresh cursor has first = -1. */
static int advance(const bw_call *c, const bw_comp *m, const bw_layout *l, cursor *at) {
    if (at->first < 0) {
        at->first = 0;
    } else {
        int tokens = tile_tokens(c, l, at), high = c->start[at->n] + at->first + tokens;
        at->cost += (int64_t)(high - item_low(c, m, at) + BW_GROUP) * (tokens + 1);
        if (++at->head < m->kv_heads)
            return 1;
        at->head = 0;
        at->first += tokens;
    }
    for (; at->n < c->rows && at->first >= c->count[at->n]; at->n++, at->first = 0)
        at->token += c->count[at->n];
    return at->n < c->rows;
}

static item item_at(const bw_ctx *x, const bw_comp *m, const bw_layout *l, const cursor *i, const at *q, at *to) {
    const bw_call *c = &x->call;
    int group = m->heads / m->kv_heads, tokens = tile_tokens(c, l, i), start = c->start[i->n] + i->first;
    long token = i->token + i->first;
    return (item){.m = m,
                  .slots = x->slots_RLP + ((long)c->row[i->n] * x->table_layers + m->kv_layer) * x->table_pages,
                  .head = i->head,
                  .rows = tokens * group,
                  .group = group,
                  .start = start,
                  .low = item_low(c, m, i),
                  .high = start + tokens,
                  .q = q + ((long)i->head * c->tokens + token) * group * m->head_dim,
                  .to = to + token * l->ld_o + (long)i->head * group * m->head_dim,
                  .ld_to = l->ld_o};
}

/* Each thread takes a stretch of items of about equal cost. */
static void attend_all(const bw_ctx *x, const bw_comp *m, const bw_layout *l, const at *q, at *to, int thread) {
    char *mine = x->scratch + l->thread + thread * l->thread_bytes;
    space s = {(float *)(mine + l->scores),      (float *)(mine + l->out),        (float *)(mine + l->part),
               (float *)(mine + l->top),         (float *)(mine + l->total_seen), (at *)(mine + l->weights),
               (uint32_t *)(mine + l->gather_k), (uint32_t *)(mine + l->gather_v)};
    cursor i = {.first = -1}, all = i;
    while (advance(&x->call, m, l, &all))
        ;
    item items[2];
    int found = 0;
    while (advance(&x->call, m, l, &i)) {
        if (i.cost * x->threads / all.cost != thread)
            continue;
        items[found % 2] = item_at(x, m, l, &i, q, to);
        if (found++)
            attend(&items[found % 2], &items[(found - 1) % 2], l, &s);
    }
    if (found)
        attend(&items[(found - 1) % 2], NULL, l, &s);
}

static void attention(bw_ctx *x, const bw_comp *m, int thread) {
    bw_layout l = bw_scratch_layout(m, sizeof(st), x->max_tokens, x->threads);
    at *normed = (at *)(x->scratch + l.x), *q = (at *)(x->scratch + l.q), *o = (at *)(x->scratch + l.o);
    float *c = (float *)(x->scratch + l.c);
    int rows = x->call.tokens;
    norm_rows(x->call.hidden, m, rows, normed, l.ld_x, thread, x->threads);
    bw_barrier(x);
    long inner = (long)m->heads * m->head_dim;
    long columns = bw_round(inner, BW_PANEL) + 2 * bw_round((long)m->kv_heads * m->head_dim, BW_PANEL);
    product qkv = {normed, m->w0, m->b0, c, l.ld_x, (m->width + KS - 1) / KS, l.ld_c, rows, (int)columns};
    multiply(&qkv, TO_FLOAT, thread, x->threads);
    bw_barrier(x);
    rotate_all(x, m, &l, c, q, thread);
    bw_barrier(x);
    attend_all(x, m, &l, q, o, thread);
    bw_barrier(x);
    product out = {o, m->w1, m->b1, x->call.hidden, l.ld_o, inner / KS, m->width, rows, m->width};
    multiply(&out, TO_RESIDUAL, thread, x->threads);
    bw_barrier(x);
}

static void feed_forward(bw_ctx *x, const bw_comp *m, int thread) {
    bw_layout l = bw_scratch_layout(m, sizeof(st), x->max_tokens, x->threads);
    at *normed = (at *)(x->scratch + l.x), *o = (at *)(x->scratch + l.o);
    int rows = x->call.tokens;
    norm_rows(x->call.hidden, m, rows, normed, l.ld_x, thread, x->threads);
    bw_barrier(x);
    product gated = {normed, m->w0, m->b0, o, l.ld_x, (m->width + KS - 1) / KS, l.ld_o, rows, m->inner};
    multiply(&gated, TO_GATED, thread, x->threads);
    bw_barrier(x);
    product down = {o, m->w1, m->b1, x->call.hidden, l.ld_o, (m->inner + KS - 1) / KS, m->width, rows, m->width};
    multiply(&down, TO_RESIDUAL, thread, x->threads);
    bw_barrier(x);
}

static void forward(bw_ctx *x, int thread) {
    for (int i = 0; i < x->call.n_comps; i++) {
        const bw_comp *m = x->call.comps + i;
        if (m->kind == BW_ATTENTION)
            attention(x, m, thread);
        else if (m->kind == BW_MLP)
            feed_forward(x, m, thread);
        else {
            embed(x, m, thread);
            bw_barrier(x);
        }
    }
}

static void head(bw_ctx *x, int thread) {
    const bw_comp *m = x->call.comps;
    bw_layout l = bw_scratch_layout(m, sizeof(st), x->max_tokens, x->threads);
    at *normed = (at *)(x->scratch + l.x);
    norm_rows(x->call.hidden, m, x->call.rows, normed, l.ld_x, thread, x->threads);
    bw_barrier(x);
    product out = {normed, m->w0, NULL, x->call.logits, l.ld_x, (m->width + KS - 1) / KS, m->inner, x->call.rows, m->inner};
    multiply(&out, TO_FLOAT, thread, x->threads);
}

const bw_kernels KERNELS = {NAME, forward, head};
