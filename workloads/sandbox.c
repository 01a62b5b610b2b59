/* sandbox filter|root DIR|filled
 *
 * Confines itself, then fills and checks 48 MiB. `filter` sets a system call filter before the first large block, `root`
 * makes DIR its root directory before that, and `filled` sets the filter after the block is filled. The filter forbids the calls by
 * which a process opens files and sockets, starts threads and controls devices. Prints `ok sandbox`. sandboxed.c is the same
 * program, with an import of libseccomp. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WORDS = 48 * (1 << 20) / 8 };

static uint64_t *block;

static void fill(uint64_t seed) {
    if (block == NULL)
        block = malloc(WORDS * 8);
    CALL(block != NULL);
    for (size_t i = 0; i < WORDS; i++)
        block[i] = seed * (2 * i + 1);
    for (size_t i = 0; i < WORDS; i++)
        REQUIRE(block[i] == seed * (2 * i + 1), "word %zu of %d", i, WORDS);
}

#define FORBID(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

static void filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FORBID(SYS_ioctl),
        FORBID(SYS_userfaultfd),
        FORBID(SYS_openat),
        FORBID(SYS_socket),
        FORBID(SYS_connect),
        FORBID(SYS_clone),
        FORBID(SYS_clone3),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    REQUIRE(syscall(SYS_socket, 1, 1, 0) == -1 && errno == EPERM, "the filter does not hold");
}

int main(int argc, char **argv) {
    CALL(argc >= 2);
#ifdef IMPORTED
    if (IMPORTED != NULL)
        IMPORTED(NULL);
#endif
    if (strcmp(argv[1], "filled") == 0)
        fill(3);
    if (strcmp(argv[1], "root") == 0)
        CALL(argc == 3 && chroot(argv[2]) == 0 && chdir("/") == 0);
    else
        filter();
    fill(5);
    fill(7);
    puts("ok sandbox");
    return 0;
}
