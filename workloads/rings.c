/* rings before|after
 *
 * Asks the kernel for asynchronous I/O (io_uring, and AIO by the program's own instruction), before or after the first
 * large block. Then fills 16 MiB and checks them. Prints `ok rings: ` and what the kernel answered: `given` or an error. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WORDS = 16 * (1 << 20) / 8 };

static uint64_t *block;

static void fill(uint64_t seed) {
    for (size_t i = 0; i < WORDS; i++)
        block[i] = seed * (2 * i + 1);
}

static void check(uint64_t seed) {
    for (size_t i = 0; i < WORDS; i++)
        REQUIRE(block[i] == seed * (2 * i + 1), "word %zu of %d", i, WORDS);
}

static int ask(void) {
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params), error = errno;
    if (ring >= 0)
        close(ring);
    aio_context_t context = 0;
    long answer = SYS_io_setup;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "+a"(answer) : "D"(4L), "S"(&context) : "rcx", "r11", "memory");
#else
    answer = syscall(SYS_io_setup, 4, &context);
    answer = answer < 0 ? -errno : answer;
#endif
    REQUIRE((ring < 0) == (answer < 0), "io_uring_setup answered %d, io_setup %ld", ring, answer);
    return ring < 0 ? error : 0;
}

int main(int argc, char **argv) {
    CALL(argc == 2);
    int first = strcmp(argv[1], "before") == 0, error = first ? ask() : 0;
    block = malloc(WORDS * 8);
    CALL(block != NULL);
    fill(3);
    check(3);
    if (!first)
        error = ask();
    fill(5);
    check(5);
    printf("ok rings: %s\n", error ? strerror(error) : "given");
    return 0;
}
