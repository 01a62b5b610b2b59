/* splice
 *
 * Checks that data which the kernel keeps of a program's memory does not change. This is data in pages that vmsplice
 * put into a pipe. It is also data sent on a socket with zero copy, if the socket allows that. The data is read after
 * other memory was used. Counts, blocking and errors are the same as without Hanare. */
#define _GNU_SOURCE
#include "check.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define AREA (16 * MIB)
#define WORDS (AREA / 8)
#define SWEEP (12 * MIB)
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

static char *area, *sweep, *near_bytes;

/* Fills other memory with other bytes, until the area's pages are evicted and their frames are used again. */
static void away(void) {
    static int round;
    memset(sweep, 0x40 + round++ % 64, SWEEP);
}

typedef ssize_t splicer(int, const struct iovec *, size_t, unsigned);

static ssize_t by_function(int fd, const struct iovec *row, size_t count, unsigned flags) {
    return vmsplice(fd, row, count, flags);
}

static ssize_t by_number(int fd, const struct iovec *row, size_t count, unsigned flags) {
    return syscall(SYS_vmsplice, fd, row, count, (unsigned long)flags);
}

/* Checks `len` bytes that were read. They must be the area's words from byte `at` on. */
static void check_bytes(const char *bytes, size_t len, size_t at, const char *when) {
    for (size_t i = 0; i < len; i++) {
        uint64_t want = word(1, 0, (at + i) / 8);
        REQUIRE(bytes[i] == ((char *)&want)[(at + i) % 8], "%s: byte %zu of %zu is %#x", when, i, len, bytes[i] & 255);
    }
}

