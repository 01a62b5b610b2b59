/* forked stacks|far|parted
 *
 * Forks from odd places. `stacks`: on the smallest stack that a thread may have, and on a coroutine's stack of 8 KiB,
 * below which nothing may be written. `far`: on a coroutine's stack of 256 KiB, which may be far. `parted`: with
 * mappings that were shortened to 161 pages, after most of their pages were evicted. Parent and child write to them,
 * and neither sees the other's writes. */
#include "check.h"
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define EVICTING (32 * MIB)
#define BELOW ((size_t)64 << 10)
#define LITTLE 8192

static unsigned char *bytes;

/* Writes to much memory, so that other pages are evicted. */
static void evict(void) {
    for (size_t at = 0; at < EVICTING; at += PAGE)
        bytes[at]++;
}

static void *map(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(memory != MAP_FAILED);
    return memory;
}

static void finish(pid_t child) {
    int status;
    CALL(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a child ended with status %#x", (unsigned)status);
}

/* Has children that use the stack again after the fork, and the far memory. */
static void fork_twice(void) {
    evict();
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            bytes[0]++;
            _exit(3);
        }
        finish(child);
    }
}

static void *fork_in_thread(void *unused) {
    fork_twice();
    return unused;
}

static ucontext_t caller, coroutine;

static void run_on(char *stack, size_t size) {
    CALL(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = size;
    coroutine.uc_link = &caller;
    makecontext(&coroutine, fork_twice, 0);
    CALL(swapcontext(&caller, &coroutine) == 0);
}

static void stacks(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    CALL((errno = pthread_attr_init(&attributes)) == 0);
    CALL((errno = pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN))) == 0);
    CALL((errno = pthread_create(&thread, &attributes, fork_in_thread, NULL)) == 0);
    CALL((errno = pthread_join(thread, NULL)) == 0);
    static char memory[BELOW + LITTLE] __attribute__((aligned(16)));
    run_on(memory + BELOW, LITTLE);
    check_zero(memory, BELOW, "below the stack");
}

static void far(void) {
    size_t size = 256 << 10;
    char *stack = map(size);
    run_on(stack, size);
}

#define COUNT 16
#define OWNED 161

static uint64_t *part[COUNT];

static void write_parts(uint64_t seed) {
    for (size_t n = 0; n < COUNT; n++)
        fill_words(part[n], OWNED * PAGE / 8, seed, n << 20);
}

static void check_parts(uint64_t seed, const char *when) {
    for (size_t n = 0; n < COUNT; n++)
        check_words(part[n], OWNED * PAGE / 8, seed, n << 20, when);
}

static void parted(void) {
    for (size_t n = 0; n < COUNT; n++) {
        part[n] = map(MIB);
        CALL(munmap((char *)part[n] + OWNED * PAGE, MIB - OWNED * PAGE) == 0);
    }
    write_parts(1);
    evict();
    check_parts(1, "before the fork");
    pid_t child = fork();
    if (child == 0) {
        check_parts(1, "in the child");
        write_parts(2);
        evict();
        check_parts(2, "written by the child");
        _exit(3);
    }
    write_parts(3);
    finish(child);
    check_parts(3, "written by the parent");
}

int main(int argc, char **argv) {
    bytes = map(EVICTING);
    const char *which = argc == 2 ? argv[1] : "";
    if (strcmp(which, "stacks") == 0) {
        stacks();
    } else if (strcmp(which, "far") == 0) {
        far();
    } else if (strcmp(which, "parted") == 0) {
        parted();
    } else {
        fputs("usage: forked stacks|far|parted\n", stderr);
        return 2;
    }
    printf("ok forked: %s\n", which);
    return 0;
}
