/* Common parts of the benchmarks himeno, genes, keyvalue and stream: the clock and the flags that all of them have. */
#ifndef HANARE_WORKLOADS_BENCHMARK_H
#define HANARE_WORKLOADS_BENCHMARK_H

#include "kernel.h"
#include <math.h>
#include <time.h>

static int verifies, in_json; /* --verify, --json */

static inline double now(void) {
    struct timespec time;
    CALL(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Checks whether an argument is one of the common flags, and notes it. */
static inline int is_common_flag(const char *argument) {
    if (strcmp(argument, "--verify") == 0)
        return verifies = 1;
    if (strcmp(argument, "--json") == 0)
        return in_json = 1;
    return 0;
}

__attribute__((noreturn)) static inline void end_with_usage(const char *program, const char *flags) {
    fprintf(stderr, "usage: %s %s [--verify] [--json]\n", program, flags);
    exit(2);
}

/* Parses a number of [least, most]. Ends with exit code 2 if the text is none. */
static inline size_t parse_count(const char *text, size_t least, size_t most) {
    uint64_t number = parse_number(text, most);
    if (number < least) {
        fprintf(stderr, "less than %zu: %s\n", least, text);
        exit(2);
    }
    return (size_t)number;
}

#endif
