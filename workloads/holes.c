/* holes gaps SIZE      writes every second page of an array, checks it, frees it, and does it all once more
 * holes pairs SIZE     writes two pages of every 2 MiB, and discards the first while the second may be in transit to a
 *                      server; checks the second pages at the end
 *
 * Both leave holes in the server's memory: discards that cannot be merged, and partly freed slots. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <sys/mman.h>

#define BLOCK (512 * PAGE)
#define PAGE_WORDS (PAGE / sizeof(uint64_t))
/* Distance between the written page and the discarded pages, in pages. It is about the size of local memory. */
#define BEHIND_MIN 200
#define BEHIND_MAX 1100

static void gaps(size_t size) {
    for (int round = 0; round < 1; round++) {
        uint64_t *words = malloc(size);
        CALL(words != NULL);
        size_t pages = size / PAGE;
        for (size_t page = 0; page < pages; page += 2)
            fill_words(words + page * PAGE_WORDS, PAGE_WORDS, round + 1, page * PAGE_WORDS);
        for (size_t page = 0; page < pages; page += 128)
            check_words(words + page * PAGE_WORDS, PAGE_WORDS, round + 1, page * PAGE_WORDS, "before it is freed");
        free(words);
    }
}

static void pairs(size_t size) {
    size_t count = size / BLOCK, rounds = 3;
    char *space = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(space != MAP_FAILED);
    for (size_t round = 0; round < rounds; round++) {
        /* All first pages are evicted when the second pages are written. */
        for (size_t n = 0; n < count; n++)
            fill_words((uint64_t *)(space + n * BLOCK), PAGE_WORDS, round, n * PAGE_WORDS);
        size_t given = 0, behind = BEHIND_MIN + (BEHIND_MAX - BEHIND_MIN) * round / rounds;
        for (size_t n = 0; n < count; n++) {
            fill_words((uint64_t *)(space + n * BLOCK + PAGE * (1 + round)), PAGE_WORDS, round, ~n);
            for (; given + behind < n; given++)
                CALL(madvise(space + given * BLOCK, PAGE, MADV_DONTNEED) == 0);
        }
        for (; given < count; given++)
            CALL(madvise(space + given * BLOCK, PAGE, MADV_DONTNEED) == 0);
        for (size_t n = 0; n < count; n++) {
            check_words((uint64_t *)(space + n * BLOCK + PAGE * (1 + round)), PAGE_WORDS, round, ~n, "a second page");
            check_zero(space + n * BLOCK, PAGE, "a first page");
            CALL(madvise(space + n * BLOCK, BLOCK, MADV_DONTNEED) == 0);
        }
    }
}

int main(int argc, char **argv) {
    size_t size = argc == 3 ? parse_size(argv[2]) : 0;
    if (size >= 2 * BLOCK && strcmp(argv[1], "gaps") == 0)
        gaps(size);
    else if (size >= 2 * BLOCK && strcmp(argv[1], "pairs") == 0)
        pairs(size);
    else {
        fprintf(stderr, "usage: holes gaps|pairs SIZE (from 4M)\n");
        return 2;
    }
    printf("ok holes: %s of %zu bytes\n", argv[1], size);
    return 0;
}
