/* Row operations between products: embedding, norms, the sum with the hidden states. Included by body.h. */
/* A norm's parameters; the bias is a layer norm's. Weight and bias are padded with zeros to whole vectors. */
typedef struct {
    int kind;
    float eps;
    const float *weight, *bias;
} norm;

AI vf norm_in(const int floats, const void *x, int i, int n) {
    if (floats)
        return n >= VW ? load((const float *)x + i) : load_part((const float *)x + i, n);
    return n >= VW ? load_st((const st *)x + i) : load_st_part((const st *)x + i, n);
}

AI void norm_out(const int floats, void *to, int i, int n, vf v) {
    if (!floats)
        store_at((at *)to + i, v); /* products read the padding too */
    else if (n >= VW)
        store((float *)to + i, v);
    else
        store_part((float *)to + i, v, n);
}

/* Returns the sum of the squares of x - mean. */
AI float squares(const int floats, const void *x, int width, float mean) {
    vf sum = splat(0.0f);
    int whole = width / VW * VW, part = width - whole;
    for (int i = 0; i < whole; i += VW) {
        vf v = norm_in(floats, x, i, VW) - mean;
        sum = mul_add(v, v, sum);
    }
    if (part) {
        vf v = pick(lanes() < part, norm_in(floats, x, whole, part) - mean, splat(0.0f));
        sum = mul_add(v, v, sum);
    }
    return lanes_sum(sum);
}

AI float mean_of(const int floats, const void *x, int width, float *variance) {
    vf sum = splat(0.0f);
    for (int i = 0; i < width; i += VW)
        sum = sum + norm_in(floats, x, i, width - i);
    float mean = lanes_sum(sum) / width;
    *variance = squares(floats, x, width, mean) / width;
    return mean;
}

/* Norms one row: hidden states into a scratch row for products, with padding, or floats into floats, also in place. */
AI void norm_row(const int floats, const void *x, int width, const norm *g, void *to) {
    float mean = 0.0f, variance;
    if (g->kind == BW_LAYER)
        mean = mean_of(floats, x, width, &variance);
    else
        variance = squares(floats, x, width, 0.0f) / width;
    float factor = 1.0f / sqrtf(variance + g->eps);
    for (int i = 0; i < width; i += VW) {
        vf v = norm_in(floats, x, i, width - i), weight = load(g->weight + i);
        if (g->kind == BW_RMS)
            v = v * factor * weight;
        else
            v = mul_add((v - mean) * factor, weight, load(g->bias + i));
        norm_out(floats, to, i, width - i, v);
    }
}

static void norm_hidden(const st *x, int width, const norm *g, at *to) { norm_row(0, x, width, g, to); }
static void norm_floats(const float *x, int width, const norm *g, float *to) { norm_row(1, x, width, g, to); }

/* A phase over rows: `each` of them in a piece, kept in [each][ld] of the thread until they are stored. */
typedef struct {
    const bw_call *call;
    const bw_comp *m;
    const bw_layout *l;
    char *scratch, *own;
    int rows, each;
} rows_work;

typedef struct {
    int first, last;
} stretch;

static stretch rows_of(const rows_work *w, int piece) {
    int first = piece * w->each, last = first + w->each;
    return (stretch){first, last < w->rows ? last : w->rows};
}

/* Computes the input of products: normed hidden states, or the hidden states themselves if there is no norm. */
static int norm_rows(void *work, int piece) {
    const rows_work *w = work;
    const bw_comp *m = w->m;
    const norm g = {m->norm_kind, m->eps, m->norm, m->norm_bias};
    stretch s = rows_of(w, piece);
    at *to = (at *)w->own;
    for (int r = s.first; r < s.last; r++, to += w->l->ld_x) {
        const st *x = (const st *)w->call->hidden + (long)r * m->width;
        if (m->norm) {
            norm_hidden(x, m->width, &g, to);
            continue;
        }
        for (int i = 0; i < m->width; i += VW)
            store_at(to + i, norm_in(0, x, i, m->width - i));
    }
    return 1;
}

