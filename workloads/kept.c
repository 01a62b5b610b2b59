/* kept round SIZE ROUNDS | kept mix OPERATIONS SEED | kept fork | kept grow SIZE | kept idle SIZE
 *
 * Frees blocks and allocates blocks of the same size again.
 * `round` allocates a block, fills it, checks it and frees it, ROUNDS times. Prints the median time of a round.
 * `mix` has four threads that allocate (malloc, calloc, realloc, memalign), check and free blocks of 1 to 6 MiB. Two
 * blocks never overlap: each thread checks all words of a block before it frees it. calloc must return zeroes.
 * `fork` forks between the free of a block and its next use. Parent and child then write to blocks of that size.
 * `grow` frees a block and then fills one that is twice as long.
 * `idle` frees a block, and waits until its memory is given back to the system. */
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define SLOTS 3

static uint64_t operations, base_seed;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void rounds(size_t size, size_t count) {
    uint64_t *times = calloc(count, sizeof *times);
    CALL(times != NULL);
    for (size_t round = 0; round < count; round++) {
        uint64_t began = now_ns();
        uint64_t *block = malloc(size);
        CALL(block != NULL);
        memset(block, (int)round + 1, size);
        times[round] = now_ns() - began;
        for (size_t page = 0; page < size; page += PAGE) {
            unsigned char found = ((unsigned char *)block)[page];
            REQUIRE(found == (unsigned char)(round + 1), "round %zu: byte %zu is %d", round, page, found);
        }
        began = now_ns();
        free(block);
        times[round] += now_ns() - began;
    }
    qsort(times, count, sizeof *times, by_value);
    printf("ok round, %.1f us\n", (double)times[count / 2] / 1e3);
}

struct block {
    uint64_t *words;
    size_t count;
    uint64_t seed;
};

static void check_zeroes(const uint64_t *words, size_t count) {
    for (size_t i = 0; i < count; i++)
        REQUIRE(words[i] == 0, "calloc: word %zu at %p is %#llx", i, (const void *)&words[i],
                (unsigned long long)words[i]);
}

static void renew(struct block *block, uint64_t drawn) {
    static const size_t sizes[] = {MIB, 2 * MIB, 3 * MIB + 5 * PAGE, 6 * MIB, MIB + PAGE, 2 * MIB};
    size_t size = sizes[drawn % 6];
    if (block->words != NULL) {
        check_words(block->words, block->count, block->seed, 0, "before a free");
        if (drawn % 5 == 0) {
            size_t kept = block->count < size / 8 ? block->count : size / 8;
            block->words = realloc(block->words, size);
            CALL(block->words != NULL);
            check_words(block->words, kept, block->seed, 0, "after realloc");
        } else {
            free(block->words);
            block->words = NULL;
        }
    }
    block->count = size / 8;
    if (block->words == NULL) {
        switch ((drawn >> 8) % 4) {
        case 0:
            block->words = calloc(1, size);
            CALL(block->words != NULL);
            check_zeroes(block->words, block->count);
            break;
        case 1:
            CALL(posix_memalign((void **)&block->words, 64 * MIB, size) == 0);
            REQUIRE((uintptr_t)block->words % (64 * MIB) == 0, "%p is not aligned", (void *)block->words);
            break;
        default:
            block->words = malloc(size);
            CALL(block->words != NULL);
        }
    }
    block->seed = drawn;
    fill_words(block->words, block->count, block->seed, 0);
}

static void *mix(void *number) {
    struct block blocks[SLOTS] = {{NULL, 0, 0}};
    uint64_t seed = base_seed + (uintptr_t)number;
    for (uint64_t n = 0; n < operations; n++) {
        uint64_t drawn = word(seed, 1, n);
        renew(&blocks[(drawn >> 32) % SLOTS], drawn);
        if (drawn % 61 == 0) {
            /* Fresh zeroes from the kernel, at an address that may have been a block. */
            uint64_t *zeroes = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CALL(zeroes != MAP_FAILED);
            check_zeroes(zeroes, 2 * MIB / 8);
            CALL(munmap(zeroes, 2 * MIB) == 0);
        }
    }
    for (size_t slot = 0; slot < SLOTS; slot++) {
        check_words(blocks[slot].words, blocks[slot].words ? blocks[slot].count : 0, blocks[slot].seed, 0, "at the end");
        free(blocks[slot].words);
    }
    return NULL;
}

static void forks(void) {
    for (uint64_t round = 0; round < 20; round++) {
        uint64_t *block = malloc(3 * MIB);
        CALL(block != NULL);
        fill_words(block, 3 * MIB / 8, round, 0);
        free(block);
        pid_t child = fork();
        CALL(child >= 0);
        uint64_t mine = child == 0 ? 1000 : 2000;
        uint64_t *again = malloc(3 * MIB), *other = calloc(1, 3 * MIB);
        CALL(again != NULL && other != NULL);
        check_zeroes(other, 3 * MIB / 8);
        fill_words(again, 3 * MIB / 8, mine + round, 0);
        fill_words(other, 3 * MIB / 8, mine + round + 7, 0);
        check_words(again, 3 * MIB / 8, mine + round, 0, "after a fork");
        check_words(other, 3 * MIB / 8, mine + round + 7, 0, "after a fork");
        if (child == 0)
            _Exit(0);
        int status;
        CALL(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %d", status);
        free(again);
        free(other);
    }
    puts("ok fork");
}

static void filled(size_t size, uint64_t seed) {
    uint64_t *block = malloc(size);
    CALL(block != NULL);
    fill_words(block, size / 8, seed, 0);
    check_words(block, size / 8, seed, 0, "after it was filled");
    free(block);
}

static size_t resident(void) {
    FILE *statm = fopen("/proc/self/statm", "r");
    size_t whole, pages;
    CALL(statm != NULL && fscanf(statm, "%zu %zu", &whole, &pages) == 2);
    fclose(statm);
    return pages * PAGE;
}

static void idle(size_t size) {
    filled(size, 1);
    for (int tenths = 0; resident() > size / 2; tenths++) {
        REQUIRE(tenths < 300, "%zu bytes are resident 30 s after the free", resident());
        usleep(100000);
    }
    filled(size, 2);
    puts("ok idle");
}

int main(int argc, char *argv[]) {
    if (argc == 4 && strcmp(argv[1], "round") == 0) {
        rounds(parse_size(argv[2]), (size_t)atoll(argv[3]));
    } else if (argc == 4 && strcmp(argv[1], "mix") == 0) {
        pthread_t threads[THREADS];
        operations = (uint64_t)atoll(argv[2]);
        base_seed = (uint64_t)atoll(argv[3]) << 8;
        for (uintptr_t n = 0; n < THREADS; n++)
            CALL(pthread_create(&threads[n], NULL, mix, (void *)n) == 0);
        for (size_t n = 0; n < THREADS; n++)
            CALL(pthread_join(threads[n], NULL) == 0);
        puts("ok mix");
    } else if (argc == 2 && strcmp(argv[1], "fork") == 0) {
        forks();
    } else if (argc == 3 && strcmp(argv[1], "grow") == 0) {
        filled(parse_size(argv[2]), 1);
        filled(2 * parse_size(argv[2]), 2);
        puts("ok grow");
    } else if (argc == 3 && strcmp(argv[1], "idle") == 0) {
        idle(parse_size(argv[2]));
    } else {
        fputs("usage: kept round SIZE ROUNDS | kept mix OPERATIONS SEED | kept fork | kept grow SIZE | kept idle SIZE\n", stderr);
        return 2;
    }
    return 0;
}
