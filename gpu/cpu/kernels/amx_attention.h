/* The two products of attention with tile registers (AMX). Included by attention.h instead of tiles.h if the instruction set
 * has them.
 *
 * A group of keys in its page is a tile of weights for every 32 elements of the head; a group of values is a tile of half
 * the depth for every 16 of its columns. The registers' shapes depend on the rows alone: the rest of a head after its last
 * whole tile goes through tiles of half the depth, padded with zeros. A sum goes over elements, or positions, in ascending
 * order, in chains that do not depend on other rows.
 */
#define HALF_UNITS (TILE_UNITS / 2)
#define HALF_ROWS ROWS_1       /* numbers of the tile registers of half the depth */
#define HALF_WEIGHTS WEIGHTS_1
#define SUM_TILES 4            /* groups of scores, or stretches of 16 columns, at once: registers 0 to 3 */
#define FOR_SUMS(X, n) X(0, n) X(1, n) X(2, n) X(3, n)

AI void shape_attention(int rows) {
    tile_shapes s __attribute__((aligned(64))) = {.palette = 1};
    for (int j = 0; j < SUM_TILES; j++)
        s.rows[j] = (uint8_t)rows, s.bytes[j] = 64;
    s.rows[ROWS_0] = s.rows[HALF_ROWS] = (uint8_t)rows;
    s.bytes[ROWS_0] = 64, s.bytes[HALF_ROWS] = 32;
    s.rows[WEIGHTS_0] = TILE_UNITS, s.rows[HALF_WEIGHTS] = HALF_UNITS;
    s.bytes[WEIGHTS_0] = s.bytes[HALF_WEIGHTS] = 64;
    __asm__ volatile("" ::"m"(s) : "memory");
    _tile_loadconfig(&s);
}

AI void fetch_lines(const char *ahead, int lines, long apart) {
    UNROLL for (int i = 0; i < lines; i++) __builtin_prefetch(ahead + apart * i, 0, 3);
}

/* Computes scores[rows][16 n] of up to 16 queries with n groups of keys, prefetching `ahead` for each group. */
static void score_groups(int rows, int n, const at *q, long dim, const uint32_t *const k[], float *scores,
                         const char *const ahead[]) {
    long units = dim / KS, s = 0;
#define ZERO(j, n) _tile_zero(j);
    FOR_SUMS(ZERO, n)
#undef ZERO
    for (; s + TILE_UNITS <= units; s += TILE_UNITS) {
        _tile_loadd(ROWS_0, q + s * KS, dim * sizeof(at));
#define ADD(j, n)                                                           \
    if (j < n) {                                                            \
        fetch_lines(ahead[j] + s * BW_GROUP * 4, TILE_UNITS, BW_GROUP * 4); \
        _tile_loadd(WEIGHTS_0, k[j] + s * BW_GROUP, BW_GROUP * 4);          \
        _tile_dpbf16ps(j, ROWS_0, WEIGHTS_0);                               \
    }
        FOR_SUMS(ADD, n)
#undef ADD
    }
    for (; s < units; s += HALF_UNITS) {
        at some[BLOCK_ROWS][HALF_UNITS * KS] = {{0}};
        uint32_t keys[SUM_TILES][HALF_UNITS][BW_GROUP] = {{{0}}};
        long left = units - s < HALF_UNITS ? units - s : HALF_UNITS;
        for (int r = 0; r < rows; r++)
            memcpy(some[r], q + r * dim + s * KS, left * 4);
        for (int j = 0; j < n; j++)
            memcpy(keys[j], k[j] + s * BW_GROUP, left * sizeof *keys[j]);
        __asm__ volatile("" ::"r"(some), "r"(keys) : "memory");
        _tile_loadd(HALF_ROWS, some, sizeof *some);
#define ADD(j, n)                                                \
    if (j < n) {                                                 \
        _tile_loadd(HALF_WEIGHTS, keys[j], sizeof *keys[j]);     \
        _tile_dpbf16ps(j, HALF_ROWS, HALF_WEIGHTS);              \
    }
        FOR_SUMS(ADD, n)
#undef ADD
    }
#define PUT(j, n) \
    if (j < n)    \
        _tile_stored(j, scores + j * BW_GROUP, BW_LINE * 4);
    FOR_SUMS(PUT, n)
#undef PUT
}

