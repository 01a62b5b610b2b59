/* Threads that may be cancelled at any instruction (PTHREAD_CANCEL_ASYNCHRONOUS), natively and under `hanare run`.
 *
 *     asynchronous
 *
 * Most threads are cancelled while they read or write far memory. Half of it is evicted meanwhile. The other threads wait
 * in a call with a far argument. Every thread ends as cancelled, and its cleanup runs once and uses far memory. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define ROUNDS 60

static uint64_t *words;
static size_t count = 24 * MIB / sizeof(uint64_t), step = PAGE / sizeof(uint64_t);
static volatile uint64_t written[24 * MIB / sizeof(uint64_t)];
static uint64_t *cleanups;
static int nothing[2];
static atomic_int begun;

static void type(int wanted) {
    int before;
    pthread_setcanceltype(wanted, &before);
}

static void read_words(void) {
    for (size_t at = 0; at < count; at += step)
        if (words[at] != 7 * at)
            _exit(9);
}

static void write_words(void) {
    for (size_t at = 0; at < count; at += step)
        written[at] = at;
}

/* The thread may be cancelled at some reads only. */
static void read_by_turns(void) {
    for (size_t at = 0; at < count; at += step) {
        type(at / step % 2 ? PTHREAD_CANCEL_DEFERRED : PTHREAD_CANCEL_ASYNCHRONOUS);
        if (words[at] != 7 * at)
            _exit(9);
    }
}

static void wait_in_read(void) {
    read(nothing[0], (char *)words + count * sizeof *words, 300000);
}

static void (*const uses[])(void) = {read_words, write_words, read_by_turns, wait_in_read};
#define USES (sizeof uses / sizeof *uses)

static void cleanup(void *which) {
    cleanups[(uintptr_t)which * step]++;
}

static void *live(void *which) {
    pthread_cleanup_push(cleanup, which);
    type(PTHREAD_CANCEL_ASYNCHRONOUS);
    begun++;
    for (;;)
        uses[(uintptr_t)which]();
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    words = malloc(25 * MIB);
    cleanups = calloc(USES * step + MIB, sizeof *cleanups);
    CALL(words && cleanups && pipe(nothing) == 0);
    for (size_t at = 0; at < count; at++)
        words[at] = 7 * at;
    int threads = 0;
    for (uintptr_t which = 0; which < USES; which++)
        for (int round = 0; round < ROUNDS; round++, threads++) {
            pthread_t thread;
            void *answer;
            CALL(pthread_create(&thread, NULL, live, (void *)which) == 0);
            for (int waits = 0; begun == threads; waits++) {
                REQUIRE(waits < 300000, "use %zu, round %d: the thread does not begin", which, round);
                usleep(100);
            }
            usleep(100 * (round % 20));
            CALL(pthread_cancel(thread) == 0 && pthread_join(thread, &answer) == 0);
            REQUIRE(answer == PTHREAD_CANCELED, "use %zu, round %d: the thread was not cancelled", which, round);
            REQUIRE(cleanups[which * step] == (uint64_t)round + 1, "use %zu, round %d: %lu cleanups", which, round,
                    (unsigned long)cleanups[which * step]);
        }
    for (size_t at = 0; at < count; at++)
        REQUIRE(words[at] == 7 * at, "word %zu is %lu after the threads", at, (unsigned long)words[at]);
    for (size_t at = 0; at < count; at += step)
        REQUIRE(written[at] == at || written[at] == 0, "written word %zu is %lu", at, (unsigned long)written[at]);
    printf("ok asynchronous: %d threads\n", threads);
    return 0;
}
