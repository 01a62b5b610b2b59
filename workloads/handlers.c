/* A signal handler that reads and writes shared memory while the program is in calls of dsm.h.
 *
 *   hanare launch -n 3 -- handlers [ROUNDS]
 *
 * A timer's handler writes words of this rank in pages with other homes, and reads the words of the other ranks. At
 * the end, each rank must find the words that every handler wrote. The exit code is 1 if a word is missing. */
#include <dsm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define PAGE_INTS 1024
#define RANKS_MAX 16

static int rank, ranks;
static int *pages, *counter;
static volatile sig_atomic_t written;
static volatile int seen;

static void handler(int signal) {
    (void)signal;
    written++;
    pages[rank * PAGE_INTS + written % PAGE_INTS] = written;
    for (int other = 0; other < ranks; other++)
        seen += pages[other * PAGE_INTS + written % PAGE_INTS];
}

static void every_us(int time_us) {
    struct itimerval timer = {{0, time_us}, {0, time_us}};
    if (setitimer(ITIMER_REAL, &timer, NULL))
        exit(3);
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    int rounds = argc > 1 ? atoi(argv[1]) : 300;
    rank = dsm_rank(), ranks = dsm_size();
    int owners[RANKS_MAX];
    for (int page = 0; page < ranks; page++)
        owners[page] = (page + 1) % ranks;
    pages = dsm_alloc(ranks * 4096, dsm_owners(4096, owners, ranks));
    counter = dsm_alloc(4096, dsm_one(0));
    dsm_barrier();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    every_us(2000);
    for (int round = 0; round < rounds; round++) {
        dsm_lock(1);
        counter[0]++;
        dsm_unlock(1);
        dsm_barrier();
    }
    every_us(0);
    dsm_barrier();
    int64_t last[RANKS_MAX] = {0};
    last[rank] = written;
    dsm_reduce(DSM_SUM_INT64, last, ranks);
    for (int other = 0; other < ranks; other++)
        for (int64_t n = last[other]; n > 0 && n > last[other] - PAGE_INTS; n--)
            if (pages[other * PAGE_INTS + n % PAGE_INTS] != n) {
                fprintf(stderr, "handlers: rank %d lost what the handler of rank %d wrote\n", rank, other);
                return 1;
            }
    if (counter[0] != rounds * ranks || written == 0)
        return 1;
    if (rank == 0)
        puts("ok handlers");
    dsm_shutdown();
    return 0;
}
