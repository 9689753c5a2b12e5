/* What is done to whole rows between products: embedding, norms, the sum with the hidden states. Included by body.h. */
/* A norm's numbers; the bias is a layer norm's. Weight and bias are padded with zeros to whole vectors. */
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

/* Sum of the squares of x - mean. */
AI float squares(const int floats, const void *x, int width, float mean) {
    vf sum = splat(0.0f);
    int whole = width / VW * VW, part = width - whole;
    for (int i = 0; i < whole; i += VW) {
        vf v = norm_in(floats, x, i, VW) - mean;
        sum = v * v + sum;
    }
    if (part) {
        vf v = pick(lanes() < part, norm_in(floats, x, whole, part) - mean, splat(0.0f));
        sum = v * v + sum;
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

/* Norm of one row: hidden states into a scratch row for products, with padding, or floats into floats, also in place. */
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
            v = (v - mean) * factor * weight + load(g->bias + i);
        norm_out(floats, to, i, width - i, v);
    }
}

static void norm_hidden(const st *x, int width, const norm *g, at *to) { norm_row(0, x, width, g, to); }
static void norm_floats(const float *x, int width, const norm *g, float *to) { norm_row(1, x, width, g, to); }

/* What products read: normed hidden states, or the hidden states themselves where there is no norm. */
static void norm_rows(const void *hidden, const bw_comp *m, int rows, at *to, long ld, int thread, int threads) {
    const norm g = {m->norm_kind, m->eps, m->norm, m->norm_bias};
    for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++) {
        const st *x = (const st *)hidden + (long)r * m->width;
        if (m->norm) {
            norm_hidden(x, m->width, &g, to + r * ld);
            continue;
        }
        for (int i = 0; i < m->width; i += VW)
            store_at(to + r * ld + i, norm_in(0, x, i, m->width - i));
    }
}

/* Adds what a component computed to the hidden states: normed, with the attention beside it, times the factor. */
static void add_rows(const bw_ctx *x, const bw_comp *m, const bw_layout *l, int thread) {
    const norm g = {m->norm_kind, m->eps, m->post_norm, NULL};
    int rows = x->call.tokens;
    for (int r = rows * thread / x->threads; r < rows * (thread + 1) / x->threads; r++) {
        float *y = (float *)(x->scratch + l->y) + r * l->ld_x;
        const float *side = (const float *)(x->scratch + l->side) + r * l->ld_x;
        st *to = (st *)x->call.hidden + (long)r * m->width;
        if (m->post_norm)
            norm_floats(y, m->width, &g, y);
        for (int i = 0; i < m->width; i += VW) {
            int n = m->width - i;
            vf v = load(y + i);
            if (m->side)
                v = v + load(side + i);
            if (m->factor != 1.0f)
                v = v * m->factor;
            if (n >= VW)
                store_st(to + i, v + load_st(to + i));
            else
                store_st_part(to + i, v + load_st_part(to + i, n), n);
        }
    }
}

static void embed(const bw_ctx *x, const bw_comp *m, int thread) {
    const bw_call *c = &x->call;
    size_t bytes = m->width * sizeof(st);
    for (int t = c->tokens * thread / x->threads; t < c->tokens * (thread + 1) / x->threads; t++) {
        int32_t token = x->tokens_RM[(long)c->row[x->tok_batch[t]] * x->table_length + x->tok_pos[t]];
        st *to = (st *)((char *)c->hidden + t * bytes);
        memcpy(to, (const char *)m->w0 + token * bytes, bytes);
        if (m->factor == 1.0f)
            continue;
        for (int i = 0; i < m->width; i += VW) {
            int n = m->width - i < VW ? m->width - i : VW;
            store_st_part(to + i, load_st_part(to + i, n) * m->factor, n);
        }
    }
}
