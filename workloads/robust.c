/* robust: threads end while they own robust mutexes in far memory, both plain mutexes and mutexes with priority
 * inheritance. Other threads wait for the mutexes, or lock them later, also while the mutexes' pages are evicted. The
 * next owner gets the error, and the mutex works again. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define MUTEXES 8
#define APART (MIB + 4096)

static char *place;
static uint64_t *words;
static size_t count = 16 * MIB / sizeof(uint64_t);
static pthread_mutex_t near_one;
static atomic_int waiting;

static pthread_mutex_t *mutex(int number) {
    return (pthread_mutex_t *)(void *)(place + number * APART);
}

/* Accesses all pages of the array, so that other pages are evicted. */
static void sweep(const char *when) {
    check_words(words, count, 9, 0, when);
}

static void unlock_one(void *one) {
    pthread_mutex_unlock(one);
}

static void *own(void *how) {
    for (int number = 0; number < MUTEXES; number++)
        CALL(pthread_mutex_lock(mutex(number)) == 0);
    CALL(pthread_mutex_lock(&near_one) == 0 && pthread_mutex_unlock(mutex(0)) == 0);
    for (int waits = 0; how && waiting < 2; waits++) {
        REQUIRE(waits < 30000, "the waiting threads do not begin");
        usleep(1000);
    }
    usleep(20000);
    sweep("while mutexes are held");
    pthread_cleanup_push(unlock_one, mutex(1));
    if (how)
        pthread_exit(NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

static void take(pthread_mutex_t *it, int dead, const char *which) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int error = pthread_mutex_timedlock(it, &until);
    REQUIRE(error == (dead ? EOWNERDEAD : 0), "%s is locked with: %s", which, strerror(error));
    if (dead)
        CALL(pthread_mutex_consistent(it) == 0);
    CALL(pthread_mutex_unlock(it) == 0);
}

static void *wait_for(void *which) {
    waiting++;
    take(which, 1, "a mutex that was waited for");
    return NULL;
}

static void round_of(int protocol, int with_waiters) {
    pthread_mutexattr_t attributes;
    pthread_t owner, waiters[2];
    CALL(pthread_mutexattr_init(&attributes) == 0);
    CALL(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    CALL(pthread_mutexattr_setprotocol(&attributes, protocol) == 0);
    for (int number = 0; number < MUTEXES; number++)
        CALL(pthread_mutex_init(mutex(number), &attributes) == 0);
    CALL(pthread_mutex_init(&near_one, &attributes) == 0);
    waiting = 0;
    CALL(pthread_create(&owner, NULL, own, with_waiters ? place : NULL) == 0);
    while (with_waiters && pthread_mutex_trylock(&near_one) == 0)
        CALL(pthread_mutex_unlock(&near_one) == 0);
    for (int number = 0; with_waiters && number < 2; number++)
        CALL(pthread_create(&waiters[number], NULL, wait_for, mutex(5 + number)) == 0);
    CALL(pthread_join(owner, NULL) == 0);
    for (int number = 0; with_waiters && number < 2; number++)
        CALL(pthread_join(waiters[number], NULL) == 0);
    take(mutex(0), 0, "a mutex that was unlocked");
    take(mutex(1), !with_waiters, "a mutex of a cleanup");
    for (int number = 2; number < MUTEXES; number++) {
        int waited = with_waiters && (number == 5 || number == 6);
        take(mutex(number), !waited, "a mutex");
        take(mutex(number), 0, "a mutex that is consistent again");
    }
    take(&near_one, 1, "a near mutex");
}

int main(void) {
    place = mmap(NULL, MUTEXES * APART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    words = malloc(count * sizeof *words);
    CALL(place != MAP_FAILED && words);
    fill_words(words, count, 9, 0);
    for (int round = 0; round < 4; round++) {
        round_of(PTHREAD_PRIO_NONE, round % 2);
        round_of(PTHREAD_PRIO_INHERIT, round % 2);
    }
    printf("ok robust: %d mutexes\n", 8 * MUTEXES);
    return 0;
}
