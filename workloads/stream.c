/* stream [--megabytes N] [--iterations N] [--verify] [--json]
 *
 * The STREAM benchmark: four loops over three arrays of doubles, each many times. The rate of a loop is that of its
 * fastest iteration, without the first one. Bytes are counted as in STREAM: each element that a statement reads or
 * writes. The arrays are malloc'd, because their size is a flag. N megabytes (240) are the size of all three.
 *
 * Every element of an array has the same value. As in STREAM, a check computes it from the number of iterations. */
#include "benchmark.h"

#define SCALAR 3.0
#define ITERATIONS_MAX 200 /* values grow by 15 in an iteration, and would overflow after 260 */
#define ERROR_MAX 1e-13

enum { COPY, SCALE, ADD, TRIAD, LOOPS };

static const char *const names[LOOPS] = {"copy", "scale", "add", "triad"};
static const size_t elements_moved[LOOPS] = {2, 2, 3, 3};

static double *a, *b, *c;
static size_t elements;

static void run_loop(int loop) {
    switch (loop) {
    case COPY:
#pragma omp parallel for
        for (size_t i = 0; i < elements; i++)
            c[i] = a[i];
        break;
    case SCALE:
#pragma omp parallel for
        for (size_t i = 0; i < elements; i++)
            b[i] = SCALAR * c[i];
        break;
    case ADD:
#pragma omp parallel for
        for (size_t i = 0; i < elements; i++)
            c[i] = a[i] + b[i];
        break;
    case TRIAD:
#pragma omp parallel for
        for (size_t i = 0; i < elements; i++)
            a[i] = b[i] + SCALAR * c[i];
        break;
    }
}

/* Checks every element of an array. STREAM compares the average error only. */
static void check(const char *name, const double *values, double expected) {
    for (size_t i = 0; i < elements; i++)
        REQUIRE(fabs(values[i] - expected) <= ERROR_MAX * expected, "stream: %s[%zu] is %.17g, not %.17g", name, i,
                values[i], expected);
}

/* In an iteration c becomes a, b becomes 3 a, c becomes 4 a, and a becomes 15 a. The start doubles a. */
static void check_all(size_t iterations) {
    double before = 2;
    for (size_t n = 1; n < iterations; n++)
        before *= 15;
    check("a", a, 15 * before);
    check("b", b, 3 * before);
    check("c", c, 4 * before);
}

int main(int argc, char **argv) {
    size_t megabytes = 240, iterations = 10;
    const char *value;
    for (int i = 1; i < argc; i++) {
        if ((value = option(argv, &i, "--megabytes")))
            megabytes = parse_count(value, 1, (size_t)1 << 20);
        else if ((value = option(argv, &i, "--iterations")))
            iterations = parse_count(value, 2, ITERATIONS_MAX);
        else if (!is_common_flag(argv[i]))
            end_with_usage(argv[0], "[--megabytes N] [--iterations N]");
    }
    elements = megabytes * MIB / (3 * sizeof *a);
    a = array(elements, sizeof *a);
    b = array(elements, sizeof *b);
    c = array(elements, sizeof *c);
    double start = now(), least[LOOPS];
    for (size_t i = 0; i < elements; i++) {
        a[i] = 1;
        b[i] = 2;
        c[i] = 0;
    }
    for (size_t i = 0; i < elements; i++)
        a[i] = 2 * a[i];
    for (size_t n = 0; n < iterations; n++)
        for (int loop = 0; loop < LOOPS; loop++) {
            double begun = now();
            run_loop(loop);
            double took = now() - begun;
            if (n < 2 || took < least[loop])
                least[loop] = took;
        }
    double seconds = now() - start, sum = 0;
    if (verifies)
        check_all(iterations);
    for (size_t i = 0; i < elements; i++)
        sum += a[i];
    if (!in_json) {
        printf("ok stream: 3 arrays of %zu doubles, %zu iterations, sum %.13e\n", elements, iterations, sum);
        return 0;
    }
    printf("{\"name\": \"stream\", \"bytes\": %zu, \"seconds\": %.6f, \"verified\": %s, ", 3 * elements * sizeof *a,
           seconds, verifies ? "true" : "null");
    printf("\"iterations\": %zu, \"sum\": %.13e", iterations, sum);
    for (int loop = 0; loop < LOOPS; loop++)
        printf(", \"%s_bytes_per_second\": %.0f", names[loop],
               (double)(elements_moved[loop] * elements * sizeof *a) / least[loop]);
    printf("}\n");
    return 0;
}
