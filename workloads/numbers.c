/* numbers [own]
 *
 * Makes system calls by number, whose arguments were evicted before each call, and checks results and data. The calls
 * are those that differ from the C library's functions of their names, and those that act before they write. With
 * `own`, the program's own instructions make the calls. */
#include "check.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

#define LOCK_PI2_PRIVATE (13 | FUTEX_PRIVATE_FLAG)

#define AREA (32 * MIB)
#define SWEEP (16 * MIB)
static char *area, *sweep;
static size_t next_page;
static int is_own;

/* Returns room for `len` bytes across a border between two pages. */
static void *far_room(size_t len) {
    size_t half = len / 2;
    char *border = area + (next_page + 1 + half / PAGE) * PAGE;
    next_page += len / PAGE + 3;
    REQUIRE(next_page * PAGE < AREA, "the workload needs a larger area");
    memset(border - half / 8 * 8, 0, len);
    return border - half / 8 * 8;
}

static void *far_copy(const void *bytes, size_t len) {
    return memcpy(far_room(len), bytes, len);
}

static char *far_text(const char *text) {
    return far_copy(text, strlen(text) + 1);
}

/* Accesses other memory until all earlier pages have been evicted. */
static void away(void) {
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < SWEEP; i += PAGE)
            sweep[i]++;
}

/* Makes a system call after its arguments have been evicted. Returns its value, or the negated error number. */
static long call(long number, long a, long b, long c, long d, long e, long f) {
    away();
    if (!is_own) {
        long answer = syscall(number, a, b, c, d, e, f);
        return answer == -1 ? -errno : answer;
    }
#ifdef __x86_64__
    long answer;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
#else
    return -ENOSYS;
#endif
}
#define EXPECT(wanted, number, a, b, c, d, e, f)                                                                       \
    do {                                                                                                               \
        long answer_ = call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f));                 \
        REQUIRE(answer_ == (long)(wanted), "line %d: %s answered %ld and not %ld", __LINE__, #number, answer_,         \
                (long)(wanted));                                                                                       \
    } while (0)

static void vectors(void) {
    enum { BYTES = 700000 };
    uint64_t *source = far_room(BYTES), *target = far_room(BYTES);
    fill_words(source, BYTES / 8, 1, 0);
    struct iovec near[3] = {{source, 8}, {source + 1, 40000}, {source + 5001, BYTES - 40008}};
    struct iovec *out = far_copy(near, sizeof near);
    struct iovec near_in[2] = {{target, 16}, {target + 2, BYTES - 16}}, *in = far_copy(near_in, sizeof near_in);
    int fd = memfd_create("", 0);
    CALL(fd >= 0);
    EXPECT(BYTES, SYS_pwritev2, fd, out, 3, 24, 0, 0);
    EXPECT(BYTES, SYS_preadv2, fd, in, 2, 24, 0, 0);
    check_words(target, BYTES / 8, 1, 0, "preadv2");
    /* An offset of -1 stands for the position of the file. */
    memset(target, 0, BYTES);
    CALL(lseek(fd, 32, SEEK_SET) == 32);
    EXPECT(BYTES - 8, SYS_preadv2, fd, in, 2, -1, 0, 0);
    check_words(target, BYTES / 8 - 1, 1, 1, "preadv2 at the position");
    CALL(lseek(fd, 0, SEEK_CUR) == BYTES + 24);
    EXPECT(BYTES, SYS_pwritev2, fd, out, 3, -1, 0, 0);
    CALL(lseek(fd, 0, SEEK_END) == 2 * BYTES + 24);
    EXPECT(-EBADF, SYS_preadv2, -1, in, 2, 0, 0, 0);
    memset(target, 0, BYTES);
    EXPECT(BYTES, SYS_getrandom, target, BYTES, 0, 0, 0, 0);
    for (size_t i = 0; i < BYTES / 8; i++)
        REQUIRE(target[i], "word %zu of getrandom is zero", i);
    CALL(close(fd) == 0);
}

