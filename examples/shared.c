/* Ranks that share an array: cc shared.c $(pkg-config --cflags --libs hanare-dsm) -o shared
 * hanare launch -n 4 -- ./shared */
#include <dsm.h>
#include <stdio.h>

int main(int argc, char *argv[]) {
    size_t n = 1 << 20; /* 8 MiB of doubles */
    dsm_startup(&argc, &argv);
    double *a = dsm_alloc(sizeof(double) * n, dsm_block()), sum = 0;
    size_t ranks = (size_t)dsm_size(), rank = (size_t)dsm_rank();
    for (size_t i = n * rank / ranks; i < n * (rank + 1) / ranks; i++)
        a[i] = (double)i; /* each rank writes its part */
    dsm_barrier();
    for (size_t i = 0; rank == 0 && i < n; i++)
        sum += a[i]; /* any rank reads all */
    if (rank == 0)
        printf("the sum is %.0f\n", sum);
    dsm_free(a);
    dsm_shutdown();
    return 0;
}
