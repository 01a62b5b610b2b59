/* npb_cg: NPB CG. Inverse iteration finds the smallest eigenvalue of a sparse symmetric matrix with a random pattern.
 * Each step solves a linear system by 25 iterations of the conjugate gradient method. */
#include "npb.h"

#define N BY_CLASS(1400, 7000, 14000, 75000)
#define VECTOR_NONZERO BY_CLASS(7, 8, 11, 13)
#define STEPS BY_CLASS(15, 15, 15, 75)
#define SHIFT BY_CLASS(10.0, 12.0, 20.0, 60.0)
#define REFERENCE BY_CLASS(8.5971775078648, 10.362595087124, 17.130235054029, 22.712745482631)

#define ITERATIONS 25
#define CONDITION 0.1
/* The most elements of a random vector. It adds at most the square of that to the matrix. */
#define ELEMENTS (VECTOR_NONZERO + 1)
#define NONZERO ((size_t)N * ELEMENTS * ELEMENTS)

static double a[NONZERO];
static int columns[NONZERO];
static size_t row_start[N + 1];

/* The random vectors whose outer products make up the matrix. */
static double elements[N][ELEMENTS];
static int places[N][ELEMENTS], counts[N];

static double x[N], z[N], p[N], q[N], r[N];

/* Makes a sparse vector with random elements at random places. Element `own` is 0.5. */
static void make_vector(int own, uint64_t *random) {
    uint32_t places_drawn = 1;
    while (places_drawn < N)
        places_drawn *= 2;
    int count = 0;
    while (count < VECTOR_NONZERO) {
        double element = random_next(random);
        int place = (int)(places_drawn * random_next(random));
        int is_new = place < N;
        for (int at = 0; at < count && is_new; at++)
            is_new = places[own][at] != place;
        if (is_new) {
            elements[own][count] = element;
            places[own][count++] = place;
        }
    }
    int at = 0;
    while (at < count && places[own][at] != own)
        at++;
    elements[own][at] = 0.5;
    places[own][at] = own;
    counts[own] = at == count ? count + 1 : count;
}

/* Adds to the element of a row. The columns of a row are ascending. */
static void add(int row, size_t *ends, int column, double value) {
    size_t at = ends[row];
    while (at > row_start[row] && columns[at - 1] > column)
        at--;
    if (at > row_start[row] && columns[at - 1] == column) {
        a[at - 1] += value;
        return;
    }
    size_t after = ends[row]++ - at;
    memmove(&a[at + 1], &a[at], after * sizeof *a);
    memmove(&columns[at + 1], &columns[at], after * sizeof *columns);
    a[at] = value;
    columns[at] = column;
}

/* The matrix is the sum of the vectors' outer products with themselves, with falling weights, and a diagonal. */
static void make_matrix(void) {
    uint64_t random = RANDOM_SEED;
    random_next(&random);
    for (int vector = 0; vector < N; vector++)
        make_vector(vector, &random);

    static size_t ends[N];
    for (int vector = 0; vector < N; vector++)
        for (int at = 0; at < counts[vector]; at++)
            row_start[places[vector][at] + 1] += (size_t)counts[vector];
    for (int row = 0; row < N; row++) {
        row_start[row + 1] += row_start[row];
        ends[row] = row_start[row];
    }
    REQUIRE(row_start[N] <= NONZERO, "the matrix has %zu elements", row_start[N]);

    double weight = 1.0, ratio = pow(CONDITION, 1.0 / N);
    for (int vector = 0; vector < N; vector++, weight *= ratio)
        for (int at = 0; at < counts[vector]; at++)
            for (int with = 0; with < counts[vector]; with++) {
                int row = places[vector][at], column = places[vector][with];
                double value = elements[vector][with] * (elements[vector][at] * weight);
                if (row == vector && column == vector)
                    value += CONDITION - SHIFT;
                add(row, ends, column, value);
            }

    /* The rows move together. */
    size_t end = 0;
    for (int row = 0; row < N; row++) {
        size_t start = row_start[row], count = ends[row] - start;
        memmove(&a[end], &a[start], count * sizeof *a);
        memmove(&columns[end], &columns[start], count * sizeof *columns);
        row_start[row] = end;
        end += count;
    }
    row_start[N] = end;
}

static void multiply(const double *vector, double *product) {
#pragma omp parallel for
    for (int row = 0; row < N; row++) {
        double sum = 0;
        for (size_t at = row_start[row]; at < row_start[row + 1]; at++)
            sum += a[at] * vector[columns[at]];
        product[row] = sum;
    }
}

static double dot(const double *one, const double *other) {
    double sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int at = 0; at < N; at++)
        sum += one[at] * other[at];
    return sum;
}

/* Solves the system for x. The solution is z. */
static void solve(void) {
    for (int at = 0; at < N; at++) {
        z[at] = 0;
        r[at] = p[at] = x[at];
    }
    double rho = dot(r, r);
    for (int iteration = 0; iteration < ITERATIONS; iteration++) {
        multiply(p, q);
        double alpha = rho / dot(p, q), last = rho;
#pragma omp parallel for
        for (int at = 0; at < N; at++) {
            z[at] += alpha * p[at];
            r[at] -= alpha * q[at];
        }
        rho = dot(r, r);
#pragma omp parallel for
        for (int at = 0; at < N; at++)
            p[at] = r[at] + rho / last * p[at];
    }
}

int main(int argc, char **argv) {
    size_t bytes = sizeof a + sizeof columns + sizeof elements + sizeof places + 5 * sizeof x;
    struct npb npb = npb_begin("npb_cg", bytes, argc, argv);
    make_matrix();
    for (int at = 0; at < N; at++)
        x[at] = 1;
    double zeta = 0;
    for (int step = 0; step < STEPS; step++) {
        solve();
        double length = sqrt(dot(z, z));
        zeta = SHIFT + 1 / dot(x, z);
        for (int at = 0; at < N; at++)
            x[at] = z[at] / length;
    }
    return npb_end(&npb, is_near(zeta, REFERENCE, 1e-10), "zeta", zeta);
}
