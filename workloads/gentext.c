/* gentext SIZE FILE: writes a text of SIZE bytes (64M, 1G). The text has seeded random words in lines of 200 to 1000
 * bytes, unsorted, as in logs and records. It is the same text every time. */
#include "check.h"

enum { WORDS = 4096, WORD_MAX = 12, LINE_MIN = 200, LINE_MAX = 1000, BUFFER = 1 << 20 };

static char words[WORDS][WORD_MAX];
static unsigned lengths[WORDS];

/* State of the generator xorshift64*. With it, a byte of text costs about a nanosecond. */
static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t next(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}

/* Makes words from syllables of a consonant and a vowel. So lines share beginnings, as lines of real texts do. */
static void make_words(void) {
    for (unsigned i = 0; i < WORDS; i++) {
        unsigned syllables = 1 + (unsigned)(next() % (WORD_MAX / 2));
        lengths[i] = 2 * syllables;
        for (unsigned s = 0; s < syllables; s++) {
            uint64_t random = next() >> 32;
            words[i][2 * s] = "bdfghjklmnprstvz"[random % 16];
            words[i][2 * s + 1] = "aeiou"[random / 16 % 5];
        }
    }
}

/* Writes a line with its end, cut to `most` bytes. Returns its length. */
static size_t make_line(char *line, size_t most) {
    size_t wanted = LINE_MIN + (size_t)(next() >> 32) % (LINE_MAX - LINE_MIN - WORD_MAX), len = 0;
    while (len < wanted) {
        unsigned i = (unsigned)(next() >> 52) % WORDS;
        memcpy(line + len, words[i], WORD_MAX);
        len += lengths[i];
        line[len++] = ' ';
    }
    len = len < most ? len : most;
    line[len - 1] = '\n';
    return len;
}

int main(int argc, char *argv[]) {
    static char buffer[BUFFER + LINE_MAX + WORD_MAX];
    if (argc != 3) {
        fprintf(stderr, "usage: gentext SIZE FILE\n");
        return 2;
    }
    size_t size = parse_size(argv[1]), done = 0, filled = 0;
    FILE *file = fopen(argv[2], "w");
    CALL(file != NULL);
    CALL(setvbuf(file, NULL, _IONBF, 0) == 0);
    make_words();
    while (done < size) {
        size_t len = make_line(buffer + filled, size - done);
        filled += len;
        done += len;
        if (filled >= BUFFER || done == size) {
            CALL(fwrite(buffer, 1, filled, file) == filled);
            filled = 0;
        }
    }
    CALL(fclose(file) == 0);
    printf("ok gentext: %zu bytes\n", done);
    return 0;
}