/* Fills the pipe piece by piece, and reads it after other memory was used. */
static void pages_leave(splicer *give, size_t at, size_t len, const char *when) {
    int fds[2];
    CALL(pipe(fds) == 0);
    static char read_back[2 * MIB];
    for (size_t done = 0; done < len;) {
        struct iovec row = {area + at + done, len - done};
        away();
        ssize_t given = give(fds[1], &row, 1, SPLICE_F_NONBLOCK);
        CALL(given > 0);
        struct iovec more = {area, PAGE};
        if ((size_t)given < len - done)
            REQUIRE(give(fds[1], &more, 1, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN, "%s: a full pipe took more", when);
        away();
        for (ssize_t came = 0; came < given;) {
            ssize_t n = read(fds[0], read_back + came, given - came);
            CALL(n > 0);
            came += n;
        }
        check_bytes(read_back, given, at + done, when);
        done += given;
    }
    CALL(close(fds[0]) == 0 && close(fds[1]) == 0);
}

/* Checks that a pipe of 16 pages accepts 16 pieces of pages, however short they are. */
static void counts(splicer *give) {
    int fds[2];
    CALL(pipe(fds) == 0);
    CALL(fcntl(fds[1], F_SETPIPE_SZ, 16 * PAGE) == (int)(16 * PAGE));
    struct iovec row[20];
    for (size_t i = 0; i < 20; i++)
        row[i] = (struct iovec){i % 3 == 2 ? near_bytes + i * 8 : area + i * MIB / 2 + PAGE - 16, i % 3 == 2 ? 8 : 32};
    away();
    ssize_t given = give(fds[1], row, 20, 0), want = 0;
    /* A piece that crosses a page border counts as two pieces. */
    for (size_t i = 0, slots = 0; i < 20 && slots < 16; i++) {
        size_t needs = i % 3 == 2 ? 1 : 2, has = needs < 16 - slots ? needs : 16 - slots;
        want += i % 3 == 2 ? 8 : 16 * has;
        slots += has;
    }
    REQUIRE(given == want, "a pipe of 16 pages took %zd bytes, not %zd", given, want);
    away();
    char bytes[1024];
    CALL(read(fds[0], bytes, sizeof bytes) == given);
    for (ssize_t i = 0, at = 0; at < given; at += row[i].iov_len, i++) {
        size_t len = row[i].iov_len < (size_t)(given - at) ? row[i].iov_len : (size_t)(given - at);
        if (i % 3 == 2)
            REQUIRE(memcmp(bytes + at, near_bytes + i * 8, len) == 0, "near bytes between far ones");
        else
            check_bytes(bytes + at, len, (char *)row[i].iov_base - area, "pieces across pages");
    }
    REQUIRE(give(fds[1], row, 0, 0) == 0, "nothing to give: %s", strerror(errno));
    REQUIRE(give(-1, row, 1, 0) == -1 && errno == EBADF, "no descriptor: %s", strerror(errno));
    struct iovec closed = {area, MIB};
    CALL(mprotect(area, PAGE, PROT_NONE) == 0);
    REQUIRE(give(fds[1], &closed, 1, SPLICE_F_NONBLOCK) == -1 && errno == EFAULT, "inaccessible: %s", strerror(errno));
    CALL(mprotect(area, PAGE, PROT_READ | PROT_WRITE) == 0);
    CALL(mprotect(area + 2 * PAGE, PAGE, PROT_NONE) == 0);
    given = give(fds[1], &closed, 1, SPLICE_F_NONBLOCK);
    REQUIRE(given == (ssize_t)(2 * PAGE), "up to what is inaccessible: %zd", given);
    CALL(mprotect(area + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    CALL(close(fds[0]) == 0 && close(fds[1]) == 0);
    int file = open("/dev/null", O_WRONLY);
    REQUIRE(give(file, &closed, 1, 0) == -1 && errno == EBADF, "not a pipe: %s", strerror(errno));
    CALL(close(file) == 0);
}

/* Moves bytes the other way: from a pipe into memory that is absent. */
static void takes(splicer *take) {
    int fds[2];
    CALL(pipe(fds) == 0);
    uint64_t *target = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(target != MAP_FAILED);
    for (size_t round = 0; round < 3; round++) {
        CALL(write(fds[1], near_bytes, 10000) == 10000);
        struct iovec row[2] = {{(char *)target + 100, 5000}, {(char *)target + 300000, 100000}};
        away();
        ssize_t came = take(fds[0], row, 2, 0);
        REQUIRE(came == 10000, "%zd of 10000 bytes came out of the pipe: %s", came, strerror(errno));
        away();
        REQUIRE(memcmp((char *)target + 100, near_bytes, 5000) == 0, "the first part out of the pipe");
        REQUIRE(memcmp((char *)target + 300000, near_bytes + 5000, 5000) == 0, "the second part out of the pipe");
        check_zero(target, 100, "before what came");
        check_zero((char *)target + 305000, MIB - 305000, "after what came");
        memset(target, 0, MIB);
    }
    CALL(close(fds[0]) == 0 && close(fds[1]) == 0 && munmap(target, MIB) == 0);
}

static int set_zero_copy(int fd, int by_name) {
    int on = 1;
    return by_name ? setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on)
                   : (int)syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
}

/* Checks that zero copy on a socket works, or is refused with the error of a socket that does not support it. */
static void sockets(int by_name) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    CALL(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
    CALL(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    CALL(connect(sender, (struct sockaddr *)&address, len) == 0);
    int receiver = accept(listener, NULL, NULL), pair[2];
    CALL(receiver >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CALL(set_zero_copy(pair[0], by_name) == -1);
    int never = errno;
    int answer = set_zero_copy(sender, by_name), error = errno;
    REQUIRE(answer == 0 || error == never, "SO_ZEROCOPY: %s, not %s", strerror(error), strerror(never));
    REQUIRE(answer == 0 || !getenv("PLAIN"), "SO_ZEROCOPY is refused in a plain run");
    /* If the socket option is not set, the flag has no effect. */
    size_t size = 100000;
    away();
    ssize_t sent = send(sender, area + 3 * MIB + 5, size, MSG_ZEROCOPY);
    CALL(sent > 0);
    away();
    static char bytes[100000];
    for (ssize_t came = 0; came < sent;) {
        ssize_t n = recv(receiver, bytes + came, sent - came, 0);
        CALL(n > 0);
        came += n;
    }
    check_bytes(bytes, sent, 3 * MIB + 5, "zero copy");
    CALL(close(listener) == 0 && close(sender) == 0 && close(receiver) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
}

int main(void) {
    area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sweep = malloc(SWEEP);
    near_bytes = malloc(20000);
    CALL(area != MAP_FAILED && sweep != NULL && near_bytes != NULL);
    fill_words((uint64_t *)area, WORDS, 1, 0);
    for (size_t i = 0; i < 20000; i++)
        near_bytes[i] = (char)(i * 7 + 1);
    for (int by = 0; by < 2; by++) {
        splicer *call = by ? by_number : by_function;
        pages_leave(call, 0, MIB / 2, "whole pages");
        pages_leave(call, 5 * MIB + 777, MIB / 2, "parts of pages");
        counts(call);
        takes(call);
        sockets(!by);
    }
    away();
    check_words((uint64_t *)area, WORDS, 1, 0, "the area afterwards");
    printf("ok splice: pipes given and taken, zero copy\n");
    return 0;
}
