/* stencil [SIZE_MB] [SEED]
 *
 * Jacobi sweeps of a 19-point stencil with variable coefficients over 14 arrays, as in the Himeno benchmark.
 *
 * The right-hand side is computed from a random field, which is the solution. The start is that field plus 1. All rows
 * of the operator have the same sum. So the error is the same in all cells and shrinks by a known factor per sweep. So
 * the final value of every cell is known, and so is the residual of every sweep. */
#include "kernel.h"
#include <math.h>

#define SWEEPS 12
#define ARRAYS 14
#define ROW_SUM 0.9f
#define OMEGA 0.8f

enum { A0, A1, A2, A3, B0, B1, B2, C0, C1, C2, SOURCE, BOUND, P, NEXT };

static float *arrays[ARRAYS];
static size_t side, plane;

static float off_diagonal(size_t at) {
    const float *p = arrays[P] + at;
    ptrdiff_t i = (ptrdiff_t)plane, j = (ptrdiff_t)side;
    return arrays[A0][at] * p[i] + arrays[A1][at] * p[j] + arrays[A2][at] * p[1] +
           arrays[B0][at] * (p[i + j] - p[i - j] - p[j - i] + p[-i - j]) +
           arrays[B1][at] * (p[j + 1] - p[1 - j] - p[j - 1] + p[-j - 1]) +
           arrays[B2][at] * (p[i + 1] - p[1 - i] - p[i - 1] + p[-i - 1]) + arrays[C0][at] * p[-i] +
           arrays[C1][at] * p[-j] + arrays[C2][at] * p[-1];
}

static int inside(size_t i, size_t j, size_t k) {
    return i > 0 && i < side - 1 && j > 0 && j < side - 1 && k > 0 && k < side - 1;
}

static float solution(uint64_t seed, size_t at) {
    return (float)unit(seed, P, at);
}

static void fill(uint64_t seed) {
    for (size_t at = 0; at < plane * side; at++) {
        float sum = 0;
        for (int which = A0; which <= C2; which++) {
            int cross = which >= B0 && which <= B2;
            float value = (float)unit(seed, (uint64_t)which, at) + 0.5f;
            arrays[which][at] = cross ? 0.05f * (value - 1) : value;
            if (!cross && which != A3)
                sum += value;
        }
        arrays[A3][at] = ROW_SUM / sum;
        arrays[SOURCE][at] = 0;
        arrays[BOUND][at] = 1;
        arrays[P][at] = arrays[NEXT][at] = solution(seed, at);
    }
}

/* Computes the right-hand side whose solution is the present content of P. */
static void make_source(void) {
    for (size_t i = 1; i < side - 1; i++)
        for (size_t j = 1; j < side - 1; j++)
            for (size_t k = 1; k < side - 1; k++) {
                size_t at = i * plane + j * side + k;
                arrays[SOURCE][at] = arrays[P][at] / arrays[A3][at] - off_diagonal(at);
            }
}

/* Makes one sweep. Returns the square of the residual. */
static double sweep(void) {
    double squares = 0;
    for (size_t i = 1; i < side - 1; i++)
        for (size_t j = 1; j < side - 1; j++)
            for (size_t k = 1; k < side - 1; k++) {
                size_t at = i * plane + j * side + k;
                float sum = off_diagonal(at) + arrays[SOURCE][at];
                float rest = (sum * arrays[A3][at] - arrays[P][at]) * arrays[BOUND][at];
                squares += (double)rest * rest;
                arrays[NEXT][at] = arrays[P][at] + OMEGA * rest;
            }
    return squares;
}

/* Copies the new values. The cells at the border get known values: the solution plus the remaining error. */
static void take_over(uint64_t seed, float error) {
    for (size_t i = 0; i < side; i++)
        for (size_t j = 0; j < side; j++)
            for (size_t k = 0; k < side; k++) {
                size_t at = i * plane + j * side + k;
                arrays[P][at] = inside(i, j, k) ? arrays[NEXT][at] : solution(seed, at) + error;
            }
}

int main(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    side = cube_side(arguments.bytes / (ARRAYS * sizeof(float)));
    plane = side * side;
    for (int which = 0; which < ARRAYS; which++)
        arrays[which] = array(plane * side, sizeof(float));
    fill(arguments.seed);
    make_source();
    for (size_t at = 0; at < plane * side; at++)
        arrays[P][at] += 1;
    double error = 1, cells = (double)((side - 2) * (side - 2) * (side - 2)), squares = 0;
    for (int n = 0; n < SWEEPS; n++) {
        double expected = cells * (1 - ROW_SUM) * (1 - ROW_SUM) * error * error;
        squares = sweep();
        REQUIRE(fabs(squares - expected) <= 1e-3 * expected, "sweep %d: the residual is %g, not %g", n, squares,
                expected);
        error *= 1 - OMEGA * (1 - ROW_SUM);
        take_over(arguments.seed, (float)error);
    }
    for (size_t at = 0; at < plane * side; at++) {
        double expected = solution(arguments.seed, at) + error;
        REQUIRE(fabs(arrays[P][at] - expected) < 1e-4, "cell %zu is %g, not %g", at, arrays[P][at], expected);
    }
    printf("ok stencil: %zu cells, %d sweeps, residual %.6e\n", plane * side, SWEEPS, squares);
    return 0;
}
