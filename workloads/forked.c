/* forked stacks|far|parted|lost|often FILE
 *
 * Forks from odd places. `stacks`: on the smallest stack that a thread may have, and on a coroutine's stack of 8 KiB,
 * below which nothing may be written. `far`: on a coroutine's stack of 256 KiB, which may be far. `parted`: with
 * mappings that were shortened to 161 pages, after most of their pages were evicted. Parent and child write to them,
 * and neither sees the other's writes. `lost`: just after the run's private memory server was killed. The child cannot
 * have its parent's pages. It runs without them, and ends with 120 when it reads one. `often`: threads write to far
 * memory and fork, until there is a file FILE. Their children and those children's children check and write pages. */
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define EVICTING (32 * MIB)
#define BELOW ((size_t)64 << 10)
#define LITTLE 8192

static unsigned char *bytes;

/* Writes to much memory, so that other pages are evicted. */
static void evict(void) {
    for (size_t at = 0; at < EVICTING; at += PAGE)
        bytes[at]++;
}

static void *map(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(memory != MAP_FAILED);
    return memory;
}

static void finish(pid_t child) {
    int status;
    CALL(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(!WIFSIGNALED(status), "a child ended with signal %d", WTERMSIG(status));
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a child ended with status %#x", (unsigned)status);
}

/* Has children that use the stack again after the fork, and the far memory. */
static void fork_twice(void) {
    evict();
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            bytes[0]++;
            _exit(3);
        }
        finish(child);
    }
}

static void *fork_in_thread(void *unused) {
    fork_twice();
    return unused;
}

static ucontext_t caller, coroutine;

static void run_on(char *stack, size_t size) {
    CALL(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = size;
    coroutine.uc_link = &caller;
    makecontext(&coroutine, fork_twice, 0);
    CALL(swapcontext(&caller, &coroutine) == 0);
}

static void stacks(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    CALL((errno = pthread_attr_init(&attributes)) == 0);
    CALL((errno = pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN))) == 0);
    CALL((errno = pthread_create(&thread, &attributes, fork_in_thread, NULL)) == 0);
    CALL((errno = pthread_join(thread, NULL)) == 0);
    static char memory[BELOW + LITTLE] __attribute__((aligned(16)));
    run_on(memory + BELOW, LITTLE);
    check_zero(memory, BELOW, "below the stack");
}

static void far(void) {
    size_t size = 256 << 10;
    char *stack = map(size);
    run_on(stack, size);
}

#define COUNT 16
#define OWNED 161

static uint64_t *part[COUNT];

static void write_parts(uint64_t seed) {
    for (size_t n = 0; n < COUNT; n++)
        fill_words(part[n], OWNED * PAGE / 8, seed, n << 20);
}

static void check_parts(uint64_t seed, const char *when) {
    for (size_t n = 0; n < COUNT; n++)
        check_words(part[n], OWNED * PAGE / 8, seed, n << 20, when);
}

static void parted(void) {
    for (size_t n = 0; n < COUNT; n++) {
        part[n] = map(MIB);
        CALL(munmap((char *)part[n] + OWNED * PAGE, MIB - OWNED * PAGE) == 0);
    }
    write_parts(1);
    evict();
    check_parts(1, "before the fork");
    pid_t child = fork();
    if (child == 0) {
        check_parts(1, "in the child");
        write_parts(2);
        evict();
        check_parts(2, "written by the child");
        _exit(3);
    }
    write_parts(3);
    finish(child);
    check_parts(3, "written by the parent");
}

/* Uses small memory and the stack. Then reads a page that only the parent has. */
static int live_without(void) {
    volatile char stack[LITTLE];
    for (size_t at = 0; at < LITTLE; at++)
        stack[at] = 1;
    char *own = strdup("a child without its parent's memory runs\n");
    CALL(own != NULL && write(STDOUT_FILENO, own, strlen(own)) == (ssize_t)strlen(own));
    free(own);
    return bytes[0] == stack[0] ? 4 : 5;
}

