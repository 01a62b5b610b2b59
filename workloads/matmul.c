/* A matrix product on shared memory. Each rank computes its rows of the product, and reads its rows of one factor and
 * all rows of the other.
 *
 *   hanare launch -n 4 -- matmul [-n N] [--home one] [--verify] [--json]
 *
 * N is 512 by default. --verify compares every number with a serial run, bit for bit. The exit code is 1 if one
 * differs. */
#include "shared.h"

static double number(long which, long index) {
    return (double)(mix((uint64_t)(index * 2 + which)) >> 11) * 0x1p-53;
}

static void multiply(const double *a, const double *b, double *c, long first, long end, long n) {
    for (long row = first; row < end; row++) {
        for (long column = 0; column < n; column++)
            c[row * n + column] = 0;
        for (long k = 0; k < n; k++)
            for (long column = 0; column < n; column++)
                c[row * n + column] += a[row * n + k] * b[k * n + column];
    }
}

static void fill(double *a, double *b, long first, long end, long n) {
    for (long index = first * n; index < end * n; index++)
        a[index] = number(0, index), b[index] = number(1, index);
}

static int verify(const double *product, long n) {
    size_t bytes = sizeof(double) * (size_t)(n * n);
    double *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
    int same = 0;
    if (a && b && c) {
        fill(a, b, 0, n, n);
        multiply(a, b, c, 0, n, n);
        same = memcmp(product, c, bytes) == 0;
    }
    free(a), free(b), free(c);
    return same;
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    long n = option(argc, argv, "-n", 512), first, end;
    if (n < 1) {
        fprintf(stderr, "matmul: -n wants a number above 0\n");
        return 2;
    }
    my_part(n, &first, &end);
    size_t bytes = sizeof(double) * (size_t)(n * n);
    struct dsm_placement placement = given(argc, argv, "--home", "one") ? dsm_one(0) : dsm_block();
    double *a = dsm_alloc(bytes, placement), *b = dsm_alloc(bytes, placement), *c = dsm_alloc(bytes, placement);
    if (!a || !b || !c) {
        fprintf(stderr, "matmul: no room for three times %ld x %ld numbers\n", n, n);
        return 2;
    }
    fill(a, b, first, end, n);
    dsm_barrier();
    double began = seconds();
    multiply(a, b, c, first, end, n);
    dsm_barrier();
    double run_s = seconds() - began;
    char what[32];
    snprintf(what, sizeof(what), "\"n\":%ld", n);
    if (given(argc, argv, "--json", NULL))
        print_counts(what, run_s);
    int wrong = given(argc, argv, "--verify", NULL) && dsm_rank() == 0 && verdict("matmul", verify(c, n));
    dsm_shutdown();
    return wrong;
}
