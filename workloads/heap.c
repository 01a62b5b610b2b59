/* heap [--threads T] [--size SIZE] [--ops N] [--seed S] [--apart US] [--forkers F]
 *
 * T threads (4) each make N (400) random calls of malloc, calloc, aligned_alloc, realloc and free on 8 blocks of up to
 * SIZE (4M). The sizes cross the border between small and large blocks in both directions. The whole of a block is
 * checked before it changes. The threads begin together, or US (0) microseconds one after the other. F (0) more threads
 * fork until these threads end. Each child allocates, fills and checks a block. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 8

static size_t threads = 4, ops = 400, most = 4 * MIB, apart_us, forkers;
static pthread_barrier_t all_are_there;
static atomic_int is_over;
static uint64_t seed = 1;

struct block {
    uint64_t *words;
    size_t count;
    uint64_t number; /* its words are computed from this number */
};

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 11;
}

/* Draws a size from all powers of two, so that small blocks are as frequent as large ones. */
static size_t draw_count(uint64_t *state) {
    size_t size = most >> draw(state) % 12;
    return 1 + draw(state) % (size / sizeof(uint64_t) + 1);
}

static void replace(struct block *block, uint64_t *state) {
    size_t count = draw_count(state), kept = 0;
    switch (draw(state) % 4) {
    case 0:
        free(block->words);
        block->words = malloc(count * sizeof(uint64_t));
        break;
    case 1:
        free(block->words);
        block->words = calloc(count, sizeof(uint64_t));
        CALL(block->words != NULL);
        check_zero(block->words, count * sizeof(uint64_t), "calloc");
        break;
    case 2: {
        size_t align = (size_t)16 << draw(state) % 12;
        free(block->words);
        block->words = aligned_alloc(align, (count * sizeof(uint64_t) + align - 1) / align * align);
        REQUIRE((uintptr_t)block->words % align == 0, "%p is not aligned to %zu", (void *)block->words, align);
        break;
    }
    case 3:
        block->words = realloc(block->words, count * sizeof(uint64_t));
        kept = block->count < count ? block->count : count;
        break;
    }
    CALL(block->words != NULL);
    check_words(block->words, kept, seed, block->number, "realloc");
    block->count = count;
    block->number = draw(state);
    fill_words(block->words, count, seed, block->number);
}

static void *work(void *argument) {
    struct block blocks[BLOCKS] = {{0}};
    uint64_t state = seed * 0x9e3779b97f4a7c15u + (uintptr_t)argument + 1;
    pthread_barrier_wait(&all_are_there);
    usleep((useconds_t)(apart_us * (uintptr_t)argument));
    for (size_t n = 0; n < ops; n++) {
        struct block *block = &blocks[draw(&state) % BLOCKS];
        check_words(block->words, block->count, seed, block->number, "before the next call");
        if (draw(&state) % 8 == 0) {
            free(block->words);
            *block = (struct block){0};
        } else {
            replace(block, &state);
        }
    }
    for (size_t n = 0; n < BLOCKS; n++) {
        check_words(blocks[n].words, blocks[n].count, seed, blocks[n].number, "at the end");
        free(blocks[n].words);
    }
    return NULL;
}

static void *fork_on(void *argument) {
    uint64_t first = (uintptr_t)argument << 32;
    pthread_barrier_wait(&all_are_there);
    usleep((useconds_t)(apart_us * ((uintptr_t)argument - threads)));
    while (!is_over) {
        pid_t child = fork();
        CALL(child >= 0);
        if (child == 0) {
            size_t count = most / sizeof(uint64_t);
            uint64_t *words = malloc(most);
            CALL(words != NULL);
            fill_words(words, count, seed, first);
            check_words(words, count, seed, first, "in a child");
            _exit(0);
        }
        int status;
        CALL(waitpid(child, &status, 0) == child);
        REQUIRE(status == 0, "a child ended with status %#x", (unsigned)status);
    }
    return NULL;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--threads")))
            threads = parse_size(value);
        else if ((value = option(argv, &i, "--size")))
            most = parse_size(value);
        else if ((value = option(argv, &i, "--ops")))
            ops = parse_size(value);
        else if ((value = option(argv, &i, "--seed")))
            seed = strtoull(value, NULL, 10);
        else if ((value = option(argv, &i, "--apart")))
            apart_us = parse_size(value);
        else if ((value = option(argv, &i, "--forkers")))
            forkers = parse_size(value);
        else
            threads = 0;
    }
    if (threads == 0 || threads > 128 || forkers > 128 || most < 64 * 1024) {
        fprintf(stderr, "usage: heap [--threads T] [--size SIZE (64K or more)] [--ops N] [--seed S] [--apart US] "
                        "[--forkers F]\n");
        return 2;
    }
    pthread_t handles[256];
    CALL((errno = pthread_barrier_init(&all_are_there, NULL, (unsigned)(threads + forkers))) == 0);
    for (size_t t = 0; t < threads + forkers; t++)
        CALL((errno = pthread_create(&handles[t], NULL, t < threads ? work : fork_on, (void *)t)) == 0);
    for (size_t t = 0; t < threads + forkers; t++) {
        is_over = t >= threads;
        CALL((errno = pthread_join(handles[t], NULL)) == 0);
    }
    printf("ok heap: %zu threads, %zu calls each, blocks up to %zu bytes\n", threads, ops, most);
    return 0;
}
