/* open: forks with many open streams, after many small blocks and a large array. The C library resets the streams in the
 * child before anything else. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#define WORDS (24 * MIB / sizeof(uint64_t))

int main(void) {
    FILE *streams[40];
    for (int i = 0; i < 400000; i++) {
        char *block = malloc(100);
        CALL(block);
        memset(block, 1, 100);
    }
    for (int i = 0; i < 40; i++)
        CALL((streams[i] = fopen("/dev/null", "w")) && fputs("x", streams[i]) >= 0);
    uint64_t *words = malloc(WORDS * sizeof *words);
    CALL(words);
    fill_words(words, WORDS, 1, 0);
    for (int round = 0; round < 5; round++) {
        check_words(words, WORDS, 1, 0, "before a fork");
        pid_t child = fork();
        if (child == 0) {
            check_words(words, 1000, 1, 0, "in the child");
            for (int i = 0; i < 40; i++)
                CALL(fputs("child", streams[i]) >= 0 && fflush(streams[i]) == 0);
            _exit(5);
        }
        int status;
        CALL(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 5, "the child ended with %#x", (unsigned)status);
    }
    puts("ok open: 5 children");
    return 0;
}
