/* npb_mg: NPB MG. V-cycles of a multigrid method solve a discrete Poisson equation on a cube with periodic borders. The
 * right-hand side is 1 in ten cells, -1 in ten others and 0 elsewhere. The norm of the last residual is known. */
#include "npb.h"

#define LEVELS BY_CLASS(5, 7, 8, 8)
#define CYCLES BY_CLASS(4, 4, 4, 20)
#define REFERENCE BY_CLASS(0.5307707005734e-04, 0.6467329375339e-05, 0.2433365309069e-05, 0.1800564401355e-05)
#define CHARGES 10

/* A grid of level k has 2 to the power of k cells in a row, and a copied cell at each end of the row. */
#define SIDE(level) (((size_t)1 << (level)) + 2)
#define CELLS(level) (SIDE(level) * SIDE(level) * SIDE(level))
/* Each level has an eighth of the cells of the next one, and some more at its borders. */
#define CELLS_OF_ALL (CELLS(LEVELS) + CELLS(LEVELS) / 5)

static double u_of_all[CELLS_OF_ALL], r_of_all[CELLS_OF_ALL], v[CELLS(LEVELS)];
static double *u[LEVELS + 1], *r[LEVELS + 1];

/* The weights of a cell, its 6 neighbours at faces, 12 at edges and 8 at corners. */
static const double operator[4] = {-8.0 / 3, 0, 1.0 / 6, 1.0 / 12};
static const double smoother[4] = {BY_CLASS(-3.0 / 8, -3.0 / 8, -3.0 / 8, -3.0 / 17),
                                   BY_CLASS(1.0 / 32, 1.0 / 32, 1.0 / 32, 1.0 / 33),
                                   BY_CLASS(-1.0 / 64, -1.0 / 64, -1.0 / 64, -1.0 / 61), 0};

static void wrap(double *grid, size_t side) {
    size_t plane = side * side, last = side - 2;
    for (size_t z = 1; z <= last; z++)
        for (size_t y = 1; y <= last; y++) {
            double *row = grid + z * plane + y * side;
            row[0] = row[last];
            row[last + 1] = row[1];
        }
    for (size_t z = 1; z <= last; z++) {
        double *rows = grid + z * plane;
        memcpy(rows, rows + last * side, side * sizeof *rows);
        memcpy(rows + (last + 1) * side, rows + side, side * sizeof *rows);
    }
    memcpy(grid, grid + last * plane, plane * sizeof *grid);
    memcpy(grid + (last + 1) * plane, grid + plane, plane * sizeof *grid);
}

/* out = base + sign * weights * in, where `in` is summed with the cell's neighbours. `base` may be `out`. */
static void apply(const double *weights, double sign, const double *in, const double *base, double *out, int level) {
    static double faces[SIDE(LEVELS)], edges[SIDE(LEVELS)];
    size_t side = SIDE(level), plane = side * side, last = side - 2;
    double own = sign * weights[0], face = sign * weights[1], edge = sign * weights[2], corner = sign * weights[3];
    for (size_t z = 1; z <= last; z++)
        for (size_t y = 1; y <= last; y++) {
            size_t start = z * plane + y * side;
            const double *row = in + start;
            for (size_t x = 0; x < side; x++) {
                const double *up = row + x + plane, *down = row + x - plane;
                faces[x] = row[x + side] + row[x - side] + up[0] + down[0];
                edges[x] = up[side] + up[-(ptrdiff_t)side] + down[side] + down[-(ptrdiff_t)side];
            }
            for (size_t x = 1; x <= last; x++)
                out[start + x] = base[start + x] + own * row[x] + face * (row[x - 1] + row[x + 1] + faces[x]) +
                                 edge * (edges[x] + faces[x - 1] + faces[x + 1]) +
                                 corner * (edges[x - 1] + edges[x + 1]);
        }
    wrap(out, side);
}

/* coarse = weighted means of the fine grid of `level`. */
static void restrict_from(const double *fine, double *coarse, int level) {
    size_t side = SIDE(level), plane = side * side, coarse_side = SIDE(level - 1), last = coarse_side - 2;
    for (size_t z = 1; z <= last; z++)
        for (size_t y = 1; y <= last; y++)
            for (size_t x = 1; x <= last; x++) {
                const double *at = fine + 2 * (z * plane + y * side + x);
                double sums[4] = {0};
                for (int k = -1; k <= 1; k++)
                    for (int j = -1; j <= 1; j++)
                        for (int i = -1; i <= 1; i++)
                            sums[(k != 0) + (j != 0) + (i != 0)] +=
                                at[k * (ptrdiff_t)plane + j * (ptrdiff_t)side + i];
                coarse[(z * coarse_side + y) * coarse_side + x] =
                    0.5 * sums[0] + 0.25 * sums[1] + 0.125 * sums[2] + 0.0625 * sums[3];
            }
    wrap(coarse, coarse_side);
}

