/* Rotary embedding of queries and keys, and storage of keys and values. Included by body.h. */
#define HEADS_TOGETHER 4 /* least number of KV heads (of tokens) that are rotated at once */

AI void rotate_as(const int step, const float *x, const float *cos, const float *sin, int half, int apart, float *to) {
    for (int i = 0; i < half; i++) {
        float a = x[i * step], b = x[i * step + apart];
        to[i * step] = mul_add1(a, cos[i], -(b * sin[i]));
        to[i * step + apart] = mul_add1(b, cos[i], a * sin[i]);
    }
}

/* Rotates one head by its position; the other elements stay unchanged. */
static void rotate(const bw_comp *m, const float *x, const float *cos, const float *sin, float *to) {
    int half = m->rotary / 2;
    if (m->rope == BW_NEIGHBOURS)
        rotate_as(2, x, cos, sin, half, 1, to);
    else
        rotate_as(1, x, cos, sin, half, half, to);
    if (m->rotary < m->head_dim)
        memcpy(to + m->rotary, x + m->rotary, (m->head_dim - m->rotary) * sizeof *x);
}

/* Norms one head, if the model norms each head by itself, and rotates it. */
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


/* Elements that a piece keeps for a token and KV head: the queries of its group, then key and value. */
static long head_elements(const bw_comp *m) { return (m->heads / m->kv_heads + 2l) * m->head_dim; }

/* Returns the number of (token, KV head) pairs in a piece. */
static long heads_together(const bw_ctx *x, const bw_comp *m, long tokens) {
    long most = BW_OWN / (4 * head_elements(m)), each = tokens * m->kv_heads / (2 * x->threads);
    each = each > HEADS_TOGETHER ? each : HEADS_TOGETHER;
    return each < most ? each : most;
}

typedef struct {
    const bw_ctx *x;
    const bw_call *call;
    const bw_comp *m;
    const bw_layout *l;
    char *own; /* [each][queries as `at`, key and value as `st`], each in the space of floats */
    int each, items;
} rotary_work;

static int rotate_heads(void *work, int piece) {
    const rotary_work *w = work;
    const bw_comp *m = w->m;
    int dim = m->head_dim, group = m->heads / m->kv_heads;
    float rotated[dim];
    char *own = w->own;
    for (long i = (long)piece * w->each; i < (piece + 1l) * w->each && i < w->items; i++, own += 4 * head_elements(m)) {
        long t = i / m->kv_heads, head = i % m->kv_heads;
        int position = w->call->tok_pos[t];
        const float *from = (const float *)(w->x->scratch + w->l->c) + t * w->l->ld_c;
        st *key = (st *)(own + 4l * group * dim);
        for (long j = 0; j < group; j++) {
            turn(m, from + (head * group + j) * dim, m->q_norm, position, rotated);
            put_at(rotated, dim, (at *)own + j * dim);
        }
        const st *filled = filled_of(w->call, (int)(m - w->call->comps), t, 2l * m->kv_heads * dim);
        if (filled) {
            memcpy(key, filled + head * 2 * dim, 2 * dim * sizeof *key);
            continue;
        }
        turn(m, from + keys_from(m) + head * dim, m->k_norm, position, rotated);
        put_st(rotated, dim, key);
        put_st(from + values_from(m) + head * dim, dim, key + dim);
    }
    return 1;
}

/* Stores key and value of one position of one KV head. Elements are written one by one if two positions share a unit,
 * because these may belong to different threads. */
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

/* Stores queries as [KV head][token][head of the group][head_dim], keys and values in their pages. */
static void put_heads(void *work, int piece) {
    const rotary_work *w = work;
    const bw_ctx *x = w->x;
    const bw_comp *m = w->m;
    long dim = m->head_dim, group = m->heads / m->kv_heads;
    at *q = (at *)(x->scratch + w->l->q);
    const char *own = w->own;
    for (long i = (long)piece * w->each; i < (piece + 1l) * w->each && i < w->items; i++, own += 4 * head_elements(m)) {
        long t = i / m->kv_heads, head = i % m->kv_heads;
        const st *key = (const st *)(own + 4 * group * dim);
        long row = w->call->row[w->call->tok_batch[t]];
        memcpy(q + (head * w->call->tokens + t) * group * dim, own, group * dim * sizeof *q);
        write_kv(m, w->l, x->slots_RLP + (row * x->table_layers + m->kv_layer) * x->table_pages, w->call->tok_pos[t], (int)head,
                 key, key + dim);
    }
}
