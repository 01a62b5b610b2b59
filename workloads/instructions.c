/* instructions [SIZE]
 *
 * Makes system calls by its own instructions, and through functions of the C library that call the kernel inside it.
 * Their arguments are in memory (SIZE, 24M) that is evicted before each call. Results, data, masks and handlers must
 * be those of the kernel. */
#include "check.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char *place, *sweep_area;
static size_t size = 24 * MIB;
#define SWEEP (12 * MIB)

/* Accesses other memory until all earlier pages have been evicted. */
static void away(void) {
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < SWEEP; i += PAGE)
            sweep_area[i]++;
}

static long own(long number, long a, long b, long c, long d, long e, long f) {
    long answer;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}
#define OWN(number, a, b, c) own(number, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define EXPECT(value, wanted, what)                                                                                    \
    do {                                                                                                               \
        long answer_ = (long)(value);                                                                                      \
        REQUIRE(answer_ == (long)(wanted), "%s answered %ld and not %ld", what, answer_, (long)(wanted));                  \
    } while (0)

/* ---- data ---- */

static void files(void) {
    enum { BYTES = 3 * MIB + 77 };
    char *one = place, *two = place + 4 * MIB + 5;
    for (size_t i = 0; i < BYTES; i++)
        one[i] = (char)word(1, 0, i);
    int fd = (int)own(SYS_memfd_create, (long)"", 0, 0, 0, 0, 0);
    CALL(fd >= 0);
    away();
    errno = 77;
    EXPECT(OWN(SYS_write, fd, one, BYTES), BYTES, "write");
    away();
    EXPECT(own(SYS_pread64, fd, (long)two, BYTES, 0, 0, 0), BYTES, "pread");
    REQUIRE(memcmp(one, two, BYTES) == 0, "the bytes read differ from those written");
    struct iovec *table = (struct iovec *)(void *)(place + 8 * MIB + 4090); /* across two pages */
    memset(two, 0, BYTES);
    table[0] = (struct iovec){two, 1000}, table[1] = (struct iovec){two + 1000, BYTES - 1000};
    EXPECT(OWN(SYS_lseek, fd, 0, SEEK_SET), 0, "lseek");
    away();
    EXPECT(OWN(SYS_readv, fd, table, 2), BYTES, "readv");
    REQUIRE(memcmp(one, two, BYTES) == 0, "readv brought other bytes");
    struct iovec near_table[2] = {{one + 5, 5000}, {one + 9000, 90000}};
    away();
    EXPECT(own(SYS_pwritev, fd, (long)near_table, 2, 7, 0, 0), 95000, "pwritev");
    EXPECT(own(SYS_pread64, fd, (long)two, 95000, 7, 0, 0), 95000, "pread");
    REQUIRE(memcmp(two, one + 5, 5000) == 0 && memcmp(two + 5000, one + 9000, 90000) == 0, "pwritev wrote other bytes");
    EXPECT(OWN(SYS_write, fd, 8, 1), -EFAULT, "write from no memory");
    EXPECT(OWN(SYS_read, 12345, one, 1), -EBADF, "read from no file");
    REQUIRE(errno == 77, "errno changed to %d", errno);
    struct stat_like { char bytes[256]; } *status = (struct stat_like *)(void *)(place + 9 * MIB);
    away();
    EXPECT(OWN(SYS_fstat, fd, status, 0), 0, "fstat");
    CALL(close(fd) == 0);
}

static int ends[2];

static void *send_late(void *what) {
    usleep(50000);
    CALL(write(ends[1], what, 6) == 6);
    return NULL;
}

static volatile sig_atomic_t handled;

static void on_alarm(int number) {
    (void)number;
    handled++;
}

