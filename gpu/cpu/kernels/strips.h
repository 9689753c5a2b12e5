/* Products of several rows with a panel, where registers hold the sums of only a strip of it. Included by gemm.h.
 *
 * The first rows read the packed panel and leave its elements as floats in memory of the thread; the rows after them read
 * the floats. A block of a strip stays in the L1 cache. Sums have the order of `tile`: blocks of a stretch continue one
 * chain.
 */
#define STRIP (2 * VW)             /* columns whose sums are in registers at once */
#define STRIP_ROWS 6               /* rows whose sums are in registers at once */
#define STRIP_FROM (KS == 1 ? 4 : 3) /* fewer rows read a whole panel at once; the pairs of bfloat16 cost more to widen */
#define STRIP_UNITS (256 / KS)     /* units of k in a block */

typedef struct {
    const at *x;
    long ld;
    const uint32_t *w; /* start of the block in the packed panel */
    float *wide;       /* [elements of k][STRIP] of the block, as floats */
    int units;
    const char *ahead;
} strip;

/* Adds the products of a block to sum[rows][STRIP / VW]. */
AI void strip_block(const int rows, const int packed, const strip *b, vf sum[][2]) {
    const at *some[(STRIP_ROWS + 2) / 3]; /* as in `tile` */
    const uint32_t *w = b->w;
    const char *ahead = b->ahead;
    float *wide = b->wide;
    long ld = b->ld;
    UNROLL for (int i = 0; i < (rows + 2) / 3; i++) some[i] = b->x + 3 * i * ld;
    for (int s = 0; s < b->units; s++) {
        if (packed)
            __builtin_prefetch(ahead, 0, 2);
        UNROLL for (int e = 0; e < KS; e++) {
            vf ws[2];
            UNROLL for (int j = 0; j < 2; j++) {
                if (packed) {
                    pair both = load_w(w + j * VW);
                    ws[j] = e ? both.high : both.low;
                    store(wide + j * VW, ws[j]);
                } else {
                    ws[j] = load(wide + j * VW);
                }
            }
            UNROLL for (int i = 0; i < (rows + 2) / 3; i++) OPAQUE(some[i]);
            UNROLL for (int r = 0; r < rows; r++) {
                vf one = splat(some[r / 3][r % 3 * ld]);
                UNROLL for (int j = 0; j < 2; j++) sum[r][j] = mul_add(ws[j], one, sum[r][j]);
            }
            UNROLL for (int i = 0; i < (rows + 2) / 3; i++) some[i] += 1;
            wide += STRIP;
        }
        w += BW_PANEL;
        ahead += 4 * STRIP;
    }
}

/* Continues the sums `from` (null: none) of a stretch. They are left in `part` or, at its end, added to `before` (null:
 * none) in `out`. */
AI void strip_tile(const int rows, const int packed, const strip *b, const float *from, float *part, const float *before,
                   float *out) {
    vf sum[STRIP_ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < 2; j++) sum[r][j] = from ? load(from + r * STRIP + j * VW) : splat(0.0f);
    }
    strip_block(rows, packed, b, sum);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int j = 0; j < 2; j++) {
            if (!out)
                store(part + r * STRIP + j * VW, sum[r][j]);
            else if (before)
                store(out + r * BW_PANEL + j * VW, load(before + r * BW_PANEL + j * VW) + sum[r][j]);
            else
                store(out + r * BW_PANEL + j * VW, sum[r][j]);
        }
    }
}

#define STRIP_CASE(n)                                        \
    case n:                                                  \
        strip_tile(n, packed, b, from, part, before, out);   \
        break;
AI void strip_rows(int rows, const int packed, const strip *b, const float *from, float *part, const float *before, float *out) {
    switch (rows) { STRIP_CASE(1) STRIP_CASE(2) STRIP_CASE(3) STRIP_CASE(4) STRIP_CASE(5) STRIP_CASE(6) }
}

static void strip_packed(int rows, const strip *b, const float *from, float *part, const float *before, float *out) {
    strip_rows(rows, 1, b, from, part, before, out);
}

static void strip_wide(int rows, const strip *b, const float *from, float *part, const float *before, float *out) {
    strip_rows(rows, 0, b, from, part, before, out);
}

/* Computes out[rows][BW_PANEL] of up to CHUNK_ROWS rows. `next` is the panel that is read after this one. */
static void strips(int rows, const at *x, long ld, const uint32_t *w, long units, float *out, const char *next) {
    _Alignas(64) float wide[STRIP_UNITS * KS * STRIP], part[CHUNK_ROWS * STRIP];
    const long stretch = 4l * SUM_UNITS * BW_PANEL, bytes = 4 * units * BW_PANEL;
    int tiles = (rows + STRIP_ROWS - 1) / STRIP_ROWS;
    for (long from = 0; from < units; from += SUM_UNITS) {
        long to = from + SUM_UNITS < units ? from + SUM_UNITS : units, ahead = 4 * from * BW_PANEL + stretch;
        const char *fetched = ahead < bytes ? (const char *)w + ahead : next + (ahead - bytes);
        for (int column = 0; column < BW_PANEL; column += STRIP)
            for (long at_unit = from; at_unit < to; at_unit += STRIP_UNITS) {
                int n = to - at_unit < STRIP_UNITS ? (int)(to - at_unit) : STRIP_UNITS, last = at_unit + n == to;
                strip b = {.ld = ld, .w = w + at_unit * BW_PANEL + column, .wide = wide, .units = n, .ahead = fetched};
                fetched += 4l * n * STRIP;
                for (int t = 0; t < tiles; t++) {
                    int row = rows * t / tiles, some = rows * (t + 1) / tiles - row;
                    float *sums = part + row * STRIP, *place = out + row * BW_PANEL + column;
                    b.x = x + row * ld + at_unit * KS;
                    (t ? strip_wide : strip_packed)(some, &b, at_unit > from ? sums : NULL, sums, from ? place : NULL,
                                                    last ? place : NULL);
                }
            }
    }
}
