/* forks [SIZE]
 *
 * A child never reads wrong bytes of its parent's large arrays (SIZE, 64M): it reads the right ones (natively) or dies
 * of a signal (under Hanare). Its own memory, exec and exit work, and the parent goes on undisturbed. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static size_t size = 64 * MIB;
static uint64_t *array;
static uint64_t first; /* the number of the array's first word */
static int died;

static int finish(pid_t child) {
    int status;
    CALL(waitpid(child, &status, 0) == child);
    return status;
}

static void expect_success(pid_t child, const char *what) {
    int status = finish(child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: child ended with %s %d", what,
            WIFEXITED(status) ? "exit code" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* The child touches one inherited word. */
static void touching(size_t index, int write) {
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        uint64_t found = *(volatile uint64_t *)&array[index];
        if (write)
            *(volatile uint64_t *)&array[index] = 5;
        _exit(found == word(1, 0, first + index) ? 0 : 9);
    }
    int status = finish(child);
    int killed = WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
    REQUIRE(killed || WIFEXITED(status), "child touching word %zu ended with signal %d", index, WTERMSIG(status));
    REQUIRE(killed || WEXITSTATUS(status) != 9, "a child read wrong bytes in word %zu at %p", index,
            (void *)&array[index]);
    REQUIRE(killed || WEXITSTATUS(status) == 0, "child touching word %zu ended with %d", index, WEXITSTATUS(status));
    died += killed;
}

static void own_memory(void) {
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        free(array); /* the inherited array goes, or stays: either way the child lives */
        uint64_t *own = malloc(size / 2);
        CALL(own != NULL);
        check_zero(own, PAGE, "the child's own memory");
        fill_words(own, size / 16, 3, 0);
        own = realloc(own, size);
        CALL(own != NULL);
        check_words(own, size / 16, 3, 0, "the child's own memory");
        free(own);
        char *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CALL(map != MAP_FAILED);
        memset(map, 1, MIB);
        CALL(munmap(map, MIB) == 0);
        exit(0);
    }
    expect_success(child, "own memory");
}

static void executing(void) {
    char *arguments[] = {"true", NULL};
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        execvp("true", arguments);
        _exit(127);
    }
    expect_success(child, "exec");
    CALL((errno = posix_spawnp(&child, "true", NULL, NULL, arguments, environ)) == 0);
    expect_success(child, "posix_spawn");
    CALL(system("exit 0") == 0);
    child = fork();
    CALL(child >= 0);
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0)
            exit(0);
        _exit(grandchild < 0 || finish(grandchild) != 0);
    }
    expect_success(child, "a grandchild");
}

static volatile int stop;

/* The parent's other thread goes on using its array while children come and go. */
static void *meanwhile(void *argument) {
    uint64_t *words = argument;
    for (uint64_t round = 1; !stop; round++)
        for (size_t i = 0; i < size / 8 && !stop; i += 512) {
            REQUIRE(words[i] == word(2, round - 1, i), "the parent's thread: word %zu is %#llx in round %llu", i,
                    (unsigned long long)words[i], (unsigned long long)round);
            words[i] = word(2, round, i);
        }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]) / MIB * MIB;
    if (size < 4 * MIB)
        size = 4 * MIB;
    CALL(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) == 0);
    CALL((array = malloc(size)) != NULL);
    fill_words(array, size / 8, 1, 0);
    uint64_t *busy = malloc(size);
    CALL(busy != NULL);
    for (size_t i = 0; i < size / 8; i += 512)
        busy[i] = word(2, 0, i);
    pthread_t thread;
    CALL((errno = pthread_create(&thread, NULL, meanwhile, busy)) == 0);
    for (size_t n = 0; n < 8; n++) {
        touching(n * (size / 8 / 8) + n, n % 2);
        touching(size / 8 - 1 - n, n % 2);
    }
    own_memory();
    executing();
    stop = 1;
    CALL((errno = pthread_join(thread, NULL)) == 0);
    check_words(array, size / 8, 1, 0, "the parent afterwards");
    first = 99;
    fill_words(array, size / 8, 1, first);
    touching(0, 0);
    check_words(array, size / 8, 1, first, "the parent's later writes");
    free(array);
    free(busy);
    printf("ok forks: %zu bytes, 17 children touched them: %d died, %d read right bytes\n", size, died, 17 - died);
    return 0;
}
