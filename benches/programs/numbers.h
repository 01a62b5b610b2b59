/* Common parts of the C programs of the scoreboard: a size, random numbers, memory and a checksum. */
#ifndef HANARE_BENCHES_NUMBERS_H
#define HANARE_BENCHES_NUMBERS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

__attribute__((noreturn)) static inline void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* Returns the whole number in argument `nth`. */
static inline size_t number(int argc, char **argv, int nth) {
    char *rest = NULL;
    unsigned long long value = nth < argc ? strtoull(argv[nth], &rest, 10) : 0;
    if (value == 0 || *rest)
        fail("a whole number above 0 is missing");
    return (size_t)value;
}

/* The generator splitmix64: returns the next number and advances the state. */
static inline uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Returns a random number below `end`. */
static inline uint32_t below(uint64_t *state, uint32_t end) {
    return (uint32_t)((draw(state) >> 32) * end >> 32);
}

static inline void *array(size_t count, size_t size) {
    void *start = calloc(count, size);
    if (start == NULL)
        fail("there is no memory left");
    return start;
}

/* Adds a number to a checksum in which order counts. */
static inline uint64_t add(uint64_t sum, uint64_t value) {
    return (sum ^ value) * 0x100000001b3u + 1;
}

#endif
