/* locked HOW SIZE
 *
 * Keeps a known text in SIZE bytes of locked memory while it uses much other memory, checks the text, and then waits until
 * it is killed. HOW is
 *   mlock, mlock2, number  how the memory is locked: by a function, with MLOCK_ONFAULT, or by the number of the call
 *   dontdump               by MADV_DONTDUMP
 *   moved                  by mlock. mremap moves it while it grows
 *   neighbour              by mlock. So is a part before it, which is unlocked again
 *   within                 by MADV_DONTDUMP, within a large mapping that is then dropped as a whole
 *   child                  by mlock, and a child and its parent go on with it
 *   unlocked               by mlock, until munlock ends it
 *   all                    by mlock, until munlockall ends it
 *   none                   not at all */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif
#define OTHER (24 * MIB)

static const char TEXT[] = "what no memory server may see |\n";
static char *secret;
static uint64_t *other;
static size_t size;

static void *map(size_t len) {
    void *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(start != MAP_FAILED);
    return start;
}

static void check(const char *when) {
    for (size_t i = 0; i < size; i++)
        REQUIRE(secret[i] == TEXT[i % (sizeof TEXT - 1)], "%s: byte %zu is %#x", when, i, secret[i]);
}

static void fill(void) {
    for (size_t i = 0; i < size; i++)
        secret[i] = TEXT[i % (sizeof TEXT - 1)];
}

static void use_other_memory(void) {
    for (int pass = 0; pass < 2; pass++)
        check_words(other, OTHER / 8, 1, 0, "other memory");
}

static void lock(const char *how) {
    if (!strcmp(how, "mlock2")) {
        CALL(mlock2(secret, size, MLOCK_ONFAULT) == 0);
    } else if (!strcmp(how, "number")) {
        CALL(syscall(SYS_mlock, secret + 1, size - 2) == 0);
    } else if (!strcmp(how, "dontdump") || !strcmp(how, "within")) {
        CALL(madvise(secret, size, MADV_DONTDUMP) == 0);
    } else if (strcmp(how, "none") != 0) {
        CALL(mlock(secret, size) == 0);
    }
}

/* Drops the text and writes it again. The kernel refuses to drop memory that mlock locked, and then the text is still
 * there. */
static void drop(const char *how) {
    if (madvise(secret, size, MADV_DONTNEED) == 0)
        check_zero(secret, size, "after MADV_DONTNEED");
    else
        REQUIRE(errno == EINVAL && strcmp(how, "dontdump") != 0, "MADV_DONTNEED: %s", strerror(errno));
    fill();
}

static void drop_around(char *start) {
    memset(start, 7, OTHER);
    CALL(madvise(start, OTHER, MADV_DONTNEED) == 0);
    check_zero(start, OTHER, "after MADV_DONTNEED of the whole");
    fill();
}

static void move(void) {
    /* Something behind the text keeps it from growing where it is. */
    char *moved = mremap(secret, size, 2 * size, MREMAP_MAYMOVE);
    CALL(moved != MAP_FAILED);
    secret = moved;
    check("moved");
    size *= 2;
    fill();
}

static void unlock_neighbour(void) {
    memset(secret, 0, PAGE);
    secret += PAGE;
    size -= PAGE;
    CALL(munlock(secret - PAGE, PAGE) == 0);
    fill();
}

static void go_on_in_a_child(void) {
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        use_other_memory();
        check("in the child");
        _exit(0);
    }
    int status;
    CALL(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0, "the child ended with %#x", status);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: locked HOW SIZE\n");
        return 2;
    }
    const char *how = argv[1];
    size = parse_size(argv[2]);
    other = map(OTHER);
    fill_words(other, OTHER / 8, 1, 0);
    int is_within = !strcmp(how, "within");
    char *around = map(is_within ? OTHER : size);
    secret = around + (is_within ? 4 * MIB : 0);
    lock(how);
    if (is_within)
        drop_around(around);
    fill();
    use_other_memory();
    check("after other memory");
    if (!strcmp(how, "mlock") || !strcmp(how, "dontdump"))
        drop(how);
    if (!strcmp(how, "child"))
        go_on_in_a_child();
    if (!strcmp(how, "moved"))
        move();
    if (!strcmp(how, "neighbour"))
        unlock_neighbour();
    if (!strcmp(how, "unlocked"))
        CALL(munlock(secret, size) == 0);
    if (!strcmp(how, "all"))
        CALL(munlockall() == 0);
    use_other_memory();
    puts("ok locked");
    CALL(fflush(stdout) == 0);
    for (;;)
        pause();
}
