/* closed [SIZE] [THREADS] [ROUNDS]
 *
 * Each thread write-protects single pages of its own array (SIZE, 16M), as garbage collectors and debuggers do, and
 * reads other pages. All pages keep their words, however often they are evicted. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>

static size_t size = 16 * MIB;
static int rounds = 3000;

static void *closes(void *number) {
    uint64_t seed = (uint64_t)(uintptr_t)number;
    uint64_t *array = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(array != MAP_FAILED);
    size_t pages = size / PAGE, words = PAGE / 8;
    fill_words(array, size / 8, seed, 0);
    for (int n = 0; n < rounds; n++) {
        size_t closed = word(seed, 1, (uint64_t)n) % pages, read = word(seed, 2, (uint64_t)n) % pages;
        CALL(mprotect(array + closed * words, PAGE, PROT_READ) == 0);
        check_words(array + read * words, words, seed, read * words, "beside closed pages");
    }
    check_words(array, size / 8, seed, 0, "afterwards");
    CALL(mprotect(array, size, PROT_READ | PROT_WRITE) == 0);
    fill_words(array, size / 8, seed + 100, 0);
    check_words(array, size / 8, seed + 100, 0, "open again");
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[16];
    size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : 3;
    size = argc > 1 ? parse_size(argv[1]) : size;
    rounds = argc > 3 ? atoi(argv[3]) : rounds;
    REQUIRE(count >= 1 && count <= 16, "1 to 16 threads");
    for (size_t n = 0; n < count; n++)
        CALL(pthread_create(&threads[n], NULL, closes, (void *)(n + 1)) == 0);
    for (size_t n = 0; n < count; n++)
        CALL(pthread_join(threads[n], NULL) == 0);
    printf("ok closed: %zu bytes, %zu threads, %d rounds\n", size, count, rounds);
    return 0;
}