static void alarm_in(int microseconds, int flags) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
    handled = 0;
    CALL(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval soon = {.it_value = {0, microseconds}};
    CALL(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

static void streams(void) {
    CALL(pipe(ends) == 0);
    pthread_t other;
    CALL(pthread_create(&other, NULL, send_late, "hello") == 0);
    away();
    EXPECT(OWN(SYS_read, ends[0], place, 100), 6, "read from a pipe");
    REQUIRE(strcmp(place, "hello") == 0, "the pipe brought %.5s", place);
    CALL(pthread_join(other, NULL) == 0);
    away();
    alarm_in(20000, 0);
    EXPECT(OWN(SYS_read, ends[0], place, 100), -EINTR, "an interrupted read");
    REQUIRE(handled == 1, "%d signals were handled", (int)handled);
    away();
    CALL(pthread_create(&other, NULL, send_late, "again") == 0);
    alarm_in(20000, SA_RESTART);
    EXPECT(OWN(SYS_read, ends[0], place, 100), 6, "a restarted read");
    CALL(pthread_join(other, NULL) == 0);
    REQUIRE(handled == 1 && strcmp(place, "again") == 0, "after %d signals the pipe brought %.5s", (int)handled, place);
    struct iovec *all = (struct iovec *)(void *)(place + MIB);
    *all = (struct iovec){place + 2 * MIB, 5000};
    memset(place + 2 * MIB, 'x', 5000);
    away();
    EXPECT(own(SYS_vmsplice, ends[1], (long)all, 1, 0, 0, 0), 5000, "vmsplice");
    memset(place + 3 * MIB, 0, 5000);
    away();
    EXPECT(OWN(SYS_read, ends[0], place + 3 * MIB, 5000), 5000, "read of the spliced bytes");
    REQUIRE(memcmp(place + 2 * MIB, place + 3 * MIB, 5000) == 0, "the spliced bytes differ");
    struct pollfd *polled = (struct pollfd *)(void *)(place + 4 * MIB);
    *polled = (struct pollfd){ends[1], POLLOUT, 0};
    away();
    EXPECT(OWN(SYS_poll, polled, 1, 1000), 1, "poll");
    REQUIRE(polled->revents == POLLOUT, "poll found %d", polled->revents);
    CALL(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void messages(void) {
    int pair[2];
    CALL(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    struct message { struct msghdr header; struct iovec parts[2]; char control[CMSG_SPACE(sizeof(int))]; };
    struct message *out = (struct message *)(void *)place, *in = (struct message *)(void *)(place + MIB);
    memset(out, 0, sizeof *out), memset(in, 0, sizeof *in);
    char *sent = place + 2 * MIB, *got = place + 3 * MIB;
    for (int i = 0; i < 60000; i++)
        sent[i] = (char)word(2, 0, (uint64_t)i);
    out->parts[0] = (struct iovec){sent, 10}, out->parts[1] = (struct iovec){sent + 10, 59990};
    in->parts[0] = (struct iovec){got, 30000}, in->parts[1] = (struct iovec){got + 30000, 30000};
    out->header = (struct msghdr){.msg_iov = out->parts, .msg_iovlen = 2};
    in->header = (struct msghdr){.msg_iov = in->parts, .msg_iovlen = 2, .msg_control = in->control,
                                 .msg_controllen = sizeof in->control};
    out->header.msg_control = out->control, out->header.msg_controllen = sizeof out->control;
    struct cmsghdr *carried = CMSG_FIRSTHDR(&out->header);
    carried->cmsg_level = SOL_SOCKET, carried->cmsg_type = SCM_RIGHTS, carried->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(carried), &pair[0], sizeof(int));
    away();
    EXPECT(OWN(SYS_sendmsg, pair[0], &out->header, 0), 60000, "sendmsg");
    away();
    EXPECT(OWN(SYS_recvmsg, pair[1], &in->header, 0), 60000, "recvmsg");
    REQUIRE(memcmp(sent, got, 60000) == 0, "the message differs");
    int carried_fd;
    memcpy(&carried_fd, CMSG_DATA(CMSG_FIRSTHDR(&in->header)), sizeof(int));
    CALL(fcntl(carried_fd, F_GETFD) >= 0 && close(carried_fd) == 0);
    away();
    EXPECT(own(SYS_sendto, pair[0], (long)sent, 6000, 0, 0, 0), 6000, "sendto");
    struct sockaddr_storage *from = (struct sockaddr_storage *)(void *)(place + 5 * MIB);
    socklen_t *len = (socklen_t *)(void *)(place + 6 * MIB);
    *len = sizeof *from;
    memset(got, 0, 6000);
    away();
    EXPECT(own(SYS_recvfrom, pair[1], (long)got, 6000, 0, (long)from, (long)len), 6000, "recvfrom");
    REQUIRE(memcmp(sent, got, 6000) == 0 && *len == 0, "recvfrom brought other bytes, or an address of %u", *len);
    CALL(close(pair[0]) == 0 && close(pair[1]) == 0);
}

/* ---- threads ---- */

struct meeting {
    atomic_int turn;
    char apart[PAGE];
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int count;
    char apart_too[PAGE];
    sem_t to, back;
    char apart_again[PAGE];
    pthread_rwlock_t lock;
    pthread_barrier_t barrier;
};
#define ROUNDS 8

static void *meet(void *given) {
    struct meeting *it = given;
    for (int round = 0; round < ROUNDS; round++) {
        while (atomic_load(&it->turn) != 2 * round + 1)
            (void)own(SYS_futex, (long)&it->turn, FUTEX_WAIT, 2 * round, 0, 0, 0);
        atomic_store(&it->turn, 2 * round + 2);
        CALL(own(SYS_futex, (long)&it->turn, FUTEX_WAKE, 1, 0, 0, 0) >= 0);
        CALL(pthread_mutex_lock(&it->mutex) == 0);
        while (it->count <= round)
            CALL(pthread_cond_wait(&it->cond, &it->mutex) == 0);
        CALL(pthread_mutex_unlock(&it->mutex) == 0);
        CALL(sem_wait(&it->to) == 0 && sem_post(&it->back) == 0);
        CALL(pthread_rwlock_rdlock(&it->lock) == 0 && pthread_rwlock_unlock(&it->lock) == 0);
        (void)pthread_barrier_wait(&it->barrier);
    }
    return NULL;
}

static void waits(void) {
    struct meeting *it = (struct meeting *)(void *)(place + 7 * MIB + 64);
    memset(it, 0, sizeof *it);
    CALL(pthread_mutex_init(&it->mutex, NULL) == 0 && pthread_cond_init(&it->cond, NULL) == 0);
    CALL(sem_init(&it->to, 0, 0) == 0 && sem_init(&it->back, 0, 0) == 0);
    CALL(pthread_rwlock_init(&it->lock, NULL) == 0 && pthread_barrier_init(&it->barrier, NULL, 2) == 0);
    pthread_t other;
    CALL(pthread_create(&other, NULL, meet, it) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        away();
        atomic_store(&it->turn, 2 * round + 1);
        CALL(own(SYS_futex, (long)&it->turn, FUTEX_WAKE, 1, 0, 0, 0) >= 0);
        while (atomic_load(&it->turn) != 2 * round + 2)
            (void)own(SYS_futex, (long)&it->turn, FUTEX_WAIT, 2 * round + 1, 0, 0, 0);
        away();
        CALL(pthread_rwlock_wrlock(&it->lock) == 0);
        CALL(pthread_mutex_lock(&it->mutex) == 0);
        it->count++;
        CALL(pthread_cond_signal(&it->cond) == 0 && pthread_mutex_unlock(&it->mutex) == 0);
        away();
        CALL(sem_post(&it->to) == 0);
        CALL(sem_wait(&it->back) == 0);
        away();
        CALL(pthread_rwlock_unlock(&it->lock) == 0);
        away();
        (void)pthread_barrier_wait(&it->barrier);
    }
    CALL(pthread_join(other, NULL) == 0);
    struct timespec *limit = (struct timespec *)(void *)(place + 9 * MIB);
    *limit = (struct timespec){0, 1000000};
    away();
    EXPECT(own(SYS_futex, (long)&it->turn, FUTEX_WAIT, 2 * ROUNDS, (long)limit, 0, 0), -ETIMEDOUT, "futex");
    away();
    EXPECT(own(SYS_futex, (long)&it->turn, FUTEX_WAIT, 1, (long)limit, 0, 0), -EAGAIN, "futex of another value");
}

static void *pass_on(void *given) {
    return given;
}

/* The C library blocks every signal while it creates threads and processes. Its arguments are evicted before. */
static void beginnings(void) {
    pthread_t *ids = (pthread_t *)(void *)(place + 2 * MIB);
    pthread_attr_t *attributes = (pthread_attr_t *)(void *)(place + 3 * MIB);
    CALL(pthread_attr_init(attributes) == 0 && pthread_attr_setstacksize(attributes, MIB) == 0);
    for (size_t round = 0; round < 8; round++) {
        void *back;
        pthread_t *id = ids + round * PAGE / sizeof *ids;
        *id = 0;
        away();
        CALL(pthread_create(id, round % 2 ? attributes : NULL, pass_on, sweep_area) == 0);
        CALL(pthread_join(*id, &back) == 0 && back == sweep_area);
    }
    posix_spawn_file_actions_t *actions = (posix_spawn_file_actions_t *)(void *)(place + 4 * MIB);
    posix_spawnattr_t *how = (posix_spawnattr_t *)(void *)(place + 5 * MIB);
    char **arguments = (char **)(void *)(place + 6 * MIB), *path = place + 7 * MIB;
    CALL(posix_spawn_file_actions_init(actions) == 0 && posix_spawnattr_init(how) == 0);
    CALL(posix_spawn_file_actions_addclose(actions, 0) == 0);
    strcpy(path, "/bin/sh"), strcpy(path + 100, "-c"), strcpy(path + 200, "exit 5");
    arguments[0] = path, arguments[1] = path + 100, arguments[2] = path + 200, arguments[3] = NULL;
    pid_t *child = (pid_t *)(void *)(place + 8 * MIB);
    int status;
    away();
    CALL(posix_spawn(child, path, actions, how, arguments, arguments + 3) == 0);
    CALL(waitpid(*child, &status, 0) == *child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 5, "the spawned program's status is %#x", status);
}

/* ---- signals ---- */

struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

__attribute__((naked)) static void own_restorer(void) {
    __asm__ volatile("mov $15, %eax\n\tsyscall");
}

static void on_own(int number) {
    (void)number;
    for (size_t i = 0; i < 8 * MIB; i += PAGE)
        handled += place[i] != 0;
    handled = handled ? 1 : 1;
}

static void masks(void) {
    uint64_t all = ~0ull, before = 0, *far_set = (uint64_t *)(void *)(place + 10 * MIB);
    EXPECT(own(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, 8, 0, 0), 0, "rt_sigprocmask");
    away();
    for (size_t i = 0; i < size; i += PAGE)
        place[i]++;
    struct kernel_action action = {on_own, 0x04000000, own_restorer, ~0ull}, old;
    handled = 0;
    EXPECT(own(SYS_rt_sigaction, SIGUSR1, (long)&action, (long)&old, 8, 0, 0), 0, "rt_sigaction");
    CALL(raise(SIGUSR1) == 0);
    REQUIRE(handled == 0, "a blocked signal was handled");
    *far_set = 0;
    away();
    EXPECT(own(SYS_rt_sigprocmask, SIG_SETMASK, (long)far_set, 0, 8, 0, 0), 0, "rt_sigprocmask from far memory");
    REQUIRE(handled == 1, "the pending signal was not handled");
    away();
    EXPECT(own(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)far_set, 8, 0, 0), 0, "rt_sigprocmask to far memory");
    REQUIRE(*far_set == 0, "the mask is %#llx", (unsigned long long)*far_set);
    EXPECT(own(SYS_rt_sigprocmask, SIG_SETMASK, 8, 0, 8, 0, 0), -EFAULT, "rt_sigprocmask from no memory");
    EXPECT(own(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, 8, 0, 0), 0, "rt_sigprocmask");
    /* Twice, because the first handler's end restores a mask. */
    for (int i = 0; i < 2; i++) {
        handled = 0;
        away();
        CALL(raise(SIGUSR1) == 0);
        REQUIRE(handled == 1, "the handler did not run");
    }
    struct { const sigset_t *set; size_t len; } *pair = (void *)(place + 11 * MIB);
    pair->set = NULL, pair->len = 8;
    struct timespec *limit = (struct timespec *)(void *)(place + 12 * MIB);
    *limit = (struct timespec){0, 1000};
    away();
    EXPECT(own(SYS_pselect6, 0, 0, 0, 0, (long)limit, (long)pair), 0, "pselect6");
}

/* ---- processes ---- */

static void processes(void) {
    fflush(stdout);
    long child = own(SYS_fork, 0, 0, 0, 0, 0, 0);
    if (child == 0)
        (void)OWN(SYS_exit_group, 7, 0, 0);
    int *status = (int *)(void *)(place + 12 * MIB);
    away();
    EXPECT(own(SYS_wait4, child, (long)status, 0, 0, 0, 0), child, "wait4");
    REQUIRE(WIFEXITED(*status) && WEXITSTATUS(*status) == 7, "the child's status is %#x", *status);
    static char *environment[] = {NULL};
    char **arguments = (char **)(void *)(place + 13 * MIB), *path = place + 14 * MIB;
    strcpy(path, "/bin/sh"), strcpy(path + 100, "-c"), strcpy(path + 200, "exit 9");
    arguments[0] = path, arguments[1] = path + 100, arguments[2] = path + 200, arguments[3] = NULL;
    away();
    pid_t runs = vfork();
    if (runs == 0) {
        (void)OWN(SYS_execve, path, arguments, environment);
        _exit(1);
    }
    CALL(waitpid(runs, status, 0) == runs);
    REQUIRE(WIFEXITED(*status) && WEXITSTATUS(*status) == 9, "the executed program's status is %#x", *status);
}

/* A call of the 32-bit table. Kernels without that table end the child with SIGSEGV. */
static void calls_of_32_bits(void) {
    int fd = memfd_create("", 0), status;
    CALL(write(fd, "hello", 5) == 5);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (int round = 0; round < 3; round++) {
            long answer;
            __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20) : "memory");
            EXPECT(answer, getpid(), "getpid of 32 bits");
            struct iovec part = {place, 5};
            away();
            EXPECT(own(SYS_preadv, fd, (long)&part, 1, 0, 0, 0), 5, "preadv after a call of 32 bits");
            REQUIRE(memcmp(place, "hello", 5) == 0, "preadv brought %.5s", place);
        }
        _exit(5);
    }
    CALL(child > 0 && waitpid(child, &status, 0) == child && close(fd) == 0);
    REQUIRE(WIFEXITED(status) ? WEXITSTATUS(status) == 5 : WTERMSIG(status) == SIGSEGV, "the status is %#x", status);
}

