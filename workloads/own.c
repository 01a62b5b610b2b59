/* own
 *
 * Accesses the program's own memory through the kernel. Some of this memory was not used for long, and some never.
 * process_vm_readv and process_vm_writev read and write the right bytes. The memory's file does so, too, or reports an
 * error. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define AREA (16 * MIB)
#define SWEEP (12 * MIB)

static char *area, *sweep, near_bytes[16384];

static void away(void) {
    static int round;
    memset(sweep, round++, SWEEP);
}

typedef ssize_t mover(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);

static ssize_t read_by_number(pid_t pid, const struct iovec *to, unsigned long tos, const struct iovec *from,
                              unsigned long froms, unsigned long flags) {
    return syscall(SYS_process_vm_readv, pid, to, tos, from, froms, flags);
}

static ssize_t write_by_number(pid_t pid, const struct iovec *from, unsigned long froms, const struct iovec *to,
                               unsigned long tos, unsigned long flags) {
    return syscall(SYS_process_vm_writev, pid, from, froms, to, tos, flags);
}

static void check_area(const char *bytes, size_t len, size_t at, const char *when) {
    for (size_t i = 0; i < len; i++) {
        uint64_t want = word(1, 0, (at + i) / 8);
        REQUIRE(bytes[i] == ((char *)&want)[(at + i) % 8], "%s: byte %zu of %zu is %#x", when, i, len, bytes[i] & 255);
    }
}

static void moves(mover *get, mover *put) {
    pid_t self = getpid();
    char *fresh = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(fresh != MAP_FAILED);
    struct iovec from[3] = {{area + 100, 5000}, {area + 3 * MIB - 7, 300000}, {near_bytes, 100}};
    struct iovec to[2] = {{fresh + 50, 200000}, {fresh + MIB + 3, 105100}};
    memset(near_bytes, 3, sizeof near_bytes);
    away();
    ssize_t n = get(self, to, 2, from, 3, 0);
    REQUIRE(n == 305100, "process_vm_readv moved %zd bytes: %s", n, strerror(errno));
    away();
    check_area(fresh + 50, 5000, 100, "the first part");
    check_area(fresh + 5050, 195000, 3 * MIB - 7, "the second part");
    check_area(fresh + MIB + 3, 105000, 3 * MIB - 7 + 195000, "the rest of the second part");
    REQUIRE(fresh[MIB + 3 + 105000] == 3 && fresh[MIB + 3 + 105099] == 3, "the near part");
    check_zero(fresh, 50, "before what was read");
    check_zero(fresh + MIB + 3 + 105100, 4096, "after what was read");
    check_zero(fresh + 200050, 4096, "between what was read");

    struct iovec whole = {area + 7 * MIB, MIB}, target = {fresh + 2 * MIB, MIB};
    away();
    n = put(self, &whole, 1, &target, 1, 0);
    REQUIRE(n == (ssize_t)MIB, "process_vm_writev moved %zd bytes: %s", n, strerror(errno));
    away();
    check_area(fresh + 2 * MIB, MIB, 7 * MIB, "written");
    check_zero(fresh + 3 * MIB, MIB, "after what was written");

    CALL(mprotect(fresh, MIB, PROT_READ) == 0);
    REQUIRE(put(self, &whole, 1, &(struct iovec){fresh, PAGE}, 1, 0) == -1 && errno == EFAULT, "read-only memory: %s",
            strerror(errno));
    CALL(mprotect(fresh, MIB, PROT_NONE) == 0);
    REQUIRE(get(self, &target, 1, &(struct iovec){fresh, PAGE}, 1, 0) == -1 && errno == EFAULT, "closed memory: %s",
            strerror(errno));
    REQUIRE(get(self, &target, 1, &(struct iovec){(void *)PAGE, PAGE}, 1, 0) == -1 && errno == EFAULT, "nothing: %s",
            strerror(errno));
    REQUIRE(get(self, &target, 1, &whole, 1, 7) == -1 && errno == EINVAL, "unknown flags: %s", strerror(errno));
    CALL(munmap(fresh, 4 * MIB) == 0);
}

/* Reads the memory's file. It must return the bytes of the memory, or an error. */
static void file(const char *path) {
    int fd = open(path, O_RDWR);
    if (fd < 0) {
        REQUIRE(errno == EACCES && getenv("HANARE_LOCAL"), "open of %s: %s", path, strerror(errno));
        REQUIRE(fopen(path, "r") == NULL && errno == EACCES, "fopen of %s: %s", path, strerror(errno));
        return;
    }
    for (size_t at = 0; at + sizeof near_bytes <= AREA; at += 777777) {
        away();
        memset(near_bytes, 0, sizeof near_bytes);
        ssize_t n = pread(fd, near_bytes, sizeof near_bytes, (off_t)(uintptr_t)(area + at));
        REQUIRE(n >= 0 || errno == EIO, "pread of memory: %s", strerror(errno));
        REQUIRE(n == sizeof near_bytes || getenv("HANARE_LOCAL"), "pread of memory is short: %zd", n);
        check_area(near_bytes, n < 0 ? 0 : n, at, "pread of memory");
        CALL(lseek(fd, (off_t)(uintptr_t)(area + at), SEEK_SET) >= 0);
        n = read(fd, near_bytes, sizeof near_bytes);
        REQUIRE(n >= 0 || errno == EIO, "read of memory: %s", strerror(errno));
        check_area(near_bytes, n < 0 ? 0 : n, at, "read of memory");
    }
    char *words = area + 5 * MIB;
    memcpy(near_bytes, words, sizeof near_bytes);
    away();
    memset(near_bytes, 9, 8);
    ssize_t n = pwrite(fd, near_bytes, 8, (off_t)(uintptr_t)words);
    REQUIRE(n == 8 || (n == -1 && errno == EIO), "pwrite of memory: %s", strerror(errno));
    away();
    if (n == 8)
        REQUIRE(memcmp(words, near_bytes, 8) == 0, "what was written to memory is not there");
    fill_words((uint64_t *)words, 1, 1, 5 * MIB / 8);
    CALL(close(fd) == 0);
}

int main(void) {
    area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sweep = malloc(SWEEP);
    CALL(area != MAP_FAILED && sweep != NULL);
    fill_words((uint64_t *)area, AREA / 8, 1, 0);
    moves(process_vm_readv, process_vm_writev);
    moves(read_by_number, write_by_number);
    char path[64];
    file("/proc/self/mem");
    snprintf(path, sizeof path, "/proc/%d/mem", getpid());
    file(path);
    snprintf(path, sizeof path, "/proc/self/task/%d/mem", (int)gettid());
    file(path);
    check_words((uint64_t *)area, AREA / 8, 1, 0, "afterwards");
    printf("ok own: process_vm_readv, process_vm_writev, files of memory\n");
    return 0;
}
