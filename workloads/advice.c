/* advice
 *
 * Gives every advice of madvise, and mseal, on a large mapping that was not used for long. Each advice has its effect,
 * which is checked, or is refused. A refusal changes nothing. A child forked afterwards has the parent's words. */
#define _GNU_SOURCE
#include "check.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define AREA (16 * MIB)
#define PART MIB
#define WORDS (PART / 8)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif
#define MADV_UNKNOWN 90

static char *area, *sweep;
static size_t parts;

static int by_function(void *start, size_t len, int advice) { return madvise(start, len, advice); }

static int by_number(void *start, size_t len, int advice) { return (int)syscall(SYS_madvise, start, len, advice); }

/* Gives an advice to this process itself, by its pidfd. Since Linux 6.13, the kernel accepts every advice in
 * this way. */
static int by_process(void *start, size_t len, int advice) {
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    CALL(self >= 0);
    struct iovec ranges[2] = {{start, len / 2}, {(char *)start + len / 2, len - len / 2}};
    long answer = syscall(SYS_process_madvise, self, ranges, 2L, (long)advice, 0L);
    int error = errno;
    CALL(close(self) == 0);
    errno = error;
    REQUIRE(answer == -1 || answer == (long)len, "process_madvise of %zu bytes advised %ld", len, answer);
    return answer == -1 ? -1 : 0;
}

static void away(void) {
    for (size_t i = 0; i < 12 * MIB; i += PAGE)
        sweep[i]++;
}

/* Returns the next part of the area. The part holds its own words and was not used for long. */
static uint64_t *next_part(void) {
    uint64_t *part = (uint64_t *)(area + parts * PART);
    fill_words(part, WORDS, 1, parts * WORDS);
    away();
    parts = (parts + 1) % (AREA / PART);
    return part;
}

static void check_part(uint64_t *part, const char *when) {
    check_words(part, WORDS, 1, ((char *)part - area) / 8, when);
}

enum found { ENDED, ZEROES, SAME };

/* Forks a child that reads a part. Returns whether the child was ended by a signal, or found zeroes or the parent's
 * words. */
static enum found in_child(uint64_t *part, const char *what) {
    fflush(stdout);
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        uint64_t first = part[0];
        if (first == 0)
            check_zero(part, PART, what);
        else
            check_part(part, what);
        _exit(first == 0 ? 10 : 11);
    }
    int status;
    CALL(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status))
        return ENDED;
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) >= 10, "%s: the child ended with status %#x", what, status);
    return WEXITSTATUS(status) == 10 ? ZEROES : SAME;
}

typedef int advisor(void *, size_t, int);

/* Checks an advice that keeps the contents. If the advice may be refused, it must fail with `refusal` or EINVAL. */
static void keeps(advisor *advise, int advice, int refusal, const char *name) {
    uint64_t *part = next_part();
    int answer = advise(part, PART, advice);
    REQUIRE(answer == 0 || (refusal && (errno == refusal || errno == EINVAL)), "%s: %s", name, strerror(errno));
    check_part(part, name);
}

static void drops(advisor *advise, int advice, const char *name) {
    uint64_t *part = next_part();
    int answer = advise(part, PART, advice);
    if (answer != 0) {
        REQUIRE(errno == EINVAL, "%s: %s", name, strerror(errno));
        check_part(part, name);
    } else if (advice == MADV_DONTNEED) {
        check_zero(part, PART, name);
    } else { /* the kernel may drop each page, or keep it */
        for (size_t i = 0; i < PART / PAGE; i++)
            if (part[i * PAGE / 8] == 0)
                check_zero(part + i * PAGE / 8, PAGE, name);
    }
}

static void forks(advisor *advise, int advice, int undo, enum found promised, const char *name) {
    uint64_t *part = next_part();
    int answer = advise(part, PART, advice);
    REQUIRE(answer == 0 || errno == EINVAL, "%s: %s", name, strerror(errno));
    enum found found = in_child(part, name);
    REQUIRE(found == (answer == 0 ? promised : SAME), "%s answered %d, and the child found %d", name, answer, found);
    REQUIRE(advise(part, PART, undo) == 0 || errno == EINVAL, "undoing %s: %s", name, strerror(errno));
    check_part(part, name);
    REQUIRE(in_child(part, name) == SAME, "%s undone: the child has other words", name);
}

