/* calls
 *
 * Passes each pointer argument of each call in absent memory. For data that the kernel writes, these are fresh pages.
 * For data that it reads, these are pages that were not used for long. Structures and strings cross the border of two
 * pages. */
#define _GNU_SOURCE
#include "check.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

static char *fresh_pages, *used_pages, *sweep;
static size_t fresh_next, used_next;
#define AREA (64 * MIB)
#define SWEEP (24 * MIB)
static char checked[MIB]; /* its size is known to the compiler, so that calls on it are the checked ones */
static volatile size_t some = 700000;

extern char **environ;

/* Returns room for `len` bytes across a border between two pages that were never accessed. */
static void *fresh(size_t len) {
    size_t half = len / 2;
    char *border = fresh_pages + (fresh_next + 1 + half / PAGE) * PAGE;
    fresh_next += len / PAGE + 3;
    REQUIRE(fresh_next * PAGE < AREA, "the workload needs a larger area");
    return border - (half / 8 * 8);
}

/* Returns a copy of `len` bytes across a border between two pages. */
static void *kept(const void *bytes, size_t len) {
    size_t half = len / 2;
    char *border = used_pages + (used_next + 1 + half / PAGE) * PAGE;
    used_next += len / PAGE + 3;
    REQUIRE(used_next * PAGE < AREA, "the workload needs a larger area");
    return memcpy(border - half / 8 * 8, bytes, len);
}

static char *kept_text(const char *text) {
    return kept(text, strlen(text) + 1);
}

/* Accesses other memory until the copies have been evicted. */
static void away(void) {
    for (size_t i = 0; i < SWEEP; i += PAGE)
        sweep[i]++;
}

static char directory[] = "/tmp/hanare-calls-XXXXXX";

static void paths(void) {
    char near[200];
    CALL(mkdtemp(directory) != NULL);
#define IN(name) (snprintf(near, sizeof near, "%s/" name, directory), kept_text(near))
    char *file = IN("file"), *other = IN("other"), *sub = IN("sub"), *link_ = IN("link"), *soft = IN("soft");
    char *template = IN("templateXXXXXX"), *stream = IN("stream"), *mode = kept_text("w+"), *dir = kept_text(directory);
    char *missing = kept_text("/nonexistent/hanare");
    struct timespec stamps[2] = {{1000, 0}, {2000, 0}}, *times_ = kept(stamps, sizeof stamps);
    char *long_path = fresh(8000);
    away();
    int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CALL(fd >= 0);
    CALL(write(fd, "twelve bytes", 12) == 12);
    struct stat *status = fresh(sizeof *status);
    CALL(fstat(fd, status) == 0 && status->st_size == 12);
    status = fresh(sizeof *status);
    CALL(stat(file, status) == 0 && status->st_size == 12 && S_ISREG(status->st_mode));
    CALL(truncate(file, 5) == 0);
    CALL(lstat(file, fresh(sizeof *status)) == 0);
    status = fresh(sizeof *status);
    CALL(fstatat(AT_FDCWD, file, status, 0) == 0 && status->st_size == 5);
    struct statx *more = fresh(sizeof *more);
    CALL(statx(AT_FDCWD, file, 0, STATX_SIZE, more) == 0 && more->stx_size == 5);
    struct statfs *system_ = fresh(sizeof *system_);
    CALL(statfs(dir, system_) == 0 && system_->f_bsize > 0);
    CALL(fstatfs(fd, fresh(sizeof *system_)) == 0);
    CALL(utimensat(AT_FDCWD, file, times_, 0) == 0);
    CALL(fstat(fd, status) == 0 && status->st_mtim.tv_sec == 2000);
    CALL(chmod(file, 0640) == 0 && access(file, R_OK) == 0 && euidaccess(file, R_OK) == 0 && eaccess(file, R_OK) == 0);
    CALL(mkdir(sub, 0700) == 0 && chdir(sub) == 0);
    char *here = fresh(4096);
    CALL(getcwd(here, 4096) == here && strcmp(here, sub) == 0);
    CALL(getcwd(checked, some) == checked && strcmp(checked, sub) == 0);
    CALL(chdir("/") == 0 && rmdir(sub) == 0);
    CALL(link(file, link_) == 0 && symlink(file, soft) == 0);
    char *target = fresh(4096);
    CALL(readlink(soft, target, 4096) == (ssize_t)strlen(file) && memcmp(target, file, strlen(file)) == 0);
    CALL(readlinkat(AT_FDCWD, soft, fresh(4096), 4096) == (ssize_t)strlen(file));
    CALL(rename(link_, other) == 0 && renameat2(AT_FDCWD, other, AT_FDCWD, link_, 0) == 0);
    CALL(rename(link_, other) == 0 && unlink(other) == 0 && unlinkat(AT_FDCWD, soft, 0) == 0);
    int made = mkstemp(template);
    CALL(made >= 0 && strstr(template, "XXXXXX") == NULL && access(template, F_OK) == 0 && remove(template) == 0);
    FILE *opened = fopen(stream, mode);
    CALL(opened != NULL && fclose(opened) == 0 && unlink(stream) == 0);
    DIR *entries = opendir(dir);
    CALL(entries != NULL && readdir(entries) != NULL && closedir(entries) == 0);
    REQUIRE(open(missing, O_RDONLY) == -1 && errno == ENOENT, "open of a missing path: %s", strerror(errno));
    memset(long_path, 'x', 7999);
    REQUIRE(open(long_path, O_RDONLY) == -1 && errno == ENAMETOOLONG, "open of a long path: %s", strerror(errno));
    int counter = eventfd(5, EFD_NONBLOCK);
    eventfd_t *value = fresh(sizeof *value);
    CALL(counter >= 0 && eventfd_read(counter, value) == 0 && *value == 5 && close(counter) == 0);
    struct rlimit *volatile nowhere = (struct rlimit *)8;
    REQUIRE(getrlimit(RLIMIT_AS, nowhere) == -1 && errno == EFAULT, "getrlimit into nothing: %s", strerror(errno));
    CALL(unlink(file) == 0 && close(fd) == 0 && close(made) == 0 && rmdir(dir) == 0);
}

