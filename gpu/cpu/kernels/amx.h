/* Rows times a panel of packed weights with tile registers (AMX). Included by gemm.h if the instruction set has them.
 *
 * A packed panel already has the layout of a tile instruction: 16 units of 16 columns are a tile of weights, 16 units of 16
 * rows a tile of activations. An instruction adds the products of 32 elements of k to a tile of sums, the ones at even and
 * at odd places in a chain each, from zero on. So every output is summed in one order, whatever the number of rows.
 */
#define TILE_UNITS 16  /* units of k in an instruction */
#define BLOCK_ROWS 16  /* rows of a tile; two tiles are multiplied with the weights at once */
#define TILE_LINES (TILE_UNITS * BW_PANEL * 4 / 64)

#define SUMS(r, j) (2 * (r) + (j)) /* numbers of tile registers */
#define ROWS_0 4
#define ROWS_1 5
#define WEIGHTS_0 6
#define WEIGHTS_1 7
#define release_tiles(shaped) _tile_release()

typedef struct {
    uint8_t palette, first_row, unused[14];
    uint16_t bytes[16]; /* bytes of a row */
    uint8_t rows[16];
} tile_shapes;

/* Sets the registers' shapes for this many rows of the first and of the second block. */
AI void shape_tiles(int first, int second) {
    tile_shapes s __attribute__((aligned(64))) = {.palette = 1};
    for (int j = 0; j < 2; j++) {
        s.rows[SUMS(0, j)] = (uint8_t)first, s.rows[SUMS(1, j)] = (uint8_t)second;
        s.bytes[SUMS(0, j)] = 64, s.bytes[SUMS(1, j)] = second ? 64 : 0;
    }
    s.rows[ROWS_0] = (uint8_t)first, s.bytes[ROWS_0] = 64;
    s.rows[ROWS_1] = (uint8_t)second, s.bytes[ROWS_1] = second ? 64 : 0;
    s.rows[WEIGHTS_0] = s.rows[WEIGHTS_1] = TILE_UNITS, s.bytes[WEIGHTS_0] = s.bytes[WEIGHTS_1] = 64;
    __asm__ volatile("" ::"m"(s) : "memory");
    _tile_loadconfig(&s);
}

/* Adds the sums of 32 elements of k for all rows and columns. */
AI void tile_step(int second, const at *x, long ld, const uint32_t *w) {
    _tile_loadd(WEIGHTS_0, w, BW_PANEL * 4);
    _tile_loadd(ROWS_0, x, ld * sizeof(at));
    _tile_dpbf16ps(0, ROWS_0, WEIGHTS_0);
    _tile_loadd(WEIGHTS_1, w + 16, BW_PANEL * 4);
    _tile_dpbf16ps(1, ROWS_0, WEIGHTS_1);
    if (second) {
        _tile_loadd(ROWS_1, x + BLOCK_ROWS * ld, ld * sizeof(at));
        _tile_dpbf16ps(2, ROWS_1, WEIGHTS_0);
        _tile_dpbf16ps(3, ROWS_1, WEIGHTS_1);
    }
}

/* Adds the last units, fewer than a tile has, with zeros behind them. */
static void tile_rest(int rows, int second, const at *x, long ld, const uint32_t *w, long units) {
    at some[2 * BLOCK_ROWS][TILE_UNITS * KS] = {{0}};
    uint32_t weights[TILE_UNITS][BW_PANEL] = {{0}};
    for (int r = 0; r < rows; r++)
        memcpy(some[r], x + r * ld, units * 4);
    memcpy(weights, w, units * sizeof *weights);
    __asm__ volatile("" ::"r"(some), "r"(weights) : "memory");
    tile_step(second, some[0], TILE_UNITS * KS, weights[0]);
}

/* Stores the registers' sums: out[rows][BW_PANEL] = or += sums. */
AI void put_tiles(int rows, int second, int more, float *out) {
    if (!more) {
        _tile_stored(0, out, BW_PANEL * 4);
        _tile_stored(1, out + 16, BW_PANEL * 4);
        if (second) {
            _tile_stored(2, out + BLOCK_ROWS * BW_PANEL, BW_PANEL * 4);
            _tile_stored(3, out + BLOCK_ROWS * BW_PANEL + 16, BW_PANEL * 4);
        }
        return;
    }
    float sums[2 * BLOCK_ROWS * BW_PANEL] __attribute__((aligned(64)));
    put_tiles(rows, second, 0, sums);
    for (int i = 0; i < rows * BW_PANEL; i += VW)
        store(out + i, load(out + i) + load(sums + i));
}

/* Computes out[rows][BW_PANEL] of up to PRODUCT_ROWS rows, prefetching `ahead`. `shaped` is the number of rows that the
 * registers' shapes are set for, 0 for none: setting the shapes takes as long as eight steps. */
static void product_any(int *shaped, int rows, const at *x, long ld, const uint32_t *w, long units, float *out,
                        const char *ahead) {
    int first = rows < BLOCK_ROWS ? rows : BLOCK_ROWS, second = rows - first;
    if (*shaped != rows)
        shape_tiles(first, second);
    *shaped = rows;
    for (long from = 0; from < units; from += SUM_UNITS) {
        long to = from + SUM_UNITS < units ? from + SUM_UNITS : units;
        _tile_zero(0);
        _tile_zero(1);
        if (second) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (long s = from; s < to; s += TILE_UNITS) {
            UNROLL for (int i = 0; i < TILE_LINES; i++)
                __builtin_prefetch(ahead + (s * BW_PANEL * 4) + 64 * i, 0, 2);
            if (to - s < TILE_UNITS)
                tile_rest(rows, second, x + s * KS, ld, w + s * BW_PANEL, to - s);
            else
                tile_step(second, x + s * KS, ld, w + s * BW_PANEL);
        }
        put_tiles(rows, second, from > 0, out);
    }
}
