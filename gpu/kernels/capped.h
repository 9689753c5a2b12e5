/* Attention with capped scores in bfloat16, which transformers computes step by step: products, the cap, a softmax in float32
 * whose weights are rounded, the product with V. Each has torch's bits, as the other attention has. Included by attention.h.
 */
#define TINY 400 /* query tokens times keys times head_dim below which torch sums in one chain; up to SMALL, in several */

/* What torch multiplies dot by dot, as decoding does in a short window: scores of a piece, */
static void score_small(const item *t, const space *s, const groups *g, int first, int last, int in_chains) {
    long dim = t->m->head_dim;
    for (int row = 0; row < t->rows; row++)
        for (int i = first; i <= last; i++)
            dot_columns(t->q + row * dim, g->k[i], BW_GROUP, (int)dim, in_chains, s->scores + row * LINE + i * BW_GROUP);
}

/* and a row's weights times V over columns from..to: four sums, of every fourth from `origin` on but the last few. */
static void value_small(const item *t, const groups *g, const at *weights, span seen, int origin, int fours, float *out) {
    for (int d = 0; d < t->m->head_dim; d += VW) {
        vf sum[4] = {0};
        for (int c = seen.from; c < seen.to; c++) {
            int odd = place_of(t->m, c), in_group = c % BW_GROUP, one = c - origin < fours ? (c - origin) % 4 : 0;
            vu both = *(const vu_u *)(g->v[c / BW_GROUP] + in_group / 2 * g->ld_v + d);
            pair v = expand(both & (odd ? 0xffff0000u : 0xffffu)); /* the other half may never have been written */
            sum[one] = dot_half((odd + DP) % KS, sum[one], v, load_x(weights, c / 2));
        }
        store(out + d, ((sum[0] + sum[1]) + sum[2]) + sum[3]);
    }
}

/* e^(score - top) of a vector from column c on, 0 outside c0..c1 */
AI vf exp_of_seen(const float *scores, int c, int c0, int c1, float top) {
    vi seen = (lanes() + c >= c0) & (lanes() + c < c1);
    return pick(seen, vexp_near(load(scores + c) - top), splat(0.0f));
}

/* The maximum, and the sum of e^(score - maximum), of all columns c0..c1 so far. Torch's call has `keys` columns from
 * `origin` on, which may lie in another piece: it sums by lanes from there, or one by one if they fill no vector. */
static void count_row(const float *scores, int first, int last, int c0, int c1, int origin, int keys, float *top,
                      float *total) {
    vf best = splat(*top), sum = splat(0.0f);
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW) {
        vi seen = (lanes() + c >= c0) & (lanes() + c < c1);
        best = vmax(best, pick(seen, load(scores + c), best));
    }
    float most = lanes_max(best), all = 0.0f;
    if (most == -INFINITY)
        return;
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW)
        sum = sum + exp_of_seen(scores, c, c0, c1, most);
    if (keys >= LATE)
        all = lanes_sum(turned(&sum, 1, origin));
    for (int c = c0; keys < LATE && c < c1; c++)
        all += vexp_near(splat(scores[c] - most))[0];
    *total = (*total ? *total * exp1(*top - most) : 0.0f) + all;
    *top = most;
}

/* Weights that add up to one, each rounded. */
static void share_row(const float *scores, at *weights, int first, int last, int c0, int c1, float top, float total) {
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW)
        store_at(weights + c, exp_of_seen(scores, c, c0, c1, top) * (1.0f / total));
}

/* An item with capped scores, which transformers computes step by step: weights are divided by their sum before they are
 * rounded, so all scores come first, and are computed again where they fill more than one piece. */
static void attend_capped(const item *t, const item *then, const bw_layout *l, const space *s) {
    int pieces = (t->high - 1) / PIECE - t->low / PIECE + 1;
    int keys = t->end - t->origin;
    int64_t size = (int64_t)t->call * keys * t->m->head_dim;
    int small = pieces == 1 && size * t->m->heads <= SMALL, in_chains = size >= TINY;
    memset(s->out, 0, t->rows * l->padded_dim * sizeof *s->out);
    for (int row = 0; row < t->rows; row++) {
        s->top[row] = -INFINITY;
        s->total[row] = 0.0f;
    }
    for (int i = 0; i < 2 * pieces; i++) {
        int weigh = i >= pieces, base = (t->low / PIECE + i % pieces) * PIECE;
        int low = t->low > base ? t->low : base, high = t->high < base + PIECE ? t->high : base + PIECE;
        int first = (low - base) / BW_GROUP, last = (high - 1 - base) / BW_GROUP;
        groups g;
        open_piece(t, then, l, s, base, low, high, &g);
        if (small && !weigh)
            score_small(t, s, &g, first, last, in_chains);
        else if (!weigh || pieces > 1)
            score_piece(t, s, &g, first, last, 0);
        for (int row = 0; row < t->rows; row++) {
            float *scores = s->scores + row * LINE;
            span seen = seen_by(t, row, base, high);
            if (!weigh || pieces > 1)
                cap_row(scores, first, last, t->m->scale, t->m->softcap);
            if (weigh)
                share_row(scores, s->weights + row * LINE, first, last, seen.from, seen.to, s->top[row], s->total[row]);
            else
                count_row(scores, first, last, seen.from, seen.to, t->origin - base, keys, s->top + row, s->total + row);
        }
        if (!weigh)
            continue;
        for (int row = 0; small && row < t->rows; row++)
            value_small(t, &g, s->weights + row * LINE, seen_by(t, row, base, high), t->origin - base,
                        in_chains ? keys / 4 * 4 : 0, s->part + row * (long)l->padded_dim);
        if (!small)
            value_columns(t, l, s, &g, first * BW_GROUP, high - base, s->part);
        for (long d = 0; d < t->rows * l->padded_dim; d += VW)
            store(s->out + d, load(s->out + d) + load(s->part + d));
    }
    for (int row = 0; row < t->rows; row++)
        s->total[row] = 1.0f;
    put_rows(t, l, s);
}
