/* descriptors SIZE HOW
 *
 * Fills an array and closes every descriptor except the standard streams in the way HOW, as daemons and programs that
 * start other programs do. Then checks and changes every word of the array twice. The descriptors that it opens must
 * have the lowest free numbers, and work. HOW is one of these:
 *   range, from, loop, dup2, dup3, number, proc: the call that closes each descriptor, or replaces it by another;
 *   child, daemon: a forked child closes the descriptors, and both the child and its parent continue to use the array;
 *   exec: forked children close the descriptors and execute /bin/true;
 *   lowest: as in `range`, and then a file is opened and closed for a second;
 *   lower: the limit on descriptors is lowered below all open ones except the standard streams; then as in `range`;
 *   zero: the limit on descriptors is lowered to 0, and none is closed;
 *   full: all descriptors are used up before the array is used, and stay in use;
 *   full-fork: as in `full`, and a fork either fails or makes a child that has the array;
 *   full-first: all descriptors are used up before the array is allocated;
 *   soft-first: as in `full-first`, up to a limit that may be raised;
 *   raw: the call is made without the C library;
 *   raw-trap: only userfaultfds are closed, without the C library. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t *words;
static size_t total;
static uint64_t seed = 1;

static int is(const char *how, const char *name) {
    return strcmp(how, name) == 0;
}

static int limit(void) {
    struct rlimit limit;
    CALL(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit.rlim_cur > 4096 ? 4096 : (int)limit.rlim_cur;
}

static long raw(long number, long a, long b, long c) {
#ifdef __x86_64__
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return answer;
#else
    return syscall(number, a, b, c);
#endif
}

static void close_by_proc(void) {
    DIR *dir = opendir("/proc/self/fd");
    CALL(dir != NULL);
    int found[4096], count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) && count < 4096;)
        if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(dir))
            found[count++] = atoi(entry->d_name);
    closedir(dir);
    for (int i = 0; i < count; i++)
        close(found[i]);
}

static void close_traps(void) {
    for (int fd = 3; fd < limit(); fd++) {
        char link[32], name[64] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, name, sizeof name - 1) > 0 && strstr(name, "userfaultfd"))
            raw(SYS_close, fd, 0, 0);
    }
}

static void close_all(const char *how) {
    int end = limit(), null = open("/dev/null", O_RDWR);
    CALL(null >= 0);
    if (is(how, "range"))
        CALL(close_range(3, ~0u, 0) == 0);
    else if (is(how, "from"))
        closefrom(3);
    else if (is(how, "number")) {
        for (int fd = 3; fd < end; fd += 2)
            syscall(SYS_close, fd);
        CALL(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    } else if (is(how, "proc"))
        close_by_proc();
    else if (is(how, "raw"))
        raw(SYS_close_range, 3, ~0u, 0);
    else if (is(how, "raw-trap")) {
        close_traps();
        close(null);
    } else {
        /* The descriptors that the last two leave are their own. */
        for (int fd = 3; fd < end; fd++) {
            if (is(how, "dup2") && fd != null)
                dup2(null, fd);
            if (is(how, "dup3") && fd != null)
                dup3(null, fd, O_CLOEXEC);
            if (fd != null)
                close(fd);
        }
        close(null);
    }
}

/* Opens three files. They must get the descriptors 3, 4 and 5, and hold what is written to them. */
static void use_files(void) {
    for (int fd = 3; fd < 6; fd++) {
        int got = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), found = 0;
        REQUIRE(got == fd, "a file opened as %d, not as %d", got, fd);
        CALL(write(got, &fd, sizeof fd) == sizeof fd && pread(got, &found, sizeof found, 0) == sizeof found);
        REQUIRE(found == fd, "a file holds %d, not %d", found, fd);
    }
    for (int fd = 3; fd < 6; fd++) {
        CALL(close(fd) == 0);
        REQUIRE(close(fd) == -1 && errno == EBADF, "closed twice");
    }
}