static void streams_of_bytes(void) {
    size_t len = 3 * MIB + 777;
    uint64_t *source = fresh(len), *target = fresh(len);
    fill_words(source, len / 8, 1, 0);
    memset((char *)source + len / 8 * 8, 7, len % 8);
    away();
    FILE *file = tmpfile();
    CALL(file != NULL);
    int fd = fileno(file);
    CALL(write(fd, source, len) == (ssize_t)len);
    away();
    CALL(lseek(fd, 0, SEEK_SET) == 0 && read(fd, target, 2 * len) == (ssize_t)len);
    check_words(target, len / 8, 1, 0, "read");
    CALL(read(fd, target, len) == 0);
    CALL(pread(fd, checked, some, 8) == (ssize_t)some);
    check_words((uint64_t *)checked, some / 8, 1, 1, "checked pread");
    CALL(lseek(fd, 16, SEEK_SET) == 16 && read(fd, checked, some) == (ssize_t)some);
    check_words((uint64_t *)checked, some / 8, 1, 2, "checked read");
    struct iovec *rows = fresh(3 * sizeof *rows);
    char *bytes = fresh(2 * MIB);
    rows[0] = (struct iovec){bytes, 8};
    rows[1] = (struct iovec){NULL, 0};
    rows[2] = (struct iovec){bytes + 8, 2 * MIB - 8};
    away();
    CALL(preadv(fd, rows, 3, 24) == 2 * MIB);
    check_words((uint64_t *)bytes, 2 * MIB / 8, 1, 3, "preadv");
    CALL(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, rows, 3) == 2 * MIB);
    check_words((uint64_t *)bytes, 2 * MIB / 8, 1, 0, "readv");
    away();
    CALL(pwritev(fd, rows, 3, MIB) == 2 * MIB && pwrite(fd, source, 4 * PAGE, 0) == 4 * PAGE);
    CALL(preadv2(fd, rows, 3, MIB, 0) == 2 * MIB);
    check_words((uint64_t *)bytes, 2 * MIB / 8, 1, 0, "pwritev");
    /* Tests the streams of the C library: blocks larger than their buffers, and lines. */
    rewind(file);
    away();
    CALL(fwrite(source, 8, len / 8, file) == len / 8 && fflush(file) == 0);
    rewind(file);
    memset(target, 0, len);
    away();
    CALL(fread(target, 8, len / 8, file) == len / 8);
    check_words(target, len / 8, 1, 0, "fread");
    rewind(file);
    CALL(fread(checked, 1, some, file) == some);
    check_words((uint64_t *)checked, some / 8, 1, 0, "checked fread");
    char *text = fresh(300000);
    memset(text, 'a', 299999);
    text[299999] = 0;
    rewind(file);
    CALL(ftruncate(fd, 0) == 0);
    away();
    CALL(fputs(text, file) >= 0 && fputc('\n', file) == '\n' && fflush(file) == 0);
    rewind(file);
    char *line = NULL;
    size_t room = 0;
    CALL(getline(&line, &room, file) == 300000);
    REQUIRE(memcmp(line, text, 299999) == 0, "fputs and getline: another line");
    free(line);
    CALL(fclose(file) == 0);
    char *random = fresh(600000);
    /* The kernel cuts the call short when the process is stopped. */
    for (ssize_t done = 0, more; done < 600000; done += more)
        CALL((more = getrandom(random + done, 600000 - (size_t)done, 0)) > 0);
    CALL(getentropy(fresh(200), 200) == 0);
    size_t zeroes = 0;
    for (size_t i = 0; i < 600000; i++)
        zeroes += random[i] == 0;
    REQUIRE(zeroes < 6000, "getrandom left %zu of 600000 bytes zero", zeroes);
}

