/* Work distribution: the pieces of a phase are computed by the threads that have a core.
 *
 * A phase's pieces are divided into one stretch for each thread. A thread takes its own pieces in order, then pieces that
 * others have not begun, from the end of their stretches. When nothing is left it waits for about a piece's time, and then
 * computes pieces again that others have begun and not finished. So a preempted thread does not block the others. There is
 * no barrier: the current phase is one shared word (call number, index), and the thread that finds the last stretch done
 * advances it.
 *
 * A piece has a word: phase << 2 | state. OPEN (any earlier phase) -> CLAIMED -> COMMITTED -> STORED. A thread claims only
 * pieces of others; the pieces of its own that it has begun are known by its progress. A piece is computed into memory
 * private to the thread, committed by one compare-and-swap, and only then stored. So a thread that comes back late, in
 * another phase or another call, finds that it cannot commit and drops its result. It may have read data while others were
 * writing it, but that result is never seen. The store is short: only there does a preempted thread block others.
 *
 * An atomic operation waits for all stores before it. For its own pieces a thread needs just one, at a time when the
 * previous piece's stores have long completed. Each stretch has cache lines of its own.
 */
#define _GNU_SOURCE
#include "native.h"

#include <sched.h>
#include <time.h>

enum { OPEN, CLAIMED, COMMITTED, STORED };

#define TICKS_BEFORE_HELP 20000 /* patience of a thread without a piece of its own as a measure: about 10 us */
#define TICKS_SPARE 3000        /* added to a piece and a quarter, since the current piece was begun before the wait */

typedef struct {
    bw_ctx *x;
    const bw_call *call;
    const bw_phase *phase;
    int thread;
    uint64_t now;
    bw_compute compute;
    bw_store store;
    void *work;
} job;

static inline uint64_t ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
#endif
}

/* A point at which a thread may lose its core. Tests slow it down with bw_delay. */
static inline void point(const job *j) {
    bw_ctx *x = j->x;
    if (!x->delay_every)
        return;
    uint64_t *dice = &x->team[j->thread].dice;
    *dice = *dice * 6364136223846793005ull + 1442695040888963407ull;
    if ((*dice >> 33) % x->delay_every == 0) {
        struct timespec t = {0, x->delay_micros * 1000l};
        nanosleep(&t, NULL);
    }
}

static int first_of(const job *j, int thread) {
    return (int)(((int64_t)j->phase->pieces * thread + j->x->threads - 1) / j->x->threads);
}

static atomic_uint_fast64_t *word_of(const job *j, int owner, int piece) {
    return j->x->words + (int64_t)owner * j->x->stretch + (piece - first_of(j, owner));
}

static int over(const job *j) { return atomic_load_explicit(&j->x->phase, memory_order_acquire) != j->now; }

/* Begins the next phase, or ends the call. The current phase is over. */
static void move_on(const job *j) {
    bw_ctx *x = j->x;
    int next = (int)(j->now & 0xffff) + 1;
    if (next == j->call->n_phases) {
        atomic_store(&x->phase, j->now | BW_DONE);
        return;
    }
    int pieces = j->call->phases[next].pieces;
    atomic_store_explicit(&x->left, pieces < x->threads ? pieces : x->threads, memory_order_relaxed);
    atomic_store_explicit(&x->phase, j->now + 1, memory_order_release);
}

/* Counts a stretch once, when all its pieces are stored. The fence lies between this thread's stores and its reads of
 * other threads' stores: if two threads end a stretch together, at least one of them sees both. */
static void count_stretch(const job *j, int owner) {
    bw_ctx *x = j->x;
    atomic_thread_fence(memory_order_seq_cst);
    uint64_t before = atomic_load(&x->team[owner].done), stored = j->now << 2 | STORED;
    int first = first_of(j, owner), last = first_of(j, owner + 1);
    if (before >= j->now || first == last)
        return;
    for (int i = first; i < last; i++)
        if (atomic_load_explicit(word_of(j, owner, i), memory_order_acquire) != stored)
            return;
    if (!atomic_compare_exchange_strong(&x->team[owner].done, &before, j->now))
        return;
    point(j);
    if (atomic_fetch_sub(&x->left, 1) == 1)
        move_on(j);
}

