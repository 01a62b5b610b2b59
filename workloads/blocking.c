/* blocking: sends itself fault signals and SIGSYS while it blocks them. Each must wait, and be seen to wait, until the
 * program unblocks it or takes it, and then bring what its sender has put in it. Masks must read back as they were set.
 * Meanwhile the program and its handlers access an array, whose words must be right.
 *
 * The program executes itself as `blocking executed MASK IGNORED`, to check what it inherits. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS (32 * MIB / sizeof(uint64_t))

static const int tested[] = {SIGSYS, SIGBUS, SIGSEGV};
static uint64_t *words;
static siginfo_t last;
static volatile sig_atomic_t handled;
static volatile sig_atomic_t depth, sends_again, leaves;
static volatile pid_t handled_in;
static sigjmp_buf out;

static void use_far(void) {
    for (size_t i = 0; i < WORDS; i += PAGE / sizeof *words)
        check_words(words + i, 1, 1, i, "between signals");
}

static void handle(int number, siginfo_t *info, void *context) {
    (void)context;
    last = *info;
    handled += number == info->si_signo;
    handled_in = (pid_t)syscall(SYS_gettid);
    REQUIRE(++depth == 1, "a handler interrupts itself");
    if (sends_again > 0) {
        sends_again--;
        CALL(raise(number) == 0);
    }
    for (size_t i = 0; i < WORDS / 8; i += PAGE / sizeof *words)
        check_words(words + i, 1, 1, i, "in a handler");
    depth--;
    if (leaves)
        siglongjmp(out, 1);
}

static uint64_t bits(const sigset_t *set) {
    uint64_t mask = 0;
    for (int number = 1; number <= 64; number++)
        mask |= (uint64_t)(sigismember(set, number) == 1) << (number - 1);
    return mask;
}

static uint64_t blocked(void) {
    sigset_t now;
    CALL(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
    return bits(&now);
}

static int waits(int number) {
    sigset_t pending;
    CALL(sigpending(&pending) == 0);
    return sigismember(&pending, number);
}

static sigset_t only(int number) {
    sigset_t set;
    sigemptyset(&set);
    if (number)
        sigaddset(&set, number);
    return set;
}

/* Every way of sending: to the process, with a value, to the thread. */
static void send_by(int way, int number) {
    union sigval value = {.sival_int = 4711};
    if (way == 0)
        CALL(kill(getpid(), number) == 0);
    else if (way == 1)
        CALL(sigqueue(getpid(), number, value) == 0);
    else
        CALL(raise(number) == 0);
}

static void check_handled(int way, int count) {
    static const int codes[] = {SI_USER, SI_QUEUE, SI_TKILL};
    REQUIRE(handled == count, "way %d: %d signals were handled, not %d", way, (int)handled, count);
    REQUIRE(last.si_code == codes[way] && last.si_pid == getpid() && last.si_uid == getuid(),
            "way %d: code %d, process %d", way, last.si_code, (int)last.si_pid);
    REQUIRE(way != 1 || last.si_value.sival_int == 4711, "the value is %d", last.si_value.sival_int);
}

/* A signal that is sent while it is blocked waits, once, until it is unblocked. */
static void unblock(int number, int way) {
    sigset_t all, before, mask = only(number);
    sigfillset(&all);
    handled = 0;
    CALL(sigprocmask(SIG_SETMASK, &all, &before) == 0);
    uint64_t want = bits(&all) & ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1));
    REQUIRE(blocked() == want, "%#llx is blocked, not %#llx", (unsigned long long)blocked(), (unsigned long long)want);
    uint64_t direct = 0;
    CALL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &direct, sizeof direct) == 0);
    REQUIRE((direct & want) == want, "by number, %#llx is blocked", (unsigned long long)direct);
    send_by(way, number);
    send_by(way, number);
    use_far();
    REQUIRE(handled == 0 && waits(number) == 1, "signal %d: %d were handled early", number, (int)handled);
    CALL(sigprocmask(SIG_UNBLOCK, &mask, NULL) == 0);
    check_handled(way, 1);
    REQUIRE(waits(number) == 0 && (blocked() & bits(&mask)) == 0, "signal %d still waits", number);
    CALL(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    REQUIRE(blocked() == bits(&before), "the old mask is not there again");
    send_by(way, number);
    check_handled(way, 2);
}

