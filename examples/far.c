/* Squares in far memory: cc far.c $(pkg-config --cflags --libs hanare) -o far && ./far --local 16M */
#include <dlmm.h>
#include <stdio.h>

int main(int argc, char *argv[]) {
    size_t n = 8 << 20; /* 64 MiB of doubles */
    dlm_startup(&argc, &argv); /* takes -f, -n, --local, ... out of argv */
    double *a = dlm_alloc(sizeof(double) * n), sum = 0;
    if (a == NULL)
        return 1;
    for (size_t i = 0; i < n; i++)
        a[i] = (double)i; /* a[i], as any memory */
    for (size_t i = 0; i < n; i++)
        sum += a[i];
    printf("the sum is %.0f\n", sum);
    dlm_free(a);
    dlm_shutdown();
    return 0;
}