#define MESSAGES 5

/* Receives several messages into far memory. The remaining time is written to far memory, too. */
static void received(void) {
    int pair[2];
    CALL(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    struct mmsghdr *table = far_room(MESSAGES * sizeof *table);
    struct timespec *time = far_room(sizeof *time);
    uint64_t text[1000], *room[MESSAGES];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MESSAGES; i++) {
            room[i] = far_room(8000), memset(room[i], 0, 8000);
            struct iovec parts[2] = {{room[i], 8}, {room[i] + 1, 7992}};
            table[i].msg_hdr = (struct msghdr){.msg_iov = far_copy(parts, sizeof parts), .msg_iovlen = 2};
            table[i].msg_len = 77;
        }
        int sent = round == 1 ? 3 : MESSAGES;
        for (int i = 0; i < sent; i++) {
            fill_words(text, 1000, 5, i);
            CALL(write(pair[0], text, 1000 + 1000 * i) == 1000 + 1000 * i);
        }
        away();
        *time = (struct timespec){round == 1 ? 0 : 60, 0};
        if (round == 0)
            EXPECT(MESSAGES, SYS_recvmmsg, pair[1], table, MESSAGES, 0, time, 0);
        else if (round == 1) /* The time is over after the first message. The other two are still there. */ {
            EXPECT(1, SYS_recvmmsg, pair[1], table, MESSAGES, 0, time, 0);
            EXPECT(2, SYS_recvmmsg, pair[1], table + 1, MESSAGES - 1, MSG_WAITFORONE, 0, 0);
        } else
            CALL(recvmmsg(pair[1], table, MESSAGES, MSG_WAITFORONE, NULL) == MESSAGES);
        for (int i = 0; i < sent; i++) {
            REQUIRE(table[i].msg_len == 1000u + 1000 * i, "message %d has %u bytes", i, table[i].msg_len);
            check_words(room[i], 125 + 125 * i, 5, i, "a received message");
        }
        REQUIRE(table[sent % MESSAGES].msg_len == (sent < MESSAGES ? 77 : 1000), "a message too many");
        REQUIRE(round == 1 ? time->tv_sec == 0 : time->tv_sec >= (round ? 60 : 30), "%ld s are left", time->tv_sec);
    }
    time->tv_nsec = 1000000000;
    EXPECT(-EINVAL, SYS_recvmmsg, pair[1], table, 1, 0, time, 0);
    EXPECT(-EAGAIN, SYS_recvmmsg, pair[1], table, 1, MSG_DONTWAIT, 0, 0);
    CALL(close(pair[0]) == 0 && close(pair[1]) == 0);
}

