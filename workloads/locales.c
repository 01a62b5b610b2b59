/* locales [SIZE]
 *
 * Sets a locale, accesses SIZE (16M) of memory, and forks. Threads that start in the child read the locale's tables. */
#define _GNU_SOURCE
#include "check.h"
#include <ctype.h>
#include <locale.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *reads(void *words) {
    check_words(words, 16 * PAGE / 8, 1, 0, "in a thread of the child");
    return isalpha('x') && !isalpha('1') ? words : NULL;
}

int main(int argc, char **argv) {
    size_t size = argc > 1 ? parse_size(argv[1]) : 16 * MIB;
    if (!setlocale(LC_ALL, "C.UTF-8") && !setlocale(LC_ALL, "en_US.UTF-8"))
        fputs("there is no locale but C\n", stderr);
    uint64_t *words = malloc(size);
    CALL(words);
    for (int round = 0; round < 5; round++) {
        fill_words(words, size / 8, 1, 0);
        check_words(words, size / 8, 1, 0, "before the fork");
        pid_t child = fork();
        CALL(child >= 0);
        if (child == 0) {
            pthread_t thread;
            void *end;
            CALL(pthread_create(&thread, NULL, reads, words) == 0 && pthread_join(thread, &end) == 0);
            REQUIRE(end, "letters and digits are mixed up");
            check_words(words, size / 8, 1, 0, "in the child");
            _exit(0);
        }
        int status;
        CALL(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with %#x", (unsigned)status);
        check_words(words, size / 8, 1, 0, "after the fork");
    }
    printf("ok locales: %zu\n", size);
    return 0;
}
