/* All kernels for one instruction set and one model type. The including file defines VW, BF16, DP, TILE_ROWS, SCORE_ROWS,
 * SCORE_GROUPS and the names FORWARD and HEAD. Each phase of a component ends at a barrier; between barriers threads
 * write disjoint places.
 */
#include "native.h"
#include "vec.h"

#include "gemm.h"

#include "attention.h"

#include "rows.h"

/* Rotates one head by its position; what does not turn stays. */
static void rotate(const bw_comp *m, const float *x, const float *cos, const float *sin, float *to) {
    int half = m->rotary / 2, apart = m->rope == BW_NEIGHBOURS ? 1 : half, step = m->rope == BW_NEIGHBOURS ? 2 : 1;
    for (int i = 0; i < half; i++) {
        float a = x[i * step], b = x[i * step + apart];
        to[i * step] = a * cos[i] - b * sin[i];
        to[i * step + apart] = b * cos[i] + a * sin[i];
    }
    if (m->rotary < m->head_dim)
        memcpy(to + m->rotary, x + m->rotary, (m->head_dim - m->rotary) * sizeof *x);
}

static void put_at(const float *x, int n, at *to) {
    int i = 0;
    for (; i + VW <= n; i += VW)
        store_at(to + i, load(x + i));
    if (i < n) {
        at part[VW];
        store_at(part, load_part(x + i, n - i));
        memcpy(to + i, part, (n - i) * sizeof *to);
    }
}

