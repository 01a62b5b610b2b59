/* himeno [--size XS|S|M|L|XL] [--iterations N] [--verify] [--json]
 *
 * The Himeno benchmark: Jacobi iterations for a Poisson equation of pressure, in single precision. A cell is computed
 * from 19 cells and ten coefficients, which are arrays although they are constant here. The 14 arrays take 4 MB (XS),
 * 30 MB (S), 239 MB (M), 1.9 GB (L) or 15 GB (XL). The result is gosa, the sum of the squared residuals of the last
 * iteration.
 *
 * Checks: gosa falls. The pressure stays between 0 and 1, rises with i, and is symmetric in j and in k. For XS and S,
 * a second loop in double precision computes the pressure and gosa again. */
#include "benchmark.h"
#include <stddef.h>

#define OMEGA 0.8f
#define FLOPS_PER_CELL 34 /* as the Himeno benchmark counts */
#define RECOMPUTED_CELLS_MAX 600000
#define PRESSURE_ERROR_MAX 1e-5
/* Shares of gosa. Its squares are of differences that are as small as a thousand steps of single precision. */
#define GOSA_ERROR_MAX 2e-3
#define GOSA_RISE_MAX 1e-5

struct size {
    const char *name, *long_name;
    size_t rows, columns, depth;
};

static const struct size sizes[] = {{"XS", "SSMALL", 33, 33, 65},
                                    {"S", "SMALL", 65, 65, 129},
                                    {"M", "MIDDLE", 129, 129, 257},
                                    {"L", "LARGE", 257, 257, 513},
                                    {"XL", "ELARGE", 513, 513, 1025}};

static struct size size;
static size_t cells;
static float *a[4], *b[3], *c[3], *p, *bnd, *wrk1, *wrk2;

/* The benchmark leaves out the last cell in each direction. These cells are 0 and are never read. */
static size_t imax, jmax, kmax;

static size_t at(size_t i, size_t j, size_t k) {
    return (i * size.columns + j) * size.depth + k;
}

static float *matrix(float value) {
    float *start = array(cells, sizeof *start);
    memset(start, 0, cells * sizeof *start);
    for (size_t i = 0; i < imax; i++)
        for (size_t j = 0; j < jmax; j++)
            for (size_t k = 0; k < kmax; k++)
                start[at(i, j, k)] = value;
    return start;
}

static void begin(void) {
    cells = size.rows * size.columns * size.depth;
    imax = size.rows - 1;
    jmax = size.columns - 1;
    kmax = size.depth - 1;
    for (int n = 0; n < 3; n++) {
        a[n] = matrix(1);
        b[n] = matrix(0);
        c[n] = matrix(1);
    }
    a[3] = matrix(1.0f / 6);
    bnd = matrix(1);
    wrk1 = matrix(0);
    wrk2 = matrix(0);
    p = matrix(0);
    for (size_t i = 0; i < imax; i++)
        for (size_t j = 0; j < jmax; j++)
            for (size_t k = 0; k < kmax; k++)
                p[at(i, j, k)] = (float)(i * i) / (float)((imax - 1) * (imax - 1));
}

/* Makes one iteration. Returns gosa. Only a row of squares is added in single precision: a sum of all of them would
 * stop growing at size L, as that of the original does. */
static double jacobi(void) {
    ptrdiff_t row = (ptrdiff_t)(size.columns * size.depth), column = (ptrdiff_t)size.depth;
    double gosa = 0;
#pragma omp parallel for reduction(+ : gosa)
    for (size_t i = 1; i < imax - 1; i++)
        for (size_t j = 1; j < jmax - 1; j++) {
            float squares = 0;
            for (size_t n = at(i, j, 1), end = at(i, j, kmax - 1); n < end; n++) {
                const float *q = p + n;
                float s0 = a[0][n] * q[row] + a[1][n] * q[column] + a[2][n] * q[1] +
                           b[0][n] * (q[row + column] - q[row - column] - q[column - row] + q[-row - column]) +
                           b[1][n] * (q[column + 1] - q[1 - column] - q[column - 1] + q[-column - 1]) +
                           b[2][n] * (q[row + 1] - q[1 - row] - q[row - 1] + q[-row - 1]) +
                           c[0][n] * q[-row] + c[1][n] * q[-column] + c[2][n] * q[-1] + wrk1[n];
                float ss = (s0 * a[3][n] - q[0]) * bnd[n];
                squares += ss * ss;
                wrk2[n] = q[0] + OMEGA * ss;
            }
            gosa += squares;
        }
#pragma omp parallel for
    for (size_t i = 1; i < imax - 1; i++)
        for (size_t j = 1; j < jmax - 1; j++)
            memcpy(p + at(i, j, 1), wrk2 + at(i, j, 1), (kmax - 2) * sizeof *p);
    return gosa;
}

