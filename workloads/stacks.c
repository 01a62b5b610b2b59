/* stacks [ROUNDS]
 *
 * Runs threads on stacks that the program provides: mapped, allocated, static, with a guard, and many in one block.
 * Each thread is joined, its stack holds its words, and the memory beside the stack is unchanged. When a stack is
 * freed, the next allocation reads as zeroes. Another thread causes constant eviction meanwhile. */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define STACK (256 * 1024)
#define SMALL (32 * 1024)
#define SLICES 16
#define PLAIN (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

static char fixed[4 * MIB];
static volatile char *scarce;
static size_t scarce_len = 20 * MIB;
static atomic_int stop;
static int threads;

static void *sweep(void *unused) {
    while (!stop)
        for (size_t at = 0; at < scarce_len && !stop; at += PAGE)
            scarce[at]++;
    return unused;
}

static void *live(void *seed) {
    uint64_t words[1024];
    fill_words(words, 1024, (uintptr_t)seed, 0);
    usleep(2000);
    check_words(words, 1024, (uintptr_t)seed, 0, "on a thread's stack");
    return seed;
}

static pthread_t start(char *stack, size_t len) {
    pthread_attr_t attributes;
    pthread_t thread;
    CALL(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, len) == 0);
    CALL(pthread_create(&thread, &attributes, live, (void *)(uintptr_t)++threads) == 0);
    pthread_attr_destroy(&attributes);
    return thread;
}

static void join(pthread_t thread, const char *where) {
    struct timespec until;
    void *answer;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int error = pthread_timedjoin_np(thread, &answer, &until);
    REQUIRE(error == 0, "a thread on a stack that is %s is not joined: %s", where, strerror(error));
}

/* Runs a thread on a part of a block of `len` bytes. The words in the other parts must stay. */
static void within(char *block, size_t len, size_t from, const char *where) {
    uint64_t *before = (uint64_t *)(void *)block, *behind = (uint64_t *)(void *)(block + from + STACK);
    size_t words = from / 8, more = (len - from - STACK) / 8;
    fill_words(before, words, 11, 0);
    fill_words(behind, more, 12, 0);
    join(start(block + from, STACK), where);
    check_words(before, words, 11, 0, "below a stack");
    check_words(behind, more, 12, 0, "above a stack");
}

static void slices(void) {
    char *block = mmap(NULL, SLICES * SMALL, PLAIN, PRIVATE, -1, 0);
    CALL(block != MAP_FAILED);
    pthread_t running[SLICES];
    for (int at = 0; at < SLICES; at++)
        running[at] = start(block + at * SMALL, SMALL);
    for (int at = 0; at < SLICES; at++)
        join(running[at], "one of many in a mapping");
    CALL(munmap(block, SLICES * SMALL) == 0);
}

int main(int argc, char *argv[]) {
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    pthread_t sweeper;
    scarce = mmap(NULL, scarce_len, PLAIN, PRIVATE, -1, 0);
    CALL((void *)scarce != MAP_FAILED && pthread_create(&sweeper, NULL, sweep, NULL) == 0);
    char *kept = mmap(NULL, STACK, PLAIN, PRIVATE, -1, 0), *guarded = mmap(NULL, STACK, PLAIN, PRIVATE, -1, 0);
    CALL(kept != MAP_FAILED && guarded != MAP_FAILED && mprotect(guarded, PAGE, PROT_NONE) == 0);
    for (int round = 0; round < rounds; round++) {
        join(start(kept, STACK), "used again");
        join(start(guarded, STACK), "guarded");
        within(fixed, sizeof fixed, MIB + 40, "static");
        size_t len = STACK + 64 * 1024;
        char *mapped = mmap(NULL, len, PLAIN, PRIVATE, -1, 0);
        CALL(mapped != MAP_FAILED);
        within(mapped, len, 8192, "mapped");
        CALL(munmap(mapped, len) == 0);
        for (size_t more = 0; more <= 2 * MIB; more += 2 * MIB) {
            char *block = malloc(len + more);
            CALL(block);
            within(block, len + more, 1000 * 8, "allocated");
            block = realloc(block, len + more + 4096);
            CALL(block);
            check_words((uint64_t *)(void *)block, 1000, 11, 0, "in a block that held a stack");
            free(block);
            char *next = calloc(1, len + more);
            CALL(next);
            check_zero(next, len + more, "allocated after a stack");
            within(next, len + more, 0, "at the start of a block");
            CALL(malloc_usable_size(next) >= len + more);
            free(next);
        }
        slices();
    }
    CALL(mprotect(guarded, PAGE, PROT_READ) == 0);
    check_zero(guarded, PAGE, "in a guard");
    stop = 1;
    CALL(pthread_join(sweeper, NULL) == 0);
    printf("ok stacks: %d threads\n", threads);
    return 0;
}