/* ---- memory ---- */

static void memory(void) {
    char *block = (char *)(((uintptr_t)place + 17 * MIB) & ~(PAGE - 1));
    memset(block, 3, MIB);
    away();
    EXPECT(OWN(SYS_madvise, block, MIB, MADV_DONTNEED), 0, "madvise");
    check_zero(block, MIB, "after madvise");
    block[5] = 1;
    EXPECT(OWN(SYS_mprotect, block, PAGE, PROT_READ), 0, "mprotect");
    REQUIRE(block[5] == 1, "a protected byte changed");
    int zero = open("/dev/zero", O_RDONLY);
    EXPECT(OWN(SYS_read, zero, block, 1), -EFAULT, "read into protected memory");
    CALL(close(zero) == 0);
    EXPECT(OWN(SYS_mprotect, block, PAGE, PROT_READ | PROT_WRITE), 0, "mprotect");
    block[5] = 2;
}

static void text(void) {
    enum { LONG = 300000 };
    char *line = place + 19 * MIB;
    memset(line, 'y', LONG);
    line[LONG - 1] = 0;
    FILE *file = tmpfile();
    CALL(file);
    away();
    CALL(fprintf(file, "%s", line) == LONG - 1 && fflush(file) == 0);
    rewind(file);
    char *back = place + 21 * MIB;
    away();
    CALL(fgets(back, LONG, file) == back && fclose(file) == 0);
    REQUIRE(strcmp(line, back) == 0, "the text differs");
}

