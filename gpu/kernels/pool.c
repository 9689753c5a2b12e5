/* The thread pool of one back end: spin for a while, giving way to others, then sleep on a futex.
 *
 * Spinning keeps the barriers of a step at 0.1 us; sched_yield on every 64th pause lets other processes on the same
 * cores go on; the time limit keeps an idle engine from using a core.
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

static inline void pause_cpu(void) {
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

static void wait_change(atomic_uint *word, unsigned old, atomic_int *sleepers) {
    int64_t limit = 0;
    for (unsigned i = 1; atomic_load_explicit(word, memory_order_acquire) == old; i++) {
        pause_cpu();
        if (i % 64)
            continue;
        sched_yield();
        int64_t now = now_ns();
        if (!limit)
            limit = now + SPIN_NANOSECONDS;
        if (now < limit)
            continue;
        atomic_fetch_add(sleepers, 1);
        while (atomic_load(word) == old)
            syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
        atomic_fetch_sub(sleepers, 1);
    }
}

static void announce(atomic_uint *word, atomic_int *sleepers) {
    atomic_fetch_add(word, 1);
    if (atomic_load(sleepers))
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

void bw_barrier(bw_ctx *ctx) {
    if (ctx->threads == 1)
        return;
    unsigned phase = atomic_load_explicit(&ctx->phase, memory_order_relaxed);
    if (atomic_fetch_add(&ctx->arrived, 1) == ctx->threads - 1) {
        atomic_store_explicit(&ctx->arrived, 0, memory_order_relaxed);
        announce(&ctx->phase, &ctx->phase_sleepers);
    } else {
        wait_change(&ctx->phase, phase, &ctx->phase_sleepers);
    }
}

static void *worker_main(void *argument) {
    bw_worker *self = argument;
    bw_ctx *ctx = self->ctx;
    for (unsigned region = 0;; region++) {
        wait_change(&ctx->region, region, &ctx->region_sleepers);
        if (atomic_load(&ctx->stop))
            return NULL;
        ctx->job(ctx, self->index);
        bw_barrier(ctx);
    }
}

void bw_pool_run(bw_ctx *ctx, bw_job job) {
    if (ctx->threads > 1) {
        ctx->job = job;
        announce(&ctx->region, &ctx->region_sleepers);
    }
    job(ctx, 0);
    bw_barrier(ctx);
}

void bw_pool_stop(bw_ctx *ctx) {
    if (ctx->owner == getpid()) { /* a child that was forked later has no such threads: joining would never end */
        atomic_store(&ctx->stop, 1);
        announce(&ctx->region, &ctx->region_sleepers);
        for (int i = 1; i < ctx->threads; i++)
            pthread_join(ctx->workers[i].id, NULL);
    }
    free(ctx->workers);
}

int bw_pool_start(bw_ctx *ctx) {
    int wanted = ctx->threads;
    ctx->owner = getpid();
    ctx->workers = calloc(wanted, sizeof *ctx->workers);
    if (!ctx->workers)
        return -1;
    for (int i = 1; i < wanted; i++) {
        ctx->workers[i] = (bw_worker){.ctx = ctx, .index = i};
        if (pthread_create(&ctx->workers[i].id, NULL, worker_main, &ctx->workers[i])) {
            ctx->threads = i; /* join only those that exist */
            bw_pool_stop(ctx);
            return -1;
        }
    }
    return 0;
}
