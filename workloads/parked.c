/* parked [SIZE] [--self]
 *
 * Fills SIZE (64M) of memory and then does nothing until SIGUSR2. At each SIGUSR2, checks every word and writes the words
 * of each second page anew. SIGTERM ends it. Writes a line to standard error after each step. With --self, calls
 * dlm_park (dlmm.h) before it waits, if there is such a function. */
#define _GNU_SOURCE
#include "check.h"

#include "../include/dlmm.h"

#include <unistd.h>
#pragma weak dlm_park

int main(int argc, char **argv) {
    size_t size = 64 * MIB;
    int parks = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--self") == 0)
            parks = 1;
        else
            size = parse_size(argv[i]);
    }
    size_t words = size / sizeof(uint64_t), per_page = PAGE / sizeof(uint64_t);
    uint64_t *block;
    CALL((block = malloc(size)));
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    sigaddset(&signals, SIGTERM);
    CALL(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
    fill_words(block, words, 1, 0);
    uint64_t version = 0;
    for (int step = 0;; step++) {
        if (parks)
            REQUIRE(dlm_park && dlm_park() == 0, "dlm_park: %s", strerror(errno));
        fprintf(stderr, "step %d of process %d\n", step, (int)getpid());
        int number = 0;
        CALL(sigwait(&signals, &number) == 0);
        for (size_t i = 0; i < words; i++) {
            uint64_t written = i / per_page % 2 ? version : 0;
            REQUIRE(block[i] == word(1, written, i), "word %zu is wrong in step %d", i, step);
        }
        if (number == SIGTERM)
            break;
        version++;
        for (size_t i = 0; i < words; i++)
            if (i / per_page % 2)
                block[i] = word(1, version, i);
    }
    puts("all words are right");
    return 0;
}
