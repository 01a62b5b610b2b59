/* blocks [well|many SIZE|forked|MISTAKE] [options of dlm_startup]
 *
 * Uses the blocks of dlm_alloc and its relatives. `well` allocates, resizes and frees blocks of every size, mostly
 * without accessing them. It checks the blocks' properties, and that neither allocating nor freeing causes a fault:
 * all metadata is near (never evicted), and no far page is accessed. `many` fills SIZE (1G) with a chain of blocks of
 * 48 bytes, checks the chain and frees it. `forked` forks before there is a block, and again while threads allocate.
 * Children have blocks of their own, and none waits for a lock of a thread that is gone. Each MISTAKE (early, double,
 * double-large, double-late, stack, heap, inside, inside-large, gone, realloc) is made once. It ends the program,
 * unless it is not noticed. */
#define _GNU_SOURCE
#include "../include/dlmm.h"
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma weak dlm_startup
#pragma weak dlm_shutdown
#pragma weak dlm_alloc
#pragma weak dlm_calloc
#pragma weak dlm_realloc
#pragma weak dlm_free
#pragma weak dlm_stats

#define BLOCKS 100000

static uint64_t faults(void) {
    struct dlm_stats stats;
    CALL(dlm_stats(&stats) == 0);
    return stats.faults;
}

static size_t size_of(uint64_t number) {
    static const size_t most[] = {64, 300, 2000, 14336, 20000, 200000, 3000000};
    uint64_t drawn = word(7, 0, number);
    size_t kind = drawn % 1000 < 700 ? 0 : drawn % 1000 < 900 ? 1 : drawn % 1000 < 980 ? 2 : 3 + drawn % 4;
    return (drawn >> 20) % most[drawn % 1000 == 999 ? 6 : kind == 6 ? 5 : kind] + 1;
}

/* Frees every other block, allocates these blocks again, and frees all blocks. None of this may cause a fault. */
static void untouched(void) {
    /* This memory is near, even if all other memory of the program is far. */
    char **blocks = mmap(NULL, BLOCKS * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CALL(blocks != MAP_FAILED);
    uint64_t before = faults();
    for (size_t n = 0; n < BLOCKS; n++) {
        blocks[n] = dlm_alloc(size_of(n));
        CALL(blocks[n] != NULL);
        REQUIRE((uintptr_t)blocks[n] % 16 == 0, "%p is not aligned", (void *)blocks[n]);
    }
    for (int round = 0; round < 4; round++) {
        for (size_t n = round % 2; n < BLOCKS; n += 2)
            dlm_free(blocks[n]);
        for (size_t n = round % 2; n < BLOCKS; n += 2)
            CALL((blocks[n] = dlm_alloc(size_of(n + (size_t)round))) != NULL);
    }
    for (size_t n = 0; n < BLOCKS; n++)
        dlm_free(blocks[n]);
    uint64_t after = faults();
    REQUIRE(after == before, "allocating and freeing untouched blocks took %llu faults",
            (unsigned long long)(after - before));
}

/* Checks that blocks do not overlap, and that they keep their bytes when they are resized. */
static void *kept(void *argument) {
    enum { HELD = 64 };
    unsigned char *held[HELD] = {0};
    size_t sizes[HELD] = {0};
    uint64_t first = (uintptr_t)argument << 32;
    for (size_t n = 0; n < 4000; n++) {
        size_t at = word(9, 0, first + n) % HELD, old = sizes[at], size = size_of(first + n);
        size = size > 300000 && n % 16 ? 300000 : size;
        for (size_t i = 0; i < old; i += 1 + old / 64)
            REQUIRE(held[at][i] == (unsigned char)(at + i), "byte %zu of %zu is not what was written", i, old);
        if (n % 3 == 0) {
            held[at] = dlm_realloc(held[at], size);
        } else {
            dlm_free(held[at]);
            held[at] = n % 3 == 1 ? dlm_alloc(size) : dlm_calloc(size, 1);
            CALL(held[at] != NULL);
            if (n % 3 == 2)
                check_zero(held[at], size, "dlm_calloc");
            old = 0;
        }
        CALL(held[at] != NULL);
        for (size_t i = 0; i < old && i < size; i += 1 + old / 64)
            REQUIRE(held[at][i] == (unsigned char)(at + i), "byte %zu of %zu is lost by dlm_realloc", i, old);
        sizes[at] = size;
        for (size_t i = 0; i < size; i++)
            held[at][i] = (unsigned char)(at + i);
    }
    for (size_t at = 0; at < HELD; at++)
        dlm_free(held[at]);
    return NULL;
}

static void refused(void) {
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2 + 1, (size_t)1 << 47};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        errno = 0;
        REQUIRE(dlm_alloc(sizes[n]) == NULL && errno == ENOMEM, "%zu bytes: errno %d", sizes[n], errno);
    }
    errno = 0;
    REQUIRE(dlm_calloc(SIZE_MAX / 4, 5) == NULL && errno == ENOMEM, "an overflow: errno %d", errno);
    char *small = dlm_alloc(100);
    CALL(small != NULL);
    memcpy(small, "kept", 5);
    errno = 0;
    REQUIRE(dlm_realloc(small, SIZE_MAX) == NULL && errno == ENOMEM, "dlm_realloc: errno %d", errno);
    REQUIRE(strcmp(small, "kept") == 0, "a refused dlm_realloc changed the block");
    dlm_free(small);
    dlm_free(NULL);
}

