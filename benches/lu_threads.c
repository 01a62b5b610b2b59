/* LU on threads, to compare workloads/lu.c with: the same blocks to each worker, the same arithmetic, in plain
 * memory. Each worker is bound to a CPU of its own if there are enough, like the ranks.
 *
 *     lu_threads WORKERS [N [BLOCK]]
 *
 * Prints the time as JSON. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../workloads/lu.h"

#define WORKERS_MAX 64

static struct lu lu;
static pthread_barrier_t all;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void wait_for_all(void) {
    pthread_barrier_wait(&all);
}

static void *work(void *number) {
    int worker = (int)(intptr_t)number;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(worker, &cpus);
    if (lu.rows * lu.columns <= sysconf(_SC_NPROCESSORS_ONLN))
        pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
    for (long i = 0; i < lu.count; i++)
        for (long j = 0; j < lu.count; j++)
            if (lu_owner(&lu, i, j) == worker)
                lu_fill_block(&lu, i, j, mix);
    wait_for_all();
    double began = seconds();
    lu_run(&lu, worker, wait_for_all);
    if (worker == 0)
        printf("{\"workers\":%d,\"n\":%ld,\"block\":%ld,\"run_s\":%.6f}\n", lu.rows * lu.columns, lu.count * lu.side,
               lu.side, seconds() - began);
    return NULL;
}

int main(int argc, char *argv[]) {
    int workers = argc > 1 ? atoi(argv[1]) : 1;
    long n = argc > 2 ? atol(argv[2]) : 2048;
    lu.side = argc > 3 ? atol(argv[3]) : 32;
    if (workers < 1 || workers > WORKERS_MAX || lu.side < 1 || n < 1 || n % lu.side) {
        fprintf(stderr, "usage: lu_threads WORKERS [N [BLOCK]], N a multiple of BLOCK\n");
        return 2;
    }
    lu.count = n / lu.side;
    lu.stride = (lu.side * lu.side + 511) / 512 * 512;
    lu_grid(&lu, workers);
    lu.blocks = aligned_alloc(4096, sizeof(double) * (size_t)(lu.count * lu.count * lu.stride));
    if (!lu.blocks || pthread_barrier_init(&all, NULL, (unsigned)workers) != 0) {
        fprintf(stderr, "lu_threads: no room for %ld x %ld numbers\n", n, n);
        return 2;
    }
    pthread_t threads[WORKERS_MAX];
    for (intptr_t worker = 1; worker < workers; worker++)
        if (pthread_create(&threads[worker], NULL, work, (void *)worker) != 0)
            abort();
    work((void *)0);
    for (int worker = 1; worker < workers; worker++)
        pthread_join(threads[worker], NULL);
    return 0;
}
