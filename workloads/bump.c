/* bump [SIZE]
 *
 * A program with an allocator of its own over `mmap`, from which the C library takes the buffers of its streams and
 * directories. It prints, uses SIZE (40) MiB of memory, reads a directory, forks, and flushes the stream. */
#include "check.h"

#include <dirent.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE (4 * MIB)

static _Atomic(char *) next, end;

void *malloc(size_t size) {
    size = (size + 31) / 16 * 16;
    if (size > PIECE)
        return NULL;
    if (!next || next + size > end) {
        char *piece = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece == MAP_FAILED)
            return NULL;
        next = piece;
        end = piece + PIECE;
    }
    char *block = next;
    next += size;
    *(size_t *)(void *)block = size - 16;
    return block + 16;
}

void free(void *block) {
    (void)block;
}

void *calloc(size_t count, size_t size) {
    return malloc(count * size);
}

void *realloc(void *block, size_t size) {
    char *other = malloc(size);
    if (other && block) {
        size_t old = ((size_t *)block)[-2];
        memcpy(other, block, old < size ? old : size);
    }
    return other;
}

int main(int argc, char **argv) {
    size_t blocks = (argc > 1 ? strtoul(argv[1], NULL, 10) : 40) * MIB / 8192;
    uint64_t **all = malloc(blocks * sizeof *all);
    CALL(all);
    DIR *directory = NULL;
    for (size_t i = 0; i < blocks; i++) {
        CALL((all[i] = malloc(8000)));
        fill_words(all[i], 1000, i, 0);
        if (i == blocks / 4)
            CALL(printf("ok bump: %zu blocks\n", blocks) > 0 && (directory = opendir("/proc/self")) && tmpfile());
    }
    for (size_t i = 0; i < blocks; i++)
        check_words(all[i], 1000, i, 0, "a block");
    size_t entries = 0;
    errno = 0;
    while (readdir(directory))
        entries++;
    REQUIRE(errno == 0 && entries > 40, "%zu entries, error %d", entries, errno);
    for (int round = 0; round < 3; round++) {
        for (size_t i = round; i < blocks; i += 3)
            check_words(all[i], 1000, i, 0, "a block");
        pid_t child = fork();
        if (child == 0) {
            check_words(all[blocks / 2], 1000, blocks / 2, 0, "a block of the child's");
            _exit(5);
        }
        int status;
        CALL(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 5, "the child ended with %#x", (unsigned)status);
    }
    if (fflush(stdout) != 0) {
        perror("bump: the output is lost");
        return 1;
    }
    return 0;
}
