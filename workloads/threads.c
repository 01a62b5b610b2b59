/* threads [--threads T] [--size SIZE] [--ops N] [--seed S] [--share]
 *
 * T threads make N random reads and writes each on one array. Every word belongs to one thread, which knows its last
 * write to the word. So every read is checked. By default, a thread owns one contiguous part. With --share, the words
 * of every page belong to the threads in turn. So all threads use every page, but each uses only its own words.
 *
 * The versions of the words (one byte for each word) are kept in shared anonymous memory, which is never far. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>

static uint64_t *words;
static uint8_t *versions;
static size_t total, threads = 4, ops = 1000000;
static uint64_t seed = 1;
static int share;

static uint64_t expected(size_t index, uint8_t version) {
    return version == 0 ? 0 : word(seed, version, index);
}

static void check(size_t thread, size_t index) {
    uint64_t want = expected(index, versions[index]);
    uint64_t found = *(volatile uint64_t *)&words[index];
    REQUIRE(found == want, "thread %zu: word %zu at %p is %#llx, not %#llx (version %u)", thread, index,
            (void *)&words[index], (unsigned long long)found, (unsigned long long)want, versions[index]);
}

static void *work(void *argument) {
    size_t thread = (size_t)argument, own = total / threads;
    uint64_t state = seed * 0x9e3779b97f4a7c15u + thread + 1;
    for (size_t n = 0; n < ops; n++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        size_t nth = (state >> 8) % own;
        size_t index = share ? nth * threads + thread : thread * own + nth;
        check(thread, index);
        if (state & 1) {
            /* Version 0 means that the word was never written, so it is not used again. */
            versions[index] = versions[index] == 255 ? 1 : versions[index] + 1;
            *(volatile uint64_t *)&words[index] = expected(index, versions[index]);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    size_t size = 64 * MIB;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--threads")))
            threads = parse_size(value);
        else if ((value = option(argv, &i, "--size")))
            size = parse_size(value);
        else if ((value = option(argv, &i, "--ops")))
            ops = parse_size(value);
        else if ((value = option(argv, &i, "--seed")))
            seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--share") == 0)
            share = 1;
        else
            threads = 0;
    }
    total = size / sizeof(uint64_t);
    if (threads == 0 || threads > 256 || total < threads) {
        fprintf(stderr, "usage: threads [--threads T] [--size SIZE] [--ops N] [--seed S] [--share]\n");
        return 2;
    }
    pthread_t handles[256];
    CALL((words = calloc(total, sizeof *words)) != NULL);
    versions = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CALL(versions != MAP_FAILED);
    for (size_t t = 0; t < threads; t++)
        CALL((errno = pthread_create(&handles[t], NULL, work, (void *)t)) == 0);
    for (size_t t = 0; t < threads; t++)
        CALL((errno = pthread_join(handles[t], NULL)) == 0);
    for (size_t index = 0; index < total; index++)
        check(threads, index);
    free(words);
    printf("ok threads: %zu threads, %zu bytes, %zu ops each, %s\n", threads, size, ops,
           share ? "shared pages" : "own parts");
    return 0;
}