static volatile sig_atomic_t hits;

static void open_again(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    hits++;
    char *page = (char *)((uintptr_t)info->si_addr & -PAGE);
    if (madvise(page, PAGE, MADV_GUARD_REMOVE) != 0)
        _exit(9);
}

static void guards(advisor *advise) {
    uint64_t *part = next_part();
    if (advise(part, PART, MADV_GUARD_INSTALL) != 0) {
        REQUIRE(errno == EINVAL, "MADV_GUARD_INSTALL: %s", strerror(errno));
        check_part(part, "MADV_GUARD_INSTALL refused");
        REQUIRE(advise(part, PART, MADV_GUARD_REMOVE) == -1 && errno == EINVAL, "MADV_GUARD_REMOVE alone");
        check_part(part, "MADV_GUARD_REMOVE refused");
        return;
    }
    struct sigaction action = {.sa_sigaction = open_again, .sa_flags = SA_SIGINFO}, before;
    CALL(sigaction(SIGSEGV, &action, &before) == 0);
    hits = 0;
    REQUIRE(*(volatile uint64_t *)part == 0 && hits == 1, "a guard page was read without a signal");
    CALL(sigaction(SIGSEGV, &before, NULL) == 0);
    CALL(advise(part, PART, MADV_GUARD_REMOVE) == 0);
    check_zero(part, PART, "behind guards");
}

static size_t resident(void *start, size_t len) {
    unsigned char pages[PART / PAGE];
    CALL(mincore(start, len, pages) == 0);
    size_t count = 0;
    for (size_t i = 0; i < len / PAGE; i++)
        count += pages[i] & 1;
    return count;
}

/* Checks that populating brings the pages, and that it refuses memory that must not be accessed. How many of the pages
 * stay depends on the policy, and on how much of the budget children and locked pages leave. */
static void populates(advisor *advise) {
    uint64_t *part = next_part();
    CALL(advise(part, PART, MADV_POPULATE_READ) == 0);
    size_t there = resident(part, PART);
    REQUIRE(there > 0, "MADV_POPULATE_READ: %zu of %zu pages are there", there, PART / PAGE);
    check_part(part, "MADV_POPULATE_READ");
    part = next_part();
    CALL(advise(part, PART, MADV_POPULATE_WRITE) == 0);
    check_part(part, "MADV_POPULATE_WRITE");
    CALL(mprotect(part, PART, PROT_READ) == 0);
    REQUIRE(advise(part, PART, MADV_POPULATE_WRITE) == -1 && (errno == EINVAL || errno == EFAULT),
            "MADV_POPULATE_WRITE where nothing may be written: %s", strerror(errno));
    CALL(advise(part, PART, MADV_POPULATE_READ) == 0);
    CALL(mprotect(part, PART, PROT_READ | PROT_WRITE) == 0);
    check_part(part, "MADV_POPULATE_WRITE refused");
    char *fresh = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(fresh != MAP_FAILED && advise(fresh, PART, MADV_POPULATE_WRITE) == 0);
    there = resident(fresh, PART);
    REQUIRE(there > 0, "MADV_POPULATE_WRITE: %zu of %zu pages are there", there, PART / PAGE);
    check_zero(fresh, PART, "fresh and populated");
    CALL(munmap(fresh + PART / 2, PART / 2) == 0);
    REQUIRE(advise(fresh, PART, MADV_POPULATE_READ) == -1 && errno == ENOMEM, "populating what is not mapped: %s",
            strerror(errno));
    REQUIRE(advise(fresh, PART, MADV_NORMAL) == -1 && errno == ENOMEM, "advice on what is not mapped: %s",
            strerror(errno));
    CALL(munmap(fresh, PART / 2) == 0);
}

