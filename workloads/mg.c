/* mg [SIZE_MB] [SEED]
 *
 * Multigrid V-cycles for the Poisson equation on a periodic box, as in NPB MG: sweeps over grids, each an eighth of
 * the previous one.
 *
 * The right-hand side is computed from a random field, which is the solution. The result is compared with this field
 * up to its mean. The residual must shrink to less than a third in every cycle. No operation changes the mean. So the
 * mean shows a word that was lost early, even if later cycles smooth away all other traces of the loss. */
#include "kernel.h"
#include <math.h>

#define CYCLES 7
#define LEVELS_MAX 12
#define SMOOTHINGS 2
#define WEIGHT (6.0 / 7.0 / 6.0) /* damped Jacobi in three dimensions */

struct grid {
    size_t sides[3], count; /* the last side is contiguous */
    double *u, *right, *rest;
};

static struct grid grids[LEVELS_MAX];
static int coarsest;

static size_t down(size_t i, size_t side) {
    return i == 0 ? side - 1 : i - 1;
}

static size_t up(size_t i, size_t side) {
    return i + 1 == side ? 0 : i + 1;
}

static double *row(const struct grid *grid, double *values, size_t i, size_t j) {
    return values + (i * grid->sides[1] + j) * grid->sides[2];
}

/* Computes out = right - A in, where A is 6 times a cell minus its six neighbours. Returns the sum of squares of
 * out. */
static double residual(const struct grid *grid, double *in, double *right, double *out) {
    double squares = 0;
    size_t n0 = grid->sides[0], n1 = grid->sides[1], n2 = grid->sides[2];
    for (size_t i = 0; i < n0; i++)
        for (size_t j = 0; j < n1; j++) {
            const double *here = row(grid, in, i, j), *wanted = row(grid, right, i, j);
            const double *above = row(grid, in, down(i, n0), j), *below = row(grid, in, up(i, n0), j);
            const double *left = row(grid, in, i, down(j, n1)), *next = row(grid, in, i, up(j, n1));
            double *result = row(grid, out, i, j);
            for (size_t k = 0; k < n2; k++) {
                double around = above[k] + below[k] + left[k] + next[k] + here[down(k, n2)] + here[up(k, n2)];
                result[k] = wanted[k] - (6 * here[k] - around);
                squares += result[k] * result[k];
            }
        }
    return squares;
}

static void smooth(struct grid *grid, int times) {
    for (int n = 0; n < times; n++) {
        residual(grid, grid->u, grid->right, grid->rest);
        for (size_t at = 0; at < grid->count; at++)
            grid->u[at] += WEIGHT * grid->rest[at];
    }
}

/* Computes the three fine indices around coarse index `i`. Their weights are 1/2, 1, 1/2. */
static void around(size_t i, size_t fine_side, size_t indices[3]) {
    indices[0] = down(2 * i, fine_side);
    indices[1] = 2 * i;
    indices[2] = 2 * i + 1;
}

static const double weights[3] = {0.5, 1, 0.5};

/* Computes the right-hand side of the coarse grid from the fine residual. The cells of the coarse grid are twice as
 * wide. */
static void restrict_to(struct grid *fine, struct grid *coarse) {
    size_t is[3], js[3], ks[3];
    for (size_t i = 0; i < coarse->sides[0]; i++)
        for (size_t j = 0; j < coarse->sides[1]; j++) {
            double *sums = row(coarse, coarse->right, i, j);
            around(i, fine->sides[0], is);
            around(j, fine->sides[1], js);
            memset(sums, 0, coarse->sides[2] * sizeof *sums);
            for (int n = 0; n < 9; n++) {
                const double *values = row(fine, fine->rest, is[n / 3], js[n % 3]);
                double weight = 4.0 / 8 * weights[n / 3] * weights[n % 3];
                for (size_t k = 0; k < coarse->sides[2]; k++) {
                    around(k, fine->sides[2], ks);
                    sums[k] += weight * (0.5 * values[ks[0]] + values[ks[1]] + 0.5 * values[ks[2]]);
                }
            }
        }
}

