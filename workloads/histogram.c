/* A histogram on shared memory. Each rank counts its part of the numbers, and adds its counts to the shared bins. It
 * adds them segment by segment, and each segment has a lock.
 *
 *   hanare launch -n 4 -- histogram [-n NUMBERS] [--verify] [--json]
 *
 * --verify compares every bin with a serial count, and the bins' sum with a reduction. The exit code is 1 if one
 * differs. */
#include "shared.h"

#define BINS 4096
#define SEGMENTS 16

/* Returns the product of two random numbers. Small products are frequent, so the bins differ. */
static uint32_t number(long index) {
    uint64_t random = mix((uint64_t)index);
    return (uint32_t)((random & 4095) * (random >> 32 & 4095) >> 12);
}

static void count(const uint32_t *numbers, long first, long end, int64_t *bins) {
    for (long index = first; index < end; index++)
        bins[numbers[index] % BINS]++;
}

static int verify(const int64_t *bins, long numbers, int64_t reduced) {
    static int64_t serial[BINS];
    for (long index = 0; index < numbers; index++)
        serial[number(index) % BINS]++;
    int64_t sum = 0;
    for (int bin = 0; bin < BINS; bin++)
        sum += bins[bin];
    return memcmp(serial, bins, sizeof(serial)) == 0 && sum == numbers && reduced == numbers;
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    static int64_t mine[BINS];
    long numbers = option(argc, argv, "-n", 4000000), first, end;
    if (numbers < 1) {
        fprintf(stderr, "histogram: -n wants a number above 0\n");
        return 2;
    }
    my_part(numbers, &first, &end);
    uint32_t *data = dsm_alloc(sizeof(uint32_t) * (size_t)numbers, dsm_block());
    int64_t *bins = dsm_alloc(sizeof(int64_t) * BINS, dsm_cyclic(4096));
    if (!data || !bins) {
        fprintf(stderr, "histogram: no room for %ld numbers\n", numbers);
        return 2;
    }
    for (long index = first; index < end; index++)
        data[index] = number(index);
    dsm_barrier();
    double began = seconds();
    count(data, first, end, mine);
    for (int turn = 0; turn < SEGMENTS; turn++) {
        /* Each rank begins with another segment, so that few ranks wait for a lock. */
        int segment = (turn + dsm_rank()) % SEGMENTS;
        dsm_lock(segment);
        for (int bin = segment * (BINS / SEGMENTS); bin < (segment + 1) * (BINS / SEGMENTS); bin++)
            bins[bin] += mine[bin];
        dsm_unlock(segment);
    }
    int64_t reduced = 0;
    for (int bin = 0; bin < BINS; bin++)
        reduced += mine[bin];
    dsm_reduce(DSM_SUM_INT64, &reduced, 1);
    dsm_barrier();
    double run_s = seconds() - began;
    char what[40];
    snprintf(what, sizeof(what), "\"numbers\":%ld", numbers);
    if (given(argc, argv, "--json", NULL))
        print_counts(what, run_s);
    int check = given(argc, argv, "--verify", NULL) && dsm_rank() == 0;
    int wrong = check && verdict("histogram", verify(bins, numbers, reduced));
    dsm_shutdown();
    return wrong;
}
