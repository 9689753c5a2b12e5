/* The scheduler of the kernels (pool.c, pieces.c) with small phases of integers, for the sanitiser for races.
 *
 * A thread that is late may read what others write: that is part of the design, for it cannot commit what it made of it. So
 * compute() is not instrumented. store(), which runs only after a piece was committed, reads the piece's inputs again and is
 * instrumented: there every read must happen after the write that it sees, and the value must be what compute() saw.
 */
#include "native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 48, PHASES = 9, CALLS = 400 };

typedef struct {
    const bw_call *call;
    const bw_phase *phase;
    int made[ITEMS];
} toy;

/* Two rows in turn: even phases write the second from the first, odd ones add to the first in place from the second. */
static int shared[2][ITEMS];

static int from_first(const int *row, int i) { return row[i] * 3 + row[(i + 1) % ITEMS] + 1; }

static void bounds(const bw_phase *f, int piece, int *first, int *last) {
    *first = piece * f->each;
    *last = *first + f->each < f->items ? *first + f->each : f->items;
}

__attribute__((no_sanitize_thread)) static int compute(void *work, int piece) {
    toy *w = work;
    int first, last;
    bounds(w->phase, piece, &first, &last);
    for (int i = first; i < last; i++)
        w->made[i - first] = w->phase->stage ? shared[0][i] + shared[1][i] : shared[0][i] * 3 + shared[0][(i + 1) % ITEMS] + 1;
    return 1;
}

static void store(void *work, int piece) {
    toy *w = work;
    int first, last;
    bounds(w->phase, piece, &first, &last);
    for (int i = first; i < last; i++) {
        int again = w->phase->stage ? shared[0][i] + shared[1][i] : from_first(shared[0], i);
        if (again != w->made[i - first]) {
            fprintf(stderr, "committed what was computed from other inputs\n");
            exit(3);
        }
        shared[!w->phase->stage][i] = again;
    }
}

static void run(bw_ctx *x, const bw_call *call, const bw_phase *phase, int thread, uint64_t now) {
    toy w = {.call = call, .phase = phase};
    bw_pieces(x, call, phase, thread, now, compute, store, &w);
}

static void expect(int rows[2][ITEMS], int phases) {
    for (int k = 0; k < phases; k++)
        for (int i = 0; i < ITEMS; i++)
            if (k % 2)
                rows[0][i] += rows[1][i];
            else
                rows[1][i] = from_first(rows[0], i);
}

int main(int argc, char **argv) {
    int threads = atoi(argv[1]), every = atoi(argv[2]), micros = atoi(argv[3]), expected[2][ITEMS] = {{0}};
    bw_ctx *x = aligned_alloc(64, bw_round(sizeof *x, 64));
    (void)argc;
    memset(x, 0, sizeof *x);
    x->threads = threads;
    x->stretch = ITEMS + 8;
    x->words = calloc((size_t)threads * x->stretch, sizeof *x->words);
    x->calls = calloc(threads + 1, sizeof *x->calls);
    for (int i = 0; i <= threads; i++)
        x->calls[i].phases = calloc(PHASES, sizeof(bw_phase));
    x->delay_every = every;
    x->delay_micros = micros;
    if (bw_pool_start(x))
        return 2;
    for (int n = 0; n < CALLS; n++) {
        bw_call *c = bw_free_call(x);
        c->run = run;
        c->n_phases = 1 + n % PHASES;
        for (int k = 0; k < c->n_phases; k++) {
            int each = 1 + (n + 5 * k) % 17;
            c->phases[k] = (bw_phase){.stage = k % 2, .items = ITEMS, .each = each, .pieces = (ITEMS + each - 1) / each};
        }
        bw_run(x, c);
        expect(expected, c->n_phases);
        if (memcmp(shared, expected, sizeof shared)) {
            fprintf(stderr, "call %d has other results\n", n);
            return 1;
        }
        if (n % 50 == 49)
            bw_settle(x);
    }
    bw_pool_stop(x);
    return 0;
}
