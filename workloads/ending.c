/* Processes that end with their last thread, natively and under `hanare run`.
 *
 *     ending main      the first thread ends by pthread_exit while there is no other thread
 *     ending worker    the first thread ends while another thread still works in far memory
 *     ending child     a forked child does both
 *     ending raw       the last thread ends by a direct system call with code 7; no exit handlers run then
 *     ending behind    the first thread ends by the same system call, and another thread later
 *
 * The exit handlers still find every word of far memory, although most of it is evicted. Streams are flushed. */
#include "check.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (24 * MIB / sizeof(uint64_t))

static uint64_t *words;

static void at_end(void) {
    check_words(words, WORDS, 3, 0, "at the end");
    printf("ok ending: words are there at the end\n");
}

static void *work(void *data) {
    usleep(200000);
    uint64_t *own = malloc(WORDS * sizeof *own);
    CALL(own);
    fill_words(own, WORDS, 5, 0);
    check_words(words, WORDS, 3, 0, "in the last thread");
    check_words(own, WORDS, 5, 0, "in the last thread");
    if (data) {
        fflush(stdout);
        syscall(SYS_exit, 7);
    }
    return NULL;
}

static void start(void *data) {
    pthread_t thread;
    CALL(pthread_create(&thread, NULL, work, data) == 0 && pthread_detach(thread) == 0);
}

static void wait_for(pid_t child) {
    int status;
    CALL(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0, "a child ended with status %#x", status);
}

int main(int argc, char *argv[]) {
    const char *how = argc == 2 ? argv[1] : "";
    words = malloc(WORDS * sizeof *words);
    CALL(words);
    fill_words(words, WORDS, 3, 0);
    check_words(words, WORDS, 3, 0, "in the first thread");
    if (!strcmp(how, "raw") || !strcmp(how, "behind")) {
        printf("ok ending: by itself\n");
        fflush(stdout);
        if (*how == 'b')
            start(words);
        syscall(SYS_exit, 7);
    }
    CALL(atexit(at_end) == 0);
    if (!strcmp(how, "child"))
        for (int child = 0; child < 2; child++) {
            pid_t pid = fork();
            CALL(pid >= 0);
            if (pid == 0) {
                if (child)
                    start(NULL);
                pthread_exit(NULL);
            }
            wait_for(pid);
        }
    else if (!strcmp(how, "worker"))
        start(NULL);
    else
        REQUIRE(!strcmp(how, "main"), "no such way to end: %s", how);
    pthread_exit(NULL);
}
