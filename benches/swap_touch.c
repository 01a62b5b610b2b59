/* The accesses of `hanare bench paging` on plain memory, for a kernel that swaps. benches/swap.sh compares the two.
 *
 *   swap_touch BYTES seq|rand r|rw TOUCHES [MM_STAT]
 *
 * Fills the region, where each word is a hash of its index. Reaches the steady state, warms up, times the pattern and
 * checks every word. Prints the seconds, the number of accesses, and the first two numbers of MM_STAT right after the
 * timed accesses (zram's original and compressed bytes). Orders and values are those of crates/cli/src/bench/pattern.rs
 * and words.rs.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8, SEQUENTIAL_PASSES = 2, STEADY_PASSES_RW = 2 };
static const uint64_t SEED = 0x48616E617265;

static volatile uint64_t *words;
static uint32_t *rewritten; /* how often the touched word of each page was rewritten */
static uint64_t pages;

static uint64_t mix(uint64_t number) {
    uint64_t z = (number + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static uint64_t value(uint64_t index, uint64_t times) { return mix(index + (times << 40)); }

static uint64_t touched(uint64_t page) { return page * PAGE_WORDS + mix(page) % PAGE_WORDS; }

static void check(uint64_t index, uint64_t times) {
    uint64_t found = words[index], expected = value(index, times);
    if (found != expected) {
        fprintf(stderr, "swap_touch: the word at %p is %#018" PRIx64 " and should be %#018" PRIx64 "\n",
                (void *)&words[index], found, expected);
        exit(1);
    }
}

static void touch(uint64_t page, int rewrite) {
    uint64_t index = touched(page);
    check(index, rewritten[page]);
    if (rewrite) words[index] = value(index, ++rewritten[page]);
}

static void sequential(uint64_t passes, int rewrite) {
    for (uint64_t number = 0; number < passes * pages; number++) touch(number % pages, rewrite);
}

static void at_random(uint64_t seed, uint64_t touches, int rewrite) {
    for (uint64_t number = 0; number < touches; number++) touch(mix(seed + number) % pages, rewrite);
}

static void verify(void) {
    for (uint64_t index = 0; index < pages * PAGE_WORDS; index++) {
        uint64_t page = index / PAGE_WORDS;
        check(index, index == touched(page) ? rewritten[page] : 0);
    }
}

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void compressed(const char *path, uint64_t bytes[2]) {
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    if (fscanf(file, "%" SCNu64 " %" SCNu64, &bytes[0], &bytes[1]) != 2) bytes[0] = bytes[1] = 0;
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "swap_touch: usage: swap_touch BYTES seq|rand r|rw TOUCHES [MM_STAT]\n");
        return 125;
    }
    uint64_t size = strtoull(argv[1], NULL, 10), touches = strtoull(argv[4], NULL, 10), swapped[2] = {0, 0};
    int random = strcmp(argv[2], "rand") == 0, rewrite = strcmp(argv[3], "rw") == 0;
    pages = size / PAGE_BYTES;
    words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rewritten = calloc(pages ? pages : 1, sizeof *rewritten);
    if (!pages || words == MAP_FAILED || !rewritten) {
        fprintf(stderr, "swap_touch: cannot have %s bytes\n", argv[1]);
        return 125;
    }
    for (uint64_t index = 0; index < pages * PAGE_WORDS; index++) words[index] = value(index, 0);
    sequential(rewrite ? STEADY_PASSES_RW : 1, rewrite);
    if (random) at_random(~SEED, touches / 4, rewrite);

    double began = now_s();
    if (random) {
        at_random(SEED, touches, rewrite);
    } else {
        sequential(SEQUENTIAL_PASSES, rewrite);
        touches = SEQUENTIAL_PASSES * pages;
    }
    double seconds = now_s() - began;
    compressed(argc > 5 ? argv[5] : NULL, swapped);
    verify();
    printf("%.6f %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", seconds, touches, swapped[0], swapped[1]);
    return 0;
}
