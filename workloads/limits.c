/* limits [child SOFT HARD]
 *
 * The program sets limits on address space and data itself, and reads the values that it set. Large allocations beyond
 * the limits fail with ENOMEM. Everything within the limits works: large blocks, threads, files and shared memory. A
 * forked child has the limits, and so does an executed program, for each of the calls that execute one. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIB ((size_t)1 << 30)
#define BLOCK (64 * MIB)
#define BLOCKS_MAX 64

extern char **environ;
static char *self;

static struct rlimit limit_of(int resource) {
    struct rlimit limit, again, number;
    CALL(getrlimit(resource, &limit) == 0);
    CALL(prlimit(0, resource, NULL, &again) == 0 && memcmp(&limit, &again, sizeof limit) == 0);
    CALL(prlimit(getpid(), resource, NULL, &again) == 0 && memcmp(&limit, &again, sizeof limit) == 0);
    CALL(syscall(SYS_prlimit64, 0, resource, NULL, &number) == 0 && memcmp(&limit, &number, sizeof limit) == 0);
    return limit;
}

static void set(int resource, rlim_t soft) {
    struct rlimit limit = limit_of(resource), before = limit;
    limit.rlim_cur = soft;
    /* The same variable holds the new limit and receives the old one. */
    struct rlimit both = limit;
    CALL(prlimit(0, resource, &both, &both) == 0 && memcmp(&both, &before, sizeof both) == 0);
    REQUIRE(limit_of(resource).rlim_cur == soft, "a limit given in one place is not set");
    CALL(setrlimit(resource, &limit) == 0);
    struct rlimit found = limit_of(resource);
    REQUIRE(found.rlim_cur == soft && found.rlim_max == limit.rlim_max, "a limit of %zu reads as %zu of %zu",
            (size_t)soft, (size_t)found.rlim_cur, (size_t)found.rlim_max);
}

/* Returns how many blocks can be allocated before one is refused. */
static size_t blocks(size_t len, size_t most) {
    static void *got[16384];
    size_t count = 0;
    errno = 0;
    while (count < most && (got[count] = malloc(len)) != NULL)
        memset(got[count++], 1, PAGE);
    REQUIRE(count == most || errno == ENOMEM, "malloc: %s", strerror(errno));
    for (size_t i = 0; i < count; i++)
        free(got[i]);
    return count;
}

static void *use_a_stack(void *argument) {
    volatile char bytes[MIB];
    for (size_t i = 0; i < sizeof bytes; i += PAGE)
        bytes[i] = 1;
    return argument;
}

static void threads(size_t count) {
    pthread_t made[8];
    for (size_t i = 0; i < count; i++)
        CALL((errno = pthread_create(&made[i], NULL, use_a_stack, NULL)) == 0);
    for (size_t i = 0; i < count; i++)
        CALL((errno = pthread_join(made[i], NULL)) == 0);
}

