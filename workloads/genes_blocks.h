/* The blocks of genes: those of malloc and its relatives, or of dlm_alloc and its relatives. Every call is counted and
 * timed. */
#ifndef HANARE_WORKLOADS_GENES_BLOCKS_H
#define HANARE_WORKLOADS_GENES_BLOCKS_H

#include "../include/dlmm.h"
#include "benchmark.h"

/* The symbols are weak. So the program can be built without the library. It then runs with malloc or under `hanare
 * run`. */
#pragma weak dlm_startup
#pragma weak dlm_shutdown
#pragma weak dlm_alloc
#pragma weak dlm_calloc
#pragma weak dlm_realloc
#pragma weak dlm_free

static int uses_dlm;
static size_t mallocs, reallocs, callocs, frees, live, live_max, largest;
static double alloc_s, realloc_s, calloc_s, free_s;

static void *got(void *block, size_t bytes, double *seconds, double start) {
    *seconds += now() - start;
    CALL(block != NULL);
    largest = bytes > largest ? bytes : largest;
    live_max = live > live_max ? live : live_max;
    return block;
}

static void *take(size_t bytes) {
    double start = now();
    void *block = uses_dlm ? dlm_alloc(bytes) : malloc(bytes);
    mallocs++, live++;
    return got(block, bytes, &alloc_s, start);
}

static void *take_zeroed(size_t count, size_t bytes) {
    double start = now();
    void *block = uses_dlm ? dlm_calloc(count, bytes) : calloc(count, bytes);
    callocs++, live++;
    return got(block, count * bytes, &calloc_s, start);
}

static void *resize(void *block, size_t bytes) {
    double start = now();
    block = uses_dlm ? dlm_realloc(block, bytes) : realloc(block, bytes);
    reallocs++;
    return got(block, bytes, &realloc_s, start);
}

static void release(void *block) {
    double start = now();
    if (uses_dlm)
        dlm_free(block);
    else
        free(block);
    free_s += now() - start;
    frees++, live--;
}

static void release_all(void *start, size_t count) {
    void **blocks = start;
    for (size_t n = 0; n < count; n++)
        release(blocks[n]);
    release(blocks);
}

#endif