static void put_st(const float *x, int n, st *to) {
    int i = 0;
    for (; i + VW <= n; i += VW)
        store_st(to + i, load(x + i));
    if (i < n)
        store_st_part(to + i, load_part(x + i, n - i), n - i);
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

/* Elements of a row of qkv before its keys, and before its values. */
static long keys_from(const bw_comp *m) { return bw_round((long)m->heads * m->head_dim, BW_PANEL); }
static long values_from(const bw_comp *m) { return keys_from(m) + bw_round((long)m->kv_heads * m->head_dim, BW_PANEL); }

/* Queries and keys of whole rows, normed over all their heads, in place. */
static void norm_whole(const bw_ctx *x, const bw_comp *m, const bw_layout *l, float *c, int thread) {
    const norm gq = {m->norm_kind, m->eps, m->q_norm, NULL}, gk = {m->norm_kind, m->eps, m->k_norm, NULL};
    int rows = x->call.tokens;
    for (int r = rows * thread / x->threads; r < rows * (thread + 1) / x->threads; r++) {
        float *q = c + r * l->ld_c, *k = q + keys_from(m);
        norm_floats(q, m->heads * m->head_dim, &gq, q);
        norm_floats(k, m->kv_heads * m->head_dim, &gk, k);
    }
}

/* One head, normed by itself where the model does that, and rotated. */
static void turn(const bw_comp *m, const float *x, const float *weight, int position, float *to) {
    const norm g = {m->norm_kind, m->eps, weight, NULL};
    long row = (long)position * (m->rotary / 2);
    float normed[m->head_dim];
    if (weight && !m->qk_whole) {
        norm_floats(x, m->head_dim, &g, normed);
        x = normed;
    }
    rotate(m, x, m->cos + row, m->sin + row, to);
}

/* Queries into [KV head][token][head of the group][head_dim], keys and values into their pages. */
static void rotate_all(const bw_ctx *x, const bw_comp *m, const bw_layout *l, const float *c, at *q, int thread) {
    const bw_call *call = &x->call;
    int dim = m->head_dim, group = m->heads / m->kv_heads;
    long k0 = keys_from(m), v0 = values_from(m), all = (long)call->tokens * m->kv_heads;
    float rotated[dim];
    st key[dim], value[dim];
    for (long i = all * thread / x->threads; i < all * (thread + 1) / x->threads; i++) {
        long t = i / m->kv_heads, head = i % m->kv_heads;
        int position = x->tok_pos[t];
        const float *from = c + t * l->ld_c;
        for (long j = 0; j < group; j++) {
            turn(m, from + (head * group + j) * dim, m->q_norm, position, rotated);
            put_at(rotated, dim, q + ((head * call->tokens + t) * group + j) * dim);
        }
        turn(m, from + k0 + head * dim, m->k_norm, position, rotated);
        put_st(rotated, dim, key);
        put_st(from + v0 + head * dim, dim, value);
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

static int tile_tokens(const bw_ctx *x, const bw_layout *l, const cursor *at) {
    int left = x->call.count[at->n] - at->first;
    return left < l->tile_tokens ? left : l->tile_tokens;
}

static int item_low(const bw_call *c, const bw_comp *m, const cursor *at) {
    int start = c->start[at->n] + at->first;
    return m->window && start >= m->window ? start - m->window + 1 : 0;
}

/* Moves on to the next item; 0 at the end. A fresh cursor has first = -1. */
static int advance(const bw_ctx *x, const bw_comp *m, const bw_layout *l, cursor *at) {
    const bw_call *c = &x->call;
    if (at->first < 0) {
        at->first = 0;
    } else {
        int tokens = tile_tokens(x, l, at), high = c->start[at->n] + at->first + tokens;
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
    int group = m->heads / m->kv_heads, tokens = tile_tokens(x, l, i), start = c->start[i->n] + i->first;
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
    space s = {.scores = (float *)(mine + l->scores), .out = (float *)(mine + l->out), .top = (float *)(mine + l->top),
               .total = (float *)(mine + l->total_seen), .weights = (at *)(mine + l->weights),
               .gather_k = (uint32_t *)(mine + l->gather_k), .gather_v = (uint32_t *)(mine + l->gather_v)};
    cursor i = {.first = -1}, all = i;
    while (advance(x, m, l, &all))
        ;
    item items[2];
    int found = 0;
    while (advance(x, m, l, &i)) {
        if (i.cost * x->threads / all.cost != thread)
            continue;
        items[found % 2] = item_at(x, m, l, &i, q, to);
        if (found++)
            attend(&items[found % 2], &items[(found - 1) % 2], l, &s);
    }
    if (found)
        attend(&items[(found - 1) % 2], NULL, l, &s);
}

/* The last product of a component and the sum with the hidden states; o [tokens][width] is its left side. */
static void project(bw_ctx *x, const bw_comp *m, const bw_layout *l, const at *o, long width, int thread) {
    int rows = x->call.tokens;
    product out = {.x = o, .ld_x = l->ld_o, .w = m->w1, .bias = m->b1, .units = (width + KS - 1) / KS, .rows = rows,
                   .to = x->call.hidden, .ld_to = m->width, .columns = m->width};
    if (bw_plain(m)) {
        multiply(&out, TO_RESIDUAL, thread, x->threads);
        bw_barrier(x);
        return;
    }
    out.to = x->scratch + (m->side == BW_KEEP ? l->side : l->y);
    out.ld_to = l->ld_x;
    multiply(&out, TO_FLOAT, thread, x->threads);
    bw_barrier(x);
    if (m->side == BW_KEEP)
        return;
    add_rows(x, m, l, thread);
    bw_barrier(x);
}

static void attention(bw_ctx *x, const bw_comp *m, int thread) {
    bw_layout l = bw_scratch_layout(m, x->max_tokens, x->threads);
    at *normed = (at *)(x->scratch + l.x), *q = (at *)(x->scratch + l.q), *o = (at *)(x->scratch + l.o);
    float *c = (float *)(x->scratch + l.c);
    int rows = x->call.tokens;
    norm_rows(x->call.hidden, m, rows, normed, l.ld_x, thread, x->threads);
    bw_barrier(x);
    long columns = values_from(m) + bw_round((long)m->kv_heads * m->head_dim, BW_PANEL);
    product qkv = {.x = normed, .ld_x = l.ld_x, .w = m->w0, .bias = m->b0, .units = (m->width + KS - 1) / KS, .rows = rows,
                   .to = c, .ld_to = l.ld_c, .columns = (int)columns};
    multiply(&qkv, TO_FLOAT, thread, x->threads);
    bw_barrier(x);
    if (m->qk_whole) {
        norm_whole(x, m, &l, c, thread);
        bw_barrier(x);
    }
    rotate_all(x, m, &l, c, q, thread);
    bw_barrier(x);
    attend_all(x, m, &l, q, o, thread);
    bw_barrier(x);
    project(x, m, &l, o, (long)m->heads * m->head_dim, thread);
}

static void feed_forward(bw_ctx *x, const bw_comp *m, int thread) {
    bw_layout l = bw_scratch_layout(m, x->max_tokens, x->threads);
    at *normed = (at *)(x->scratch + l.x), *o = (at *)(x->scratch + l.o);
    int rows = x->call.tokens;
    norm_rows(x->call.hidden, m, rows, normed, l.ld_x, thread, x->threads);
    bw_barrier(x);
    product up = {.x = normed, .ld_x = l.ld_x, .w = m->w0, .bias = m->b0, .units = (m->width + KS - 1) / KS, .rows = rows,
                  .to = o, .ld_to = l.ld_o, .columns = m->inner, .activation = m->activation};
    if (m->gated)
        multiply(&up, TO_GATED, thread, x->threads);
    else
        multiply(&up, TO_ACTIVATED, thread, x->threads);
    bw_barrier(x);
    project(x, m, &l, o, m->inner, thread);
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

/* Divides and caps the columns that this thread has computed. */
static void finish_logits(const bw_ctx *x, const bw_comp *m, int thread) {
    long panels = bw_round(m->inner, BW_PANEL) / BW_PANEL;
    long first = panels * thread / x->threads * BW_PANEL, last = panels * (thread + 1) / x->threads * BW_PANEL;
    for (int r = 0; r < x->call.rows; r++) {
        float *row = x->call.logits + (long)r * m->inner;
        for (long i = first; i < last && i < m->inner; i += VW) {
            int n = m->inner - i < VW ? (int)(m->inner - i) : VW;
            vf v = load_part(row + i, n);
            if (m->factor != 1.0f)
                v = v / m->factor;
            if (m->softcap)
                v = vtanh(v / m->softcap) * m->softcap;
            store_part(row + i, v, n);
        }
    }
}

static void head(bw_ctx *x, int thread) {
    const bw_comp *m = x->call.comps;
    bw_layout l = bw_scratch_layout(m, x->max_tokens, x->threads);
    at *normed = (at *)(x->scratch + l.x);
    norm_rows(x->call.hidden, m, x->call.rows, normed, l.ld_x, thread, x->threads);
    bw_barrier(x);
    product out = {.x = normed, .ld_x = l.ld_x, .w = m->w0, .units = (m->width + KS - 1) / KS, .rows = x->call.rows,
                   .to = x->call.logits, .ld_to = m->inner, .columns = m->inner};
    multiply(&out, TO_FLOAT, thread, x->threads);
    if (m->factor != 1.0f || m->softcap)
        finish_logits(x, m, thread);
}

const bw_kernels KERNELS = {NAME, forward, head};
