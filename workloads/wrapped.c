/* wrapped [SIZE]
 *
 * Defines `sigaction` itself, and passes calls on to the C library's `__sigaction`, as Erlang does. With it, gives every
 * handler that it finds the alternate stack, which is small. It must find no handler, because it has set none. Then it
 * accesses SIZE (64M) of memory, and writes from evicted memory by further names that the C library has for its
 * functions. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/auxv.h>
#include <unistd.h>

ssize_t __write(int, const void *, size_t);
ssize_t __read(int, void *, size_t);

typedef int action_call(int, const struct sigaction *, struct sigaction *);

int __sigaction(int signal, const struct sigaction *new, struct sigaction *old) {
    static action_call *next;
    if (!next)
        next = (action_call *)dlsym(RTLD_NEXT, "__sigaction");
    REQUIRE(next, "no __sigaction: %s", dlerror());
    struct sigaction action;
    if (new && new->sa_handler != SIG_DFL && new->sa_handler != SIG_IGN) {
        action = *new;
        action.sa_flags |= SA_ONSTACK;
        new = &action;
    }
    return next(signal, new, old);
}

int sigaction(int signal, const struct sigaction *new, struct sigaction *old) {
    return __sigaction(signal, new, old);
}

static void use_a_small_stack(void) {
    size_t bytes = 4 * getauxval(AT_MINSIGSTKSZ);
    stack_t stack = {.ss_sp = malloc(bytes), .ss_size = bytes};
    CALL(stack.ss_sp && sigaltstack(&stack, NULL) == 0);
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        struct sigaction action;
        if (sigaction(signal, NULL, &action))
            continue;
        REQUIRE(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN, "signal %d has a handler", signal);
        CALL(signal == SIGKILL || signal == SIGSTOP || sigaction(signal, &action, NULL) == 0);
    }
}

int main(int argc, char **argv) {
    size_t size = argc > 1 ? parse_size(argv[1]) : 64 * MIB, words = size / 8;
    use_a_small_stack();
    uint64_t *array = malloc(size), *back = malloc(PAGE);
    int ends[2];
    CALL(array && back && pipe(ends) == 0);
    use_a_small_stack();
    fill_words(array, words, 5, 0);
    for (size_t at = 0; at < words; at += PAGE / 8 * 64) {
        CALL(__write(ends[1], array + at, PAGE) == (ssize_t)PAGE);
        CALL(__read(ends[0], back, PAGE) == (ssize_t)PAGE);
        check_words(back, PAGE / 8, 5, at, "through a pipe");
    }
    check_words(array, words, 5, 0, "in the array");
    printf("ok wrapped: %zu\n", size);
    return 0;
}
