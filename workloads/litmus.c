/* Litmus tests of release consistency on shared memory. They search for outcomes that must not occur, in many rounds.
 *
 *   hanare launch -n 4 -- litmus [ROUNDS [reclaimed]]
 *
 * In a round, every rank adds to counters under two locks, and to its own sums in pages that all ranks write. It
 * passes a message to the next rank by a barrier, and another by a lock. The exit code is 1 at the first outcome that
 * release consistency forbids. With `reclaimed`, it has the kernel unmap its pages in each round, as a kernel that is
 * short of memory does. */
#define _GNU_SOURCE
#include <dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE_INTS 1024
#define COUNTERS 3

static int rank, ranks;
static long round_;

static void expect(const char *what, long seen, long wanted) {
    if (seen != wanted) {
        fprintf(stderr, "litmus: round %ld, rank %d: %s is %ld, not %ld\n", round_, rank, what, seen, wanted);
        exit(1);
    }
}

/* Adds to counters on one page. Each counter has its own lock. */
static void count(int *counters) {
    for (int i = 0; i < COUNTERS; i++) {
        int which = (rank + i) % COUNTERS;
        dsm_lock(which);
        counters[which * 7]++;
        dsm_unlock(which);
    }
}

/* Writes a message and a flag on different pages, both under one lock. A rank that sees the flag must see the
 * message. */
static void pass_by_lock(int *message, int *flag) {
    if (round_ % ranks == rank) {
        dsm_lock(100);
        message[5] = (int)round_ + 1;
        flag[9] = (int)round_ + 1;
        dsm_unlock(100);
    } else {
        dsm_lock(100);
        int seen = flag[9];
        if (message[5] < seen)
            expect("a message whose flag was seen", message[5], seen);
        dsm_unlock(100);
    }
}

/* Every rank writes its own words of every page. After the barrier, every rank must see the words of all ranks. */
static void write_own_words(int *pages) {
    for (int page = 0; page < 4; page++)
        for (int word = rank; word < PAGE_INTS; word += ranks * 37)
            pages[page * PAGE_INTS + word] = (int)(round_ * 1000 + rank);
}

static void read_all_words(const int *pages) {
    int page = (int)(round_ % 4);
    for (int other = 0; other < ranks && other < PAGE_INTS; other++)
        expect("another rank's word", pages[page * PAGE_INTS + other], round_ * 1000 + other);
}

static void have_reclaimed(void *pages, size_t count) {
    if (madvise(pages, count * 4096, MADV_PAGEOUT) != 0) {
        perror("litmus: MADV_PAGEOUT");
        exit(1);
    }
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    long rounds = argc > 1 ? atol(argv[1]) : 1000;
    int reclaims = argc > 2;
    rank = dsm_rank(), ranks = dsm_size();
    int *counters = dsm_alloc(4096, dsm_one(ranks - 1));
    int *message = dsm_alloc(4096, dsm_one(ranks / 2));
    int *flag = dsm_alloc(4096, dsm_first_touch());
    int *pages = dsm_alloc(4 * 4096, dsm_cyclic(4096));
    for (round_ = 0; round_ < rounds; round_++) {
        count(counters);
        pass_by_lock(message, flag);
        write_own_words(pages);
        dsm_barrier();
        for (int i = 0; i < COUNTERS; i++)
            expect("a counter", counters[i * 7], (round_ + 1) * ranks);
        expect("the message", message[5], round_ + 1);
        read_all_words(pages);
        if (reclaims)
            have_reclaimed(counters, 1), have_reclaimed(message, 1), have_reclaimed(flag, 1), have_reclaimed(pages, 4);
        dsm_barrier();
    }
    dsm_free(pages);
    if (rank == 0)
        printf("ok litmus: %ld rounds, %d ranks\n", rounds, ranks);
    dsm_shutdown();
    return 0;
}
