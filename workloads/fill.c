/* fill BLOCK [--mmap] [--at-once N] [--most N]
 *
 * Allocates --at-once blocks (1) and fills them. Repeats this until there is no more memory or there are --most
 * blocks. Frees some blocks and allocates one again. Then checks every word of all blocks, twice. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>

#define BLOCKS_MAX 100000

static uint64_t *take(size_t size, int mapped) {
    if (!mapped)
        return malloc(size);
    void *block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

int main(int argc, char **argv) {
    size_t size = 0, at_once = 1, most = BLOCKS_MAX, count = 0;
    int mapped = 0, over = 0;
    static uint64_t *blocks[BLOCKS_MAX];
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--at-once")))
            at_once = parse_size(value);
        else if ((value = option(argv, &i, "--most")))
            most = parse_size(value);
        else if (strcmp(argv[i], "--mmap") == 0)
            mapped = 1;
        else
            size = parse_size(argv[i]);
    }
    if (size < sizeof(uint64_t) || at_once == 0 || most > BLOCKS_MAX) {
        fprintf(stderr, "usage: fill BLOCK [--mmap] [--at-once N] [--most N]\n");
        return 2;
    }
    size_t words = size / sizeof(uint64_t);
    while (!over && count < most) {
        size_t first = count;
        while (!over && count < most && count - first < at_once) {
            errno = 0;
            if ((blocks[count] = take(size, mapped)))
                count++;
            else
                over = 1;
        }
        REQUIRE(!over || errno == ENOMEM, "refused with %s", strerror(errno));
        for (size_t block = first; block < count; block++)
            fill_words(blocks[block], words, block + 1, 0);
    }
    if (over && count > 4 && !mapped) {
        /* Checks that freed memory can be allocated again. */
        for (int n = 1; n <= 4; n++)
            free(blocks[count - n]);
        CALL((blocks[count - 4] = malloc(size)));
        count -= 3;
        fill_words(blocks[count - 1], words, count, 0);
    }
    for (int pass = 0; pass < 2; pass++)
        for (size_t block = 0; block < count; block++)
            check_words(blocks[block], words, block + 1, 0, "at the end");
    printf("ok fill %zu bytes%s\n", count * size, over ? ", then no more" : "");
    return 0;
}