static void put_normed(void *work, int piece) {
    const rows_work *w = work;
    stretch s = rows_of(w, piece);
    memcpy((at *)(w->scratch + w->l->x) + s.first * w->l->ld_x, w->own, (s.last - s.first) * w->l->ld_x * sizeof(at));
}

/* Norms queries and keys of whole rows of qkv over all their heads. */
static int norm_whole(void *work, int piece) {
    const rows_work *w = work;
    const bw_comp *m = w->m;
    const norm gq = {m->norm_kind, m->eps, m->q_norm, NULL}, gk = {m->norm_kind, m->eps, m->k_norm, NULL};
    stretch s = rows_of(w, piece);
    float *to = (float *)w->own;
    for (int r = s.first; r < s.last; r++, to += w->l->ld_c) {
        const float *from = (const float *)(w->scratch + w->l->c) + r * w->l->ld_c;
        norm_floats(from, m->heads * m->head_dim, &gq, to);
        norm_floats(from + keys_from(m), m->kv_heads * m->head_dim, &gk, to + keys_from(m));
    }
    return 1;
}

static void put_whole(void *work, int piece) {
    const rows_work *w = work;
    const bw_comp *m = w->m;
    stretch s = rows_of(w, piece);
    const float *from = (const float *)w->own;
    for (int r = s.first; r < s.last; r++, from += w->l->ld_c) {
        float *to = (float *)(w->scratch + w->l->c) + r * w->l->ld_c;
        memcpy(to, from, m->heads * m->head_dim * sizeof *to);
        memcpy(to + keys_from(m), from + keys_from(m), m->kv_heads * m->head_dim * sizeof *to);
    }
}

/* Adds a component's output to the hidden states: normed, with the attention beside it, times the factor. */
static int add_rows(void *work, int piece) {
    const rows_work *w = work;
    const bw_comp *m = w->m;
    const norm g = {m->norm_kind, m->eps, m->post_norm, NULL};
    stretch s = rows_of(w, piece);
    float *to = (float *)w->own;
    for (int r = s.first; r < s.last; r++, to += w->l->ld_x) {
        const float *y = (const float *)(w->scratch + w->l->y) + r * w->l->ld_x;
        const float *side = (const float *)(w->scratch + w->l->side) + r * w->l->ld_x;
        const st *x = (const st *)w->call->hidden + (long)r * m->width;
        if (m->post_norm) {
            norm_floats(y, m->width, &g, to);
            y = to;
        }
        for (int i = 0; i < m->width; i += VW) {
            vf v = load(y + i);
            if (m->side)
                v = v + load(side + i);
            if (m->factor != 1.0f)
                v = v * m->factor;
            store(to + i, v + norm_in(0, x, i, m->width - i));
        }
    }
    return 1;
}

static int embed(void *work, int piece) {
    const rows_work *w = work;
    const bw_comp *m = w->m;
    stretch s = rows_of(w, piece);
    float *to = (float *)w->own;
    for (int r = s.first; r < s.last; r++, to += w->l->ld_x) {
        const st *filled = filled_of(w->call, (int)(m - w->call->comps), r, m->width);
        if (!filled && w->call->tok_id[r] == BW_VIRTUAL) { /* prefix tuning: the result is never read */
            memset(to, 0, m->width * sizeof *to);
            continue;
        }
        const st *x = filled ? filled : (const st *)m->w[0] + (long)w->call->tok_id[r] * m->width;
        float factor = filled ? 1.0f : m->factor;
        for (int i = 0; i < m->width; i += VW)
            store(to + i, norm_in(0, x, i, m->width - i) * factor);
    }
    return 1;
}

static void put_hidden(void *work, int piece) {
    const rows_work *w = work;
    stretch s = rows_of(w, piece);
    const float *from = (const float *)w->own;
    for (int r = s.first; r < s.last; r++, from += w->l->ld_x)
        put_st(from, w->m->width, (st *)w->call->hidden + (long)r * w->m->width);
}
