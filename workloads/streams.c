/* streams
 *
 * Uses memory that the C library allocates for itself and passes to the kernel: the buffer of a stream whose file
 * requests a large buffer, and the buffers of directories and of lines. Each buffer is used again after other memory
 * was used. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <unistd.h>

#define SWEEP (12 * MIB)

static char *sweep;

static void away(void) {
    static int round;
    memset(sweep, round++, SWEEP);
}

/* Reads lines longer than any buffer, writes them, and reads the written lines again. */
static void lines(size_t len, size_t count) {
    FILE *file = tmpfile();
    CALL(file != NULL);
    for (size_t i = 0; i < count; i++) {
        away();
        for (size_t k = 0; k < len; k++)
            CALL(fputc('a' + (i + k) % 26, file) != EOF);
        CALL(fprintf(file, "%zu\n", i) > 0);
    }
    CALL(fseek(file, 0, SEEK_SET) == 0);
    char *line = NULL, *again;
    size_t room = 0, number;
    for (size_t i = 0; i < count; i++) {
        away();
        ssize_t got = getline(&line, &room, file);
        REQUIRE(got > (ssize_t)len, "line %zu: %zd bytes: %s", i, got, strerror(errno));
        for (size_t k = 0; k < len; k++)
            REQUIRE(line[k] == (char)('a' + (i + k) % 26), "line %zu, byte %zu is %#x", i, k, line[k]);
        CALL(sscanf(line + len, "%zu", &number) == 1 && number == i);
        away();
        CALL((again = strdup(line)) != NULL && strcmp(line, again) == 0);
        free(again);
    }
    REQUIRE(getline(&line, &room, file) == -1 && feof(file) && !ferror(file), "the end of the file");
    free(line);
    CALL(fclose(file) == 0);
}

static void directory(void) {
    DIR *entries = opendir("/proc/self/fd");
    CALL(entries != NULL);
    size_t count = 0;
    away();
    while (readdir(entries) != NULL)
        count++;
    REQUIRE(count > 4, "a directory of %zu entries", count);
    CALL(closedir(entries) == 0);
}

int main(void) {
    CALL((sweep = malloc(SWEEP)) != NULL);
    lines(300, 20);
    lines(MIB, 4);
    directory();
    FILE *command = popen("echo from a child", "r");
    char text[64];
    CALL(command != NULL);
    away();
    CALL(fgets(text, sizeof text, command) != NULL && strcmp(text, "from a child\n") == 0 && pclose(command) == 0);
    printf("ok streams: lines, directories, a child's output\n");
    return 0;
}
