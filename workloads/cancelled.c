/* Threads that are cancelled in calls of the C library, with near and with far arguments, natively and under `hanare run`.
 *
 *     cancelled
 *
 * Every thread ends as cancelled, each of its cleanups runs once, and calls still work afterwards. The objects on which
 * the threads wait are in far memory, half of which is evicted meanwhile. The program is compiled with exceptions, as
 * C++ is, so that cleanups run when the stack is unwound. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 12

static char *far_bytes;
static size_t far_len = 24 * MIB;
static int nothing[2], sink;
static atomic_int cleanups, destroyed, begun;

/* Returns an address in the part of the array that only the cancelled thread uses. */
static char *place(size_t at) {
    return far_bytes + at * 64 * 1024;
}

static void destroy(int *which) {
    destroyed += *which;
}

static void cleanup(void *which) {
    cleanups += *(int *)which;
}

static void open_and_close(void) {
    int fd = open("/dev/null", O_WRONLY), before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CALL(fd >= 0 && close(fd) == 0);
    pthread_setcancelstate(before, NULL);
}

static void open_far_and_close(void) {
    strcpy(place(1), "/dev/null");
    int fd = open(place(1), O_WRONLY), before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CALL(fd >= 0 && close(fd) == 0);
    pthread_setcancelstate(before, NULL);
}

static void read_far(void) {
    read(nothing[0], place(2), 300000);
}

static void write_far(void) {
    write(sink, place(8), 400000);
}

static void sleep_far(void) {
    struct timespec *time = (struct timespec *)(void *)place(16);
    time->tv_sec = 1000;
    nanosleep(time, time);
}

static void poll_far(void) {
    struct pollfd *it = (struct pollfd *)(void *)place(17);
    it->fd = nothing[0];
    it->events = POLLIN;
    poll(it, 1, -1);
}

static void select_far(void) {
    fd_set *set = (fd_set *)(void *)place(18);
    FD_ZERO(set);
    FD_SET(nothing[0], set);
    select(nothing[0] + 1, set, NULL, NULL, NULL);
}

static void open_stream(void) {
    int before;
    FILE *stream = fopen("/dev/null", "w");
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CALL(stream && fclose(stream) == 0);
    pthread_setcancelstate(before, NULL);
}

static void pause_near(void) {
    poll(NULL, 0, -1);
}

static void (*const calls[])(void) = {open_and_close, open_far_and_close, read_far,    write_far, sleep_far,
                                      poll_far,       select_far,         open_stream, pause_near};
#define CALLS (sizeof calls / sizeof *calls)

static void *live(void *number) {
    __attribute__((cleanup(destroy))) int one = 1;
    pthread_cleanup_push(cleanup, &one);
    begun++;
    for (;;)
        calls[(uintptr_t)number]();
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    far_bytes = malloc(far_len);
    CALL(far_bytes && pipe(nothing) == 0 && (sink = open("/dev/null", O_WRONLY)) >= 0);
    uint64_t *words = (uint64_t *)(void *)(far_bytes + far_len / 2);
    size_t count = far_len / 2 / sizeof *words;
    memset(far_bytes, 0, far_len / 2);
    fill_words(words, count, 7, 0);
    int threads = 0;
    for (uintptr_t which = 0; which < CALLS; which++)
        for (int round = 0; round < ROUNDS; round++, threads++) {
            pthread_t thread;
            void *answer;
            CALL(pthread_create(&thread, NULL, live, (void *)which) == 0);
            for (int waits = 0; begun == threads; waits++) {
                REQUIRE(waits < 300000, "call %zu, round %d: the thread does not begin", which, round);
                usleep(100);
            }
            usleep(300 * round);
            CALL(pthread_cancel(thread) == 0 && pthread_join(thread, &answer) == 0);
            REQUIRE(answer == PTHREAD_CANCELED, "call %zu, round %d: the thread was not cancelled", which, round);
            REQUIRE(cleanups == threads + 1 && destroyed == threads + 1, "call %zu, round %d: %d and %d of %d cleanups", which,
                    round, cleanups, destroyed, threads + 1);
            if (round % 4 == 3)
                check_words(words, count, 7, 0, "after a cancelled thread");
        }
    CALL(write(nothing[1], "x", 1) == 1 && read(nothing[0], place(3), 10) == 1 && place(3)[0] == 'x');
    printf("ok cancelled: %d threads\n", threads);
    return 0;
}