static void correct(struct grid *fine, struct grid *coarse) {
    size_t is[3], js[3], ks[3];
    for (size_t i = 0; i < coarse->sides[0]; i++)
        for (size_t j = 0; j < coarse->sides[1]; j++) {
            const double *values = row(coarse, coarse->u, i, j);
            around(i, fine->sides[0], is);
            around(j, fine->sides[1], js);
            for (int n = 0; n < 9; n++) {
                double *target = row(fine, fine->u, is[n / 3], js[n % 3]);
                double weight = weights[n / 3] * weights[n % 3];
                for (size_t k = 0; k < coarse->sides[2]; k++) {
                    around(k, fine->sides[2], ks);
                    for (int d = 0; d < 3; d++)
                        target[ks[d]] += weight * weights[d] * values[k];
                }
            }
        }
}

static void cycle(int level) {
    struct grid *fine = &grids[level], *coarse = &grids[level + 1];
    if (level == coarsest) {
        smooth(fine, 40);
        return;
    }
    smooth(fine, SMOOTHINGS);
    residual(fine, fine->u, fine->right, fine->rest);
    restrict_to(fine, coarse);
    memset(coarse->u, 0, coarse->count * sizeof *coarse->u);
    cycle(level + 1);
    correct(fine, coarse);
    smooth(fine, SMOOTHINGS);
}

static void make_grids(size_t bytes) {
    size_t cells = bytes / (3 * sizeof(double)) / 8 * 7, smallest[3] = {4, 4, 4};
    while (64 * ((size_t)8 << 3 * coarsest) <= cells && coarsest < LEVELS_MAX - 1)
        coarsest++;
    /* If the number of cells is no power of two, the first side gets the cells that are left. */
    while (16 * (smallest[0] + 1) << 3 * coarsest <= cells)
        smallest[0]++;
    for (int level = 0; level <= coarsest; level++) {
        struct grid *grid = &grids[level];
        grid->count = 1;
        for (int d = 0; d < 3; d++)
            grid->count *= grid->sides[d] = smallest[d] << (coarsest - level);
        grid->u = array(grid->count, sizeof(double));
        grid->right = array(grid->count, sizeof(double));
        grid->rest = array(grid->count, sizeof(double));
    }
}

int main(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    make_grids(arguments.bytes);
    struct grid *finest = &grids[0];
    double mean = 0;
    for (size_t at = 0; at < finest->count; at++) {
        finest->rest[at] = 0;
        mean += (finest->u[at] = unit(arguments.seed, 0, at)) / (double)finest->count;
    }
    double before = residual(finest, finest->u, finest->rest, finest->right), squares = before;
    for (size_t at = 0; at < finest->count; at++) {
        finest->right[at] = -finest->right[at];
        finest->u[at] = 0;
    }
    for (int n = 0; n < CYCLES; n++, before = squares) {
        cycle(0);
        squares = residual(finest, finest->u, finest->right, finest->rest);
        REQUIRE(squares < before / 9, "cycle %d: the residual went from %g to %g only", n, sqrt(before), sqrt(squares));
    }
    double found = 0;
    for (size_t at = 0; at < finest->count; at++)
        found += finest->u[at] / (double)finest->count;
    REQUIRE(fabs(found) < 1e-11, "the mean went from 0 to %g", found);
    for (size_t at = 0; at < finest->count; at++) {
        double value = finest->u[at] - found, expected = unit(arguments.seed, 0, at) - mean;
        REQUIRE(fabs(value - expected) < 1e-3, "cell %zu is %g, not %g", at, value, expected);
    }
    printf("ok mg: %zu x %zu x %zu, %d levels, %d cycles, residual %.3e\n", finest->sides[0], finest->sides[1],
           finest->sides[2], coarsest + 1, CYCLES, sqrt(squares));
    return 0;
}
