/* syscalls [SIZE]
 *
 * The kernel reads and writes the program's memory. Every transfer uses large arrays of SIZE (32M) each. The program
 * has accessed some of this memory before, and some not. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static size_t size = 32 * MIB;

static uint64_t *array(void) {
    uint64_t *words = calloc(1, size);
    CALL(words != NULL);
    return words;
}

struct transfer {
    int fd;
    char *bytes;
};

static void *send_all(void *argument) {
    struct transfer *t = argument;
    for (size_t done = 0; done < size;) {
        ssize_t n = write(t->fd, t->bytes + done, size - done);
        CALL(n > 0);
        done += n;
    }
    return NULL;
}

static void through_descriptors(int from, int to, uint64_t *source, uint64_t *target, const char *what) {
    struct transfer out = {to, (char *)source};
    pthread_t sender;
    CALL((errno = pthread_create(&sender, NULL, send_all, &out)) == 0);
    for (size_t done = 0; done < size;) {
        ssize_t n = read(from, (char *)target + done, size - done);
        CALL(n > 0);
        done += n;
    }
    CALL((errno = pthread_join(sender, NULL)) == 0);
    check_words(target, size / 8, 1, 0, what);
    CALL(close(from) == 0 && close(to) == 0);
}

static void pipes_and_sockets(uint64_t *source) {
    int fds[2];
    uint64_t *target = array();
    CALL(pipe(fds) == 0);
    through_descriptors(fds[0], fds[1], source, target, "pipe into untouched memory");
    CALL(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    memset(target, 0xff, size);
    through_descriptors(fds[0], fds[1], source, target, "socket into used memory");
    free(target);
}

static int temporary(void) {
    char name[] = "/tmp/hanare-syscalls-XXXXXX";
    int fd = mkstemp(name);
    CALL(fd >= 0 && unlink(name) == 0);
    return fd;
}

static void files(uint64_t *source) {
    int fd = temporary();
    uint64_t *target = array();
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(fd, (char *)source + done, size - done, done);
        CALL(n > 0);
        done += n;
    }
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(fd, (char *)target + done, size - done, done);
        CALL(n > 0);
        done += n;
    }
    check_words(target, size / 8, 1, 0, "pread");

    /* The call transfers pieces of two arrays in turn. Some pieces are only a few bytes long and cross page borders. */
    struct iovec in[8];
    uint64_t *other = array();
    size_t offset = 0;
    for (size_t i = 0; i < 8; i++) {
        size_t len = i % 2 ? size / 8 : 8 * (i + 1);
        in[i] = (struct iovec){(char *)(i % 2 ? other : target) + offset, len};
        offset += len;
    }
    ssize_t n = preadv(fd, in, 8, 0);
    CALL(n > 0);
    REQUIRE((size_t)n == offset, "preadv read %zd of %zu bytes", n, offset);
    for (size_t i = 0, at = 0; i < 8; at += in[i].iov_len, i++)
        check_words(in[i].iov_base, in[i].iov_len / 8, 1, at / 8, "preadv");
    int copy = temporary();
    CALL(writev(copy, in, 8) == (ssize_t)offset);
    memset(target, 0, size);
    CALL(pread(copy, target, offset, 0) == (ssize_t)offset);
    check_words(target, offset / 8, 1, 0, "writev");

    /* The kernel reads memory that was never accessed, and must get zeroes. */
    uint64_t *untouched = array();
    CALL(pwrite(copy, untouched, MIB, 0) == (ssize_t)MIB);
    CALL(pread(copy, target, MIB, 0) == (ssize_t)MIB);
    check_zero(target, MIB, "write from untouched memory");
    CALL(close(fd) == 0 && close(copy) == 0);
    free(untouched);
    free(other);
    free(target);
}

static void small_answers(void) {
    uint64_t *words = array();
    struct stat *status = (struct stat *)((char *)words + size - PAGE - 24);
    CALL(stat("/", status) == 0);
    REQUIRE(S_ISDIR(status->st_mode), "stat: / is mode %o", status->st_mode);
    char *name = (char *)words + size / 2 - 1;
    CALL(getcwd(name, 4096) == name);
    char *near = getcwd(NULL, 0);
    REQUIRE(strcmp(name, near) == 0, "getcwd: '%s', not '%s'", name, near);
    free(near);

    char *random = (char *)words + 10 * PAGE - 100;
    size_t zeroes = 0;
    CALL(getrandom(random, 200, 0) == 200);
    for (size_t i = 0; i < 200; i++)
        zeroes += random[i] == 0;
    REQUIRE(zeroes < 20, "getrandom left %zu of 200 bytes zero", zeroes);
    check_zero(random - 100, 100, "before getrandom's bytes");
    check_zero(random + 200, 100, "after getrandom's bytes");
    free(words);
}

/* Reads of a device of memory must fill the whole array. The kernel cuts such a read short behind any page where a signal
 * arrives or the program is stopped. */
static void devices(void) {
    const char *names[] = {"/dev/zero", "/dev/urandom"};
    for (int nth = 0; nth < 2; nth++) {
        int fd = open(names[nth], O_RDONLY);
        uint64_t *target = array(), sum = 0;
        CALL(fd >= 0);
        fill_words(target, size / 8, 7, 0);
        for (size_t done = 0; done < size;) {
            ssize_t came = read(fd, (char *)target + done, size - done);
            REQUIRE(came >= (ssize_t)PAGE || (came < 0 && errno == EINTR), "%s: %zd of %zu bytes", names[nth], came, size);
            done += came > 0 ? (size_t)came : 0;
        }
        for (size_t at = 0; at < size / 8; at++)
            sum |= target[at];
        REQUIRE((sum == 0) == (nth == 0), "%s: wrong bytes", names[nth]);
        close(fd);
        free(target);
    }
}

static void *wake_later(void *argument) {
    uint32_t *flag = argument;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, flag, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return NULL;
}

static void futexes(void) {
    uint64_t *words = array();
    uint32_t *flag = (uint32_t *)((char *)words + 3 * MIB + 8);
    pthread_t waker;
    CALL((errno = pthread_create(&waker, NULL, wake_later, flag)) == 0);
    struct timespec limit = {10, 0};
    while (__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0) {
        long n = syscall(SYS_futex, flag, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0);
        REQUIRE(n == 0 || errno == EAGAIN || errno == EINTR, "futex wait at %p: %s", (void *)flag, strerror(errno));
    }
    CALL((errno = pthread_join(waker, NULL)) == 0);

    pthread_mutex_t *mutex = (pthread_mutex_t *)((char *)words + 5 * MIB - 16);
    CALL((errno = pthread_mutex_init(mutex, NULL)) == 0);
    CALL((errno = pthread_mutex_lock(mutex)) == 0);
    CALL((errno = pthread_mutex_unlock(mutex)) == 0);
    free(words);
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]) / MIB * MIB;
    if (size < 8 * MIB)
        size = 8 * MIB;
    uint64_t *source = array();
    fill_words(source, size / 8, 1, 0);
    pipes_and_sockets(source);
    files(source);
    small_answers();
    devices();
    futexes();
    check_words(source, size / 8, 1, 0, "the source afterwards");
    free(source);
    printf("ok syscalls: pipe, socket, file, vectors, getrandom, futex with %zu bytes\n", size);
    return 0;
}
