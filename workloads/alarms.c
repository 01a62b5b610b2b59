/* alarms: a timer's handler makes system calls with far memory, or accesses it, while the program makes such calls itself:
 * by instructions of its own and by the C library. One handler leaves by a jump. The timer sends SIGALRM, and the signals of
 * traps. Each handler has the mask that the program has asked for, and so has the program after it. */
#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS (24 * MIB / sizeof(uint64_t))
#define PAGE_WORDS (PAGE / sizeof(uint64_t))
#define INTERVAL_NS 300000
#define CALLS 4000
/* A fault of a huge page takes longer than the interval above. */
#define TRAP_INTERVAL_NS 3000000
#define TRAP_CALLS 1000
#define FORKS 20

enum deed { INSTRUCTION, LIBRARY, ACCESS, JUMP };

static uint64_t *words;
static volatile enum deed deed;
static volatile sig_atomic_t handled;
static int null, semaphore;
static volatile int sent;
static jmp_buf place;

static size_t page_of(size_t number) {
    return number * 7919 % (WORDS / PAGE_WORDS) * PAGE_WORDS;
}

/* The system call `write`, by an instruction of this program. */
static long write_far(size_t at) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_write), "D"(null), "S"(words + at), "d"(PAGE)
                     : "rcx", "r11", "memory");
    return result;
#else
    return syscall(SYS_write, null, words + at, PAGE);
#endif
}

static void add_far(size_t at) {
    struct sembuf *add = (struct sembuf *)(words + at) - 1;
    *add = (struct sembuf){.sem_num = 0, .sem_op = 1, .sem_flg = 0};
    int saved = errno;
    CALL(semop(semaphore, add, 1) == 0 || errno == ERANGE);
    errno = saved;
}

static void call(size_t number) {
    size_t at = page_of(number);
    if (deed == LIBRARY)
        add_far(at + PAGE_WORDS);
    else
    {
        long written = write_far(at);
        REQUIRE(written == (long)PAGE, "write gave %ld, signal %d", written, sent);
    }
}

/* Only `signal` is blocked, or nothing if it is 0. */
static void check_mask(int signal, const char *where) {
    sigset_t mask;
    CALL(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0);
    for (int other = 1; other < 32; other++)
        REQUIRE(sigismember(&mask, other) == (other == signal), "%s of signal %d: signal %d", where, signal, other);
}

static void handle(int number) {
    handled++;
    check_mask(deed == JUMP ? 0 : number, "in a handler");
    if (deed == JUMP)
        _longjmp(place, 1);
    if (deed == ACCESS)
        check_words(words + page_of((size_t)handled), 1, 1, page_of((size_t)handled), "in a handler");
    else
        call((size_t)handled);
}

static void under_alarms(int signal, enum deed wanted) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal};
    struct timespec interval = {0, signal == SIGALRM ? INTERVAL_NS : TRAP_INTERVAL_NS};
    struct itimerspec times = {.it_interval = interval, .it_value = interval};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART | (wanted == JUMP ? SA_NODEFER : 0)};
    size_t calls = signal == SIGALRM ? CALLS : TRAP_CALLS;
    static volatile size_t number;
    timer_t timer;
    deed = wanted, sent = signal, handled = 0, number = 0;
    CALL(sigaction(signal, &action, NULL) == 0);
    CALL(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CALL(timer_settime(timer, 0, &times, NULL) == 0);
    if (wanted == JUMP)
        (void)_setjmp(place);
    for (; number < calls || handled < 20; number++) {
        if (number % 1000 == 0)
            CALL(semctl(semaphore, 0, SETVAL, 0) == 0);
        call(number);
    }
    for (int forks = 0; wanted == ACCESS && signal == SIGALRM && forks < FORKS; forks++) {
        int status;
        pid_t child = fork();
        CALL(child >= 0);
        if (child == 0)
            _exit(0);
        while (waitpid(child, &status, 0) != child)
            CALL(errno == EINTR);
        REQUIRE(status == 0, "a child ended with %#x", (unsigned)status);
    }
    CALL(timer_delete(timer) == 0);
    check_mask(0, "after handlers");
}

int main(void) {
    words = malloc(WORDS * sizeof *words + PAGE);
    CALL(words != NULL);
    fill_words(words, WORDS, 1, 0);
    CALL((null = open("/dev/null", O_WRONLY)) >= 0);
    CALL((semaphore = semget(IPC_PRIVATE, 1, 0600 | IPC_CREAT)) >= 0);
    const int signals[] = {SIGALRM, SIGSEGV, SIGBUS, SIGSYS};
    for (int i = 0; i < 4; i++)
        for (int each = 0; each < 3; each++)
            under_alarms(signals[i], (enum deed[]){INSTRUCTION, ACCESS, JUMP}[each]);
    for (size_t i = 0; i < WORDS; i++)
        check_words(words + i, 1, 1, i, "at the end");
    for (int i = 0; i < 4; i++)
        under_alarms(signals[i], LIBRARY);
    CALL(semctl(semaphore, 0, IPC_RMID) == 0);
    puts("ok alarms: instructions, library, accesses, jumps");
}
