/* A shared library with large arrays of its own, for statics.c and statics_cxx.cpp. */
#include "check.h"

#define LIBRARY_WORDS (2 * MIB)
#define LIBRARY_DATA_WORDS (MIB / 8 + 77)

uint64_t library_zeroes[LIBRARY_WORDS];
uint64_t library_data[LIBRARY_DATA_WORDS] = {[0 ... 6] = 0x11b, [7] = 1, [8 ... LIBRARY_DATA_WORDS - 2] = 0x11b, [LIBRARY_DATA_WORDS - 1] = 2};

/* Runs before main, perhaps before the arrays become far. The words that it writes must not be lost. */
__attribute__((constructor)) static void before_main(void) {
    library_zeroes[12345] = 0x5eed;
    library_data[100] = 0xdada;
}

void library_check(size_t words) {
    if (words > LIBRARY_WORDS)
        words = LIBRARY_WORDS;
    for (size_t i = 0; i < LIBRARY_WORDS; i++)
        REQUIRE(library_zeroes[i] == (i == 12345 ? 0x5eed : 0), "library's .bss: word %zu is %#llx", i,
                (unsigned long long)library_zeroes[i]);
    for (size_t i = 0; i < LIBRARY_DATA_WORDS; i++) {
        uint64_t want = i == 7 ? 1 : i == LIBRARY_DATA_WORDS - 1 ? 2 : i == 100 ? 0xdada : 0x11b;
        REQUIRE(library_data[i] == want, "library's .data: word %zu is %#llx", i, (unsigned long long)library_data[i]);
    }
    fill_words(library_zeroes, words, 3, 0);
    fill_words(library_data, LIBRARY_DATA_WORDS, 4, 0);
    check_words(library_zeroes, words, 3, 0, "library's .bss");
    check_words(library_data, LIBRARY_DATA_WORDS, 4, 0, "library's .data");
}