/* ---- filters ---- */

static void on_refusal(int number, siginfo_t *info, void *context) {
    (void)context;
    handled += number == SIGSYS && info->si_code == 1 && info->si_syscall == SYS_getpgid && info->si_errno == 5;
}

static void *in_thread(void *fd) {
    away();
    EXPECT(OWN(SYS_pread64, *(int *)fd, place, 5), 5, "pread in a thread under a filter");
    return NULL;
}

static void filters(void) {
    struct sigaction action = {.sa_sigaction = on_refusal, .sa_flags = SA_SIGINFO}, old;
    CALL(sigaction(SIGSYS, &action, NULL) == 0 && sigaction(SIGSYS, NULL, &old) == 0);
    REQUIRE(old.sa_sigaction == on_refusal, "another handler of SIGSYS is set");
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | 5),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    handled = 0;
    (void)getpgid(0);
    (void)OWN(SYS_getpgid, 0, 0, 0);
    REQUIRE(handled == 2, "%d refused calls were handled", (int)handled);
    CALL(getsid(0) == -1 && errno == EXDEV);
    EXPECT(OWN(SYS_getsid, 0, 0, 0), -EXDEV, "a refused call");
    int fd = memfd_create("", 0);
    CALL(write(fd, "hello", 5) == 5);
    away();
    EXPECT(OWN(SYS_pread64, fd, place, 5), 5, "pread under a filter");
    REQUIRE(memcmp(place, "hello", 5) == 0, "pread brought %.5s", place);
    pthread_t other;
    CALL(pthread_create(&other, NULL, in_thread, &fd) == 0 && pthread_join(other, NULL) == 0);
    CALL(raise(SIGSYS) == 0);
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]);
    place = malloc(size), sweep_area = malloc(SWEEP);
    CALL(place && sweep_area);
    memset(place, 1, size);
    files();
    streams();
    messages();
    waits();
    beginnings();
    masks();
    processes();
    calls_of_32_bits();
    memory();
    text();
    filters();
    printf("ok instructions: %zu MiB\n", size / MIB);
    return 0;
}