static void well(void) {
    pthread_t threads[4];
    untouched();
    for (uintptr_t t = 0; t < 4; t++)
        CALL((errno = pthread_create(&threads[t], NULL, kept, (void *)t)) == 0);
    for (size_t t = 0; t < 4; t++)
        CALL((errno = pthread_join(threads[t], NULL)) == 0);
    refused();
    printf("ok blocks: %d of up to 3000000 bytes\n", BLOCKS);
}

struct link {
    struct link *next;
    uint64_t value, more[4];
};

static void many(size_t bytes) {
    struct link *first = NULL, **last = &first;
    size_t count = bytes / sizeof *first;
    for (size_t n = 0; n < count; n++) {
        CALL((*last = dlm_alloc(sizeof **last)) != NULL);
        **last = (struct link){.value = word(3, 0, n)};
        last = &(*last)->next;
    }
    size_t n = 0;
    for (struct link *at = first, *next; at; at = next) {
        REQUIRE(at->value == word(3, 0, n), "block %zu of the chain is not what was written", n);
        n++;
        next = at->next;
        dlm_free(at);
    }
    REQUIRE(n == count, "the chain has %zu blocks of %zu", n, count);
    printf("ok blocks: a chain of %zu\n", count);
}

static atomic_int is_over;

static void *churn(void *seed) {
    void *held[64] = {NULL};
    for (uint64_t n = 0; !is_over; n++) {
        void **block = &held[word((uint64_t)(uintptr_t)seed, 0, n) % 64];
        dlm_free(*block);
        CALL((*block = dlm_alloc(word((uint64_t)(uintptr_t)seed, 1, n) % 3000 + 1)) != NULL);
    }
    for (size_t n = 0; n < 64; n++)
        dlm_free(held[n]);
    return NULL;
}

static void fork_once(void) {
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        alarm(60);
        many(MIB);
        _exit(0);
    }
    int status;
    CALL(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0, "the child ended with status %#x", (unsigned)status);
}

static void forked(void) {
    pthread_t threads[4];
    fork_once();
    for (size_t n = 0; n < 4; n++)
        CALL(pthread_create(&threads[n], NULL, churn, (void *)(n + 1)) == 0);
    for (int round = 0; round < 30; round++)
        fork_once();
    is_over = 1;
    for (size_t n = 0; n < 4; n++)
        CALL(pthread_join(threads[n], NULL) == 0);
    many(32 * MIB);
}

static void mistake(const char *which) {
    char *small = dlm_alloc(100), *large = dlm_alloc(50000), *huge = dlm_alloc(3000000), *bad = NULL;
    char near[64] __attribute__((aligned(16)));
    CALL(small != NULL && large != NULL && huge != NULL);
    if (strcmp(which, "double") == 0)
        dlm_free(bad = small);
    else if (strcmp(which, "double-large") == 0)
        dlm_free(bad = large);
    else if (strcmp(which, "gone") == 0)
        dlm_free(bad = huge);
    else if (strcmp(which, "double-late") == 0) {
        void *others[1000];
        for (int n = 0; n < 1000; n++)
            others[n] = dlm_alloc(100);
        dlm_free(bad = small);
        for (int n = 0; n < 1000; n++)
            dlm_free(others[n]);
    } else if (strcmp(which, "stack") == 0)
        bad = near;
    else if (strcmp(which, "heap") == 0)
        bad = malloc(100);
    else if (strcmp(which, "inside") == 0)
        bad = small + 16;
    else if (strcmp(which, "inside-large") == 0)
        bad = large + 4096;
    else
        bad = huge + 4096;
    fprintf(stderr, "%p\n", (void *)bad);
    if (strcmp(which, "realloc") == 0)
        bad = dlm_realloc(bad, 10);
    else
        dlm_free(bad);
    printf("unnoticed\n");
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "well";
    REQUIRE(dlm_alloc, "there is no dlm_alloc: link with libhanare, or run under 'hanare run'");
    if (strcmp(which, "early") == 0) {
        REQUIRE(dlm_alloc(8) == NULL && dlm_calloc(8, 8) == NULL && errno == ENOMEM, "memory before dlm_startup");
        return 0;
    }
    dlm_startup(&argc, &argv);
    if (strcmp(which, "well") == 0)
        well();
    else if (strcmp(which, "many") == 0)
        many(argc > 2 ? parse_size(argv[2]) : (size_t)1 << 30);
    else if (strcmp(which, "forked") == 0)
        forked();
    else
        mistake(which);
    dlm_shutdown();
    return 0;
}
