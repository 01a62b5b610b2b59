/* cg [SIZE_MB] [SEED]
 *
 * Conjugate gradients on a sparse symmetric matrix with 24 elements per row at random places, as in NPB CG. Each
 * iteration reads the matrix from front to back, and a vector at random.
 *
 * The right-hand side is computed from a random vector, which is the solution. The result is compared with this vector
 * element by element. The matrix is diagonally dominant and its condition is known. So the number of iterations that
 * is enough is known, too. */
#include "kernel.h"
#include <math.h>

#define PER_ROW 24
#define ITERATIONS_MAX 60
#define ENOUGH 1e-10

struct matrix {
    size_t rows, *starts;
    uint32_t *columns;
    double *values;
};

static uint64_t odd_factor = 0x9e3779b97f4a7c15u, odd_inverse;
static unsigned bits;

/* Maps the numbers below `rows` one to one to themselves. Repeats a map of the numbers below 2^bits until the result
 * is below `rows`. */
static uint64_t scramble(uint64_t x, size_t rows) {
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    do {
        x = x * odd_factor & mask;
        x ^= x >> (bits / 2 + 1);
        x = x * odd_factor & mask;
    } while (x >= rows);
    return x;
}

static uint64_t unscramble(uint64_t x, size_t rows) {
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    do {
        x = x * odd_inverse & mask;
        x ^= x >> (bits / 2 + 1);
        x = x * odd_inverse & mask;
    } while (x >= rows);
    return x;
}

/* Returns the nth neighbour of a row. If a row is the nth neighbour of another row, the other row is its nth
 * neighbour. So the matrix is symmetric without being sorted. */
static uint64_t neighbour(uint64_t seed, size_t rows, uint64_t row, uint64_t n) {
    return unscramble((word(seed, 1, n) % rows + rows - scramble(row, rows)) % rows, rows);
}

static struct matrix make(struct arguments arguments) {
    size_t rows = arguments.bytes / (PER_ROW * (sizeof(uint32_t) + sizeof(double)) + 7 * sizeof(double));
    for (bits = 1; rows > (size_t)1 << bits;)
        bits++;
    odd_inverse = odd_factor;
    for (int n = 0; n < 6; n++) /* Newton: each step doubles the number of correct bits */
        odd_inverse *= 2 - odd_factor * odd_inverse;
    struct matrix matrix = {.rows = rows, .starts = array(rows + 1, sizeof(size_t))};
    matrix.columns = array(rows * PER_ROW, sizeof(uint32_t));
    matrix.values = array(rows * PER_ROW, sizeof(double));
    size_t at = 0;
    for (size_t row = 0; row < rows; row++) {
        matrix.starts[row] = at;
        size_t diagonal = at++;
        double sum = 0.5;
        for (uint64_t n = 0; n < PER_ROW - 1; n++) {
            uint64_t column = neighbour(arguments.seed, rows, row, n);
            if (column == row)
                continue;
            double value = unit(arguments.seed, 2 + n, row < column ? row : column);
            matrix.columns[at] = (uint32_t)column;
            matrix.values[at++] = value - 0.5;
            sum += fabs(value - 0.5);
        }
        matrix.columns[diagonal] = (uint32_t)row;
        matrix.values[diagonal] = sum;
    }
    matrix.starts[rows] = at;
    return matrix;
}

static void multiply(const struct matrix *matrix, const double *vector, double *product) {
    for (size_t row = 0; row < matrix->rows; row++) {
        double sum = 0;
        for (size_t at = matrix->starts[row]; at < matrix->starts[row + 1]; at++)
            sum += matrix->values[at] * vector[matrix->columns[at]];
        product[row] = sum;
    }
}

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Solves for the right-hand side in `rest`, which becomes the residual. Returns the number of iterations. */
static int solve(const struct matrix *matrix, double *rest, double *x, double *p, double *q) {
    size_t rows = matrix->rows;
    for (size_t i = 0; i < rows; i++) {
        x[i] = 0;
        p[i] = rest[i];
    }
    double squares = dot(rest, rest, rows), enough = squares * ENOUGH * ENOUGH;
    int iterations = 0;
    for (; squares > enough && iterations < ITERATIONS_MAX; iterations++) {
        multiply(matrix, p, q);
        double alpha = squares / dot(p, q, rows), before = squares;
        for (size_t i = 0; i < rows; i++) {
            x[i] += alpha * p[i];
            rest[i] -= alpha * q[i];
        }
        squares = dot(rest, rest, rows);
        for (size_t i = 0; i < rows; i++)
            p[i] = rest[i] + squares / before * p[i];
    }
    return iterations;
}

int main(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    struct matrix matrix = make(arguments);
    size_t rows = matrix.rows;
    double *vectors[5];
    for (int v = 0; v < 5; v++)
        vectors[v] = array(rows, sizeof(double));
    double *x = vectors[0], *p = vectors[1], *q = vectors[2], *rest = vectors[3], *right = vectors[4];
    for (size_t i = 0; i < rows; i++)
        x[i] = unit(arguments.seed, 0, i) + 1;
    multiply(&matrix, x, right);
    memcpy(rest, right, rows * sizeof(double));
    int iterations = solve(&matrix, rest, x, p, q);
    REQUIRE(iterations < ITERATIONS_MAX, "no convergence in %d iterations", iterations);
    /* Compares the residual from its definition with the residual from the iteration. */
    multiply(&matrix, x, q);
    for (size_t i = 0; i < rows; i++)
        REQUIRE(fabs(right[i] - q[i] - rest[i]) < 1e-8, "row %zu: what remains is not what was carried along", i);
    for (size_t i = 0; i < rows; i++) {
        double expected = unit(arguments.seed, 0, i) + 1;
        REQUIRE(fabs(x[i] - expected) < 1e-6, "x[%zu] is %.12g, not %.12g", i, x[i], expected);
    }
    printf("ok cg: %zu rows, %zu elements, %d iterations\n", rows, matrix.starts[rows], iterations);
    return 0;
}
