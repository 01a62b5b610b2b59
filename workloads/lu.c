/* LU factorisation on shared memory, as SPLASH-2's with contiguous blocks. The home of a block is the rank that computes
 * it.
 *
 *   hanare launch -n 4 -- lu [-n N] [-b BLOCK] [--home one] [--verify] [--json]
 *
 * N (2048) is a multiple of BLOCK (32). --home one makes rank 0 the home of every page. --verify compares every number
 * with a serial run, bit for bit, and L U x with A x for a vector x. The exit code is 1 if they differ. --json prints
 * the time and the counts of all ranks. */
#include "shared.h"

#include "lu.h"
#include <math.h>

static void nothing(void) {
}

/* Returns an element of the vector that A and L U are multiplied by. */
static double x_at(long index) {
    return (double)(mix((uint64_t)index + 12345) >> 11) * 0x1p-53;
}

static double lu_at(const struct lu *lu, long row, long column) {
    long side = lu->side;
    return lu_block(lu, row / side, column / side)[row % side * side + column % side];
}

/* Returns the largest difference between L U x and A x, divided by the largest element of A x. */
static double residual(const struct lu *lu) {
    long n = lu->side * lu->count;
    double *ux = calloc((size_t)n, sizeof(double)), worst = 0, largest = 0;
    if (!ux)
        return HUGE_VAL;
    for (long row = 0; row < n; row++)
        for (long column = row; column < n; column++)
            ux[row] += lu_at(lu, row, column) * x_at(column);
    for (long row = 0; row < n; row++) {
        double lux = ux[row], ax = 0;
        for (long column = 0; column < row; column++)
            lux += lu_at(lu, row, column) * ux[column];
        for (long column = 0; column < n; column++)
            ax += lu_number(mix, row, column, n) * x_at(column);
        worst = fmax(worst, fabs(lux - ax)), largest = fmax(largest, fabs(ax));
    }
    free(ux);
    return worst / largest;
}

static int verify(const struct lu *shared) {
    struct lu serial = *shared;
    size_t block = sizeof(double) * (size_t)(shared->side * shared->side);
    serial.rows = serial.columns = 1;
    serial.blocks = malloc(sizeof(double) * (size_t)(shared->count * shared->count * shared->stride));
    if (!serial.blocks)
        return 0;
    for (long i = 0; i < serial.count; i++)
        for (long j = 0; j < serial.count; j++)
            lu_fill_block(&serial, i, j, mix);
    lu_run(&serial, 0, nothing);
    int same = 1;
    for (long i = 0; i < serial.count && same; i++)
        for (long j = 0; j < serial.count && same; j++)
            same = memcmp(lu_block(&serial, i, j), lu_block(shared, i, j), block) == 0;
    free(serial.blocks);
    double error = residual(shared);
    if (!same || !(error < 1e-10))
        fprintf(stderr, "lu: equal to the serial run: %d, residual %g\n", same, error);
    return same && error < 1e-10;
}

/* Allocates the matrix. Each block begins on a page of its own, so that it can have a home of its own. */
static double *allocate(const struct lu *lu, int one) {
    long blocks = lu->count * lu->count;
    int *owners = malloc(sizeof(int) * (size_t)blocks);
    if (!owners)
        return NULL;
    for (long block = 0; block < blocks; block++)
        owners[block] = one ? 0 : lu_owner(lu, block / lu->count, block % lu->count);
    size_t bytes = sizeof(double) * (size_t)lu->stride;
    double *memory = dsm_alloc(bytes * (size_t)blocks, dsm_whole_blocks(bytes, owners, (size_t)blocks));
    free(owners);
    return memory;
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    long n = option(argc, argv, "-n", 2048);
    struct lu lu = {.side = option(argc, argv, "-b", 32)};
    if (n < 1 || lu.side < 1 || n % lu.side != 0) {
        fprintf(stderr, "lu: -n wants a multiple of -b\n");
        return 2;
    }
    lu.count = n / lu.side;
    lu.stride = (lu.side * lu.side + 511) / 512 * 512;
    lu_grid(&lu, dsm_size());
    lu.blocks = allocate(&lu, given(argc, argv, "--home", "one"));
    if (!lu.blocks) {
        fprintf(stderr, "lu: no room for %ld x %ld numbers\n", n, n);
        return 2;
    }
    for (long i = 0; i < lu.count; i++)
        for (long j = 0; j < lu.count; j++)
            if (lu_owner(&lu, i, j) == dsm_rank())
                lu_fill_block(&lu, i, j, mix);
    dsm_barrier();
    double began = seconds();
    lu_run(&lu, dsm_rank(), dsm_barrier);
    double run_s = seconds() - began;
    char what[64];
    snprintf(what, sizeof(what), "\"n\":%ld,\"block\":%ld", n, lu.side);
    if (given(argc, argv, "--json", NULL))
        print_counts(what, run_s);
    int wrong = given(argc, argv, "--verify", NULL) && dsm_rank() == 0 && verdict("lu", verify(&lu));
    dsm_shutdown();
    return wrong;
}
