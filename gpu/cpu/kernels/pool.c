/* Thread pool of one back end, and how its threads find the current call.
 *
 * A thread without a call spins for a while, then sleeps on a futex. It yields on every 64th pause, so other processes on
 * the same cores can run; the time limit keeps an idle engine from using a core. A call returns when its last phase is over,
 * not when every thread has left it: a preempted thread may still be reading its copy of the arguments, tables, weights and
 * pages. bw_settle() waits for such threads, and must be called before memory is given back.
 */
#define _GNU_SOURCE
#include "native.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NANOSECONDS 200000
#define BETWEEN_MOVES_NANOSECONDS 500000
#define PHASES_BETWEEN_LOOKS 8

void bw_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void wait_for_call(bw_ctx *x, unsigned seen) {
    int64_t limit = 0;
    for (unsigned i = 1; atomic_load_explicit(&x->region, memory_order_acquire) == seen; i++) {
        bw_pause();
        if (i % 64)
            continue;
        int64_t now = now_ns();
        if (!limit)
            limit = now + SPIN_NANOSECONDS;
        if (now < limit)
            continue;
        atomic_fetch_add(&x->sleepers, 1);
        while (atomic_load(&x->region) == seen)
            syscall(SYS_futex, &x->region, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_fetch_sub(&x->sleepers, 1);
    }
}

static void wake(bw_ctx *x) {
    atomic_fetch_add(&x->region, 1);
    if (atomic_load(&x->sleepers))
        syscall(SYS_futex, &x->region, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

/* Two threads of a team on one core halve each other's speed while an unrelated thread has the other core to itself: the
 * kernel sees three busy threads on two cores either way. A thread that finds another one of its team on its core moves
 * to a core without one, and may then be moved anywhere again. The first thread is not moved, because it is the caller's. */
static void spread(bw_ctx *x, int thread) {
    int cpu = sched_getcpu(), shared = 0;
    bw_member *me = x->team + thread;
    atomic_store_explicit(&me->cpu, cpu, memory_order_relaxed);
    for (int t = 0; t < x->threads; t++)
        shared |= t != thread && atomic_load_explicit(&x->team[t].cpu, memory_order_relaxed) == cpu;
    if (!shared || !thread || now_ns() < me->settled)
        return;
    cpu_set_t allowed, free_cpus;
    me->settled = now_ns() + BETWEEN_MOVES_NANOSECONDS;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    free_cpus = allowed;
    for (int t = 0; t < x->threads; t++)
        if (t != thread)
            CPU_CLR(atomic_load_explicit(&x->team[t].cpu, memory_order_relaxed), &free_cpus);
    if (!CPU_COUNT(&free_cpus) || sched_setaffinity(0, sizeof free_cpus, &free_cpus))
        return;
    sched_setaffinity(0, sizeof allowed, &allowed);
    atomic_store_explicit(&me->cpu, sched_getcpu(), memory_order_relaxed);
}

/* Returns the call of a phase, and announces that this thread reads it; null if it has ended. The announcement here and
 * the check in bw_free_call() are the two sides of a hazard pointer: both are sequentially consistent. */
static bw_call *enter(bw_ctx *x, int thread, uint64_t now) {
    bw_call *call = atomic_load(&x->current);
    atomic_store(&x->team[thread].in, call);
    uint64_t again = atomic_load(&x->phase);
    int same = again >> 16 == now >> 16 && (again & BW_DONE) != BW_DONE && atomic_load(&call->number) == now >> 16;
    return same ? call : NULL;
}

/* Works on calls until there are none. */
static void join(bw_ctx *x, int thread) {
    bw_call *call = NULL;
    for (uint64_t entered = 0;;) {
        uint64_t now = atomic_load_explicit(&x->phase, memory_order_acquire);
        if ((now & BW_DONE) == BW_DONE)
            break;
        if (x->threads > 1 && now % PHASES_BETWEEN_LOOKS == 0)
            spread(x, thread);
        if (now >> 16 != entered)
            call = enter(x, thread, now);
        entered = call ? now >> 16 : 0;
        if (call)
            call->run(x, call, call->phases + (now & 0xffff), thread, now);
    }
    atomic_store(&x->team[thread].in, NULL);
}

bw_call *bw_free_call(bw_ctx *x) {
    for (bw_call *call = x->calls;; call++) {
        int used = 0;
        for (int t = 0; t < x->threads; t++)
            used |= atomic_load(&x->team[t].in) == call;
        if (!used)
            return call;
    }
}

void bw_run(bw_ctx *x, bw_call *call) {
    int pieces = call->phases[0].pieces;
    atomic_store(&call->number, ++x->number);
    atomic_store(&x->current, call);
    atomic_store_explicit(&x->left, pieces < x->threads ? pieces : x->threads, memory_order_relaxed);
    atomic_store(&x->phase, x->number << 16);
    if (x->threads > 1)
        wake(x);
    join(x, 0);
}

/* Returns when no thread reads anything of earlier calls. To be called between calls only. */
void bw_settle(bw_ctx *x) {
    for (int t = 1; t < x->threads; t++)
        while (atomic_load(&x->team[t].in))
            sched_yield();
}

/* Returns a number that changes with every phase of a call. Any thread may call it at any time. */
uint64_t bw_progress(const bw_ctx *x) { return atomic_load_explicit(&x->phase, memory_order_relaxed); }

static void *thread_main(void *argument) {
    bw_member *self = argument;
    bw_ctx *x = self->ctx;
    for (unsigned seen = 0;;) {
        wait_for_call(x, seen);
        seen = atomic_load(&x->region);
        if (atomic_load(&x->stop))
            return NULL;
        join(x, self->index);
    }
}

void bw_pool_stop(bw_ctx *x) {
    if (x->owner == getpid()) { /* a child that was forked later has no such threads: joining would never end */
        atomic_store(&x->stop, 1);
        wake(x);
        for (int i = 1; i < x->threads; i++)
            pthread_join(x->team[i].id, NULL);
    }
    free(x->team);
}

int bw_pool_start(bw_ctx *x) {
    int wanted = x->threads;
    x->owner = getpid();
    atomic_store(&x->phase, BW_DONE);
    x->team = aligned_alloc(64, wanted * sizeof *x->team);
    if (!x->team)
        return -1;
    for (int i = 0; i < wanted; i++) {
        x->team[i] = (bw_member){.ctx = x, .index = i, .dice = i + 1, .cpu = -1};
        if (i && pthread_create(&x->team[i].id, NULL, thread_main, x->team + i)) {
            x->threads = i; /* join only the threads that exist */
            bw_pool_stop(x);
            return -1;
        }
    }
    return 0;
}
