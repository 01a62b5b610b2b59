/* sites SIZE SECONDS
 *
 * Two functions allocate memory and two others read it. One of them sweeps SIZE mebibytes, and waits if less is local.
 * The other sweeps a few pages, and does not wait. So a report must name the first pair. Both check every word that they
 * read. The program ends after SECONDS. */
#include "check.h"

#include <time.h>

#define FEW (4 * PAGE)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fill(uint64_t *words, size_t bytes) {
    if (!words)
        fail("no memory");
    for (size_t at = 0; at < bytes / sizeof *words; at += PAGE / sizeof *words)
        words[at] = at;
}

/* The functions are not inlined or merged, so each has a return address of its own. */
__attribute__((noinline, noclone)) uint64_t *allocate_much(size_t bytes) {
    uint64_t *words = malloc(bytes);
    fill(words, bytes);
    return words;
}

__attribute__((noinline, noclone)) uint64_t *allocate_little(size_t bytes) {
    uint64_t *words = malloc(bytes);
    fill(words, bytes);
    __asm__ volatile("" : : "r"(words), "r"(bytes) : "memory");
    return words;
}

__attribute__((noinline, noclone)) uint64_t sweep_much(const volatile uint64_t *words, size_t bytes) {
    uint64_t wrong = 0;
    for (size_t at = 0; at < bytes / sizeof *words; at += PAGE / sizeof *words)
        wrong += words[at] != at;
    return wrong;
}

__attribute__((noinline, noclone)) uint64_t sweep_little(const volatile uint64_t *words, size_t bytes) {
    uint64_t wrong = 1;
    for (size_t at = 0; at < bytes / sizeof *words; at += PAGE / sizeof *words)
        wrong += words[at] != at;
    return wrong - 1;
}

int main(int argc, char **argv) {
    size_t size = argc == 3 ? strtoull(argv[1], NULL, 10) * MIB : 0;
    double until = now() + (argc == 3 ? strtod(argv[2], NULL) : 0);
    if (size < 2 * MIB)
        fail("usage: sites MEBIBYTES SECONDS");
    uint64_t *much = allocate_much(size), *little = allocate_little(MIB);
    uint64_t wrong = 0;
    do {
        wrong += sweep_much(much, size);
        for (int nth = 0; nth < 1000; nth++)
            wrong += sweep_little(little, FEW);
    } while (now() < until);
    if (wrong)
        fail("%llu words", (unsigned long long)wrong);
    free(little);
    free(much);
    puts("ok");
    return 0;
}
