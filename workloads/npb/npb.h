/* Common parts of the NAS Parallel Benchmarks: problem classes, random numbers, flags and the result.
 *
 * Written from the reports NAS-95-020 and RNR-94-007. The reference values of a class are those of these reports and
 * of NPB 3. As in NPB, arrays are static, and the class is fixed when a program is compiled: -DNPB_CLASS="'S'". */
#ifndef HANARE_WORKLOADS_NPB_H
#define HANARE_WORKLOADS_NPB_H

#include "../check.h"
#include <math.h>
#include <stddef.h>
#include <time.h>

#ifndef NPB_CLASS
#define NPB_CLASS 'S'
#endif

/* The value of the class among those of S, W, A and B. */
#if NPB_CLASS == 'S'
#define BY_CLASS(s, w, a, b) (s)
#elif NPB_CLASS == 'W'
#define BY_CLASS(s, w, a, b) (w)
#elif NPB_CLASS == 'A'
#define BY_CLASS(s, w, a, b) (a)
#elif NPB_CLASS == 'B'
#define BY_CLASS(s, w, a, b) (b)
#else
#error "NPB_CLASS is none of 'S', 'W', 'A' and 'B'"
#endif

#define RANDOM_FACTOR 1220703125u /* 5 to the power of 13 */
#define RANDOM_SEED 314159265u
#define RANDOM_MASK (((uint64_t)1 << 46) - 1)

/* The generator of NPB: x becomes `factor` * x modulo 2 to the power of 46. Returns x as a number in (0, 1). */
static inline double random_by(uint64_t *x, uint64_t factor) {
    *x = *x * factor & RANDOM_MASK;
    return (double)*x * 0x1p-46;
}

static inline double random_next(uint64_t *x) {
    return random_by(x, RANDOM_FACTOR);
}

struct npb {
    const char *name;
    int verify, json;
    size_t bytes; /* of the large arrays */
    struct timespec start;
};

static inline double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

static inline struct npb npb_begin(const char *name, size_t bytes, int argc, char **argv) {
    struct npb npb = {.name = name, .bytes = bytes};
    for (int at = 1; at < argc; at++) {
        if (!strcmp(argv[at], "--verify")) {
            npb.verify = 1;
        } else if (!strcmp(argv[at], "--json")) {
            npb.json = 1;
        } else {
            fprintf(stderr, "usage: %s [--verify] [--json]\n", argv[0]);
            exit(2);
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &npb.start);
    return npb;
}

/* Checks whether a value is as near to its reference value as NPB wants. */
static inline int is_near(double value, double reference, double epsilon) {
    return fabs(value - reference) <= epsilon * fabs(reference);
}

/* Prints the result. Returns the exit code: 1 if --verify was given and `is_right` is 0. */
static inline int npb_end(const struct npb *npb, int is_right, const char *what, double value) {
    double seconds = seconds_since(&npb->start);
    int is_wrong = npb->verify && !is_right;
    if (npb->json) {
        const char *verified = !npb->verify ? "null" : is_right ? "true" : "false";
        printf("{\"program\": \"%s\", \"class\": \"%c\", \"verified\": %s, ", npb->name, NPB_CLASS, verified);
        printf("\"%s\": %.13e, \"bytes\": %zu, \"seconds\": %.6f}\n", what, value, npb->bytes, seconds);
    } else {
        printf("%s %s: class %c, %s %.13e%s\n", is_wrong ? "wrong" : "ok", npb->name, NPB_CLASS, what, value,
               npb->verify && is_right ? ", as the reference" : "");
    }
    return is_wrong;
}

#endif
