/* foreign WAY [SECONDS [PAGES]]
 *
 * The program's only thread reads PAGES (2048) pages of 4096 bytes in random order. Meanwhile two other processes write
 * words to the same pages. WAY is one of these:
 *
 *   shares   the processes share the program's memory (clone with CLONE_VM) and store to it
 *   calls    they call process_vm_writev and process_vm_readv
 *
 * Each process reads its word of a page before it writes the next one there. After SECONDS (2) the program reads all
 * words. No written word may be lost, and the other words of the pages stay. Calls that are refused with EFAULT
 * write nothing. The program prints `ok foreign`, or says which word was lost. The exit code is 77 if WAY is
 * refused. */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WRITERS = 2, PAGE_WORDS = 512, PROBED = 5, SKIPPED = 77, STACK = 64 << 10 };

/* The memory that all processes use. */
struct board {
    atomic_int is_over, writes, refusals;
    uint64_t last[]; /* The word that was written last to each page. */
};

static struct board *board;
static volatile uint64_t *pages;
static size_t count = 2048;
static const char *way;
static pid_t program;

/* Reads or writes the first word of a page. Returns 0 if the call was refused. */
static int carry(size_t page, uint64_t *word, int is_write) {
    uint64_t *there = (uint64_t *)&pages[page * PAGE_WORDS];
    if (strcmp(way, "shares") == 0) {
        if (is_write)
            pages[page * PAGE_WORDS] = *word;
        else
            *word = pages[page * PAGE_WORDS];
        return 1;
    }
    struct iovec here = {word, sizeof *word}, far = {there, sizeof *word};
    ssize_t done = is_write ? process_vm_writev(program, &here, 1, &far, 1, 0)
                            : process_vm_readv(program, &here, 1, &far, 1, 0);
    if (done == sizeof *word)
        return 1;
    if (done < 0 && (errno == ENOSYS || errno == EPERM))
        _exit(SKIPPED);
    REQUIRE(done < 0 && errno == EFAULT, "%s: %zd, %s", way, done, strerror(errno));
    atomic_fetch_add(&board->refusals, 1);
    return 0;
}

/* Writes to every second page until the time is over. */
static int write_pages(void *index) {
    size_t own = (size_t)(uintptr_t)index;
    CALL(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    uint64_t seed = own + 1;
    while (!atomic_load(&board->is_over)) {
        seed = word(seed, 0, 0);
        size_t page = seed % (count / WRITERS) * WRITERS + own;
        uint64_t found;
        if (!carry(page, &found, 0))
            continue;
        REQUIRE(found == board->last[page], "%s: page %zu has %#llx, not %#llx", way, page, (unsigned long long)found,
                (unsigned long long)board->last[page]);
        if (carry(page, &seed, 1)) {
            board->last[page] = seed;
            atomic_fetch_add(&board->writes, 1);
        }
    }
    _exit(0);
}

/* Returns memory that is never far: the kernel shares it among processes. */
static void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CALL(memory != MAP_FAILED);
    return memory;
}

static pid_t start(size_t index) {
    void *argument = (void *)(uintptr_t)index;
    if (strcmp(way, "shares") == 0)
        return clone(write_pages, (char *)shared_memory(STACK) + STACK, CLONE_VM | SIGCHLD, argument);
    pid_t pid = fork();
    if (pid == 0)
        write_pages(argument);
    return pid;
}

/* Reads pages while the writers write to them. */
static void read_for(double seconds) {
    struct timespec now, begin;
    CALL(clock_gettime(CLOCK_MONOTONIC, &begin) == 0);
    uint64_t seed = 7;
    do {
        for (int turn = 0; turn < 100; turn++) {
            seed = word(seed, 0, 0);
            size_t at = seed % count * PAGE_WORDS + PROBED;
            REQUIRE(pages[at] == word(1, 0, at), "word %zu of the program", at);
        }
        CALL(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    } while ((double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
}

int main(int argc, char **argv) {
    REQUIRE(argc > 1, "usage: foreign WAY [SECONDS [PAGES]]");
    way = argv[1];
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    count = argc > 3 ? strtoul(argv[3], NULL, 10) : count;
    board = shared_memory(sizeof *board + count * sizeof board->last[0]);
    void *far = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(far != MAP_FAILED);
    pages = far;
    fill_words(far, count * PAGE_WORDS, 1, 0);
    for (size_t page = 0; page < count; page++)
        board->last[page] = pages[page * PAGE_WORDS];
    program = getpid();
    /* Ignored: a kernel without Yama has no such call, and lets children of the same user in anyway. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    for (size_t index = 0; index < WRITERS; index++)
        CALL(start(index) > 0);
    read_for(seconds);
    atomic_store(&board->is_over, 1);
    for (size_t index = 0; index < WRITERS; index++) {
        int status;
        CALL(wait(&status) > 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
            return printf("skipped: %s is refused\n", way), SKIPPED;
        REQUIRE(status == 0, "a writer ended with status %#x", (unsigned)status);
    }
    for (size_t at = 0; at < count * PAGE_WORDS; at++) {
        uint64_t want = at % PAGE_WORDS ? word(1, 0, at) : board->last[at / PAGE_WORDS];
        REQUIRE(pages[at] == want, "word %zu is %#llx, not %#llx", at, (unsigned long long)pages[at],
                (unsigned long long)want);
    }
    REQUIRE(board->writes > 0 || board->refusals > 0, "nothing was written");
    puts("ok foreign");
    return 0;
}
