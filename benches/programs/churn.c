/* churn THREADS ROUNDS: threads allocate, fill, check and free blocks, while two more threads fork. */
#include "numbers.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKERS 2
#define BLOCK_MIN (64 * 1024)
#define BLOCK_MAX (512 * 1024)

static atomic_size_t running;
static _Atomic uint64_t total;
static size_t rounds;

static void *allocate(void *seed) {
    uint64_t state = (uintptr_t)seed, sum = 0;
    for (size_t round = 0; round < rounds; round++) {
        size_t words = (BLOCK_MIN + below(&state, BLOCK_MAX - BLOCK_MIN)) / sizeof(uint64_t);
        uint64_t *block = malloc(words * sizeof *block), first = draw(&state);
        if (block == NULL)
            fail("there is no memory left");
        for (size_t i = 0; i < words; i++)
            block[i] = first + i;
        for (size_t i = 0; i < words; i++)
            sum = add(sum, block[i]);
        free(block);
    }
    atomic_fetch_add(&total, sum);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

static void *fork_on(void *unused) {
    (void)unused;
    while (atomic_load(&running) > 0) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            fail("a child failed");
    }
    return NULL;
}

int main(int argc, char **argv) {
    size_t threads = number(argc, argv, 1);
    rounds = number(argc, argv, 2);
    atomic_store(&running, threads);
    pthread_t *all = array(threads + FORKERS, sizeof *all);
    for (size_t t = 0; t < threads + FORKERS; t++)
        if (pthread_create(&all[t], NULL, t < threads ? allocate : fork_on, (void *)(uintptr_t)(t + 1)))
            fail("a thread cannot be started");
    for (size_t t = 0; t < threads + FORKERS; t++)
        if (pthread_join(all[t], NULL))
            fail("a thread cannot be joined");
    printf("churn %zu %016llx\n", threads, (unsigned long long)atomic_load(&total));
    return 0;
}
