/* A signal handler that reads shared memory while the program is inside the C library, whose locks it holds.
 *
 *   hanare launch -n 2 -- interrupted malloc|fork [ROUNDS]
 *
 * A timer's handler reads pages that this rank has not read before, and checks their words. Meanwhile the program calls
 * malloc and free, or fork. The exit code is 1 if a word is wrong. A run that does not end has waited for a lock. */
#define _GNU_SOURCE
#include <dsm.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 2000, PAGE_WORDS = 512, BLOCKS = 1000 };

static volatile uint64_t *words;
static volatile sig_atomic_t page, wrong;

static uint64_t word_of(int index) {
    return 3 * (uint64_t)index + 1;
}

static void handler(int signal) {
    (void)signal;
    if (page == PAGES)
        return;
    if (words[page * PAGE_WORDS] != word_of(page))
        wrong = 1;
    page++;
}

static void every_us(int time_us) {
    struct itimerval timer = {{0, time_us}, {0, time_us}};
    if (setitimer(ITIMER_REAL, &timer, NULL))
        exit(3);
}

static void allocate(void) {
    static void *blocks[BLOCKS];
    static uint64_t random = 1;
    for (int i = 0; i < 20000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int block = (random >> 33) % BLOCKS;
        free(blocks[block]);
        blocks[block] = malloc(2000 + (random >> 40) % 30000);
    }
}

static void fork_and_wait(void) {
    pid_t child = fork();
    if (child < 0)
        exit(3);
    if (child == 0)
        _exit(0);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    if (argc < 2)
        return 2;
    int rounds = argc > 2 ? atoi(argv[2]) : 30;
    words = dsm_alloc(PAGES * PAGE_WORDS * sizeof(uint64_t), dsm_cyclic(4096));
    for (int index = dsm_rank(); index < PAGES; index += dsm_size())
        words[index * PAGE_WORDS] = word_of(index);
    dsm_barrier();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    every_us(1000);
    for (int round = 0; round < rounds; round++)
        strcmp(argv[1], "malloc") ? fork_and_wait() : allocate();
    every_us(0);
    dsm_barrier();
    if (wrong || page == 0)
        return 1;
    if (dsm_rank() == 0)
        puts("ok interrupted");
    dsm_shutdown();
    return 0;
}
