/* The example of the DLM paper (figure 2), with a check. Compile with `cc dlm_example.c $(pkg-config --cflags --libs
 * hanare)`, and run with `-f hostfile -n 2`. dlm_startup removes these options from argv. A size in words may follow.
 */
#include "check.h"
#include <dlmm.h>

#define N (1 << 24) /* 16 Mi (*4B = 64 MiB) */

int main(int argc, char *argv[]) {
    int *a, *small, *zeroes;
    size_t n;

    dlm_startup(&argc, &argv); /* DLM starts */
    REQUIRE(argc <= 2, "%d arguments are left: '%s' is not the program's", argc - 1, argv[1]);
    n = argc == 2 ? parse_size(argv[1]) : N;
    a = (int *)dlm_alloc(sizeof(int) * n); /* dynamic allocation */
    CALL(a != NULL);
    for (size_t i = 0; i < n; i++)
        a[i] = (int)word(1, 0, i);
    for (size_t i = 0; i < n; i++)
        REQUIRE(a[i] == (int)word(1, 0, i), "a[%zu] at %p is %d, not %d", i, (void *)&a[i], a[i], (int)word(1, 0, i));

    small = (int *)dlm_alloc(40);
    zeroes = (int *)dlm_calloc(n, sizeof(int));
    CALL(small != NULL && zeroes != NULL);
    for (int i = 0; i < 10; i++)
        small[i] = i;
    small = (int *)dlm_realloc(small, sizeof(int) * 1000);
    CALL(small != NULL);
    for (int i = 0; i < 10; i++)
        REQUIRE(small[i] == i, "small[%d] is %d after dlm_realloc", i, small[i]);
    check_zero(zeroes, n * sizeof(int), "dlm_calloc");
    dlm_free(zeroes);
    dlm_free(small);

    a = (int *)dlm_realloc(a, sizeof(int) * n * 2);
    CALL(a != NULL);
    for (size_t i = 0; i < n; i++)
        REQUIRE(a[i] == (int)word(1, 0, i), "a[%zu] is %d after dlm_realloc", i, a[i]);
    dlm_free(a); /* freeing */
    dlm_shutdown(); /* DLM ends */
    printf("ok dlm_example: %zu words\n", n);
    return 0;
}