/* Opens and closes a file for a second. It must get the lowest free number each time. */
static void use_lowest(void) {
    struct timespec now, end;
    long rounds = 0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec++;
    do {
        int got = open("/dev/null", O_RDONLY | O_CLOEXEC);
        REQUIRE(got == 3, "in round %ld, a file opened as %d, not as 3", rounds, got);
        CALL(close(got) == 0);
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

static void use_words(const char *when) {
    check_words(words, total, seed, 0, when);
    seed++;
    fill_words(words, total, seed, 0);
    check_words(words, total, seed, 0, when);
}

/* Waits for a child. Its exit code must be 0. */
static void wait_for(pid_t child) {
    int status;
    CALL(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status), "the child was killed by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) != 0)
        _Exit(WEXITSTATUS(status));
}

static pid_t begin(pid_t child) {
    CALL(child >= 0);
    return child;
}

static int use_up(int *taken, int most) {
    int count = 0;
    while (count < most && (taken[count] = dup(2)) >= 0)
        count++;
    REQUIRE(count < most, "there is no end of descriptors");
    return count;
}

static void in_child(const char *how) {
    pid_t child = begin(fork());
    if (child == 0) {
        if (is(how, "daemon"))
            CALL(daemon(1, 1) == 0);
        else {
            close_all("range");
            use_files();
            use_words("in the child");
        }
        use_words("in the child");
        _exit(0);
    }
    use_words("beside a child");
    wait_for(child);
}

static void in_programs(void) {
    for (volatile int round = 0; round < 4; round++) {
        pid_t child = begin(round % 2 ? vfork() : fork());
        if (child == 0) {
            for (int fd = 3; fd < 1024; fd++)
                close(fd);
            if (round < 2)
                close_range(3, ~0u, 0);
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        wait_for(child);
        use_words("after a program was executed");
    }
}

static void with_none_left(const char *how) {
    struct rlimit few = {.rlim_cur = 256, .rlim_max = 256};
    static int taken[4096];
    CALL(setrlimit(RLIMIT_NOFILE, &few) == 0);
    int count = use_up(taken, 4096);
    use_words("with no descriptor left");
    if (is(how, "full-fork")) {
        pid_t child = fork();
        REQUIRE(child >= 0 || errno == EAGAIN || errno == ENOMEM, "fork: %s", strerror(errno));
        if (child == 0) {
            use_words("in a child with no descriptor left");
            _exit(0);
        }
        if (child > 0)
            wait_for(child);
        /* With some descriptors free again, a fork succeeds. */
        while (count > 128)
            close(taken[--count]);
        in_child("range");
        CALL(use_up(taken + count, 4096 - count) > 0);
        use_words("with none left again");
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: descriptors SIZE HOW\n");
        return 2;
    }
    const char *how = argv[2];
    total = parse_size(argv[1]) / sizeof *words;
    if (is(how, "full-first") || is(how, "soft-first")) {
        static int taken[4096];
        struct rlimit few = {.rlim_cur = 256, .rlim_max = is(how, "full-first") ? 256 : 1 << 14};
        CALL(setrlimit(RLIMIT_NOFILE, &few) == 0);
        use_up(taken, 4096);
    }
    words = malloc(total * sizeof *words);
    if (!words && is(how, "full-first")) {
        printf("ok descriptors: ENOMEM\n");
        return 0;
    }
    CALL(words != NULL);
    fill_words(words, total, seed, 0);
    if (is(how, "child") || is(how, "daemon"))
        in_child(how);
    else if (is(how, "exec"))
        in_programs();
    else if (is(how, "full") || is(how, "full-fork"))
        with_none_left(how);
    else if (is(how, "lower")) {
        struct rlimit few = {.rlim_cur = 8, .rlim_max = 1 << 14};
        CALL(setrlimit(RLIMIT_NOFILE, &few) == 0);
        in_child(how);
        few.rlim_max = 8;
        CALL(setrlimit(RLIMIT_NOFILE, &few) == 0);
        close_all("range");
        use_files();
    } else if (is(how, "zero")) {
        struct rlimit none = {.rlim_cur = 0, .rlim_max = 0};
        CALL(setrlimit(RLIMIT_NOFILE, &none) == 0);
    } else if (is(how, "lowest")) {
        close_all("range");
        use_lowest();
    } else if (!is(how, "full-first") && !is(how, "soft-first")) {
        close_all(how);
        if (!is(how, "raw-trap"))
            use_files();
    }
    use_words("at the end");
    use_words("at the end");
    printf("ok descriptors: %s\n", how);
    return 0;
}
