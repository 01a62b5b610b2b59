/* alarms: a timer's handler makes system calls with far memory, or accesses it, while the program makes such calls itself:
 * by instructions of its own and by the C library. One handler leaves by a jump. */
#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (24 * MIB / sizeof(uint64_t))
#define PAGE_WORDS (PAGE / sizeof(uint64_t))
#define INTERVAL_US 300
#define CALLS 20000
#define FORKS 20

enum deed { INSTRUCTION, LIBRARY, ACCESS, JUMP };

static uint64_t *words;
static volatile enum deed deed;
static volatile sig_atomic_t handled;
static int null, semaphore;
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
        REQUIRE(write_far(at) == (long)PAGE, "a page was not written");
}

static void handle(int number) {
    (void)number;
    handled++;
    if (deed == JUMP)
        _longjmp(place, 1);
    if (deed == ACCESS)
        check_words(words + page_of((size_t)handled), 1, 1, page_of((size_t)handled), "in a handler");
    else
        call((size_t)handled);
}

static void under_alarms(enum deed wanted) {
    struct itimerval timer = {.it_interval = {0, INTERVAL_US}, .it_value = {0, INTERVAL_US}};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART | (wanted == JUMP ? SA_NODEFER : 0)};
    static volatile size_t number;
    deed = wanted, handled = 0, number = 0;
    CALL(sigaction(SIGALRM, &action, NULL) == 0);
    CALL(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    if (wanted == JUMP)
        (void)_setjmp(place);
    for (; number < CALLS || handled < 20; number++) {
        if (number % 1000 == 0)
            CALL(semctl(semaphore, 0, SETVAL, 0) == 0);
        call(number);
    }
    for (int forks = 0; wanted == ACCESS && forks < FORKS; forks++) {
        int status;
        pid_t child = fork();
        CALL(child >= 0);
        if (child == 0)
            _exit(0);
        while (waitpid(child, &status, 0) != child)
            CALL(errno == EINTR);
        REQUIRE(status == 0, "a child ended with %#x", (unsigned)status);
    }
    timer = (struct itimerval){0};
    CALL(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

int main(void) {
    words = malloc(WORDS * sizeof *words + PAGE);
    CALL(words != NULL);
    fill_words(words, WORDS, 1, 0);
    CALL((null = open("/dev/null", O_WRONLY)) >= 0);
    CALL((semaphore = semget(IPC_PRIVATE, 1, 0600 | IPC_CREAT)) >= 0);
    under_alarms(INSTRUCTION);
    under_alarms(ACCESS);
    under_alarms(JUMP);
    for (size_t i = 0; i < WORDS; i++)
        check_words(words + i, 1, 1, i, "at the end");
    under_alarms(LIBRARY);
    CALL(semctl(semaphore, 0, IPC_RMID) == 0);
    puts("ok alarms: instructions, library, accesses, jumps");
}
