/* allocator LIBRARY [SIZE]
 *
 * Uses blocks of all sizes from an allocator in a separate library, which gets its memory by mmap or the break. SIZE
 * (64M) bytes are allocated at a time. Blocks are replaced at random, and every word is checked. The exit code is 3 if
 * the library cannot be loaded. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static void *(*take)(size_t);
static void (*give)(void *);
static void *(*resize)(void *, size_t);
static size_t size = 64 * MIB;

struct block {
    uint64_t *words;
    size_t count;
    uint64_t seed;
};

static void fill(struct block *block, uint64_t seed, uint64_t draw) {
    static const size_t kinds[] = {4, 30, 500, 5000, 40000, 300000};
    block->count = 1 + draw % kinds[draw / 7 % 6];
    block->seed = seed;
    block->words = take(block->count * 8);
    CALL(block->words != NULL);
    fill_words(block->words, block->count, seed, 0);
}

static void *churn(void *argument) {
    uint64_t number = (uintptr_t)argument;
    size_t blocks = size / 2 / 200000, live = 0;
    struct block *all = calloc(blocks, sizeof *all);
    CALL(all != NULL);
    for (uint64_t round = 0; round < 12 * blocks; round++) {
        uint64_t draw = word(number, 1, round);
        struct block *block = &all[draw % blocks];
        if (block->words != NULL) {
            check_words(block->words, block->count, block->seed, 0, "a block");
            if (draw >> 60 == 0) {
                size_t count = block->count / 2 + 1 + draw % 100000;
                block->words = resize(block->words, count * 8);
                CALL(block->words != NULL);
                size_t same = count < block->count ? count : block->count;
                check_words(block->words, same, block->seed, 0, "a resized block");
                fill_words(block->words, count, block->seed, 0);
                block->count = count;
                continue;
            }
            give(block->words);
            live--;
        }
        fill(block, number << 32 | round, draw >> 8);
        live++;
    }
    for (size_t i = 0; i < blocks; i++) {
        if (all[i].words != NULL) {
            check_words(all[i].words, all[i].count, all[i].seed, 0, "a block at the end");
            give(all[i].words);
        }
    }
    free(all);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fputs("allocator LIBRARY [SIZE]\n", stderr);
        return 2;
    }
    if (argc > 2)
        size = parse_size(argv[2]);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    *(void **)&take = dlsym(library, "malloc");
    *(void **)&give = dlsym(library, "free");
    *(void **)&resize = dlsym(library, "realloc");
    CALL(take && give && resize);
    pthread_t second;
    CALL((errno = pthread_create(&second, NULL, churn, (void *)2)) == 0);
    churn((void *)1);
    CALL((errno = pthread_join(second, NULL)) == 0);
    printf("ok allocator: %zu bytes\n", size);
    return 0;
}
