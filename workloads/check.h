/* Common parts of the checking workloads: sizes, a value for every word, and the report of a failure. The workloads
 * know nothing of Hanare. The same programs run with and without `hanare run` and must print the same. */
#ifndef HANARE_WORKLOADS_CHECK_H
#define HANARE_WORKLOADS_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

static inline void take_signal(int number) {
    (void)number;
}

/* With CHECK_TAKES_SIGNALS in the environment, a workload has a handler for SIGUSR1. The signal interrupts calls,
 * which are then restarted. */
__attribute__((constructor)) static inline void take_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = take_signal;
    action.sa_flags = SA_RESTART;
    if (getenv("CHECK_TAKES_SIGNALS"))
        sigaction(SIGUSR1, &action, NULL);
}

/* Prints the failure and ends with exit code 1. Uses `_Exit`, because after a wrong byte no other part of the program
 * can be trusted. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("wrong: ", stdout);
    vprintf(format, args);
    fputc('\n', stdout);
    va_end(args);
    fflush(stdout);
    _Exit(1);
}

#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail(__VA_ARGS__);                                                                                         \
    } while (0)

/* Makes a call that must not fail. */
#define CALL(expression)                                                                                               \
    do {                                                                                                               \
        if (!(expression))                                                                                             \
            fail("%s:%d: %s: %s", __FILE__, __LINE__, #expression, strerror(errno));                                   \
    } while (0)

/* Returns the value of word `index` in round `round` (SplitMix64). No two words are alike, so a misplaced, a stale or
 * a torn page is noticed. The value is never 0, because a lost page reads as 0. */
static inline uint64_t word(uint64_t seed, uint64_t round, uint64_t index) {
    uint64_t x = seed + 0x9e3779b97f4a7c15u * (index + 1) + 0xd1342543de82ef95u * round;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) | 1;
}

static inline void fill_words(uint64_t *words, size_t count, uint64_t seed, uint64_t first) {
    for (size_t i = 0; i < count; i++)
        words[i] = word(seed, 0, first + i);
}

static inline void check_words(const uint64_t *words, size_t count, uint64_t seed, uint64_t first, const char *when) {
    for (size_t i = 0; i < count; i++) {
        uint64_t want = word(seed, 0, first + i), found = words[i];
        REQUIRE(found == want, "%s: word %zu at %p is %#llx, not %#llx", when, (size_t)first + i,
                (const void *)&words[i], (unsigned long long)found, (unsigned long long)want);
    }
}

static inline void check_zero(const void *start, size_t len, const char *when) {
    const unsigned char *bytes = (const unsigned char *)start;
    for (size_t i = 0; i < len; i++)
        REQUIRE(bytes[i] == 0, "%s: byte %zu at %p is %#x, not 0", when, i, (const void *)&bytes[i], bytes[i]);
}

/* Parses a size such as 64K, 1G or 4096. Ends with exit code 2 if the text is no size. */
static inline size_t parse_size(const char *text) {
    char *rest;
    errno = 0;
    unsigned long long number = strtoull(text, &rest, 10);
    unsigned shift = 0;
    switch (*rest) {
    case 'K': shift = 10; rest++; break;
    case 'M': shift = 20; rest++; break;
    case 'G': shift = 30; rest++; break;
    case 'T': shift = 40; rest++; break;
    }
    if (errno || rest == text || *rest || text[0] == '-' || number == 0 || number > (SIZE_MAX >> 1 >> shift)) {
        fprintf(stderr, "not a size: %s\n", text);
        exit(2);
    }
    return (size_t)number << shift;
}

/* Returns the value that follows the option `name` at argv[*at], or NULL if argv[*at] is another argument. */
static inline const char *option(char **argv, int *at, const char *name) {
    if (strcmp(argv[*at], name) != 0)
        return NULL;
    if (!argv[*at + 1]) {
        fprintf(stderr, "%s wants a value\n", name);
        exit(2);
    }
    return argv[++*at];
}

#endif
