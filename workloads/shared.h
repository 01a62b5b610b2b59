/* Common parts of the workloads on shared memory: the clock, the options, and the counts of all ranks. */
#ifndef WORKLOADS_SHARED_H
#define WORKLOADS_SHARED_H

#include <dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Returns the value that follows an option, or `otherwise` if the option is not given. */
static inline long option(int argc, char *argv[], const char *name, long otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return atol(argv[i + 1]);
    return otherwise;
}

/* Checks whether an option is given. If `value` is not NULL, the option must have that value. */
static inline int given(int argc, char *argv[], const char *name, const char *value) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name) && (!value || (i + 1 < argc && !strcmp(argv[i + 1], value))))
            return 1;
    return 0;
}

/* Called by all ranks. Rank 0 prints the time and the sums of the ranks' counts as one JSON object. `what` is a list
 * of further fields. */
static inline void print_counts(const char *what, double run_s) {
    struct dsm_stats mine;
    dsm_stats(&mine);
    int64_t sums[] = {mine.page_shares, mine.page_updates, mine.read_faults, mine.write_faults, mine.diffs,
                      mine.flushes,     mine.homes_moved,  mine.barriers,    mine.locks,        mine.bytes_sent, mine.pages_dropped,
                      mine.pages_out,   mine.pages_out_written, mine.pages_back};
    static const char *const names[] = {"page_shares", "page_updates", "read_faults", "write_faults", "diffs",
                                        "flushes",     "homes_moved",  "barriers",    "locks",        "bytes_sent",  "pages_dropped",
                                        "pages_out",   "pages_out_written", "pages_back"};
    dsm_reduce(DSM_SUM_INT64, sums, sizeof(sums) / sizeof(sums[0]));
    if (dsm_rank() != 0)
        return;
    printf("{\"ranks\":%d,%s,\"run_s\":%.6f", dsm_size(), what, run_s);
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        printf(",\"%s\":%lld", names[i], (long long)sums[i]);
    printf("}\n");
}

/* Returns the exit code. On rank 0, prints the result of the comparison. */
static inline int verdict(const char *program, int is_right) {
    fprintf(stderr, "%s: %s\n", program, is_right ? "verified" : "wrong");
    return !is_right;
}

/* Computes this rank's part of `count` items, from `first` to before `end`. If the parts differ, the first ranks have
 * one item more. */
static inline void my_part(long count, long *first, long *end) {
    long each = count / dsm_size(), more = count % dsm_size(), rank = dsm_rank();
    *first = rank * each + (rank < more ? rank : more);
    *end = *first + each + (rank < more);
}

/* Returns a random number that depends only on its place `x` (SplitMix64). */
static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif
