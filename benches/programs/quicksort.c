/* quicksort MIB: sorts random numbers with Hoare's quicksort, and checks their order and their sum. */
#include "numbers.h"

#define SHORT 24 /* shorter parts are sorted by insertion */

static void insertion(uint64_t *a, size_t count) {
    for (size_t i = 1; i < count; i++) {
        uint64_t value = a[i];
        size_t j = i;
        for (; j > 0 && a[j - 1] > value; j--)
            a[j] = a[j - 1];
        a[j] = value;
    }
}

static uint64_t middle(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

static void quicksort(uint64_t *a, size_t count) {
    while (count > SHORT) {
        uint64_t pivot = middle(a[0], a[count / 2], a[count - 1]);
        size_t i = 0, j = count - 1;
        for (;; i++, j--) {
            while (a[i] < pivot)
                i++;
            while (a[j] > pivot)
                j--;
            if (i >= j)
                break;
            uint64_t other = a[i];
            a[i] = a[j];
            a[j] = other;
        }
        quicksort(a, j + 1);
        a += j + 1;
        count -= j + 1;
    }
    insertion(a, count);
}

int main(int argc, char **argv) {
    size_t count = number(argc, argv, 1) * MIB / sizeof(uint64_t);
    uint64_t *numbers = array(count, sizeof *numbers), state = 3, before = 0, after = 0, sum = 0;
    for (size_t i = 0; i < count; i++)
        before += numbers[i] = draw(&state);
    quicksort(numbers, count);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && numbers[i - 1] > numbers[i])
            fail("the numbers are not in order");
        after += numbers[i];
        sum = add(sum, numbers[i]);
    }
    if (after != before)
        fail("the numbers are not those that were sorted");
    printf("quicksort %zu %016llx\n", count, (unsigned long long)sum);
    return 0;
}