static void messages(void) {
    int pair[2];
    CALL(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) == 0);
    struct mmsghdr *table = far_room(MESSAGES * sizeof *table);
    for (int i = 0; i < MESSAGES; i++) {
        uint64_t *text = far_room(8000);
        fill_words(text, 1000, 3, i);
        struct iovec parts[2] = {{text, 8}, {text + 1, 992 + 1000 * i}};
        table[i].msg_hdr.msg_iov = far_copy(parts, sizeof parts), table[i].msg_hdr.msg_iovlen = 2;
        table[i].msg_len = 77;
    }
    EXPECT(MESSAGES, SYS_sendmmsg, pair[0], table, MESSAGES, 0, 0, 0);
    uint64_t got[1000];
    for (int i = 0; i < MESSAGES; i++) {
        REQUIRE(table[i].msg_len == 1000u + 1000 * i, "message %d has %u bytes", i, table[i].msg_len);
        CALL(read(pair[1], got, sizeof got) == 1000 + 1000 * i);
        check_words(got, 125 + 125 * i, 3, i, "a message");
    }
    /* A near table. Its third message is refused: an error counts only at the first message. */
    struct mmsghdr near[3] = {table[0], table[1], table[2]};
    near[2].msg_hdr.msg_control = far_room(100), near[2].msg_hdr.msg_controllen = 100;
    ((struct cmsghdr *)near[2].msg_hdr.msg_control)->cmsg_len = 1000;
    EXPECT(2, SYS_sendmmsg, pair[0], near, 3, 0, 0, 0);
    EXPECT(-EINVAL, SYS_sendmmsg, pair[0], near + 2, 1, 0, 0, 0);
    CALL(read(pair[1], got, sizeof got) == 1000 && read(pair[1], got, sizeof got) == 2000);
    REQUIRE(read(pair[1], got, sizeof got) == -1 && errno == EAGAIN, "a third message came");
    away();
    CALL(sendmmsg(pair[0], table, 2, 0) == 2 && read(pair[1], got, sizeof got) == 1000);
    CALL(close(pair[0]) == 0 && close(pair[1]) == 0);
    /* A stream that is full takes a part of a message, and none after it. */
    CALL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    struct iovec large = {far_room(4 * MIB), 4 * MIB};
    near[0].msg_hdr = (struct msghdr){.msg_iov = &large, .msg_iovlen = 1}, near[1] = near[0];
    EXPECT(1, SYS_sendmmsg, pair[0], near, 2, 0, 0, 0);
    REQUIRE(near[0].msg_len > 0 && near[0].msg_len < 4 * MIB, "%u bytes were sent", near[0].msg_len);
    CALL(close(pair[0]) == 0 && close(pair[1]) == 0);
}

/* Requires that some of `time`, which was `milliseconds`, is left, or none if `is_over`. */
static void check_left(const struct timespec *time, long milliseconds, int is_over, const char *what) {
    long left = time->tv_sec * 1000000000 + time->tv_nsec;
    REQUIRE(is_over ? left == 0 : left > 0 && left < milliseconds * 1000000, "%s left %ld ns", what, left);
}

static void waits(void) {
    int ends[2];
    CALL(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    uint64_t none = 0, *mask = far_copy(&none, 8);
    struct pollfd near[2] = {{ends[0], POLLIN, 77}, {ends[1], POLLOUT, 77}}, *fds = far_copy(near, sizeof near);
    struct timespec *time = far_room(sizeof *time);
    *time = (struct timespec){5, 0};
    EXPECT(2, SYS_ppoll, fds, 2, time, mask, 8, 0);
    REQUIRE(fds[0].revents == POLLIN && fds[1].revents == POLLOUT, "ppoll found %d, %d", fds[0].revents, fds[1].revents);
    check_left(time, 5000, 0, "ppoll");
    fds[0].fd = fds[1].fd = -1, *time = (struct timespec){0, 20000000};
    EXPECT(0, SYS_ppoll, fds, 2, time, 0, 0, 0);
    check_left(time, 20, 1, "ppoll");
    EXPECT(-EINVAL, SYS_ppoll, fds, 2, time, mask, 4, 0);
    EXPECT(-EFAULT, SYS_ppoll, fds, 2, time, 8, 8, 0);

    fd_set *set = far_room(sizeof *set), *full = far_room(sizeof *full);
    struct { uint64_t *set; size_t len; } near_mask = {mask, 8}, *both = far_copy(&near_mask, sizeof near_mask);
    FD_SET(ends[0], set), FD_SET(ends[1], full), *time = (struct timespec){5, 0};
    EXPECT(2, SYS_pselect6, ends[1] + 1, set, full, 0, time, both);
    REQUIRE(FD_ISSET(ends[0], set) && FD_ISSET(ends[1], full), "pselect6 found others");
    check_left(time, 5000, 0, "pselect6");
    *time = (struct timespec){0, 20000000};
    EXPECT(0, SYS_pselect6, 0, 0, 0, 0, time, 0);
    check_left(time, 20, 1, "pselect6");

    int epoll = epoll_create1(0);
    struct epoll_event want = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef0}, *event = far_copy(&want, sizeof want);
    CALL(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], event) == 0);
    struct epoll_event *events = far_room(100 * sizeof *events);
    *time = (struct timespec){5, 0};
    long answer = call(SYS_epoll_pwait2, epoll, (long)events, 100, (long)time, (long)mask, 8);
    REQUIRE(answer == -ENOSYS || (answer == 1 && events[0].data.u64 == want.data.u64), "epoll_pwait2: %ld", answer);
    EXPECT(1, SYS_epoll_pwait, epoll, events, 100, 1000, mask, 8);
    CALL(close(epoll) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static pid_t child_that_exits(int code) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(code);
    CALL(child > 0);
    return child;
}

