/* Packing of weights, and the layout of a component's scratch. Runs at load time, in one thread. */
#include "native.h"

#include <string.h>

#define BLOCK_UNITS 16 /* a cache line of every source row of a panel */
#define PREFETCH 256   /* bytes ahead in a row */

/* Packs `rows` x `columns` (row-major, `element` bytes each) so that source rows become columns of panels. The part of
 * the last panel beyond `rows` becomes zero. With `halves`, the last panel is only half a panel if that is enough. */
void bw_pack(uint32_t *to, const char *from, int64_t rows, int64_t columns, int element, int halves) {
    int64_t bytes = columns * element, whole = bytes / 4, units = (bytes + 3) / 4, panels = (rows + BW_PANEL - 1) / BW_PANEL;
    for (int64_t p = 0; p < panels; p++) {
        uint32_t *panel = to + p * units * BW_PANEL;
        int64_t left = rows - p * BW_PANEL;
        int width = halves && left <= BW_HALF ? BW_HALF : BW_PANEL, filled = left < width ? (int)left : width;
        for (int64_t u0 = 0; u0 < whole; u0 += BLOCK_UNITS) {
            int64_t u1 = u0 + BLOCK_UNITS < whole ? u0 + BLOCK_UNITS : whole;
            for (int c = 0; c < filled; c++) {
                const char *row = from + (p * BW_PANEL + c) * bytes;
                /* rows lie on different pages, so the hardware prefetcher helps little */
                __builtin_prefetch(row + u1 * 4 + PREFETCH);
                for (int64_t u = u0; u < u1; u++)
                    memcpy(panel + u * width + c, row + u * 4, 4);
            }
            for (int c = filled; c < width; c++)
                for (int64_t u = u0; u < u1; u++)
                    panel[u * width + c] = 0;
        }
        for (int c = 0; whole < units && c < width; c++) { /* the last column of an odd number of bfloat16 */
            panel[whole * width + c] = 0;
            if (c < filled)
                memcpy(panel + whole * width + c, from + (p * BW_PANEL + c) * bytes + whole * 4, bytes - whole * 4);
        }
    }
}

static int64_t place(int64_t *end, int64_t bytes) {
    int64_t at = *end;
    *end = bw_round(at + bytes, 64);
    return at;
}

static void attention_layout(bw_layout *l, const bw_comp *m, int64_t max_tokens) {
    int64_t dim = m->head_dim, inner = m->heads * dim, group = m->heads / m->kv_heads;
    l->ld_c = bw_stride(inner + BW_PANEL + 2 * bw_round(m->kv_heads * dim, BW_PANEL));
    l->ld_o = bw_stride(inner);
    l->c = place(&l->shared, 4 * l->ld_c * max_tokens);
    l->q = place(&l->shared, 4 * inner * max_tokens);
    l->o = place(&l->shared, 4 * l->ld_o * max_tokens);
    while (l->tile_size < BW_TILE_SIZES - 1 && (2 << l->tile_size) * group <= 32)
        l->tile_size++;
    l->padded_dim = (int)bw_round(dim, 16);
    l->direct = m->page_size % BW_GROUP == 0 && dim % 16 == 0;
    int64_t rows = group << l->tile_size;
    l->scores = place(&l->own, 4 * rows * BW_LINE);
    l->weights = place(&l->own, 4 * rows * BW_LINE);
    l->out = place(&l->own, 4 * rows * l->padded_dim);
    l->top = place(&l->own, 4 * rows);
    l->sums = place(&l->own, 4 * rows);
    l->gather_k = place(&l->own, l->direct ? 0 : 4 * BW_PIECE * dim);
    l->gather_v = place(&l->own, l->direct ? 0 : 4 * BW_PIECE * l->padded_dim);
}

bw_layout bw_layout_of(const bw_comp *m, int max_tokens) {
    bw_layout l = {.ld_x = bw_stride(m->width)};
    int64_t row = 4 * l.ld_x; /* bytes that a piece of one row, or of one head, keeps */
    if (m->side) /* first, so that the feed-forward finds it where the attention left it */
        l.side = place(&l.shared, 4 * l.ld_x * max_tokens);
    l.x = place(&l.shared, 4 * l.ld_x * max_tokens);
    if (!bw_plain(m) && m->side != BW_KEEP)
        l.y = place(&l.shared, 4 * l.ld_x * max_tokens);
    if (m->kind == BW_ATTENTION) {
        attention_layout(&l, m, max_tokens);
        row = row > 4 * l.ld_c ? row : 4 * l.ld_c;
    }
    if (m->kind == BW_MLP) {
        l.ld_o = bw_stride(m->inner);
        l.o = place(&l.shared, 4 * l.ld_o * max_tokens);
    }
    if (m->adapted) { /* rows read, in the bottleneck, and computed */
        int64_t adapted = 4 * BW_ADAPT_ROWS * (2 * l.ld_x + bw_stride(m->adapted));
        row = row > adapted ? row : adapted;
    }
    int64_t keep = row > BW_OWN ? row : BW_OWN;
    l.own = (l.own > keep ? l.own : keep) + 4096; /* keeps neighbours' lines apart from prefetching */
    return l;
}
