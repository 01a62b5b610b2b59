/* identity [--size SIZE] [--seconds S] [--stack | --keep-rights]
 *
 * Threads use an array while other threads constantly change user and groups. For such a change, the C library
 * interrupts every thread of the process. Threads are also started, and cancelled while they use the array. With
 * --stack, the changes are made by a thread whose stack was allocated by malloc. Every word is checked. The changes
 * need root. They set the ids that the process has already, or change only the supplementary groups.
 *
 * With --keep-rights, the only thread gives up root, but keeps the capability to change groups, and uses it. */
#define _GNU_SOURCE
#include "check.h"
#include <grp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { USERS = 3, GROUPS = 3000 };

static uint64_t *words;
static size_t total;
static atomic_int over;
static atomic_ullong changes, cancelled;

static void *use(void *argument) {
    uint64_t state = (uintptr_t)argument + 7;
    while (!over) {
        state = word(state, 0, 0);
        size_t first = (state >> 8) % (total - 64);
        check_words(words + first, 64, 1, first, "while users change");
    }
    return NULL;
}

/* Reads the array without end. The thread may be cancelled while it uses the array or sleeps. */
static void *use_until_cancelled(void *argument) {
    uint64_t state = (uintptr_t)argument + 99;
    for (;;) {
        state = word(state, 0, 0);
        size_t first = (state >> 8) % (total - 64);
        check_words(words + first, 64, 1, first, "before it is cancelled");
        if (state % 4 == 0)
            usleep(1);
        pthread_testcancel();
    }
    return NULL;
}

static void *cancel(void *unused) {
    (void)unused;
    while (!over) {
        pthread_t thread;
        void *end;
        CALL(pthread_create(&thread, NULL, use_until_cancelled, (void *)(uintptr_t)cancelled) == 0);
        usleep(300 + cancelled % 7 * 500);
        CALL(pthread_cancel(thread) == 0);
        CALL(pthread_join(thread, &end) == 0);
        REQUIRE(end == PTHREAD_CANCELED, "a cancelled thread ended otherwise");
        cancelled++;
    }
    return NULL;
}

static void *change(void *has_groups) {
    uid_t user = getuid();
    gid_t group = getgid();
    while (!over) {
        CALL(setgid(group) == 0);
        CALL(setresgid(group, group, group) == 0);
        CALL(setuid(user) == 0);
        CALL(setreuid(user, user) == 0);
        changes++;
        if (!has_groups)
            continue;
        /* The list is in far memory, and is evicted again before it is passed to every thread. */
        gid_t *list = malloc(256 * PAGE), found[GROUPS];
        CALL(list != NULL);
        for (int i = 0; i < GROUPS; i++)
            list[i] = 1000 + i;
        CALL(setgroups(GROUPS, list) == 0);
        CALL(getgroups(GROUPS, found) == GROUPS);
        REQUIRE(memcmp(list, found, sizeof found) == 0, "the groups are not those that were set");
        free(list);
        CALL(initgroups("root", 0) == 0);
        CALL(setgroups(0, NULL) == 0);
    }
    return NULL;
}

static void keep_rights(size_t size) {
    uint32_t head[2] = {0x20080522, 0}, sets[6];
    uid_t nobody = 65534;
    words = malloc(size);
    CALL(words != NULL);
    total = size / sizeof *words;
    fill_words(words, total, 1, 0);
    CALL(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
    CALL(setresuid(nobody, nobody, nobody) == 0);
    CALL(syscall(SYS_capget, head, sets) == 0);
    sets[0] = sets[1];
    sets[3] = sets[4];
    CALL(syscall(SYS_capset, head, sets) == 0);
    CALL(setgroups(0, NULL) == 0);
    CALL(setegid(nobody) == 0 && getegid() == nobody);
    CALL(setresgid(nobody, nobody, nobody) == 0 && getgid() == nobody);
    check_words(words, total, 1, 0, "without root");
    printf("ok identity: user %u, group %u\n", getuid(), getgid());
}

int main(int argc, char **argv) {
    size_t size = 32 * MIB, stack_size = 4 * MIB;
    unsigned seconds = 2;
    int own_stack = 0, keeps_rights = 0;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--size")))
            size = parse_size(value);
        else if ((value = option(argv, &i, "--seconds")))
            seconds = (unsigned)atoi(value);
        else if (strcmp(argv[i], "--stack") == 0)
            own_stack = 1;
        else if (strcmp(argv[i], "--keep-rights") == 0)
            keeps_rights = 1;
        else {
            fprintf(stderr, "usage: identity [--size SIZE] [--seconds S] [--stack | --keep-rights]\n");
            return 2;
        }
    }
    if (keeps_rights) {
        keep_rights(size);
        return 0;
    }
    total = size / sizeof *words;
    words = malloc(size);
    CALL(words != NULL);
    fill_words(words, total, 1, 0);
    pthread_attr_t attributes;
    CALL(pthread_attr_init(&attributes) == 0);
    if (own_stack) {
        void *stack = aligned_alloc(PAGE, stack_size);
        CALL(stack != NULL && pthread_attr_setstack(&attributes, stack, stack_size) == 0);
    }
    pthread_t users[USERS], changers[2], canceller;
    for (size_t i = 0; i < USERS; i++)
        CALL(pthread_create(&users[i], NULL, use, (void *)i) == 0);
    CALL(pthread_create(&changers[0], &attributes, change, &over) == 0);
    CALL(pthread_create(&changers[1], NULL, change, NULL) == 0);
    CALL(pthread_create(&canceller, NULL, cancel, NULL) == 0);
    struct timespec end = {.tv_sec = seconds};
    while (nanosleep(&end, &end) != 0)
        ;
    over = 1;
    for (size_t i = 0; i < USERS; i++)
        CALL(pthread_join(users[i], NULL) == 0);
    CALL(pthread_join(changers[0], NULL) == 0 && pthread_join(changers[1], NULL) == 0);
    CALL(pthread_join(canceller, NULL) == 0);
    check_words(words, total, 1, 0, "at the end");
    REQUIRE(changes > 0 && cancelled > 0, "%llu changes, %llu threads cancelled", changes, cancelled);
    printf("ok identity: %llu changes, %llu threads cancelled\n", changes, cancelled);
    return 0;
}
