/* waits [SIZE]
 *
 * Makes calls that wait, with arguments in memory (SIZE, 24M) that is evicted before the calls return. Signal handlers
 * that run during a call access this memory, whatever signals are blocked meanwhile. Changes that other threads and
 * handlers make to the arguments persist. Data from the kernel is not lost if the calls are made by number. Memory
 * that the program made inaccessible gives EFAULT. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

extern __sighandler_t __sysv_signal(int, __sighandler_t);

static size_t size = 24 * MIB, count;
static uint64_t *words;
static char *sweep_area, *arena;
#define SWEEP (32 * MIB)

/* Accesses other memory until all earlier pages have been evicted. */
static void away(void) {
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < SWEEP; i += PAGE)
            sweep_area[i]++;
}

static void access_all(const char *when) {
    for (size_t i = 0; i < count; i += PAGE / 8)
        REQUIRE(words[i] == word(3, 0, i), "%s: word %zu is wrong", when, i);
}

/* ---- masks ---- */

static volatile sig_atomic_t handled;
static const char *doing;

static void on_alarm(int number) {
    (void)number;
    access_all(doing);
    handled++;
}

static void alarm_soon(const char *what) {
    away();
    doing = what, handled = 0;
    struct itimerval soon = {.it_value = {0, 100000}};
    CALL(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

static void expect_alarm(int answer) {
    REQUIRE(answer == -1 && errno == EINTR && handled == 1, "%s answered %d (%s), %d signals handled", doing, answer,
            strerror(errno), (int)handled);
}

static void *access_in_thread(void *when) {
    access_all(when);
    return NULL;
}

static ucontext_t here, there;

static void in_context(void) {
    access_all("in a context");
    handled++;
}

static void masks(void) {
    sigset_t all_but, old, alarm_only;
    sigfillset(&all_but);
    sigdelset(&all_but, SIGALRM);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    CALL(sigprocmask(SIG_BLOCK, &alarm_only, &old) == 0);
    struct sigaction action = {.sa_handler = on_alarm};
    CALL(sigaction(SIGALRM, &action, NULL) == 0);
    alarm_soon("sigsuspend");
    expect_alarm(sigsuspend(&all_but));
    alarm_soon("ppoll");
    expect_alarm(ppoll(NULL, 0, NULL, &all_but));
    alarm_soon("pselect");
    expect_alarm(pselect(0, NULL, NULL, NULL, NULL, &all_but));
    int epoll = epoll_create1(0);
    struct epoll_event event;
    alarm_soon("epoll_pwait");
    expect_alarm(epoll_pwait(epoll, &event, 1, -1, &all_but));
    alarm_soon("sigpause");
    expect_alarm(sigpause(SIGALRM));
    CALL(close(epoll) == 0 && sigprocmask(SIG_SETMASK, &old, NULL) == 0);

    away();
    int before = sigsetmask(~0);
    access_all("after sigsetmask");
    away();
    sigsetmask(before), sigblock(~0);
    access_all("after sigblock");
    away();
    CALL(sigprocmask(SIG_SETMASK, &old, NULL) == 0);
    CALL(sighold(SIGSEGV) == 0 && sighold(SIGBUS) == 0);
    access_all("after sighold");
    away();
    CALL(sigset(SIGSEGV, SIG_HOLD) != SIG_ERR && sigset(SIGBUS, SIG_HOLD) != SIG_ERR);
    access_all("after sigset");
    away();
    CALL(sigignore(SIGSEGV) == 0 && sigignore(SIGBUS) == 0);
    access_all("after sigignore");
    away();
    CALL(__sysv_signal(SIGSEGV, SIG_DFL) != SIG_ERR && __sysv_signal(SIGBUS, SIG_DFL) != SIG_ERR);
    access_all("after System V's signal");
    CALL(sigprocmask(SIG_SETMASK, &old, NULL) == 0);

    sigset_t all;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_t thread;
    CALL((errno = pthread_attr_init(&attributes)) == 0);
    CALL((errno = pthread_attr_setsigmask_np(&attributes, &all)) == 0);
    away();
    CALL((errno = pthread_create(&thread, &attributes, access_in_thread, "a thread with all blocked")) == 0);
    CALL((errno = pthread_join(thread, NULL)) == 0);

    static char stack[64 * 1024];
    CALL(getcontext(&there) == 0);
    there.uc_stack.ss_sp = stack, there.uc_stack.ss_size = sizeof stack, there.uc_link = &here;
    sigfillset(&there.uc_sigmask);
    makecontext(&there, in_context, 0);
    handled = 0;
    away();
    CALL(swapcontext(&here, &there) == 0 && handled == 1);
    CALL(sigprocmask(SIG_SETMASK, &old, NULL) == 0);
}

static void call_back(union sigval value) {
    access_all("a timer that calls");
    __atomic_store_n((int *)value.sival_ptr, 1, __ATOMIC_SEQ_CST);
}

static void timers(void) {
    int called = 0;
    struct sigevent *event = (struct sigevent *)(arena + 80 * PAGE - 24);
    timer_t *timer = (timer_t *)(arena + 88 * PAGE - 4), made;
    memset(event, 0, sizeof *event);
    event->sigev_notify = SIGEV_THREAD, event->sigev_notify_function = call_back;
    event->sigev_value.sival_ptr = &called;
    away();
    CALL(timer_create(CLOCK_MONOTONIC, event, timer) == 0);
    memcpy(&made, timer, sizeof made);
    struct itimerspec soon = {.it_value = {0, 10000000}};
    away();
    CALL(timer_settime(made, 0, &soon, NULL) == 0);
    struct timespec pause = {0, 10000000};
    for (int i = 0; i < 1000 && !__atomic_load_n(&called, __ATOMIC_SEQ_CST); i++)
        CALL(nanosleep(&pause, NULL) == 0);
    REQUIRE(__atomic_load_n(&called, __ATOMIC_SEQ_CST), "a timer did not call");
    CALL(timer_delete(made) == 0);
}

/* ---- what others change meanwhile ---- */

static struct pollfd *polled;
static struct epoll_event *events;
static fd_set *set;
static int ends[2];

static void *change_and_write(void *argument) {
    (void)argument;
    struct timespec pause = {0, 200000000};
    CALL(nanosleep(&pause, NULL) == 0);
    polled[1].fd = 77, polled[1].events = POLLOUT;
    events[32].data.u64 = 4711;
    CALL(write(ends[1], "x", 1) == 1);
    return NULL;
}

static void change(int number) {
    (void)number;
    FD_SET(100, set);
    polled[1].fd = 100;
}

static void arrays(void) {
    CALL(pipe(ends) == 0);
    polled = (struct pollfd *)(arena + PAGE - 8), events = (struct epoll_event *)(arena + 8 * PAGE - 8);
    set = (fd_set *)(arena + 16 * PAGE - 8);
    pthread_t thread;
    char byte;
    polled[0] = (struct pollfd){ends[0], POLLIN, 0}, polled[1].fd = polled[2].fd = -1;
    away();
    CALL((errno = pthread_create(&thread, NULL, change_and_write, NULL)) == 0);
    CALL(poll(polled, 3, 10000) == 1 && polled[0].revents == POLLIN);
    CALL((errno = pthread_join(thread, NULL)) == 0 && read(ends[0], &byte, 1) == 1);
    REQUIRE(polled[1].fd == 77 && polled[1].events == POLLOUT, "poll put %d back", polled[1].fd);

    int epoll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = 5};
    CALL(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &wanted) == 0);
    away();
    events[32].data.u64 = 0;
    CALL((errno = pthread_create(&thread, NULL, change_and_write, NULL)) == 0);
    CALL(epoll_wait(epoll, events, 64, 10000) == 1 && events[0].data.u64 == 5);
    CALL((errno = pthread_join(thread, NULL)) == 0 && read(ends[0], &byte, 1) == 1);
    REQUIRE(events[32].data.u64 == 4711, "epoll_wait put an event back");

    struct sigaction action = {.sa_handler = change};
    CALL(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval soon = {.it_value = {0, 200000}};
    FD_ZERO(set);
    FD_SET(ends[0], set);
    away();
    CALL(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    CALL(select(200, set, NULL, NULL, NULL) == -1 && errno == EINTR);
    REQUIRE(FD_ISSET(100, set) && FD_ISSET(ends[0], set), "select put a set back");
    polled[1].fd = -1;
    away();
    CALL(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    CALL(poll(polled, 2, -1) == -1 && errno == EINTR);
    REQUIRE(polled[1].fd == 100, "poll put %d back when it was interrupted", polled[1].fd);
    CALL(close(epoll) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* ---- by number ---- */

static void numbers(void) {
    int pair[2], *status = (int *)(arena + 24 * PAGE - 2);
    char *bytes = arena + 32 * PAGE - 3, *message = arena + 40 * PAGE - 3;
    siginfo_t *info = (siginfo_t *)(arena + 48 * PAGE - 8);
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0)
        _exit(42);
    away();
    CALL(syscall(SYS_wait4, child, status, 0, NULL) == child);
    int said;
    memcpy(&said, status, sizeof said);
    REQUIRE(WIFEXITED(said) && WEXITSTATUS(said) == 42, "wait4 by number: status %#x", said);
    sigset_t usr, old;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    CALL(sigprocmask(SIG_BLOCK, &usr, &old) == 0 && kill(getpid(), SIGUSR1) == 0);
    struct timespec patience = {5, 0};
    away();
    CALL(syscall(SYS_rt_sigtimedwait, &usr, info, &patience, (size_t)8) == SIGUSR1 && info->si_signo == SIGUSR1);
    CALL(sigprocmask(SIG_SETMASK, &old, NULL) == 0);
    CALL(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && send(pair[0], "hello", 5, 0) == 5);
    away();
    CALL(syscall(SYS_recvfrom, pair[1], bytes, (size_t)100, MSG_DONTWAIT, NULL, NULL) == 5);
    REQUIRE(memcmp(bytes, "hello", 5) == 0, "recvfrom by number");
    CALL(pipe(ends) == 0 && write(ends[1], "again", 5) == 5);
    away();
    CALL(syscall(SYS_read, ends[0], bytes, (size_t)100) == 5 && memcmp(bytes, "again", 5) == 0);
    CALL(close(ends[0]) == 0 && close(ends[1]) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);

    char near[64];
    snprintf(near, sizeof near, "/hanare-waits-%d", getpid());
    struct mq_attr shape = {.mq_maxmsg = 4, .mq_msgsize = 100};
    mqd_t queue = mq_open(near, O_CREAT | O_EXCL | O_RDWR, 0600, &shape);
    if (queue >= 0) { /* message queues do not exist in every container */
        CALL(mq_unlink(near) == 0 && mq_send(queue, "message", 8, 3) == 0);
        unsigned *priority = (unsigned *)(arena + 56 * PAGE - 4);
        away();
        CALL(mq_receive(queue, message, 100, priority) == 8 && strcmp(message, "message") == 0 && *priority == 3);
        CALL(mq_close(queue) == 0);
    }
}

/* ---- closed memory ---- */

static void expect_fault(ssize_t answer, const char *what) {
    REQUIRE(answer == -1 && errno == EFAULT, "%s answered %zd (%s)", what, answer, strerror(errno));
}

static void closed(void) {
    char *area = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(area != MAP_FAILED);
    memset(area, 1, 8 * MIB);
    CALL(mprotect(area + 4 * MIB, MIB, PROT_NONE) == 0 && mprotect(area + 6 * MIB, MIB, PROT_READ) == 0);
    away();
    CALL(pipe(ends) == 0);
    expect_fault(write(ends[1], area + 4 * MIB, 1), "write from closed memory");
    struct iovec rows[2] = {{area, 16}, {area + 4 * MIB, 16}};
    CALL(write(ends[1], "a", 1) == 1);
    expect_fault(read(ends[0], area + 6 * MIB, 1), "read into memory that can only be read");
    char byte;
    CALL(read(ends[0], &byte, 1) == 1 && byte == 'a');
    int file = open("/proc/self/exe", O_RDONLY);
    CALL(file >= 0);
    /* The call transfers the bytes up to the border of the closed memory, as the kernel does. */
    CALL(pread(file, area + 4 * MIB - 10, 100, 0) == 10 && memcmp(area + 4 * MIB - 10, "\177ELF", 4) == 0);
    CALL(preadv(file, rows, 2, 0) == 16);
    memset(area + 4 * MIB - 10, 'x', 10);
    expect_fault(access(area + 4 * MIB, F_OK), "access of a closed path");
    expect_fault(open(area + 4 * MIB - 2, O_RDONLY), "open of a path that runs into closed memory");
    CALL(close(file) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0 && munmap(area, 8 * MIB) == 0);
}

static void commands(void) {
    char *command = strcpy(arena + 64 * PAGE - 5, "exit 7"), *other = strcpy(arena + 72 * PAGE - 5, "echo said");
    char answer[16];
    away();
    int status = system(command);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 7, "system answered %#x", status);
    FILE *stream = popen(other, "r");
    CALL(stream && fgets(answer, sizeof answer, stream) && strcmp(answer, "said\n") == 0 && pclose(stream) == 0);
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]);
    count = size / 8;
    words = malloc(size), sweep_area = malloc(SWEEP), arena = malloc(4 * MIB);
    CALL(words && sweep_area && arena);
    arena = (char *)(((uintptr_t)arena + PAGE - 1) / PAGE * PAGE);
    fill_words(words, count, 3, 0);
    masks();
    timers();
    arrays();
    numbers();
    closed();
    commands();
    printf("ok waits: %zu bytes\n", size);
    return 0;
}