/* A wait with another mask ends with EINTR, for a signal that has waited. */
static void wait_with(int which, int number) {
    sigset_t mask = only(number), none = only(0), before;
    struct timespec long_time = {.tv_sec = 20};
    int queue = epoll_create1(0), answer = 0;
    CALL(queue >= 0);
    CALL(sigprocmask(SIG_BLOCK, &mask, &before) == 0);
    handled = 0;
    send_by(0, number);
    struct epoll_event event;
    switch (which) {
    case 0: answer = sigsuspend(&none); break;
    case 1: answer = ppoll(NULL, 0, &long_time, &none); break;
    case 2: answer = pselect(0, NULL, NULL, NULL, &long_time, &none); break;
    case 3: answer = epoll_pwait(queue, &event, 1, 20000, &none); break;
    case 4: answer = (int)syscall(SYS_ppoll, NULL, 0, &long_time, &none, 8); break;
    case 5: answer = (int)syscall(SYS_rt_sigsuspend, &none, 8); break;
    }
    REQUIRE(answer == -1 && errno == EINTR, "wait %d: %d, %s", which, answer, strerror(errno));
    check_handled(0, 1);
    REQUIRE(blocked() == (bits(&before) | bits(&mask)), "wait %d leaves another mask", which);
    CALL(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    close(queue);
}

/* A signal that waits can be taken, and is then not handled. */
static void take(int number) {
    sigset_t mask = only(number), before;
    struct timespec no_time = {0};
    siginfo_t info;
    CALL(sigprocmask(SIG_BLOCK, &mask, &before) == 0);
    handled = 0;
    send_by(1, number);
    CALL(sigtimedwait(&mask, &info, &no_time) == number);
    REQUIRE(info.si_code == SI_QUEUE && info.si_value.sival_int == 4711, "another signal was taken");
    send_by(2, number);
    CALL(sigwaitinfo(&mask, &info) == number);
    REQUIRE(info.si_code == SI_USER && info.si_pid == getpid(), "code %d was taken", info.si_code);
    int taken = 0;
    send_by(0, number);
    CALL(sigwait(&mask, &taken) == 0);
    errno = 0;
    REQUIRE(taken == number && sigtimedwait(&mask, NULL, &no_time) == -1 && errno == EAGAIN, "too many signals");
    CALL(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    REQUIRE(handled == 0, "a taken signal was handled");
}

static pthread_barrier_t both;
static pid_t helper;

static void *in_thread(void *argument) {
    sigset_t mask = only(*(int *)argument);
    helper = (pid_t)syscall(SYS_gettid);
    REQUIRE(blocked() == bits(&mask), "a thread begins with the mask %#llx", (unsigned long long)blocked());
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    REQUIRE(handled == 0 && waits(*(int *)argument) == 1, "a thread's signal does not wait");
    CALL(pthread_sigmask(SIG_UNBLOCK, &mask, NULL) == 0);
    REQUIRE(handled == 1 && handled_in == helper, "a thread's signal was handled by another");
    return NULL;
}

/* Threads and children inherit what is blocked, but no signal that waits. */
static void inherit(int number) {
    sigset_t mask = only(number), before;
    pthread_t thread;
    int status;
    CALL(sigprocmask(SIG_BLOCK, &mask, &before) == 0);
    handled = 0;
    CALL(pthread_create(&thread, NULL, in_thread, &number) == 0);
    pthread_barrier_wait(&both);
    CALL(pthread_kill(thread, number) == 0);
    REQUIRE(waits(number) == 0, "a thread's signal waits for another");
    pthread_barrier_wait(&both);
    CALL(pthread_join(thread, NULL) == 0);
    handled = 0;
    send_by(0, number);
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(blocked() == (bits(&before) | bits(&mask)) && waits(number) == 0, "a child begins otherwise");
        use_far();
        CALL(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
        _Exit(handled);
    }
    CALL(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(status == 0, "the child ended with %#x", status);
    CALL(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    check_handled(0, 1);
}

/* A handler's own signal waits until the handler has returned, or has been left by a jump. */
static void handle_again(int number) {
    handled = 0;
    for (leaves = 0; leaves < 2; leaves++) {
        sends_again = 3;
        if (sigsetjmp(out, 1) == 0)
            CALL(raise(number) == 0);
    }
    leaves = 0;
    REQUIRE(handled == 8 && sends_again == 0, "%d of 8 signals were handled", (int)handled);
}

/* A jump restores the mask that the place has saved, and leaves it if the place has saved none. */
static void jump(int number) {
    sigset_t mask = only(number), before;
    sigjmp_buf place;
    volatile int round = 0;
    CALL(sigprocmask(SIG_BLOCK, NULL, &before) == 0);
    handled = 0;
    if (sigsetjmp(place, 1) == 0) {
        CALL(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
        send_by(0, number);
        REQUIRE(handled == 0, "signal %d was handled before the jump", number);
        siglongjmp(place, 1);
    }
    check_handled(0, 1);
    REQUIRE(blocked() == bits(&before), "a jump leaves the mask %#llx", (unsigned long long)blocked());
    CALL(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
    if (sigsetjmp(place, 1) == 0) {
        CALL(sigprocmask(SIG_UNBLOCK, &mask, NULL) == 0);
        siglongjmp(place, 1);
    }
    REQUIRE(blocked() == (bits(&before) | bits(&mask)), "a jump does not block signal %d", number);
    if (sigsetjmp(place, 0) == 0) {
        CALL(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
        round++;
        longjmp(place, 1);
    }
    REQUIRE(round == 1 && blocked() == bits(&before), "a jump without a mask changes it");
}

extern char **environ;

static void execute(char *own, int number) {
    char texts[2][32];
    char *arguments[] = {own, "executed", texts[0], texts[1], NULL};
    sigset_t mask = only(number);
    int status;
    pid_t child = fork();
    if (child == 0) {
        CALL(signal(number, SIG_IGN) != SIG_ERR);
        CALL(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
        snprintf(texts[0], sizeof texts[0], "%llx", (unsigned long long)blocked());
        snprintf(texts[1], sizeof texts[1], "%d", number);
        execl("/proc/self/exe/not-there", "nothing", (char *)NULL);
        use_far();
        REQUIRE(blocked() == bits(&mask), "a failed execve changes the mask");
        CALL(signal(number, SIG_IGN) == SIG_IGN);
        pid_t spawned;
        CALL((errno = posix_spawn(&spawned, own, NULL, NULL, arguments, environ)) == 0);
        CALL(waitpid(spawned, &status, 0) == spawned);
        REQUIRE(status == 0, "the spawned program ended with %#x", status);
        use_far();
        execv(own, arguments);
        fail("cannot be executed: %s", strerror(errno));
    }
    CALL(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(status == 0, "the executed program ended with %#x", status);
}

static int executed(char **argv) {
    int number = atoi(argv[3]);
    struct sigaction now;
    REQUIRE(blocked() == strtoull(argv[2], NULL, 16), "executed with %#llx blocked", (unsigned long long)blocked());
    CALL(sigaction(number, NULL, &now) == 0);
    REQUIRE(now.sa_handler == SIG_IGN, "executed with signal %d not ignored", number);
    sigset_t mask = only(number);
    CALL(sigprocmask(SIG_UNBLOCK, &mask, NULL) == 0);
    CALL(kill(getpid(), number) == 0);
    return 0;
}

/* The masks of actions read back as they were set. */
static void read_back(void) {
    struct sigaction action = {.sa_handler = take_signal}, found;
    sigfillset(&action.sa_mask);
    int numbers[] = {SIGUSR2, SIGSYS, SIGBUS, SIGSEGV};
    for (int i = 0; i < 4; i++) {
        struct sigaction before;
        CALL(sigaction(numbers[i], &action, &before) == 0);
        CALL(sigaction(numbers[i], NULL, &found) == 0);
        uint64_t want = bits(&action.sa_mask) & ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1));
        REQUIRE((bits(&found.sa_mask) | 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1)) == bits(&action.sa_mask),
                "the mask of signal %d is %#llx, not %#llx", numbers[i], (unsigned long long)bits(&found.sa_mask),
                (unsigned long long)want);
        CALL(sigaction(numbers[i], &before, NULL) == 0);
    }
    CALL(signal(SIGUSR2, take_signal) == SIG_DFL);
    CALL(sigaction(SIGUSR2, NULL, &found) == 0);
    REQUIRE((bits(&found.sa_mask) & ~(1ull << (SIGUSR2 - 1))) == 0, "signal() leaves a mask");
}

int main(int argc, char **argv) {
    if (argc == 4)
        return executed(argv);
    words = malloc(WORDS * sizeof *words);
    CALL(words != NULL);
    fill_words(words, WORDS, 1, 0);
    CALL(pthread_barrier_init(&both, NULL, 2) == 0);
    for (int i = 0; i < 3; i++) {
        struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
        CALL(sigaction(tested[i], &action, NULL) == 0);
        for (int way = 0; way < 3; way++)
            unblock(tested[i], way);
        for (int which = 0; which < 6; which++)
            wait_with(which, tested[i]);
        take(tested[i]);
        inherit(tested[i]);
        jump(tested[i]);
        handle_again(tested[i]);
        execute(argv[0], tested[i]);
    }
    read_back();
    check_words(words, WORDS, 1, 0, "at the end");
    puts("ok blocking: all");
    return 0;
}