static void messages(void) {
    int *pair = fresh(2 * sizeof(int));
    CALL(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    int room = 1 << 20;
    int *option = kept(&room, sizeof room);
    away();
    CALL(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, option, sizeof room) == 0);
    int *found = fresh(sizeof(int));
    socklen_t *found_len = fresh(sizeof *found_len);
    *found_len = sizeof(int);
    CALL(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, found, found_len) == 0 && *found == SOCK_DGRAM);
    /* Checks that messages keep their borders, and that no bytes are lost. */
    uint64_t *message = fresh(100000), *answer = fresh(100000);
    fill_words(message, 100000 / 8, 2, 0);
    for (int i = 1; i <= 3; i++) {
        away();
        CALL(send(pair[0], message, i * 32000, 0) == i * 32000);
        CALL(recv(pair[1], answer, 100000, MSG_PEEK) == i * 32000);
        memset(answer, 0, 100000);
        CALL(recv(pair[1], answer, 100000, 0) == i * 32000);
        check_words(answer, i * 32000 / 8, 2, 0, "a message");
    }
    /* Sends a descriptor beside the bytes. All arguments are in far memory. */
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } *control = fresh(sizeof *control), *got = fresh(sizeof *got);
    struct iovec *rows = fresh(2 * sizeof *rows), *got_rows = fresh(2 * sizeof *got_rows);
    rows[0] = (struct iovec){message, 8};
    rows[1] = (struct iovec){message + 1, 7992};
    got_rows[0] = (struct iovec){answer, 4000};
    got_rows[1] = (struct iovec){answer + 500, 90000};
    struct msghdr *out = fresh(sizeof *out), *in = fresh(sizeof *in);
    *out = (struct msghdr){.msg_iov = rows, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof *control};
    *in = (struct msghdr){.msg_iov = got_rows, .msg_iovlen = 2, .msg_control = got, .msg_controllen = sizeof *got};
    struct cmsghdr *head = CMSG_FIRSTHDR(out);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    int passed = dup(pair[0]), received;
    memcpy(CMSG_DATA(head), &passed, sizeof passed);
    memset(answer, 0, 100000);
    away();
    CALL(sendmsg(pair[0], out, 0) == 8000);
    CALL(recvmsg(pair[1], in, 0) == 8000);
    check_words(answer, 1000, 2, 0, "a message in rows");
    head = CMSG_FIRSTHDR(in);
    REQUIRE(head != NULL && head->cmsg_type == SCM_RIGHTS, "no descriptor came");
    memcpy(&received, CMSG_DATA(head), sizeof received);
    CALL(write(received, "through", 7) == 7 && recv(pair[1], fresh(7), 7, 0) == 7);
    CALL(close(passed) == 0 && close(received) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
}

