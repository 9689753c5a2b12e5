/* The choice of a token: the best of a row's logits, and the logits that a mask allows. Included by body.h.
 *
 * A mask has one bit for each token, in words of 32. Bits behind the vocabulary do not count.
 */
#define ARGMAX_WORDS 32 /* words of a block: the best one is looked for in the block that has it */

AI uint32_t allowed_bits(const int masked, const uint32_t *mask, int word, int n) {
    uint32_t bits = masked ? mask[word] : ~0u;
    int left = n - 32 * word;
    return left < 32 ? bits & ((1u << left) - 1) : bits;
}

/* The larger of both in the lanes whose bit is set. NaN is never larger. */
AI vf best_lanes(vf best, vf v, uint32_t bits) {
#if VW == 16
    return (vf)_mm512_mask_max_ps((__m512)best, (__mmask16)bits, (__m512)v, (__m512)best);
#else
    vi bit;
    for (int i = 0; i < VW; i++)
        bit[i] = 1 << i;
    return vmax(pick(((vi)splat_bits(bits) & bit) != 0, v, splat(-INFINITY)), best);
#endif
}

AI vf best_of_word(const int masked, const float *x, uint32_t bits, vf best) {
    UNROLL
    for (int i = 0; i < 32; i += VW)
        best = masked ? best_lanes(best, load(x + i), bits >> i) : vmax(load(x + i), best);
    return best;
}

/* Returns the lowest index of the largest allowed logit; without a finite one the first allowed index; -1: there is none. */
AI int best_of(const int masked, const float *row, int n, const uint32_t *mask) {
    int words = (n + 31) / 32, block = -1;
    float best = -INFINITY;
    for (int from = 0; from < words; from += ARGMAX_WORDS) {
        int to = from + ARGMAX_WORDS < words ? from + ARGMAX_WORDS : words;
        vf lane = splat(-INFINITY);
        float top;
        for (int w = from; w < to && 32 * w + 32 <= n; w++) {
            uint32_t bits = masked ? mask[w] : ~0u;
            if (bits)
                lane = best_of_word(masked && bits != ~0u, row + 32 * w, bits, lane);
        }
        top = lanes_max(lane);
        if (to == words && n % 32)
            for (uint32_t bits = allowed_bits(masked, mask, words - 1, n); bits; bits &= bits - 1) {
                float x = row[32 * (words - 1) + __builtin_ctz(bits)];
                top = x > top ? x : top;
            }
        if (top > best) {
            best = top;
            block = from;
        }
    }
    for (int w = block < 0 ? 0 : block; w < words; w++)
        for (uint32_t bits = allowed_bits(masked, mask, w, n); bits; bits &= bits - 1) {
            int i = 32 * w + __builtin_ctz(bits);
            if (block < 0 || row[i] == best)
                return i;
        }
    return -1;
}

static int best_token(const float *row, int n, const uint32_t *mask) {
    return mask ? best_of(1, row, n, mask) : best_of(0, row, n, mask);
}

/* Writes the allowed indices, ascending, and their logits; returns how many there are. */
static int allowed_tokens(const float *row, int n, const uint32_t *mask, int32_t *ids, float *logits) {
    int count = 0;
    for (int w = 0; w < (n + 31) / 32; w++) {
        uint32_t bits = allowed_bits(1, mask, w, n);
        if (bits == ~0u) {
            for (int i = 0; i < 32; i += VW) {
                *(vu_u *)(ids + count + i) = (vu)(lanes() + 32 * w + i);
                store(logits + count + i, load(row + 32 * w + i));
            }
            count += 32;
            continue;
        }
        for (; bits; bits &= bits - 1) {
            int i = 32 * w + __builtin_ctz(bits);
            ids[count] = i;
            logits[count++] = row[i];
        }
    }
    return count;
}