static void score_piece(const item *t, const space *s, const groups *g, int first, int last) {
    for (int row = 0; row < t->rows; row += BLOCK_ROWS) {
        int rows = t->rows - row < BLOCK_ROWS ? t->rows - row : BLOCK_ROWS;
        shape_attention(rows);
        for (int i = first; i <= last; i += SUM_TILES) {
            int n = last + 1 - i < SUM_TILES ? last + 1 - i : SUM_TILES;
            const char *ahead[SUM_TILES];
            for (int j = 0; j < n; j++) {
                int next = i + SUM_TILES + j;
                ahead[j] = (const char *)(next <= last ? g->k[next] : g->v[first + j <= last ? first + j : last]);
            }
            score_groups(rows, n, t->q + row * t->m->head_dim, t->m->head_dim, g->k + i,
                         s->scores + row * BW_LINE + i * BW_GROUP, ahead);
        }
    }
    _tile_release();
}

/* out[rows][16 n] += weights times V, over the groups first..last; the last one holds `tail` positions. */
static void value_groups(int n, const at *weights, const groups *g, int first, int last, int tail, long column, float *out,
                         long ld_out) {
#define GET(j, n) \
    if (j < n)    \
        _tile_loadd(j, out + 16 * j, ld_out * 4);
    FOR_SUMS(GET, n)
#undef GET
    uint32_t some[HALF_UNITS][SUM_TILES * 16];
    for (int i = first; i <= last; i++) {
        const uint32_t *v = g->v[i] + column;
        const char *ahead = (const char *)((i + AHEAD <= last ? g->v[i + AHEAD] : g->next[i + AHEAD - last - 1]) + column);
        long ld = g->ld_v;
        if (i == last && tail < BW_GROUP) { /* elements that were never written count as zero */
            memset(some, 0, sizeof some);
            for (int c = 0; c < tail; c += KS)
                for (int d = 0; d < 16 * n; d++)
                    some[c / KS][d] = v[c / KS * ld + d] & (c + 1 < tail ? ~0u : HALF_UNIT);
            __asm__ volatile("" ::"r"(some) : "memory");
            v = some[0];
            ld = SUM_TILES * 16;
        }
        _tile_loadd(HALF_ROWS, weights + i * BW_GROUP, BW_LINE * sizeof(at));
#define ADD(j, n)                                                        \
    if (j < n) {                                                         \
        fetch_lines(ahead + 64 * j, HALF_UNITS, g->ld_v * 4);            \
        _tile_loadd(HALF_WEIGHTS, v + 16 * j, ld * 4);                   \
        _tile_dpbf16ps(j, HALF_ROWS, HALF_WEIGHTS);                      \
    }
        FOR_SUMS(ADD, n)
#undef ADD
    }
#define PUT(j, n) \
    if (j < n)    \
        _tile_stored(j, out + 16 * j, ld_out * 4);
    FOR_SUMS(PUT, n)
#undef PUT
}

/* out[rows][padded head_dim] += weights times V, over columns up to c1 of a piece, from group `first` on. */
static void value_piece(const item *t, const bw_layout *l, const space *s, const groups *g, int first, int c1) {
    int last = (c1 - 1) / BW_GROUP, tail = c1 - last * BW_GROUP;
    for (int row = 0; row < t->rows; row += BLOCK_ROWS) {
        shape_attention(t->rows - row < BLOCK_ROWS ? t->rows - row : BLOCK_ROWS);
        for (int c = 0; c < l->padded_dim; c += 16 * SUM_TILES) {
            int n = (l->padded_dim - c) / 16 < SUM_TILES ? (l->padded_dim - c) / 16 : SUM_TILES;
            value_groups(n, s->weights + row * BW_LINE, g, first, last, tail, c, s->out + row * (long)l->padded_dim + c,
                         l->padded_dim);
        }
    }
    _tile_release();
}