static void addresses(void) {
    struct sockaddr_in near = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in *loopback = kept(&near, sizeof near), *bound = fresh(sizeof near), *peer = fresh(sizeof near);
    socklen_t *len = fresh(sizeof *len);
    int listener = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0);
    away();
    CALL(bind(listener, (struct sockaddr *)loopback, sizeof *loopback) == 0 && listen(listener, 1) == 0);
    *len = sizeof near;
    CALL(getsockname(listener, (struct sockaddr *)bound, len) == 0 && *len == sizeof near && bound->sin_port != 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    away();
    CALL(connect(client, (struct sockaddr *)bound, sizeof *bound) == 0);
    *len = sizeof near;
    int server = accept(listener, (struct sockaddr *)peer, len);
    CALL(server >= 0 && peer->sin_family == AF_INET && peer->sin_addr.s_addr == near.sin_addr.s_addr);
    CALL(getpeername(client, (struct sockaddr *)fresh(sizeof near), len) == 0);
    char *hello = kept_text("hello"), *heard = fresh(2 * MIB);
    away();
    CALL(send(client, hello, 6, 0) == 6 && recv(server, checked, some, 0) == 6 && strcmp(checked, "hello") == 0);
    /* A stream socket returns the bytes that it has, even if the caller asks for more. */
    CALL(send(client, hello, 6, 0) == 6 && recv(server, heard, 2 * MIB, 0) == 6 && strcmp(heard, "hello") == 0);
    CALL(bind(udp, (struct sockaddr *)loopback, sizeof *loopback) == 0);
    *len = sizeof near;
    CALL(getsockname(udp, (struct sockaddr *)bound, len) == 0);
    away();
    CALL(sendto(udp, hello, 6, 0, (struct sockaddr *)bound, sizeof *bound) == 6);
    *len = sizeof near;
    heard = fresh(100);
    CALL(recvfrom(udp, heard, 100, 0, (struct sockaddr *)peer, len) == 6 && strcmp(heard, "hello") == 0);
    REQUIRE(peer->sin_port == bound->sin_port, "a datagram came from port %d", ntohs(peer->sin_port));
    CALL(close(client) == 0 && close(server) == 0 && close(listener) == 0 && close(udp) == 0);
}

/* The kernel follows a pointer in the argument of this ioctl. */
static void list_interfaces(void) {
    struct ifreq near[8];
    struct ifconf told = {.ifc_len = sizeof near, .ifc_req = near};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CALL(fd >= 0 && ioctl(fd, SIOCGIFCONF, &told) == 0);
    for (int by_number = 0; by_number < 2; by_number++) {
        struct ifconf wanted = {.ifc_len = sizeof near, .ifc_req = fresh(sizeof near)};
        struct ifconf *list = kept(&wanted, sizeof wanted);
        away();
        CALL((by_number ? syscall(SYS_ioctl, fd, SIOCGIFCONF, list) : ioctl(fd, SIOCGIFCONF, list)) == 0);
        REQUIRE(list->ifc_len == told.ifc_len && memcmp(list->ifc_req, near, (size_t)told.ifc_len) == 0,
                "other interfaces: %d bytes, not %d", list->ifc_len, told.ifc_len);
    }
    CALL(close(fd) == 0);
}