static void children(void) {
    siginfo_t *info = far_room(sizeof *info);
    struct rusage *usage = far_room(sizeof *usage);
    for (int with_usage = 0; with_usage < 2; with_usage++) {
        pid_t child = child_that_exits(43 + with_usage);
        memset(info, 0, sizeof *info);
        EXPECT(0, SYS_waitid, P_PID, child, info, WEXITED, with_usage ? usage : NULL, 0);
        REQUIRE(info->si_pid == child && info->si_status == 43 + with_usage, "waitid: %d of %d", info->si_status,
                info->si_pid);
    }
    REQUIRE(usage->ru_minflt > 0, "waitid counted %ld faults", usage->ru_minflt);
    EXPECT(-ECHILD, SYS_waitid, P_ALL, 0, info, WEXITED, usage, 0);
}

/* Executes a program with far arguments. `how` chooses the call. */
static void executing(int how) {
    char *program = far_text("/bin/sh");
    char *near[] = {far_text("sh"), far_text("-c"), far_text("exit $((${#HANARE_NUMBERS} + $1))"), far_text("sh"),
                    far_text("30"), NULL};
    char *near_environment[] = {far_text("HANARE_NUMBERS=seven77"), NULL};
    char **arguments = far_copy(near, sizeof near), **environment = far_copy(near_environment, sizeof near_environment);
    char *empty = far_text("");
    int status, fd = open("/bin/sh", O_RDONLY);
    CALL(fd >= 0);
    away();
    pid_t child = vfork();
    if (child == 0) {
        if (how == 0)
            fexecve(fd, arguments, environment);
        else if (how == 1)
            call(SYS_execveat, AT_FDCWD, (long)program, (long)arguments, (long)environment, 0, 0);
        else if (how == 2)
            call(SYS_execveat, fd, (long)empty, (long)arguments, (long)environment, AT_EMPTY_PATH, 0);
        _exit(99);
    }
    CALL(child > 0 && waitpid(child, &status, 0) == child && close(fd) == 0);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 37, "the program's status is %#x in way %d", status, how);
}

/* Calls that tell the old value after they have set the new one, which is near. */
static void old_values(void) {
    struct itimerspec new_value = {.it_value = {1000, 0}}, *new = &new_value, *old = far_room(sizeof *old);
    int fd = timerfd_create(CLOCK_MONOTONIC, 0), *timer = far_room(sizeof *timer);
    CALL(fd >= 0);
    EXPECT(0, SYS_timerfd_settime, fd, 0, new, old, 0, 0);
    REQUIRE(old->it_value.tv_sec == 0, "a new timer had %ld s", (long)old->it_value.tv_sec);
    struct itimerval value = {.it_value = {1000, 0}}, off = {0}, *before = far_room(sizeof *before);
    EXPECT(0, SYS_setitimer, ITIMER_REAL, &value, before, 0, 0, 0);
    REQUIRE(before->it_value.tv_sec == 0, "a new interval timer had %ld s", (long)before->it_value.tv_sec);
    CALL(setitimer(ITIMER_REAL, &off, NULL) == 0);
    struct sigevent quiet = {.sigev_notify = SIGEV_NONE}, *event = far_copy(&quiet, sizeof quiet);
    EXPECT(0, SYS_timer_create, CLOCK_MONOTONIC, event, timer, 0, 0, 0);
    old->it_value.tv_sec = 7;
    EXPECT(0, SYS_timer_settime, *timer, 0, new, old, 0, 0);
    REQUIRE(old->it_value.tv_sec == 0, "a new timer of POSIX had %ld s", (long)old->it_value.tv_sec);
    EXPECT(0, SYS_timer_delete, *timer, 0, 0, 0, 0, 0);
    /* Reading the error of a socket clears it. */
    int udp = socket(AF_INET, SOCK_DGRAM, 0), *error = far_room(sizeof *error);
    struct sockaddr_storage nobody = {.ss_family = AF_INET};
    ((unsigned char *)&nobody)[3] = 9, ((unsigned char *)&nobody)[4] = 127, ((unsigned char *)&nobody)[7] = 1;
    socklen_t len = sizeof *error;
    CALL(udp >= 0 && connect(udp, (struct sockaddr *)&nobody, 16) == 0 && write(udp, "x", 1) == 1);
    EXPECT(0, SYS_getsockopt, udp, SOL_SOCKET, SO_ERROR, error, &len, 0);
    REQUIRE(*error == ECONNREFUSED, "the error of the socket is %d", *error);
    CALL(close(udp) == 0 && close(fd) == 0);
}

