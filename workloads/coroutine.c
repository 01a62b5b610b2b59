/* coroutine: runs coroutines whose stacks are plain mappings of the program. Each stack holds words that are checked
 * at each switch. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <ucontext.h>

#include "check.h"

enum { COROUTINES = 24, TURNS = 8, WORDS = 1 << 16 };
#define STACK (MIB)

static ucontext_t scheduler, coroutines[COROUTINES];

static void body(int self) {
    uint64_t words[WORDS];
    fill_words(words, WORDS, self, 0);
    for (int turn = 0; turn < TURNS; turn++) {
        CALL(swapcontext(&coroutines[self], &scheduler) == 0);
        check_words(words, WORDS, self, 0, "on a coroutine's stack");
    }
}

static void make(int self) {
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(stack != MAP_FAILED);
    CALL(getcontext(&coroutines[self]) == 0);
    coroutines[self].uc_stack.ss_sp = stack;
    coroutines[self].uc_stack.ss_size = STACK;
    coroutines[self].uc_link = &scheduler;
    makecontext(&coroutines[self], (void (*)(void))body, 1, self);
}

int main(void) {
    for (int self = 0; self < COROUTINES; self++)
        make(self);
    for (int turn = 0; turn <= TURNS; turn++)
        for (int self = 0; self < COROUTINES; self++)
            CALL(swapcontext(&scheduler, &coroutines[self]) == 0);
    printf("ok coroutine: %d coroutines, %d turns\n", COROUTINES, TURNS);
    return 0;
}
