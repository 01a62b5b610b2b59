/* sp [SIZE_MB] [SEED]
 *
 * Alternating directions, as in NPB SP. Every step computes a right-hand side of five components. It then solves
 * tridiagonal systems along each of the three dimensions, over 18 arrays.
 *
 * The forcing is computed from a random field, which is the solution. The start is that field plus a constant for each
 * component. The operator maps constants to constants, so the error stays constant and shrinks by a known factor per
 * step. So the final value of every cell is known. */
#include "kernel.h"
#include <math.h>

#define STEPS 5
#define COMPONENTS 5
#define REACTION 0.3 /* the operator of one direction, applied to 1 */
#define TIME_STEP 0.5

struct direction {
    size_t stride, lines_stride, rows_stride; /* along the lines, from one line to the next, from one plane of lines to the next */
    double *conduction;                       /* between a cell and the one before it in this direction */
};

static size_t side, plane, cells;
static double *u[COMPONENTS], *rest[COMPONENTS], *forcing[COMPONENTS];
static struct direction directions[3];

static double conduct(const struct direction *direction, size_t at, size_t position) {
    return position == 0 || position == side ? 0 : direction->conduction[at];
}

/* Applies the operator of one direction to `values` at one cell. */
static double apply(const struct direction *direction, const double *values, size_t at, size_t position) {
    double result = REACTION * values[at];
    if (position > 0)
        result += direction->conduction[at] * (values[at] - values[at - direction->stride]);
    if (position + 1 < side)
        result += direction->conduction[at + direction->stride] * (values[at] - values[at + direction->stride]);
    return result;
}

/* Computes out = scale * (wanted - operator(u)). `wanted` may be NULL for 0. */
static void residual(int component, const double *wanted, double scale, double *out) {
    const double *values = u[component];
    for (size_t i = 0, at = 0; i < side; i++)
        for (size_t j = 0; j < side; j++)
            for (size_t k = 0; k < side; k++, at++) {
                double made = apply(&directions[0], values, at, k) + apply(&directions[1], values, at, j) +
                              apply(&directions[2], values, at, i);
                out[at] = scale * ((wanted ? wanted[at] : 0) - made);
            }
}

/* Solves the tridiagonal systems 1 + TIME_STEP * operator of one direction for all components, `side` lines at a time.
 * `factors` holds the values above the diagonal after elimination. */
static void solve_lines(const struct direction *direction, size_t base, double *factors) {
    for (size_t position = 0; position < side; position++) {
        size_t start = base + position * direction->stride;
        for (size_t line = 0; line < side; line++) {
            size_t at = start + line * direction->lines_stride;
            double before = TIME_STEP * conduct(direction, at, position);
            double after = position + 1 < side ? TIME_STEP * direction->conduction[at + direction->stride] : 0;
            double *factor = &factors[position * side + line];
            double pivot = 1 + TIME_STEP * REACTION + before + after;
            if (position > 0)
                pivot -= before * factor[-(ptrdiff_t)side];
            *factor = after / pivot;
            for (int c = 0; c < COMPONENTS; c++)
                rest[c][at] = (rest[c][at] + (position > 0 ? before * rest[c][at - direction->stride] : 0)) / pivot;
        }
    }
    for (size_t position = side - 1; position-- > 0;) {
        size_t start = base + position * direction->stride;
        for (size_t line = 0; line < side; line++) {
            size_t at = start + line * direction->lines_stride;
            for (int c = 0; c < COMPONENTS; c++)
                rest[c][at] += factors[position * side + line] * rest[c][at + direction->stride];
        }
    }
}

static double solution(uint64_t seed, int component, size_t at) {
    return unit(seed, (uint64_t)component, at);
}

static void fill(uint64_t seed) {
    for (int d = 0; d < 3; d++)
        for (size_t at = 0; at < cells; at++)
            directions[d].conduction[at] = unit(seed, 16 + (uint64_t)d, at);
    for (int c = 0; c < COMPONENTS; c++) {
        for (size_t at = 0; at < cells; at++)
            u[c][at] = solution(seed, c, at);
        residual(c, NULL, -1, forcing[c]);
        for (size_t at = 0; at < cells; at++)
            u[c][at] += c + 1;
    }
}

static void step(double *factors) {
    for (int c = 0; c < COMPONENTS; c++)
        residual(c, forcing[c], TIME_STEP, rest[c]);
    for (int d = 0; d < 3; d++)
        for (size_t n = 0; n < side; n++)
            solve_lines(&directions[d], n * directions[d].rows_stride, factors);
    for (int c = 0; c < COMPONENTS; c++)
        for (size_t at = 0; at < cells; at++)
            u[c][at] += rest[c][at];
}

int main(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    side = cube_side(arguments.bytes / ((3 * COMPONENTS + 3) * sizeof(double)));
    plane = side * side;
    cells = plane * side;
    directions[0] = (struct direction){.stride = 1, .lines_stride = side, .rows_stride = plane};
    directions[1] = (struct direction){.stride = side, .lines_stride = 1, .rows_stride = plane};
    directions[2] = (struct direction){.stride = plane, .lines_stride = 1, .rows_stride = side};
    for (int d = 0; d < 3; d++)
        directions[d].conduction = array(cells, sizeof(double));
    for (int c = 0; c < COMPONENTS; c++) {
        u[c] = array(cells, sizeof(double));
        rest[c] = array(cells, sizeof(double));
        forcing[c] = array(cells, sizeof(double));
    }
    double *factors = array(plane, sizeof(double));
    fill(arguments.seed);
    double error = 1;
    for (int n = 0; n < STEPS; n++) {
        step(factors);
        error *= 1 - TIME_STEP * 3 * REACTION / pow(1 + TIME_STEP * REACTION, 3);
    }
    for (int c = 0; c < COMPONENTS; c++)
        for (size_t at = 0; at < cells; at++) {
            double expected = solution(arguments.seed, c, at) + (c + 1) * error;
            REQUIRE(fabs(u[c][at] - expected) < 1e-9, "component %d: cell %zu is %.12g, not %.12g", c, at, u[c][at],
                    expected);
        }
    printf("ok sp: %zu cells, %d components, %d steps, error %.6e as it must be\n", cells, COMPONENTS, STEPS, error);
    return 0;
}
