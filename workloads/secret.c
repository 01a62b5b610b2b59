/* secret SIZE
 *
 * Fills a block with a known text, over and over, checks it, and then waits until it is killed. Who can see the text
 * outside this process? */
#include "check.h"

#include <unistd.h>

static const char TEXT[] = "what no memory server may see |\n";

int main(int argc, char **argv) {
    size_t size = argc == 2 ? parse_size(argv[1]) : 0, length = sizeof TEXT - 1;
    if (size < length) {
        fprintf(stderr, "usage: secret SIZE\n");
        return 2;
    }
    char *block = malloc(size);
    CALL(block != NULL);
    for (size_t i = 0; i < size; i++)
        block[i] = TEXT[i % length];
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < size; i++)
            REQUIRE(block[i] == TEXT[i % length], "byte %zu is %#x", i, block[i]);
    puts("ok secret");
    CALL(fflush(stdout) == 0);
    for (;;)
        pause();
}