/* Computes a piece, and stores it unless another thread does. */
static void complete(const job *j, atomic_uint_fast64_t *word, int piece) {
    uint64_t committed = j->now << 2 | COMMITTED, seen;
    point(j);
    if (!j->compute(j->work, piece))
        return;
    point(j);
    seen = atomic_load_explicit(word, memory_order_relaxed);
    do
        if (seen >= committed)
            return;
    while (!atomic_compare_exchange_weak(word, &seen, committed));
    point(j);
    j->store(j->work, piece);
    point(j);
    atomic_store_explicit(word, j->now << 2 | STORED, memory_order_release);
    point(j);
}

/* Packs a thread's progress: the phase, cut to 32 bits, and the piece. It is only a hint for other threads. */
static uint64_t progress(const job *j, int piece) { return j->now << 32 | (uint32_t)piece; }

/* Computes a thread's own pieces in order, except the ones that others have begun. */
static void take_own(const job *j) {
    bw_member *me = j->x->team + j->thread;
    for (int i = first_of(j, j->thread); i < first_of(j, j->thread + 1); i++) {
        atomic_uint_fast64_t *word = word_of(j, j->thread, i);
        if (atomic_load_explicit(word, memory_order_relaxed) < j->now << 2) {
            atomic_store_explicit(&me->progress, progress(j, i), memory_order_relaxed);
            complete(j, word, i);
        } else if (over(j)) {
            return;
        }
    }
}

/* Computes pieces that another thread has not begun, from the end of its stretch. */
static void take_others(const job *j, int owner) {
    uint64_t begun;
    for (int i = first_of(j, owner + 1) - 1; i >= first_of(j, owner) && !over(j); i--) {
        begun = atomic_load_explicit(&j->x->team[owner].progress, memory_order_relaxed);
        if (begun >> 32 == (uint32_t)j->now && i <= (int)(uint32_t)begun)
            return;
        atomic_uint_fast64_t *word = word_of(j, owner, i);
        uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
        if (seen < j->now << 2 && atomic_compare_exchange_strong(word, &seen, j->now << 2 | CLAIMED)) {
            complete(j, word, i);
            count_stretch(j, owner);
        }
    }
}

/* Computes one piece that was begun and not finished. Returns whether there was one. */
static int take_over(const job *j) {
    int threads = j->x->threads;
    for (int k = 1; k <= threads; k++) {
        int owner = (j->thread + k) % threads;
        for (int i = first_of(j, owner); i < first_of(j, owner + 1); i++) {
            atomic_uint_fast64_t *word = word_of(j, owner, i);
            if (atomic_load(word) >= (j->now << 2 | COMMITTED))
                continue;
            complete(j, word, i);
            count_stretch(j, owner);
            return 1;
        }
        count_stretch(j, owner);
    }
    return 0;
}

static void wait_for_end(const job *j, uint64_t patience) {
    uint64_t began = ticks();
    for (unsigned i = 1; !over(j); i++) {
        bw_pause();
        if (i % 16 || ticks() - began < patience)
            continue;
        if (take_over(j))
            began = ticks();
        else if (i % 64 == 0)
            sched_yield();
    }
}

void bw_pieces(bw_ctx *x, const bw_call *call, const bw_phase *phase, int thread, uint64_t now, bw_compute compute,
               bw_store store, void *work) {
    const job j = {x, call, phase, thread, now, compute, store, work};
    if (x->threads == 1) {
        for (int i = 0; i < phase->pieces; i++) {
            compute(work, i);
            store(work, i);
            point(&j);
        }
        move_on(&j);
        return;
    }
    int own = first_of(&j, thread + 1) - first_of(&j, thread);
    uint64_t began = ticks();
    take_own(&j);
    uint64_t each = own ? (ticks() - began) / own : 0;
    count_stretch(&j, thread);
    for (int k = 1; k < x->threads; k++)
        take_others(&j, (thread + k) % x->threads);
    wait_for_end(&j, own ? each + each / 4 + TICKS_SPARE : TICKS_BEFORE_HELP);
}
