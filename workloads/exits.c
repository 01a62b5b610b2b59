/* exits [COUNT]
 *
 * Registers COUNT (1000) exit functions before it allocates anything. The C library allocates room for them while it
 * holds a lock. Every further registration waits for this lock. */
#define _GNU_SOURCE
#include "check.h"
#include <unistd.h>

static size_t left;

static void ends(void) {
    if (--left == 0 && write(1, "ok exits\n", 9) != 9)
        _Exit(1);
}

int main(int argc, char **argv) {
    size_t count = argc > 1 ? parse_size(argv[1]) : 1000;
    for (left = 0; left < count; left++)
        CALL(atexit(ends) == 0);
    uint64_t *words = malloc(8 * MIB);
    CALL(words);
    fill_words(words, MIB, 9, 0);
    check_words(words, MIB, 9, 0, "after all were registered");
    return 0;
}
