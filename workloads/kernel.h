/* Common parts of the workloads for replacement policies: `PROGRAM [SIZE_MB] [SEED]`. They use large arrays whose
 * values can be computed from their index. So every result is compared with its expected value and not with itself. */
#ifndef HANARE_WORKLOADS_KERNEL_H
#define HANARE_WORKLOADS_KERNEL_H

#include "check.h"
#include <stddef.h>

struct arguments {
    size_t bytes; /* largest total size of the arrays */
    uint64_t seed;
};

static inline uint64_t parse_number(const char *text, uint64_t most) {
    char *rest;
    errno = 0;
    unsigned long long number = strtoull(text, &rest, 10);
    if (errno || rest == text || *rest || text[0] == '-' || number > most) {
        fprintf(stderr, "not a whole number of at most %llu: %s\n", (unsigned long long)most, text);
        exit(2);
    }
    return number;
}

static inline struct arguments parse_arguments(int argc, char **argv) {
    uint64_t megabytes = argc > 1 ? parse_number(argv[1], (uint64_t)1 << 20) : 64;
    uint64_t seed = argc > 2 ? parse_number(argv[2], UINT64_MAX) : 1;
    if (argc > 3 || megabytes < 2) {
        fprintf(stderr, "usage: %s [SIZE_MB (2 or more, else 64)] [SEED]\n", argv[0]);
        exit(2);
    }
    return (struct arguments){.bytes = megabytes * MIB, .seed = seed};
}

/* Allocates memory for `count` elements of `size` bytes. */
static inline void *array(size_t count, size_t size) {
    void *start = malloc(count * size);
    CALL(start != NULL);
    return start;
}

/* Returns the number in [0, 1) that belongs to an index. */
static inline double unit(uint64_t seed, uint64_t round, uint64_t index) {
    return (double)(word(seed, round, index) >> 11) * 0x1p-53;
}

static inline uint64_t draw(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    return word(*state, 0, 0);
}

/* Returns the largest n with n * n * n <= count. */
static inline size_t cube_side(size_t count) {
    size_t side = 1;
    while ((side + 1) * (side + 1) * (side + 1) <= count)
        side++;
    return side;
}

#endif