/* fine += the coarse grid of `level` - 1 between its cells. */
static void prolong_to(const double *coarse, double *fine, int level) {
    size_t side = SIDE(level), plane = side * side;
    size_t coarse_side = SIDE(level - 1), coarse_plane = coarse_side * coarse_side;
    for (size_t z = 0; z < side; z++)
        for (size_t y = 0; y < side; y++)
            for (size_t x = 0; x < side; x++) {
                const double *at = coarse + z / 2 * coarse_plane + y / 2 * coarse_side + x / 2;
                size_t up = z % 2 * coarse_plane, beside = y % 2 * coarse_side, next = x % 2;
                fine[z * plane + y * side + x] +=
                    0.125 * (at[0] + at[next] + at[beside] + at[beside + next] + at[up] + at[up + next] +
                             at[up + beside] + at[up + beside + next]);
            }
}

static void cycle(void) {
    for (int level = LEVELS; level > 1; level--)
        restrict_from(r[level], r[level - 1], level);
    for (int level = 1; level < LEVELS; level++) {
        memset(u[level], 0, CELLS(level) * sizeof(double));
        if (level > 1) {
            prolong_to(u[level - 1], u[level], level);
            apply(operator, -1, u[level], r[level], r[level], level);
        }
        apply(smoother, 1, r[level], u[level], u[level], level);
    }
    prolong_to(u[LEVELS - 1], u[LEVELS], LEVELS);
    apply(operator, -1, u[LEVELS], v, r[LEVELS], LEVELS);
    apply(smoother, 1, r[LEVELS], u[LEVELS], u[LEVELS], LEVELS);
}

/* The cells with the largest random numbers, or the smallest, with their numbers times `sign`. The least is first. */
struct extremes {
    double numbers[CHARGES];
    size_t cells[CHARGES];
};

static void consider(struct extremes *extremes, double number, size_t cell) {
    if (number <= extremes->numbers[0])
        return;
    int at = 0;
    for (; at + 1 < CHARGES && extremes->numbers[at + 1] < number; at++) {
        extremes->numbers[at] = extremes->numbers[at + 1];
        extremes->cells[at] = extremes->cells[at + 1];
    }
    extremes->numbers[at] = number;
    extremes->cells[at] = cell;
}

static void place_charges(void) {
    struct extremes high = {{0}, {0}}, low;
    for (int at = 0; at < CHARGES; at++)
        low.numbers[at] = -1;
    uint64_t random = RANDOM_SEED;
    size_t side = SIDE(LEVELS), last = side - 2;
    for (size_t z = 1; z <= last; z++)
        for (size_t y = 1; y <= last; y++)
            for (size_t x = 1; x <= last; x++) {
                double number = random_next(&random);
                consider(&high, number, (z * side + y) * side + x);
                consider(&low, -number, (z * side + y) * side + x);
            }
    for (int at = 0; at < CHARGES; at++) {
        v[high.cells[at]] = 1;
        v[low.cells[at]] = -1;
    }
    wrap(v, side);
}

static double norm(const double *grid) {
    size_t side = SIDE(LEVELS), last = side - 2;
    double sum = 0;
    for (size_t z = 1; z <= last; z++)
        for (size_t y = 1; y <= last; y++)
            for (size_t x = 1; x <= last; x++) {
                double value = grid[(z * side + y) * side + x];
                sum += value * value;
            }
    return sqrt(sum / (double)(last * last * last));
}

int main(int argc, char **argv) {
    struct npb npb = npb_begin("npb_mg", sizeof u_of_all + sizeof r_of_all + sizeof v, argc, argv);
    size_t start = 0;
    for (int level = LEVELS; level > 0; level--) {
        u[level] = u_of_all + start;
        r[level] = r_of_all + start;
        start += CELLS(level);
    }
    REQUIRE(start <= CELLS_OF_ALL, "the grids have %zu cells", start);
    place_charges();
    apply(operator, -1, u[LEVELS], v, r[LEVELS], LEVELS);
    for (int step = 0; step < CYCLES; step++) {
        cycle();
        apply(operator, -1, u[LEVELS], v, r[LEVELS], LEVELS);
    }
    double last = norm(r[LEVELS]);
    return npb_end(&npb, is_near(last, REFERENCE, 1e-8), "residual", last);
}
