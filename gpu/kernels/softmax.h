/* The weights of one row in one piece, from its scores. Included by attention.h.
 *
 * In bfloat16 a weight that falls to the other side of a rounding is off by 2^-9 of itself, which deep models magnify. So
 * there the arithmetic is that of torch's attention, which transformers runs: the scaled score is rounded before the
 * maximum so far is taken off it, e^x is a cubic within 1e-4 of itself, and the last positions of a call, which fill no
 * vector of 16, have an exact e^x and are summed one by one.
 */
#define LATE 16 /* the last positions are fewer than this */

/* The maximum of `start` and of columns c0..c1. */
AI float most_of(const float *scores, int first, int last, int c0, int c1, float start) {
    vf best = splat(start);
    for (int c = first * BW_GROUP; c < (last + 1) * BW_GROUP; c += VW) {
        vi seen = (lanes() + c >= c0) & (lanes() + c < c1);
        best = vmax(best, pick(seen, load(scores + c), best));
    }
    return lanes_max(best);
}

#if BF16
/* The sum of `n` vectors, at most two, of lanes that count from column 0 on, as lanes that count from `origin` on. */
AI vf turned(const vf *sums, int n, int origin) {
    float lane[4 * VW];
    for (int i = 0; i < 4; i++)
        store(lane + i * VW, sums[i % n]);
    int first = (origin % (n * VW) + n * VW) % (n * VW);
    return n == 1 ? load(lane + first) : load(lane + first) + load(lane + first + VW);
}

/* The scores of columns first..last become weights; columns c0..c1 are seen, those from `tail` on are late. `top` is the
 * maximum of the pieces before and becomes that of all so far, to which the weights and their sum are relative. The sum goes
 * by the lanes of two vectors in turn, the first of which begins at `origin`. */
static void softmax_row(float *scores, at *weights, int first, int last, int c0, int c1, int origin, int tail, float scale,
                        float *top, float *total) {
    const vf zero = splat(0.0f);
    const vi lane = lanes();
    int begin = first * BW_GROUP, end = (last + 1) * BW_GROUP;
    int late = tail > c0 ? tail : c0;
    vf sums[2] = {zero, zero};
    float most = most_of(scores, first, last, c0, c1, -INFINITY) * scale;
    most = *top > most ? *top : most;
    for (int c = begin; c < end; c += VW) {
        vi seen = (lane + c >= c0) & (lane + c < c1);
        vf x = product_of(load(scores + c), splat(scale)) - most;
        vf weight = pick(seen, vexp_cubic(x), zero), *sum = sums + c / VW % 2;
        if (c + VW <= late) {
            store_in_order(weights + c, weight);
            *sum = *sum + weight;
            continue;
        }
        vi early = lane + c < late;
        vf exact = pick(seen, vexp_exact(x), zero);
        store(scores + c, exact);
        store_in_order(weights + c, pick(early, weight, exact));
        *sum = *sum + pick(early, weight, zero);
    }
    float all = lanes_sum(turned(sums, 2, origin));
    for (int c = late; c < c1; c++)
        all += scores[c];
    *top = most;
    *total = all;
}

/* A row's result from its weighted sum. */
AI vf share_of(vf out, float total) { return out * (1.0f / total); }
#else
static void softmax_row(float *scores, at *weights, int first, int last, int c0, int c1, int origin, int tail, float scale,
                        float *top, float *total) {
    const vi lane = lanes();
    int begin = first * BW_GROUP, end = (last + 1) * BW_GROUP;
    (void)origin, (void)tail;
    float most = most_of(scores, first, last, c0, c1, -INFINITY) * scale;
    vf sum = splat(0.0f);
    for (int c = begin; c < end; c += VW) {
        vi seen = (lane + c >= c0) & (lane + c < c1);
        vf weight = pick(seen, vexp(load(scores + c) * scale - most), splat(0.0f));
        sum = sum + weight;
        store_at(weights + c, weight);
    }
    *top = most;
    *total = lanes_sum(sum);
}

AI vf share_of(vf out, float total) { return out / total; }
#endif
