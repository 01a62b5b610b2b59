/* Laplace's equation on shared memory: Jacobi iterations on a square of ROWS x ROWS points whose edge is fixed, as in
 * the paper on SCASH (1022 x 1022 inner points, 50 iterations). Each rank owns a block of rows of two grids and reads
 * its neighbours' edge rows.
 *
 *     hanare launch -n 4 -- laplace [-n INNER] [-i ITERATIONS] [--home one] [--verify] [--json]
 *
 * --home one gives every page to rank 0. --verify compares every point with a serial run, bit for bit: exit code 1 when
 * one differs. --json prints the time and what all ranks counted. */
#include <dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Edge rows differ, so that the interior changes in every iteration. */
static double edge(long row, long column, long side) {
    if (row == 0)
        return 100.0;
    if (column == 0)
        return 50.0;
    return row == side - 1 || column == side - 1 ? 10.0 : 0.0;
}

static void fill(double *grid, long first, long end, long side) {
    for (long row = first; row < end; row++)
        for (long column = 0; column < side; column++)
            grid[row * side + column] = edge(row, column, side);
}

static void relax(const double *from, double *to, long first, long end, long side) {
    for (long row = first; row < end; row++) {
        if (row == 0 || row == side - 1)
            continue;
        for (long column = 1; column < side - 1; column++) {
            const double *at = from + row * side + column;
            to[row * side + column] = 0.25 * (at[-side] + at[side] + at[-1] + at[1]);
        }
    }
}

static int verify(const double *grid, long side, long iterations) {
    double *from = malloc(sizeof(double) * side * side), *to = malloc(sizeof(double) * side * side);
    if (!from || !to)
        return 0;
    fill(from, 0, side, side);
    fill(to, 0, side, side);
    for (long iteration = 0; iteration < iterations; iteration++) {
        relax(from, to, 0, side, side);
        double *other = from;
        from = to, to = other;
    }
    int same = memcmp(grid, from, sizeof(double) * side * side) == 0;
    free(from);
    free(to);
    return same;
}

/* Sums over all ranks; every rank gets them. */
static void print(double run_s, long side, long iterations) {
    struct dsm_stats mine;
    dsm_stats(&mine);
    int64_t sums[] = {mine.page_shares, mine.page_updates, mine.read_faults, mine.write_faults,
                      mine.diffs,       mine.flushes,      mine.homes_moved, mine.barriers};
    dsm_reduce(DSM_SUM_INT64, sums, sizeof(sums) / sizeof(sums[0]));
    if (dsm_rank() == 0)
        printf("{\"ranks\":%d,\"inner\":%ld,\"iterations\":%ld,\"run_s\":%.6f,\"page_shares\":%lld,\"page_updates\":%lld,"
               "\"read_faults\":%lld,\"write_faults\":%lld,\"diffs\":%lld,\"flushes\":%lld,\"homes_moved\":%lld,"
               "\"barriers\":%lld}\n",
               dsm_size(), side - 2, iterations, run_s, (long long)sums[0], (long long)sums[1], (long long)sums[2],
               (long long)sums[3], (long long)sums[4], (long long)sums[5], (long long)sums[6], (long long)sums[7]);
}

int main(int argc, char *argv[]) {
    long inner = 1022, iterations = 50;
    int one = 0, check = 0, json = 0;
    dsm_startup(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-n") && i + 1 < argc)
            inner = atol(argv[++i]);
        else if (!strcmp(argv[i], "-i") && i + 1 < argc)
            iterations = atol(argv[++i]);
        else if (!strcmp(argv[i], "--home") && i + 1 < argc)
            one = !strcmp(argv[++i], "one");
        else if (!strcmp(argv[i], "--verify"))
            check = 1;
        else if (!strcmp(argv[i], "--json"))
            json = 1;
    }
    if (inner < 1 || iterations < 1) {
        fprintf(stderr, "laplace: -n and -i want numbers above 0\n");
        return 2;
    }
    long side = inner + 2, rank = dsm_rank(), ranks = dsm_size();
    /* Rows in even blocks, as dsm_block places pages when a row is a whole number of them. */
    long each = side / ranks, more = side % ranks;
    long first = rank * each + (rank < more ? rank : more), end = first + each + (rank < more);
    struct dsm_placement placement = one ? dsm_one(0) : dsm_block();
    double *from = dsm_alloc(sizeof(double) * side * side, placement);
    double *to = dsm_alloc(sizeof(double) * side * side, placement);
    if (!from || !to) {
        fprintf(stderr, "laplace: no room for %ld x %ld points\n", side, side);
        return 2;
    }
    fill(from, first, end, side);
    fill(to, first, end, side);
    dsm_barrier();
    double began = seconds();
    for (long iteration = 0; iteration < iterations; iteration++) {
        relax(from, to, first, end, side);
        dsm_barrier();
        double *other = from;
        from = to, to = other;
    }
    double run_s = seconds() - began;
    if (json)
        print(run_s, side, iterations);
    int wrong = check && rank == 0 && !verify(from, side, iterations);
    if (check && rank == 0)
        fprintf(stderr, wrong ? "laplace: wrong\n" : "laplace: verified\n");
    dsm_shutdown();
    return wrong;
}
