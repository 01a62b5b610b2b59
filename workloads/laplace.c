/* Laplace's equation on shared memory: Jacobi iterations on a square of ROWS x ROWS points whose edge is fixed, as in
 * the paper on SCASH (1022 x 1022 inner points, 50 iterations). Each rank owns a block of rows of two grids and reads
 * its neighbours' edge rows.
 *
 *     hanare launch -n 4 -- laplace [-n INNER] [-i ITERATIONS] [--home one] [--verify] [--json]
 *
 * --home one makes rank 0 the home of every page. --verify compares every point with a serial run, bit for bit. The
 * exit code is 1 if a point differs. --json prints the time and the counts of all ranks. */
#include "laplace.h"
#include "shared.h"

#define MAX_ROWS 65536

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

/* Places each row at the rank that computes it, if rows are whole pages. */
static struct dsm_placement by_rows(long side) {
    static int owners[MAX_ROWS];
    size_t row = sizeof(double) * (size_t)side;
    if (row % 4096 != 0 || side > MAX_ROWS)
        return dsm_block();
    long each = side / dsm_size(), more = side % dsm_size();
    for (long at = 0, rank = 0, left = 0; at < side; at++, left--) {
        if (left == 0) {
            left = each + (rank < more);
            rank++;
        }
        owners[at] = (int)rank - 1;
    }
    /* The whole edge row of a neighbour is read. */
    return dsm_whole_blocks(row, owners, (size_t)side);
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    long inner = option(argc, argv, "-n", 1022), iterations = option(argc, argv, "-i", 50);
    int one = given(argc, argv, "--home", "one"), check = given(argc, argv, "--verify", NULL);
    if (inner < 1 || iterations < 1) {
        fprintf(stderr, "laplace: -n and -i want numbers above 0\n");
        return 2;
    }
    long side = inner + 2, first, end;
    my_part(side, &first, &end);
    struct dsm_placement placement = one ? dsm_one(0) : by_rows(side);
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
    char what[64];
    snprintf(what, sizeof(what), "\"inner\":%ld,\"iterations\":%ld", inner, iterations);
    if (given(argc, argv, "--json", NULL))
        print_counts(what, run_s);
    int wrong = check && dsm_rank() == 0 && verdict("laplace", verify(from, side, iterations));
    dsm_shutdown();
    return wrong;
}
