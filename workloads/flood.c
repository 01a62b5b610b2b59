/* flood: two processes send SIGSYS and fault signals without a pause, to a program that accesses an array. Its handlers
 * access the array, too. The program handles each signal at once, or blocks it for a while. */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (24 * MIB / sizeof(uint64_t))
#define SIGNALS 40000

static uint64_t *words;
static volatile sig_atomic_t handled, expected;

static void check_one(uint64_t number) {
    size_t i = number * 4099 % WORDS;
    check_words(words + i, 1, 1, i, "under signals");
}

static void handle(int number) {
    /* A signal of the stand before may arrive late. */
    handled += number == expected;
    check_one((uint64_t)handled);
}

static pid_t send_to(pid_t program, int number) {
    pid_t sender = fork();
    CALL(sender >= 0);
    if (sender == 0) {
        for (int n = 0; n < SIGNALS && kill(program, number) == 0; n++)
            ;
        _exit(0);
    }
    return sender;
}

static void stand(int number, int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    handled = 0, expected = number;
    CALL(sigprocmask(how, &set, NULL) == 0);
    pid_t senders[] = {send_to(getpid(), number), send_to(getpid(), number)};
    uint64_t state = 1;
    for (int i = 0; i < 2; i++)
        for (int status = 0; waitpid(senders[i], &status, WNOHANG) != senders[i];)
            check_one(state = word(state, 0, 0));
    REQUIRE(how != SIG_BLOCK || handled == 0, "signal %d was handled %d times", number, (int)handled);
    CALL(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    REQUIRE(handled > 0, "signal %d was not handled", number);
}

int main(void) {
    static const int sent[] = {SIGSYS, SIGBUS, SIGSEGV};
    words = malloc(WORDS * sizeof *words);
    CALL(words != NULL);
    fill_words(words, WORDS, 1, 0);
    for (int i = 0; i < 3; i++) {
        CALL(signal(sent[i], handle) != SIG_ERR);
        stand(sent[i], SIG_BLOCK);
        stand(sent[i], SIG_UNBLOCK);
    }
    check_words(words, WORDS, 1, 0, "at the end");
    puts("ok flood: all");
    return 0;
}
