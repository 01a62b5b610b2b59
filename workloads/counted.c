/* counted
 *
 * Defines memcpy, memmove and memset. They count their calls in a table of 64 MiB of far memory. If the library called
 * one of them to resolve a fault, the function would need the library again. Only the calls of this program may be
 * counted. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ENTRIES ((size_t)8 << 20)
#define CALLS ((uint64_t)10000)

static uint64_t *table, calls;

/* Counts a call in another page than the call before. The first call allocates the table. */
static void count(void) {
    if (!table)
        table = calloc(ENTRIES, sizeof *table);
    table[calls++ * 100003 % ENTRIES]++;
}

/* The empty instruction keeps the compiler from replacing the loops by calls of these functions. */
#define EACH(n) for (size_t at = 0; at < n; at++, ({ __asm__ volatile("" ::: "memory"); }))

void *memcpy(void *to, const void *from, size_t n) {
    count();
    EACH(n)
        ((char *)to)[at] = ((const char *)from)[at];
    return to;
}

void *memmove(void *to, const void *from, size_t n) {
    count();
    int is_backward = (uintptr_t)to > (uintptr_t)from;
    EACH(n) {
        size_t nth = is_backward ? n - 1 - at : at;
        ((char *)to)[nth] = ((const char *)from)[nth];
    }
    return to;
}

void *memset(void *to, int byte, size_t n) {
    count();
    EACH(n)
        ((char *)to)[at] = (char)byte;
    return to;
}

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile set)(void *, int, size_t) = memset;

int main(void) {
    uint64_t sum = 0;
    char bytes[100];
    for (uint64_t call = 0; call < CALLS; call += 4) {
        set(bytes, 1, 50);
        copy(bytes + 50, bytes, 50);
        move(bytes + 1, bytes, 99);
        set(bytes + 1, (int)call, 1);
    }
    for (size_t at = 0; at < ENTRIES; at++)
        sum += table[at];
    if (sum != CALLS || calls != CALLS)
        return fprintf(stderr, "wrong: %zu calls and a sum of %zu\n", (size_t)calls, (size_t)sum), 1;
    for (size_t at = 0; at < sizeof bytes; at++)
        if (at != 1 && bytes[at] != 1)
            return fputs("wrong: bytes are lost\n", stderr), 1;
    printf("ok counted: %zu\n", (size_t)calls);
    return 0;
}