static void waiting(void) {
    int *ends = fresh(2 * sizeof(int));
    CALL(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    struct pollfd near = {.fd = ends[0], .events = POLLIN}, *fds = kept(&near, sizeof near);
    struct timespec short_ = {0, 1000000}, *limit = kept(&short_, sizeof short_);
    fd_set bits;
    FD_ZERO(&bits);
    FD_SET(ends[0], &bits);
    fd_set *set = kept(&bits, sizeof bits), *set2 = kept(&bits, sizeof bits);
    struct epoll_event want = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef0}, *event = kept(&want, sizeof want);
    struct timeval second = {1, 0}, *patience = kept(&second, sizeof second);
    away();
    CALL(poll(fds, 1, 1000) == 1 && fds->revents == POLLIN);
    away();
    CALL(ppoll(fds, 1, limit, NULL) == 1);
    CALL(select(ends[0] + 1, set, NULL, NULL, patience) == 1 && FD_ISSET(ends[0], set));
    CALL(pselect(ends[0] + 1, set2, NULL, NULL, limit, NULL) == 1);
    int epoll = epoll_create1(0);
    CALL(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], event) == 0);
    struct epoll_event *events = fresh(64 * sizeof *events);
    CALL(epoll_wait(epoll, events, 64, 1000) == 1 && events[0].data.u64 == want.data.u64);
    REQUIRE(epoll_wait(epoll, events, INT_MAX, 0) == -1 && errno == EINVAL, "epoll_wait for INT_MAX events: %s", strerror(errno));
    int *count = fresh(sizeof *count);
    CALL(ioctl(ends[0], FIONREAD, count) == 0 && *count == 1);
    list_interfaces();
    away();
    CALL(nanosleep(limit, fresh(sizeof *limit)) == 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, limit, NULL) == 0);
    struct timespec *time_ = fresh(sizeof *time_);
    CALL(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, time_) == 0 && time_->tv_sec + time_->tv_nsec > 0);
    CALL(clock_getres(CLOCK_MONOTONIC, fresh(sizeof *time_)) == 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET}, *held = kept(&lock, sizeof lock);
    FILE *file = tmpfile();
    away();
    CALL(fcntl(fileno(file), F_SETLK, held) == 0);
    CALL(fclose(file) == 0);
    sigset_t *set3 = fresh(sizeof *set3), *pending = fresh(sizeof *pending);
    CALL(sigemptyset(set3) == 0 && sigaddset(set3, SIGUSR2) == 0);
    CALL(sigprocmask(SIG_BLOCK, set3, fresh(sizeof *set3)) == 0 && raise(SIGUSR2) == 0);
    CALL(sigpending(pending) == 0 && sigismember(pending, SIGUSR2) == 1);
    siginfo_t *info = fresh(sizeof *info);
    away();
    CALL(sigtimedwait(set3, info, limit) == SIGUSR2 && info->si_signo == SIGUSR2);
    CALL(close(epoll) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    uint32_t *word_ = fresh(sizeof *word_);
    CALL(syscall(SYS_futex, word_, FUTEX_WAIT, 1, NULL, NULL, 0) == -1 && errno == EAGAIN);
    away();
    REQUIRE(syscall(SYS_futex, word_, FUTEX_WAIT, 0, limit, NULL, 0) == -1 && errno == ETIMEDOUT, "futex: %s",
            strerror(errno));
}

static void on_stack(int signal) {
    (void)signal;
    char buffer[1000];
    memset(buffer, 1, sizeof buffer);
    checked[0] = buffer[7];
}

/* Makes each call of the exec family, with an environment that the program made. It is far, like all other
 * arguments. */
static void executing(const char *program, const char *script, char **arguments, char **environment) {
    const char *thirty = arguments[4], *shell = arguments[0];
    for (int way = 0; way < 6; way++) {
        away();
        pid_t child = fork();
        CALL(child >= 0);
        if (child == 0) {
            if (way != 4)
                environ = environment;
            switch (way) {
            case 0: execv(program, arguments); break;
            case 1: execvp(program, arguments); break;
            case 2: execl(program, shell, "-c", script, shell, thirty, (char *)NULL); break;
            case 3: execlp(program, shell, "-c", script, shell, thirty, (char *)NULL); break;
            case 4: execle(program, shell, "-c", script, shell, thirty, (char *)NULL, environment); break;
            case 5: execvpe(program, arguments, environ); break;
            }
            _exit(99);
        }
        int status;
        CALL(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 37, "the child of way %d ended with %#x", way, (unsigned)status);
    }
}