static void check_pressure(void) {
    for (size_t i = 0; i < imax; i++)
        for (size_t j = 0; j < jmax; j++)
            for (size_t k = 0; k < kmax; k++) {
                double found = p[at(i, j, k)], least = i ? p[at(i - 1, j, k)] : 0;
                REQUIRE(found >= least - PRESSURE_ERROR_MAX && found <= 1, "himeno: p[%zu][%zu][%zu] is %g", i, j, k,
                        found);
                double in_j = p[at(i, jmax - 1 - j, k)], in_k = p[at(i, j, kmax - 1 - k)];
                REQUIRE(fabs(found - in_j) <= PRESSURE_ERROR_MAX && fabs(found - in_k) <= PRESSURE_ERROR_MAX,
                        "himeno: p[%zu][%zu][%zu] is %g, but %g and %g opposite", i, j, k, found, in_j, in_k);
            }
}

/* Computes the pressure and gosa again. With the coefficients of this problem, the pressure of a cell moves by 0.8 of
 * the way to the mean of its six neighbours. */
static void check_again(size_t iterations, double gosa) {
    size_t planes[2] = {jmax * kmax, kmax};
    size_t count = imax * planes[0];
    double *after = array(count, sizeof *after), *before = array(count, sizeof *before), sum = 0;
    for (size_t n = 0; n < count; n++)
        after[n] = pow((double)(n / planes[0]) / (double)(imax - 1), 2);
    for (size_t done = 0; done < iterations; done++) {
        memcpy(before, after, count * sizeof *before);
        sum = 0;
        for (size_t n = 0; n < count; n++) {
            size_t i = n / planes[0], j = n / planes[1] % jmax, k = n % kmax;
            if (i == 0 || i == imax - 1 || j == 0 || j == jmax - 1 || k == 0 || k == kmax - 1)
                continue;
            double mean = (before[n - 1] + before[n + 1]) / 6;
            for (int axis = 0; axis < 2; axis++)
                mean += (before[n - planes[axis]] + before[n + planes[axis]]) / 6;
            sum += pow(mean - before[n], 2);
            after[n] = 0.8 * mean + 0.2 * before[n];
        }
    }
    for (size_t n = 0; n < count; n++) {
        size_t i = n / planes[0], j = n / planes[1] % jmax, k = n % kmax;
        double found = p[at(i, j, k)];
        REQUIRE(fabs(after[n] - found) <= PRESSURE_ERROR_MAX, "himeno: p[%zu][%zu][%zu] is %g, not %g", i, j, k, found,
                after[n]);
    }
    REQUIRE(fabs(gosa - sum) <= GOSA_ERROR_MAX * sum, "himeno: gosa is %.8e, not %.8e", gosa, sum);
    free(after);
    free(before);
}

static struct size size_of_name(const char *name) {
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        if (strcmp(name, sizes[n].name) == 0 || strcmp(name, sizes[n].long_name) == 0)
            return sizes[n];
    fprintf(stderr, "not a size: %s: it is XS, S, M, L or XL\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    size_t iterations = 4;
    const char *value;
    size = size_of_name("M");
    for (int i = 1; i < argc; i++) {
        if ((value = option(argv, &i, "--size")))
            size = size_of_name(value);
        else if ((value = option(argv, &i, "--iterations")))
            iterations = parse_count(value, 1, 1000000);
        else if (!is_common_flag(argv[i]))
            end_with_usage(argv[0], "[--size XS|S|M|L|XL] [--iterations N]");
    }
    double begun = now();
    begin();
    double start = now();
    double gosa = INFINITY;
    for (size_t n = 0; n < iterations; n++) {
        double before = gosa;
        gosa = jacobi();
        REQUIRE(!verifies || gosa <= before * (1 + GOSA_RISE_MAX), "himeno: gosa rises from %.8e to %.8e", before,
                gosa);
    }
    double end = now();
    if (verifies) {
        check_pressure();
        if (cells <= RECOMPUTED_CELLS_MAX)
            check_again(iterations, gosa);
    }
    if (!in_json) {
        printf("ok himeno: %s, %zu iterations, gosa %.8e\n", size.name, iterations, gosa);
        return 0;
    }
    double flops = (double)((imax - 2) * (jmax - 2) * (kmax - 2)) * FLOPS_PER_CELL * (double)iterations;
    printf("{\"name\": \"himeno\", \"size\": \"%s\", \"bytes\": %zu, \"seconds\": %.6f, \"verified\": %s, ", size.name,
           14 * cells * sizeof *p, end - begun, verifies ? "true" : "null");
    printf("\"iterations\": %zu, \"gosa\": %.8e, \"mflops\": %.1f}\n", iterations, gosa, flops * 1e-6 / (end - start));
    return 0;
}
