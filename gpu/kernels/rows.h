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
        store((float *)to + i, rounded(v));
    else
        store_part((float *)to + i, rounded(v), n);
}

/* Sum of the squares of x - mean. */
#if BF16
#define CHAINS 32   /* elements side by side: four vectors of 8 lanes each, as torch has them */
#define STRETCH 512 /* elements summed by themselves before they are added to the others */

AI float squares(const int floats, const void *x, int width, float mean) {
    vf sum[CHAINS / VW] = {0};
    float chain[CHAINS], all = 0.0f;
    int i = 0, whole = width / CHAINS * CHAINS;
    while (i < whole) {
        vf part[CHAINS / VW] = {0};
        for (int to = i + STRETCH < whole ? i + STRETCH : whole; i < to; i += CHAINS) {
            UNROLL for (int j = 0; j < CHAINS / VW; j++) {
                vf v = norm_in(floats, x, i + j * VW, VW) - mean;
                part[j] = v * v + part[j];
            }
        }
        UNROLL for (int j = 0; j < CHAINS / VW; j++) sum[j] = sum[j] + part[j];
    }
    for (int j = 0; j < CHAINS / VW; j++)
        store(chain + j * VW, sum[j]);
    for (; i < width; i++) {
        float v = norm_in(floats, x, i, 1)[0] - mean;
        *(i < width / 8 * 8 ? chain + i % 8 : &all) += v * v;
    }
    for (int j = 0; j < 8; j++)
        all += chain[j] + chain[8 + j] + chain[16 + j] + chain[24 + j];
    return all;
}

/* Means, and sums of squares around them, of every SIDE-th element: Welford's algorithm in the order of torch's layer norm,
 * whose lanes and levels are joined with products rounded by themselves. */
#define SIDE 8
#define MOMENTS_STRETCH 256 /* elements whose moments are taken by themselves */
#define LEVELS 24           /* each joins twice as many stretches as the one before */

typedef struct {
    float count, mean[2 * SIDE + 16], squares[2 * SIDE + 16]; /* more than the lanes: they are read in whole vectors */
} moments;

AI void join_moments(const moments *more, int lane, moments *all) {
    float count = all->count + more->count;
    vf share = splat(count ? more->count / count : 0.0f);
    for (int j = 0; j < SIDE; j += VW) {
        vf mean = load(all->mean + j), squares = load(all->squares + j) + load(more->squares + lane + j);
        vf apart = load(more->mean + lane + j) - mean, step = product_of(share, apart);
        store(all->mean + j, mean + step);
        store(all->squares + j, apart * all->count * step + squares);
    }
    all->count = count;
}

/* The moments of elements first..last, at most a stretch: those of the first SIDE lanes, then those of the others. */
AI void stretch_moments(const int floats, const void *x, int first, int last, moments *all) {
    const int n = 2 * SIDE / VW;
    vf mean[n], squares[n];
    UNROLL for (int j = 0; j < n; j++) mean[j] = squares[j] = splat(0.0f);
    all->count = 0.0f;
    for (int i = first; i < last; i += 2 * SIDE) {
        all->count += 1.0f;
        float share = 1.0f / all->count;
        UNROLL for (int j = 0; j < n; j++) {
            vf v = norm_in(floats, x, i + j * VW, VW), apart = v - mean[j];
            mean[j] = apart * share + mean[j];
            squares[j] = apart * (v - mean[j]) + squares[j];
        }
    }
    UNROLL for (int j = 0; j < n; j++) {
        store(all->mean + j * VW, mean[j]);
        store(all->squares + j * VW, squares[j]);
    }
}

/* The mean of a row; `variance` becomes the mean square around it. */
AI float mean_of(const int floats, const void *x, int width, float *variance) {
    const int stretch = MOMENTS_STRETCH, whole = width / (2 * SIDE) * 2 * SIDE;
    int depth = 1;
    while (1 << depth < (whole + stretch - 1) / stretch)
        depth++;
    moments level[LEVELS], part = {0};
    memset(level, 0, depth * sizeof *level);
    for (int i = 0, done = 1; i < whole; i += stretch, done++) {
        stretch_moments(floats, x, i, i + stretch < whole ? i + stretch : whole, &part);
        join_moments(&part, 0, level);
        join_moments(&part, SIDE, level);
        for (int j = 1; j < depth && done % (1 << j) == 0; j++) {
            join_moments(level + j - 1, 0, level + j);
            memset(level + j - 1, 0, sizeof *level);
        }
    }
    for (int j = 1; j < depth; j++)
        join_moments(level + j, 0, level);
    float count = 0.0f;
    vf mean = splat(0.0f), squares = mean;
    for (int i = whole; i < width; i++) {
        vf v = splat(norm_in(floats, x, i, 1)[0]), apart = v - mean;
        count += 1.0f;
        mean = mean + apart / count;
        squares = squares + product_of(apart, v - mean);
    }
    for (int j = 0; j < SIDE && level->count; j++) {
        vf share = splat(level->count / (count + level->count)), apart = level->mean[j] - mean;
        mean = share * apart + mean;
        squares = squares + (apart * apart * share * count + level->squares[j]);
        count += level->count;
    }
    *variance = squares[0] / width;
    return mean[0];
}

AI vf scaled(vf v, float mean, float factor, vf weight, vf bias) {
    return fused(fused(v, splat(factor), product_of(splat(-factor), splat(mean))), weight, bias);
}
#else
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

AI vf scaled(vf v, float mean, float factor, vf weight, vf bias) { return (v - mean) * factor * weight + bias; }
#endif

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
            v = rounded(v * factor) * weight;
        else if (g->kind == BW_RMS_WIDE)
            v = v * factor * weight;
        else
            v = scaled(v, mean, factor, weight, load(g->bias + i));
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
                v = rounded(v + load(side + i));
            if (m->factor != 1.0f)
                v = rounded(v * m->factor);
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
