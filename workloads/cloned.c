/* cloned
 *
 * Has a child that shares the program's memory: `clone` with CLONE_VM, on a stack of 8 MiB from malloc. Such a stack may
 * be far, and the child has no alternate one. The child uses half of it, reads memory of 32 MiB, most of which is
 * evicted, and writes its sum. The parent checks it. */
#include "check.h"
#include <sched.h>
#include <sys/wait.h>

#define BYTES (32 * MIB)
#define STACK (8 * MIB)

static unsigned char *bytes;
static uint64_t sum;

static int add(void *unused) {
    volatile char deep[STACK / 2];
    (void)unused;
    for (size_t at = 0; at < sizeof deep; at += PAGE)
        deep[at] = 1;
    for (size_t at = 0; at < BYTES; at += PAGE)
        sum += bytes[at];
    return 3;
}

int main(void) {
    uint64_t expected = 0;
    char *stack = malloc(STACK);
    bytes = malloc(BYTES);
    CALL(stack && bytes);
    for (size_t at = 0; at < BYTES; at += PAGE)
        expected += bytes[at] = (unsigned char)(at / PAGE);
    pid_t child = clone(add, stack + STACK, CLONE_VM | SIGCHLD, NULL);
    int status;
    CALL(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 3, "the child ended with status %#x", (unsigned)status);
    REQUIRE(sum == expected, "the sum is %llu", (unsigned long long)sum);
    puts("ok cloned");
    return 0;
}