/* Returns the process of the private memory server, whose files are in this run's TMPDIR. */
static pid_t find_server(void) {
    char path[64], words[4096], socket[512];
    snprintf(socket, sizeof socket, "%s/", getenv("TMPDIR"));
    DIR *all = opendir("/proc");
    CALL(all != NULL);
    for (struct dirent *entry; (entry = readdir(all));) {
        snprintf(path, sizeof path, "/proc/%.20s/cmdline", entry->d_name);
        int file = open(path, O_RDONLY);
        ssize_t length = file < 0 ? 0 : read(file, words, sizeof words - 1);
        if (file >= 0)
            close(file);
        if (length > 0 && memmem(words, (size_t)length, "--private", sizeof "--private") &&
            memmem(words, (size_t)length, socket, strlen(socket)))
            return (pid_t)strtol(entry->d_name, NULL, 10);
    }
    REQUIRE(0, "there is no private memory server for %s", socket);
}

static void lost(void) {
    /* The kernel places a new mapping into the highest gap. From now on this is the parent's far memory, in a child that
     * has not inherited it. */
    for (int n = 0; n < 4096 && (unsigned char *)map(128 << 10) > bytes; n++)
        ;
    evict();
    CALL(kill(find_server(), SIGKILL) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(live_without());
    int status;
    CALL(child > 0 && waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 120, "the child ended with status %#x", (unsigned)status);
}

#define FORKERS 3
#define PAGES (EVICTING / PAGE / FORKERS)
#define LOOKS 40

static const char *end_file;
static uint64_t *versions[FORKERS];

/* Checks a random page of a thread, then writes its next version. */
static void check_and_write(size_t forker, uint64_t *random, const char *when) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    size_t page = (*random >> 33) % PAGES;
    uint64_t *words = (uint64_t *)(bytes + (page * FORKERS + forker) * PAGE), *version = versions[forker] + page;
    if (*version > 0)
        check_words(words, PAGE / 8, *version, page, when);
    else
        check_zero(words, PAGE, when);
    fill_words(words, PAGE / 8, ++*version, page);
}

static void *write_and_fork(void *of) {
    size_t forker = (size_t)of;
    uint64_t random = forker;
    for (int round = 1; access(end_file, F_OK) != 0; round++) {
        for (int look = 0; look < 5 * LOOKS; look++)
            check_and_write(forker, &random, "in the parent");
        pid_t child = fork();
        if (child == 0) {
            for (int look = 0; look < LOOKS; look++)
                check_and_write(forker, &random, "in a child");
            pid_t next = round % 4 == 0 ? fork() : 1;
            for (int look = 0; look < LOOKS; look++)
                check_and_write(forker, &random, next == 0 ? "in a child's child" : "in a child after its fork");
            if (next > 1)
                finish(next);
            _exit(3);
        }
        finish(child);
    }
    return NULL;
}

static void often(void) {
    pthread_t threads[FORKERS];
    alarm(600); /* Nothing else ends this program if its test is killed. */
    for (size_t n = 0; n < FORKERS; n++)
        versions[n] = calloc(PAGES, sizeof *versions[n]);
    for (size_t n = 0; n < FORKERS; n++)
        CALL(versions[n] != NULL && (errno = pthread_create(threads + n, NULL, write_and_fork, (void *)n)) == 0);
    for (size_t n = 0; n < FORKERS; n++)
        CALL((errno = pthread_join(threads[n], NULL)) == 0);
}

int main(int argc, char **argv) {
    bytes = map(EVICTING);
    const char *which = argc >= 2 ? argv[1] : "";
    end_file = argv[argc - 1];
    if (strcmp(which, "stacks") == 0) {
        stacks();
    } else if (strcmp(which, "far") == 0) {
        far();
    } else if (strcmp(which, "parted") == 0) {
        parted();
    } else if (strcmp(which, "lost") == 0) {
        lost();
    } else if (strcmp(which, "often") == 0 && argc == 3) {
        often();
    } else {
        fputs("usage: forked stacks|far|parted|lost|often FILE\n", stderr);
        return 2;
    }
    printf("ok forked: %s\n", which);
    return 0;
}
