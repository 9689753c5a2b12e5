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

/* and a row's weights times V, position by position from the first of torch's call on: the first `fours` in four sums, all
 * others in one, `in_pairs` with the second of a pair first, as the pair product adds them. */
static void value_singly(const item *t, const groups *g, const at *weights, span seen, int fours, int in_pairs, float *out) {
    for (int d = 0; d < t->m->head_dim; d += VW) {
        vf sum[4] = {0};
        for (int i = seen.from - g->from; i < seen.to - g->from; i++) {
            int other = g->from + (i ^ 1), c = in_pairs && other < seen.to ? other : g->from + i, one = i < fours ? i % 4 : 0;
            sum[one] = dot_half((place_of(t->m, c) + DP) % KS, sum[one], value_at(g, c, d), load_x(weights, c / 2));
        }
        store(out + d, ((sum[0] + sum[1]) + sum[2]) + sum[3]);
    }
}

/* e^(score - top) of a vector from column c on, 0 for what is not seen */
AI vf exp_of_seen(const float *scores, int c, span seen, float top) {
    vi is_seen = (lanes() + c >= seen.from) & (lanes() + c < seen.to);
    return pick(is_seen, vexp_near(load(scores + c) - top), splat(0.0f));
}

/* The sum of e^(score - top) of all columns so far, by lanes that torch counts from column `from` on; one by one where its
 * `keys` fill no vector. */
static float sum_row(const float *scores, int first, int last, span seen, float top, int from, int keys, float *lane) {
    float all = 0.0f;
    for (int c = seen.from; keys < LATE && c < seen.to; c++)
        all += vexp_near(splat(scores[c] - top))[0];
    vf sum = load(lane);
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW)
        sum = sum + exp_of_seen(scores, c, seen, top);
    store(lane, sum);
    return keys < LATE ? all : lanes_sum(turned(&sum, 1, from));
}

/* Weights that add up to one, each rounded. */
static void share_row(const float *scores, at *weights, int first, int last, span seen, float top, float total) {
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW)
        store_at(weights + c, exp_of_seen(scores, c, seen, top) * (1.0f / total));
}

static void score_capped(const item *t, const space *s, const groups *g, int first, int last, int small, int in_chains) {
    if (small)
        score_small(t, s, g, first, last, in_chains);
    else
        score_piece(t, s, g, first, last, 0);
    for (int row = 0; row < t->rows; row++)
        cap_row(s->scores + row * LINE, first, last, t->m->scale, t->m->softcap);
}

/* out += weights times V over a piece. The pair product serves if torch's pairs begin at even positions, too. */
static void add_values(const item *t, const bw_layout *l, const space *s, const groups *g, const piece *p, int small,
                       int fours) {
    int in_pairs = !small && p->from % 2;
    /* torch has two pieces in one chain then; of the first the rows may have seen nothing */
    int paired = t->call > 1 && t->end > 2 * PIECE, second = paired && p->base / PIECE % 2, going = second && p->low > t->low;
    if (!going)
        clear_rows(t, l, s->part);
    for (int row = 0; (small || in_pairs) && row < t->rows; row++)
        value_singly(t, g, s->weights + row * LINE, seen_by(t, row, p), fours, in_pairs,
                     s->part + row * (long)l->padded_dim);
    if (!small && !in_pairs)
        value_columns(t, l, s, g, (p->low - p->base) / BW_GROUP * BW_GROUP, p->high - p->base, s->part);
    if (second || !paired || p->high == t->high)
        add_rows_to(t, l, s->part, s->out);
}

/* Weights are divided by their sum before they are rounded: first come all maxima, then all sums, then weights and values.
 * Scores that fill more than one piece are computed each time. */
static void attend_capped(const item *t, const item *then, const bw_layout *l, const space *s) {
    enum { MAXIMA, SUMS, VALUES };
    int keys = t->end - t->origin, one = piece_at(t, t->low).high == t->high;
    int64_t size = (int64_t)t->call * keys * t->m->head_dim;
    int small = one && size * t->m->heads <= SMALL, in_chains = size >= TINY;
    groups g;
    clear_rows(t, l, s->out);
    clear_rows(t, l, s->stretch);
    for (int row = 0; row < t->rows; row++)
        s->top[row] = -INFINITY;
    for (int step = MAXIMA; step <= VALUES; step++) {
        for (int low = t->low; low < t->high;) {
            piece p = piece_at(t, low);
            int first = (p.low - p.base) / BW_GROUP, last = (p.high - 1 - p.base) / BW_GROUP;
            low = p.high;
            if (step == MAXIMA || !one) {
                open_piece(t, then, l, s, &p, &g);
                score_capped(t, s, &g, first, last, small, in_chains);
            }
            for (int row = 0; row < t->rows; row++) {
                const float *scores = s->scores + row * LINE;
                span seen = seen_by(t, row, &p);
                if (step == MAXIMA)
                    s->top[row] = most_of(scores, first, last, seen.from, seen.to, s->top[row]);
                else if (step == SUMS)
                    s->total[row] = sum_row(scores, first, last, seen, s->top[row], p.from, keys,
                                            s->stretch + row * (long)l->padded_dim);
                else
                    share_row(scores, s->weights + row * LINE, first, last, seen, s->top[row], s->total[row]);
            }
            if (step == VALUES)
                add_values(t, l, s, &g, &p, small, small && in_chains ? keys / 4 * 4 : 0);
        }
    }
    for (int row = 0; row < t->rows; row++)
        s->total[row] = 1.0f;
    put_rows(t, l, s);
}
