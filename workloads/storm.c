/* storm: threads access an array, block signals, and set handlers, while another process sends SIGSYS and fault signals.
 * The handlers access the array, too. No signal may find a handler of its own number, and every word must be right. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (32 * MIB / sizeof(uint64_t))
#define THREADS 3
#define SIGNALS 6000

static const int sent[] = {SIGSYS, SIGBUS, SIGSEGV};
static uint64_t *words;
static volatile int stop;
static uint64_t handled[65];
static __thread volatile int inside[65];

static void handle(int number, siginfo_t *info, void *context) {
    (void)context;
    REQUIRE(info->si_code <= 0, "signal %d has code %d", number, info->si_code);
    REQUIRE(!inside[number], "the handler of signal %d interrupts itself", number);
    inside[number] = 1;
    uint64_t count = __atomic_add_fetch(&handled[number], 1, __ATOMIC_RELAXED);
    size_t i = count * 4099 % WORDS;
    check_words(words + i, 1, 1, i, "in a handler");
    inside[number] = 0;
}

static void set_handlers(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    for (int i = 0; i < 3; i++)
        CALL(sigaction(sent[i], &action, NULL) == 0);
}

static void *work(void *argument) {
    uint64_t state = (uint64_t)(size_t)argument;
    sigset_t all, before;
    sigfillset(&all);
    while (!stop) {
        for (int n = 0; n < 50; n++) {
            state = word(state, 0, 0);
            check_words(words + state % WORDS, 1, 1, state % WORDS, "under signals");
        }
        CALL(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
        check_words(words + (state >> 8) % WORDS, 1, 1, (state >> 8) % WORDS, "without signals");
        CALL(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
        set_handlers();
    }
    return NULL;
}

int main(void) {
    words = malloc(WORDS * sizeof *words);
    CALL(words != NULL);
    fill_words(words, WORDS, 1, 0);
    set_handlers();
    pid_t program = getpid(), sender = fork();
    CALL(sender >= 0);
    if (sender == 0) {
        for (int n = 0; n < SIGNALS && kill(program, sent[n % 3]) == 0; n++)
            usleep(20);
        _exit(0);
    }
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CALL(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    int status;
    while (waitpid(sender, &status, 0) != sender)
        CALL(errno == EINTR);
    REQUIRE(status == 0, "the sender ended with %#x", status);
    stop = 1;
    for (size_t i = 0; i < THREADS; i++)
        CALL(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 3; i++)
        REQUIRE(handled[sent[i]] > 0, "no signal %d was handled", sent[i]);
    check_words(words, WORDS, 1, 0, "at the end");
    puts("ok storm: all");
    return 0;
}