static void all(advisor *advise) {
#define KEEPS(advice, refusal) keeps(advise, advice, refusal, #advice)
    KEEPS(MADV_NORMAL, 0);
    KEEPS(MADV_RANDOM, 0);
    KEEPS(MADV_SEQUENTIAL, 0);
    KEEPS(MADV_WILLNEED, EBADF);
    KEEPS(MADV_MERGEABLE, EINVAL);
    KEEPS(MADV_UNMERGEABLE, EINVAL);
    KEEPS(MADV_HUGEPAGE, EINVAL);
    KEEPS(MADV_NOHUGEPAGE, EINVAL);
    KEEPS(MADV_COLLAPSE, EAGAIN);
    KEEPS(MADV_DONTDUMP, 0);
    KEEPS(MADV_DODUMP, 0);
    KEEPS(MADV_COLD, 0);
    KEEPS(MADV_PAGEOUT, 0);
    KEEPS(MADV_KEEPONFORK, 0);
    KEEPS(MADV_DOFORK, 0);
    drops(advise, MADV_DONTNEED, "MADV_DONTNEED");
    drops(advise, MADV_FREE, "MADV_FREE");
    forks(advise, MADV_DONTFORK, MADV_DOFORK, ENDED, "MADV_DONTFORK");
    forks(advise, MADV_WIPEONFORK, MADV_KEEPONFORK, ZEROES, "MADV_WIPEONFORK");
    guards(advise);
    uint64_t *part = next_part();
    REQUIRE(advise(part, PART, MADV_REMOVE) == -1 && errno == EINVAL, "MADV_REMOVE: %s", strerror(errno));
    REQUIRE(advise(part, PART, MADV_UNKNOWN) == -1 && errno == EINVAL, "unknown advice: %s", strerror(errno));
    /* Without Hanare, these advices poison the machine's memory, so they are tested only under Hanare. */
    if (getenv("HANARE_LOCAL"))
        for (int advice = MADV_HWPOISON; advice <= MADV_SOFT_OFFLINE; advice++)
            REQUIRE(advise(part, PART, advice) == -1 && (errno == EINVAL || errno == EPERM), "advice %d: %s", advice,
                    strerror(errno));
    check_part(part, "refused advice");
}

static void seals(void) {
    uint64_t *part = next_part();
    long answer = syscall(SYS_mseal, part, PART, 0L);
    REQUIRE(answer == 0 || errno == ENOSYS || errno == EPERM, "mseal: %s", strerror(errno));
    check_part(part, "mseal");
    REQUIRE(in_child(part, "mseal") == SAME, "the child of a process that sealed memory has other words");
    if (answer == 0)
        REQUIRE(munmap(part, PART) == -1 && errno == EPERM, "sealed memory was unmapped");
    part[0] ^= 1, part[0] ^= 1;
    check_part(part, "after mseal and fork");
}

/* Checks that the calls that manage memory have the same effect if they are made by number. */
static void numbers(void) {
    uint64_t *part = next_part();
    CALL(syscall(SYS_mprotect, part, PART, (long)PROT_READ) == 0);
    check_part(part, "mprotect by number");
    CALL(syscall(SYS_mprotect, part, PART, (long)(PROT_READ | PROT_WRITE)) == 0);
    part[0] ^= 1, part[0] ^= 1;
    char *fresh = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(fresh != MAP_FAILED);
    memset(fresh, 5, 4 * MIB);
    void *over = fresh + MIB;
    long flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CALL((void *)syscall(SYS_mmap, over, MIB, (long)(PROT_READ | PROT_WRITE), flags, -1L, 0L) == over);
    check_zero(over, MIB, "mapped over by number");
    REQUIRE(fresh[MIB - 1] == 5 && fresh[2 * MIB] == 5, "beside what was mapped over by number");
    away();
    char *moved = (char *)syscall(SYS_mremap, fresh, 4 * MIB, 6 * MIB, (long)MREMAP_MAYMOVE, NULL);
    CALL(moved != MAP_FAILED);
    REQUIRE(moved[0] == 5 && moved[MIB] == 0 && moved[4 * MIB - 1] == 5 && moved[5 * MIB] == 0, "mremap by number");
    CALL(syscall(SYS_munmap, moved, 6 * MIB) == 0);
    away();
    check_part(part, "after calls by number");
}

int main(void) {
    area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sweep = malloc(12 * MIB);
    CALL(area != MAP_FAILED && sweep != NULL);
    memset(sweep, 1, 12 * MIB);
    all(by_function);
    all(by_number);
    all(by_process);
    populates(by_function);
    populates(by_number);
    numbers();
    seals();
    printf("ok advice: every advice three ways, calls by number, mseal\n");
    return 0;
}
