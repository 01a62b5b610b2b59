/* coroutine: runs coroutines whose stacks are plain mappings of the program. Each stack holds words that are checked
 * at each switch. Then coroutines on small stacks access large memory, and what lies below their stacks must not
 * change. At last it sets and gives up alternate signal stacks.
 *
 * coroutine MIB: first allocates MIB MiB of small blocks, and checks them at the end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
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

enum { SMALL = 2 << 10, BELOW = 12 << 10, LARGE = 16 * MIB };
static char small[BELOW + SMALL] __attribute__((aligned(64)));
static char *large;

static void sweep(void) {
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < LARGE; i += 4096)
            large[i]++;
        CALL(swapcontext(&coroutines[0], &scheduler) == 0);
    }
}

static void *on_small_stack(void *unused) {
    memset(small, 0x5a, BELOW);
    CALL(getcontext(&coroutines[0]) == 0);
    coroutines[0].uc_stack.ss_sp = small + BELOW, coroutines[0].uc_stack.ss_size = SMALL;
    coroutines[0].uc_link = &scheduler;
    makecontext(&coroutines[0], sweep, 0);
    for (int turn = 0; turn < 3; turn++)
        CALL(swapcontext(&scheduler, &coroutines[0]) == 0);
    for (int i = 0; i < BELOW; i++)
        REQUIRE(small[i] == 0x5a, "byte %d below a small stack changed", BELOW - i);
    return unused;
}

static char *volatile handled_on;

static void handle(int signal) {
    char here = (char)signal;
    handled_on = &here;
    large[4096 * 100]++;
}

static void check_stack(const stack_t *stack, const void *base, const char *what) {
    int is_there = !(stack->ss_flags & SS_DISABLE);
    REQUIRE(is_there == (base != NULL), "%s: the alternate stack has flags %d", what, stack->ss_flags);
    REQUIRE(!is_there || stack->ss_sp == base, "%s: the alternate stack is elsewhere", what);
}

static void *alternate(void *unused) {
    static char room[64 << 10];
    stack_t own = {.ss_sp = room, .ss_size = sizeof room}, none = {.ss_flags = SS_DISABLE}, told;
    CALL(sigaltstack(NULL, &told) == 0);
    check_stack(&told, NULL, "at first");
    CALL(sigaltstack(&own, &told) == 0);
    check_stack(&told, NULL, "before the first");
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    CALL(sigaction(SIGUSR1, &action, NULL) == 0);
    CALL(raise(SIGUSR1) == 0);
    REQUIRE(handled_on >= room && handled_on < room + sizeof room, "the handler ran elsewhere");
    CALL(sigaltstack(NULL, &told) == 0);
    check_stack(&told, room, "when set");
    CALL(sigaltstack(&none, &told) == 0);
    check_stack(&told, room, "given up");
    CALL(sigaltstack(NULL, &told) == 0);
    check_stack(&told, NULL, "when given up");
    CALL(raise(SIGUSR1) == 0);
    REQUIRE(handled_on < room || handled_on >= room + sizeof room, "the handler ran on a stack that was given up");
    return unused;
}

/* Runs `part` in this thread, and in two others, one after the other. The last one has a stack that the program gives. */
static void in_threads(void *(*part)(void *)) {
    part(NULL);
    for (int nth = 0; nth < 2; nth++) {
        pthread_t thread;
        pthread_attr_t attributes;
        CALL(pthread_attr_init(&attributes) == 0);
        if (nth == 1) {
            void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CALL(stack != MAP_FAILED && pthread_attr_setstack(&attributes, stack, STACK) == 0);
        }
        CALL(pthread_create(&thread, &attributes, part, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
}

enum { BLOCK_WORDS = 64 };
#define BLOCKS_PER_MIB (MIB / (BLOCK_WORDS * sizeof(uint64_t)))

static uint64_t **small_blocks(size_t count) {
    uint64_t **blocks = calloc(count + 1, sizeof *blocks);
    CALL(blocks);
    for (size_t i = 0; i < count; i++) {
        blocks[i] = malloc(BLOCK_WORDS * sizeof(uint64_t));
        CALL(blocks[i]);
        fill_words(blocks[i], BLOCK_WORDS, i, 0);
    }
    return blocks;
}

int main(int argc, char **argv) {
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) * BLOCKS_PER_MIB : 0;
    uint64_t **blocks = small_blocks(count);
    for (int self = 0; self < COROUTINES; self++)
        make(self);
    for (int turn = 0; turn <= TURNS; turn++)
        for (int self = 0; self < COROUTINES; self++)
            CALL(swapcontext(&scheduler, &coroutines[self]) == 0);
    large = malloc(LARGE);
    CALL(large);
    memset(large, 0, LARGE);
    in_threads(on_small_stack);
    in_threads(alternate);
    for (size_t i = 0; i < count; i++)
        check_words(blocks[i], BLOCK_WORDS, i, 0, "in a small block");
    printf("ok coroutine: %d coroutines, %d turns\n", COROUTINES, TURNS);
    return 0;
}