/* Tests a resource with a limit of one gibibyte. */
static void within(int resource, const char *name) {
    set(resource, GIB);
    REQUIRE(malloc(2 * GIB) == NULL && errno == ENOMEM, "%s: 2 GiB of a limit of 1: %s", name, strerror(errno));
    void *map = mmap(NULL, 2 * GIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(map == MAP_FAILED && errno == ENOMEM, "%s: a mapping of 2 GiB: %s", name, strerror(errno));
    map = mmap(NULL, 2 * GIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(map == MAP_FAILED && errno == ENOMEM, "%s: 2 GiB without a reservation: %s", name, strerror(errno));
    for (int round = 0; round < 3; round++) {
        size_t count = blocks(BLOCK, BLOCKS_MAX);
        REQUIRE(count >= 11 && count <= 16, "%s: %zu blocks of 64 MiB within 1 GiB", name, count);
    }
    size_t count = blocks(256 << 10, 8192);
    REQUIRE(count >= 3000 && count <= 4096, "%s: %zu blocks of 256 KiB within 1 GiB", name, count);

    uint64_t *words = malloc(256 * MIB), *more;
    CALL(words != NULL);
    fill_words(words, 4 * MIB, 1, 0);
    threads(4);
    void *shared = mmap(NULL, 300 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CALL(shared != MAP_FAILED);
    more = malloc(600 * MIB);
    REQUIRE(resource == RLIMIT_DATA ? more != NULL : more == NULL, "%s: 600 MiB beside 256 far and 300 shared ones", name);
    free(more);
    CALL(munmap(shared, 300 * MIB) == 0);
    CALL((more = realloc(words, 300 * MIB)) != NULL);
    words = more;
    REQUIRE(realloc(words, 2 * GIB) == NULL && errno == ENOMEM, "%s: realloc: %s", name, strerror(errno));
    check_words(words, 4 * MIB, 1, 0, name);

    /* The limit is below the present use. New memory is refused, and existing memory stays usable. */
    set(resource, 16 * MIB);
    map = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(map == MAP_FAILED && errno == ENOMEM, "%s: a mapping beyond what there is already", name);
    char *sweep = (char *)words + 64 * MIB;
    for (size_t i = 0; i < 200 * MIB; i += PAGE)
        sweep[i] = 1;
    check_words(words, 4 * MIB, 1, 0, "under a limit that is exceeded");
    set(resource, GIB);
    free(words);
}

static void wait_for(pid_t child, const char *how) {
    int status;
    CALL(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0, "%s: the child ended with status %#x", how, status);
}

static void forked(void) {
    fflush(stdout);
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        REQUIRE(limit_of(RLIMIT_AS).rlim_cur == GIB, "a forked child's limit is %zu", (size_t)limit_of(RLIMIT_AS).rlim_cur);
        REQUIRE(malloc(2 * GIB) == NULL, "2 GiB in a forked child");
        size_t count = blocks(BLOCK, BLOCKS_MAX);
        REQUIRE(count >= 10 && count <= 16, "%zu blocks of 64 MiB in a forked child", count);
        set(RLIMIT_AS, GIB / 2);
        count = blocks(BLOCK, BLOCKS_MAX);
        REQUIRE(count >= 3 && count <= 8, "%zu blocks of 64 MiB within half a GiB", count);
        _exit(0);
    }
    wait_for(child, "fork");
    REQUIRE(limit_of(RLIMIT_AS).rlim_cur == GIB, "a child's limit became its parent's");
}

static void executed(void) {
    struct rlimit limit = limit_of(RLIMIT_AS);
    char soft[32], hard[32];
    snprintf(soft, sizeof soft, "%zu", (size_t)limit.rlim_cur);
    snprintf(hard, sizeof hard, "%zu", (size_t)limit.rlim_max);
    char *argv[] = {self, "child", soft, hard, NULL}, *none[] = {NULL};
    char *shell[] = {"sh", "-c", "test $(ulimit -v) = 1048576", NULL};
    fflush(stdout);
    for (int way = 0; way < 6; way++) {
        pid_t child = way == 1 ? vfork() : fork();
        CALL(child >= 0);
        if (child == 0) {
            if (way == 0 || way == 1)
                execv(self, argv);
            if (way == 2)
                execve(self, argv, environ);
            if (way == 3)
                execl(self, self, "child", soft, hard, (char *)NULL);
            if (way == 4)
                execve("/bin/sh", shell, none);
            if (way == 5)
                execl("/bin/sh", "sh", "-c", shell[2], (char *)NULL);
            _exit(9);
        }
        wait_for(child, (char *[]){"execv", "vfork and execv", "execve", "execl", "execve of a shell", "execl of a shell"}[way]);
    }
    REQUIRE(execv("/nonexistent", argv) == -1 && errno == ENOENT, "execv of nothing: %s", strerror(errno));
    pid_t child;
    CALL((errno = posix_spawn(&child, self, NULL, NULL, argv, environ)) == 0);
    wait_for(child, "posix_spawn");
    REQUIRE(system(shell[2]) == 0, "system");
    /* A limit that a vfork child sets for itself must not apply to its parent. */
    child = vfork();
    CALL(child >= 0);
    if (child == 0) {
        struct rlimit half = {GIB / 2, limit.rlim_max};
        if (setrlimit(RLIMIT_AS, &half) != 0)
            _exit(8);
        execl("/bin/sh", "sh", "-c", "test $(ulimit -v) = 524288", (char *)NULL);
        _exit(9);
    }
    wait_for(child, "vfork, setrlimit and execl");
    REQUIRE(limit_of(RLIMIT_AS).rlim_cur == GIB, "a vforked child's limit became its parent's");
}

static void refusals(void) {
    struct rlimit limit = limit_of(RLIMIT_AS), wrong = {2 * GIB, GIB};
    REQUIRE(setrlimit(RLIMIT_AS, &wrong) == -1 && errno == EINVAL, "soft above hard: %s", strerror(errno));
    CALL(syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, NULL) == 0);
    struct rlimit files = limit_of(RLIMIT_NOFILE);
    files.rlim_cur = files.rlim_cur > 100 ? 100 : files.rlim_cur;
    CALL(setrlimit(RLIMIT_NOFILE, &files) == 0 && limit_of(RLIMIT_NOFILE).rlim_cur == files.rlim_cur);
    struct rlimit found = limit_of(RLIMIT_AS);
    REQUIRE(memcmp(&found, &limit, sizeof limit) == 0, "refused limits were set");
    struct rlimit lower = {GIB, 4 * GIB};
    CALL(setrlimit(RLIMIT_AS, &lower) == 0);
    found = limit_of(RLIMIT_AS);
    REQUIRE(memcmp(&found, &lower, sizeof lower) == 0, "a lower hard limit reads as %zu", (size_t)found.rlim_max);
    if (geteuid() != 0)
        REQUIRE(setrlimit(RLIMIT_AS, &limit) == -1 && errno == EPERM, "raising a hard limit: %s", strerror(errno));
}

static int as_child(char **argv) {
    struct rlimit limit = limit_of(RLIMIT_AS);
    REQUIRE(limit.rlim_cur == strtoul(argv[2], NULL, 10), "executed under %s, found %zu", argv[2], (size_t)limit.rlim_cur);
    REQUIRE(limit.rlim_max == strtoul(argv[3], NULL, 10), "executed under %s, found %zu", argv[3], (size_t)limit.rlim_max);
    REQUIRE(malloc(2 * GIB) == NULL && errno == ENOMEM, "2 GiB in what was executed: %s", strerror(errno));
    size_t count = blocks(BLOCK, BLOCKS_MAX);
    REQUIRE(count >= 11 && count <= 16, "%zu blocks of 64 MiB in what was executed", count);
    threads(2);
    return 0;
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 4)
        return as_child(argv);
    uint64_t *before = malloc(32 * MIB);
    CALL(before != NULL);
    fill_words(before, 4 * MIB, 2, 0);
    rlim_t space = limit_of(RLIMIT_AS).rlim_cur, data = limit_of(RLIMIT_DATA).rlim_cur;
    within(RLIMIT_AS, "RLIMIT_AS");
    forked();
    executed();
    set(RLIMIT_AS, space);
    within(RLIMIT_DATA, "RLIMIT_DATA");
    set(RLIMIT_DATA, data);
    if (space == RLIM_INFINITY) {
        void *large = malloc(2 * GIB);
        REQUIRE(large != NULL, "2 GiB without limits");
        free(large);
    }
    set(RLIMIT_AS, GIB);
    refusals();
    executed();
    check_words(before, 4 * MIB, 2, 0, "afterwards");
    printf("ok limits: address space and data, threads, fork, exec\n");
    return 0;
}
