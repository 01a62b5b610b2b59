/* statics [SIZE]
 *
 * Uses static arrays in place of allocated ones: 400 MB of .bss of which SIZE (64M) is in use, .data with its initial
 * contents, the arrays of a shared library, and variables that the C library shares with the program. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <unistd.h>

#define WORDS (50 * MIB)
#define DATA_WORDS (MIB / 4 + 3)

void library_check(size_t words);

static uint64_t zeroes[WORDS];
static uint64_t data[DATA_WORDS] = {[0 ... 4] = 0xda7a, [5] = 55, [6 ... DATA_WORDS - 2] = 0xda7a, [DATA_WORDS - 1] = 99};
static char small[100] = "a small variable beside the large ones";
static char lines[3 * MIB];

__attribute__((constructor)) static void before_main(void) {
    zeroes[WORDS - 1] = 0xe4d;
}

static void *check_part(void *argument) {
    size_t words = *(size_t *)argument;
    check_words(zeroes, words, 1, 0, ".bss, from a second thread");
    return NULL;
}

int main(int argc, char **argv) {
    size_t size = argc > 1 ? parse_size(argv[1]) : 64 * MIB;
    size_t words = size / 8 < WORDS ? size / 8 : WORDS;
    for (size_t i = 0; i < words; i++)
        REQUIRE(zeroes[i] == (i == WORDS - 1 ? 0xe4d : 0), ".bss: word %zu is %#llx", i, (unsigned long long)zeroes[i]);
    REQUIRE(zeroes[WORDS - 1] == 0xe4d, "what a constructor wrote is gone");
    for (size_t i = 0; i < DATA_WORDS; i++) {
        uint64_t want = i == 5 ? 55 : i == DATA_WORDS - 1 ? 99 : 0xda7a;
        REQUIRE(data[i] == want, ".data: word %zu is %#llx", i, (unsigned long long)data[i]);
    }
    REQUIRE(strcmp(small, "a small variable beside the large ones") == 0, "a small variable is '%s'", small);
    fill_words(zeroes, words, 1, 0);
    fill_words(data, DATA_WORDS, 2, 0);
    library_check(words);
    pthread_t thread;
    CALL((errno = pthread_create(&thread, NULL, check_part, &words)) == 0);
    CALL((errno = pthread_join(thread, NULL)) == 0);
    check_words(data, DATA_WORDS, 2, 0, ".data");
    /* Checks the words from the last to the first, and overwrites them. */
    for (size_t i = words; i-- > 0;) {
        REQUIRE(zeroes[i] == word(1, 0, i), ".bss backwards: word %zu", i);
        zeroes[i] = word(9, 0, i);
    }
    check_words(zeroes, words, 9, 0, ".bss, overwritten");
    /* The C library and the program share a stream's buffer, which is a static array, and the environment. */
    CALL(setvbuf(stdout, lines, _IOFBF, sizeof lines) == 0);
    REQUIRE(environ != NULL && getenv("PATH") != NULL, "the environment is gone");
    CALL(setenv("HANARE_STATICS_TEST", "set", 1) == 0 && strcmp(getenv("HANARE_STATICS_TEST"), "set") == 0);
    printf("ok statics: %zu words of .bss, %zu of .data\n", words, (size_t)DATA_WORDS);
    return 0;
}