static void processes(void) {
    CALL(uname(fresh(sizeof(struct utsname))) == 0 && sysinfo(fresh(sizeof(struct sysinfo))) == 0);
    struct rusage *usage = fresh(sizeof *usage);
    struct rlimit *limit = fresh(sizeof *limit);
    CALL(getrusage(RUSAGE_SELF, usage) == 0 && usage->ru_maxrss > 0 && times(fresh(sizeof(struct tms))) != -1);
    CALL(getrlimit(RLIMIT_NOFILE, limit) == 0);
    away();
    CALL(setrlimit(RLIMIT_NOFILE, limit) == 0 && prlimit(0, RLIMIT_NOFILE, limit, fresh(sizeof *limit)) == 0);
    cpu_set_t *cpus = fresh(sizeof *cpus);
    CALL(sched_getaffinity(0, sizeof *cpus, cpus) == 0 && CPU_COUNT(cpus) > 0);
    away();
    CALL(sched_setaffinity(0, sizeof *cpus, cpus) == 0);
    /* Executes a program whose path, arguments and environment are far. */
    char *program = kept_text("/bin/sh"), *script = kept_text("exit $((${#HANARE_CALLS} + $1))");
    char *near_arguments[] = {kept_text("sh"), kept_text("-c"), script, kept_text("sh"), kept_text("30"), NULL};
    char *near_environment[] = {kept_text("HANARE_CALLS=seven77"), NULL};
    char **arguments = kept(near_arguments, sizeof near_arguments);
    char **environment = kept(near_environment, sizeof near_environment);
    pid_t *child = fresh(sizeof *child);
    int *status = fresh(sizeof *status);
    away();
    CALL((errno = posix_spawn(child, program, NULL, NULL, arguments, environment)) == 0);
    CALL(waitpid(*child, status, 0) == *child);
    REQUIRE(WIFEXITED(*status) && WEXITSTATUS(*status) == 37, "the child's status is %#x", *status);
    away();
    pid_t second = vfork();
    if (second == 0) {
        execve(program, arguments, environment);
        _exit(99);
    }
    status = fresh(sizeof *status);
    CALL(wait4(second, status, 0, fresh(sizeof(struct rusage))) == second);
    REQUIRE(WIFEXITED(*status) && WEXITSTATUS(*status) == 37, "the second child's status is %#x", *status);
    executing(program, script, arguments, environment);
    /* Sets a signal stack that is far. */
    stack_t near = {.ss_sp = fresh(256 * 1024), .ss_size = 256 * 1024}, *stack = kept(&near, sizeof near);
    stack_t *told = fresh(sizeof *told);
    away();
    CALL(sigaltstack(stack, NULL) == 0 && sigaltstack(NULL, told) == 0);
    REQUIRE(told->ss_sp == near.ss_sp && told->ss_size == near.ss_size, "the signal stack is at %p", told->ss_sp);
    struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    CALL(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0 && checked[0] == 1);
    stack_t off = {.ss_flags = SS_DISABLE};
    CALL(sigaltstack(&off, NULL) == 0);
}

static void *answer_with(void *argument) {
    return argument;
}

static void threads(void) {
    pthread_t *thread = fresh(sizeof *thread);
    pthread_attr_t *attributes = fresh(sizeof *attributes);
    CALL((errno = pthread_attr_init(attributes)) == 0);
    CALL((errno = pthread_attr_setstacksize(attributes, 1 << 20)) == 0);
    void **answer = fresh(sizeof *answer);
    away();
    CALL((errno = pthread_create(thread, attributes, answer_with, answer)) == 0);
    away();
    CALL((errno = pthread_join(*thread, answer)) == 0);
    REQUIRE(*answer == answer, "a thread answered %p", *answer);
}

int main(void) {
    fresh_pages = malloc(AREA), used_pages = malloc(AREA), sweep = malloc(SWEEP);
    CALL(fresh_pages && used_pages && sweep);
    fresh_pages = (char *)(((uintptr_t)fresh_pages + PAGE - 1) / PAGE * PAGE);
    used_pages = (char *)(((uintptr_t)used_pages + PAGE - 1) / PAGE * PAGE);
    setvbuf(stdout, fresh(100000), _IOFBF, 100000);
    paths();
    streams_of_bytes();
    messages();
    addresses();
    waiting();
    processes();
    threads();
    puts("ok calls: paths, streams, messages, addresses, waiting, processes, threads");
    return 0;
}