static void *hold_once(void *lock) {
    EXPECT(0, SYS_futex, lock, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
    REQUIRE((*(uint32_t *)lock & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid), "the lock is another thread's");
    EXPECT(0, SYS_futex, lock, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0);
    return NULL;
}

/* Operations in which the kernel writes a word of the program under a lock of its own, where it cannot wait for a
 * page. */
static void words_of_locks(void) {
    uint32_t *first = far_room(sizeof *first), *second = far_room(sizeof *second), own_id = syscall(SYS_gettid);
    for (int round = 0; round < 20; round++) {
        int next = round + 1, sets = FUTEX_OP(FUTEX_OP_SET, next, FUTEX_OP_CMP_EQ, round);
        EXPECT(0, SYS_futex, first, FUTEX_WAKE_OP_PRIVATE, 1, 1, second, sets);
        REQUIRE(*second == round + 1u, "the word is %u in round %d", *second, round);
        EXPECT(0, SYS_futex, first, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
        REQUIRE(*first == own_id, "the lock is %#x", *first);
        EXPECT(0, SYS_futex, first, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0);
        EXPECT(0, SYS_futex, first, FUTEX_TRYLOCK_PI_PRIVATE, 0, 0, 0, 0);
        EXPECT(-EDEADLK, SYS_futex, first, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
        EXPECT(0, SYS_futex, second, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, 1, first, round + 1);
        pthread_t other;
        CALL(pthread_create(&other, NULL, hold_once, first) == 0);
        for (int tries = 0; tries < 5000 && !(__atomic_load_n(first, __ATOMIC_SEQ_CST) & FUTEX_WAITERS); tries++)
            usleep(1000);
        EXPECT(0, SYS_futex, first, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0);
        CALL(pthread_join(other, NULL) == 0);
        REQUIRE(*first == 0, "the lock is %#x after its last holder", *first);
        long answer = call(SYS_futex, (long)first, LOCK_PI2_PRIVATE, 0, 0, 0, 0);
        REQUIRE(answer == -ENOSYS || (answer == 0 && *first == own_id), "LOCK_PI2 answered %ld", answer);
        *first = 0;
    }
    EXPECT(-EFAULT, SYS_futex, 4096, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
}

int main(int argc, char **argv) {
    is_own = argc > 1 && strcmp(argv[1], "own") == 0;
    area = malloc(AREA), sweep = malloc(SWEEP);
    CALL(area && sweep);
    area = (char *)(((uintptr_t)area + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    vectors();
    messages();
    received();
    waits();
    children();
    for (int how = 0; how < 3; how++)
        executing(how);
    old_values();
    words_of_locks();
    puts("ok numbers: vectors, messages, waits, children, programs, old values, words of locks");
    return 0;
}
