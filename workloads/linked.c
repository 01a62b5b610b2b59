/* linked [SIZE]
 *
 * A program that is linked with its own allocator (liballocator.c). It allocates SIZE (32M) in blocks of all sizes, by
 * malloc and by a call that only this allocator has. It checks every word. */
#define _GNU_SOURCE
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

void *own_malloc(size_t size);
void own_free(void *block);

static size_t size = 32 * MIB;

static size_t count_of(size_t at) {
    static const size_t kinds[] = {3, 40, 700, 9000, 70000, 300000};
    return kinds[at % 6];
}

static void *fill_and_check(void *argument) {
    uint64_t number = (uintptr_t)argument;
    size_t blocks = size / 2 / 500000;
    uint64_t **all = calloc(blocks, sizeof *all);
    CALL(all != NULL);
    void *(*take)(size_t) = number == 1 ? own_malloc : malloc;
    void (*give)(void *) = number == 1 ? own_free : free;
    for (size_t i = 0; i < blocks; i++) {
        all[i] = take(count_of(i) * 8);
        CALL(all[i] != NULL);
        fill_words(all[i], count_of(i), number << 32 | i, 0);
    }
    for (size_t i = 0; i < blocks; i++) {
        check_words(all[i], count_of(i), number << 32 | i, 0, "a block");
        give(all[i]);
    }
    free(all);
    return NULL;
}

/* Uses every call of the malloc family, with small and large sizes. `free` must accept a block of each call. */
static void check_family(size_t bytes) {
    void *blocks[] = {malloc(bytes), calloc(1, bytes), memalign(64, bytes), aligned_alloc(64, bytes), strdup("text"), NULL};
    CALL(posix_memalign(&blocks[5], 64, bytes) == 0);
    for (size_t i = 0; i < 6; i++) {
        CALL(blocks[i] != NULL);
        memset(blocks[i], 7, 5);
        blocks[i] = realloc(blocks[i], 2 * bytes);
        CALL(blocks[i] != NULL);
        REQUIRE(((char *)blocks[i])[4] == 7, "a block that was moved");
        free(blocks[i]);
    }
}

/* Starts a second thread. The tables of a new thread are allocated by the program's allocator, too. */
static void in_two_threads(void) {
    pthread_t second;
    CALL((errno = pthread_create(&second, NULL, fill_and_check, (void *)2)) == 0);
    fill_and_check((void *)1);
    CALL((errno = pthread_join(second, NULL)) == 0);
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]);
    check_family(100);
    check_family(MIB);
    in_two_threads();
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        in_two_threads();
        _exit(0);
    }
    int status;
    CALL(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", (unsigned)status);
    in_two_threads();
    printf("ok linked: %zu bytes\n", size);
    return 0;
}
