/* locals [SIZE]
 *
 * Has a mebibyte of thread-locals, for which each thread's stack needs room. Accesses SIZE (64M) of memory. */
#define _GNU_SOURCE
#include "check.h"

static __thread volatile char locals[MIB];

int main(int argc, char **argv) {
    size_t size = argc > 1 ? parse_size(argv[1]) : 64 * MIB;
    uint64_t *array = malloc(size);
    CALL(array);
    locals[sizeof locals - 1] = 1;
    fill_words(array, size / 8, 9, 0);
    check_words(array, size / 8, 9, 0, "in the array");
    REQUIRE(locals[sizeof locals - 1] == 1 && locals[0] == 0, "the thread-locals are wrong");
    printf("ok locals: %zu\n", size);
    return 0;
}
