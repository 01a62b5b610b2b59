/* forks [SIZE] [CHILDREN | --killed | --outlive GO SAID]
 *
 * A child has its parent's large arrays (SIZE, 64M) as they were at the fork. It reads the arrays, writes its own
 * words into them and frees them, while the parent writes other words. Neither sees the other's writes. The test
 * covers children of children, CHILDREN (4) at a time, a child that outlives its parent, and a child forked while
 * other threads write. All of this works with and without Hanare. Under Hanare, a signal may end a child made by a
 * bare system call, but the child reads no wrong bytes.
 *
 * With --killed, there is only a child that is killed while both write. With --outlive, the program ends, and its
 * child continues when there is a file GO. The child writes its result into SAID. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static size_t size = 64 * MIB;
static size_t count; /* words of the array */
static int children = 4;
static uint64_t *array;

static int finish(pid_t child) {
    int status;
    CALL(waitpid(child, &status, 0) == child);
    return status;
}

static void expect_success(pid_t child, const char *what) {
    int status = finish(child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: child ended with %s %d", what,
            WIFEXITED(status) ? "exit code" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static pid_t forked(void) {
    fflush(stdout);
    pid_t child = fork();
    CALL(child >= 0);
    return child;
}

/* Returns the expected word after a process rewrote the words with `index % every == which`. */
static uint64_t mixed(uint64_t old, uint64_t new, size_t index, size_t every, size_t which) {
    return word(index % every == which ? new : old, 0, index);
}

static void write_every(size_t every, size_t which, uint64_t seed) {
    for (size_t i = which; i < count; i += every)
        array[i] = word(seed, 0, i);
}

static void check_mixed(uint64_t old, uint64_t new, size_t every, size_t which, const char *when) {
    for (size_t i = 0; i < count; i++)
        REQUIRE(array[i] == mixed(old, new, i, every, which), "%s: word %zu at %p is %#llx", when, i,
                (void *)&array[i], (unsigned long long)array[i]);
}

/* Checks a few words at places that `seed` chooses. */
static void check_some(uint64_t version, uint64_t seed, const char *when) {
    for (size_t n = 0; n < 200; n++) {
        size_t i = word(seed, 7, n) % count;
        REQUIRE(array[i] == word(version, 0, i), "%s: word %zu at %p is %#llx", when, i, (void *)&array[i],
                (unsigned long long)array[i]);
    }
}

/* Parent and child write at the same time. They write some words or all words, densely or one word in a page. */
static void both_write(size_t every, const char *what) {
    fill_words(array, count, 10, 0);
    pid_t child = forked();
    if (child == 0) {
        write_every(every, every / 3, 11);
        check_mixed(10, 11, every, every / 3, what);
        _exit(0);
    }
    write_every(every, every / 2, 12);
    check_mixed(10, 12, every, every / 2, what);
    expect_success(child, what);
    check_mixed(10, 12, every, every / 2, what);
}

static void several_at_a_time(void) {
    fill_words(array, count, 20, 0);
    pid_t pids[64];
    for (int n = 0; n < children; n++) {
        pids[n] = forked();
        if (pids[n] == 0) {
            check_some(20 + (uint64_t)n, (uint64_t)n, "one of several, before");
            fill_words(array, count, 40 + (uint64_t)n, 0);
            check_words(array, count, 40 + (uint64_t)n, 0, "one of several");
            _exit(0);
        }
        /* The next child must find another version of the words. */
        fill_words(array, count, 21 + (uint64_t)n, 0);
    }
    for (int n = 0; n < children; n++)
        expect_success(pids[n], "several at a time");
    check_words(array, count, 20 + (uint64_t)children, 0, "the parent of several");
}

static void generation(int depth) {
    check_words(array, count, 60 + (uint64_t)depth, 0, "a generation, as inherited");
    fill_words(array, count, 61 + (uint64_t)depth, 0);
    if (depth < 3) {
        pid_t child = forked();
        if (child == 0) {
            generation(depth + 1);
            _exit(0);
        }
        write_every(3, 1, 100);
        expect_success(child, "a grandchild");
        check_mixed(61 + (uint64_t)depth, 100, 3, 1, "a generation, afterwards");
    } else {
        check_words(array, count, 61 + (uint64_t)depth, 0, "the last generation");
    }
}

static void outliving(void) {
    fill_words(array, count, 70, 0);
    int ends[2];
    CALL(pipe(ends) == 0);
    pid_t child = forked();
    if (child == 0) {
        write_every(2, 0, 71);
        pid_t grandchild = forked();
        if (grandchild != 0)
            _exit(0);
        char go;
        CALL(read(ends[0], &go, 1) == 1);
        check_mixed(70, 71, 2, 0, "a child that outlived its parent");
        fill_words(array, count, 72, 0);
        check_words(array, count, 72, 0, "a child that outlived its parent");
        CALL(write(ends[1], "12", 2) == 2);
        _exit(0);
    }
    expect_success(child, "the parent of one that outlives it");
    CALL(write(ends[1], "g", 1) == 1);
    usleep(50000);
    check_words(array, count, 70, 0, "while a grandchild lives");
    char said[2] = {0};
    for (size_t got = 0; got < 2;) {
        ssize_t n = read(ends[0], said + got, 2 - got);
        CALL(n > 0);
        /* This process may read the byte "g" that it wrote itself. */
        if (said[got] == 'g') {
            CALL(write(ends[1], "g", 1) == 1);
            usleep(10000);
            continue;
        }
        got += (size_t)n;
    }
    REQUIRE(said[0] == '1' && said[1] == '2', "the child that outlived its parent said %c%c", said[0], said[1]);
    close(ends[0]);
    close(ends[1]);
}

static void own_memory(void) {
    fill_words(array, count, 30, 0);
    pid_t child = forked();
    if (child == 0) {
        uint64_t *grown = realloc(array, 2 * size);
        CALL(grown != NULL);
        check_words(grown, count, 30, 0, "an inherited array that grew");
        free(grown);
        uint64_t *own = calloc(1, size);
        CALL(own != NULL);
        check_zero(own, size, "the child's own memory");
        fill_words(own, count / 2, 3, 0);
        own = realloc(own, size / 2);
        CALL(own != NULL);
        check_words(own, count / 2, 3, 0, "the child's own memory");
        free(own);
        char *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CALL(map != MAP_FAILED);
        memset(map, 1, MIB);
        CALL(munmap(map, MIB) == 0);
        exit(0);
    }
    expect_success(child, "own memory");
    check_words(array, count, 30, 0, "the parent of one that freed");
    child = forked();
    if (child == 0) {
        /* The parent frees the array during this pause. */
        usleep(20000);
        check_words(array, count, 30, 0, "what the parent freed");
        _exit(0);
    }
    free(array);
    CALL((array = calloc(1, size)) != NULL);
    check_zero(array, size, "new memory of the parent");
    fill_words(array, count, 31, 0);
    expect_success(child, "an array that the parent frees");
    check_words(array, count, 31, 0, "new memory of the parent");
}

static void executing(void) {
    char *arguments[] = {"true", NULL};
    pid_t child = forked();
    if (child == 0) {
        execvp("true", arguments);
        _exit(127);
    }
    expect_success(child, "exec");
    CALL((errno = posix_spawnp(&child, "true", NULL, NULL, arguments, environ)) == 0);
    expect_success(child, "posix_spawn");
    CALL(system("exit 0") == 0);
}

/* Makes a child whose first access to its parent's memory is a system call. */
static void writing_at_once(void) {
    fill_words(array, count, 50, 0);
    int ends[2];
    CALL(pipe(ends) == 0);
    pid_t child = forked();
    if (child == 0) {
        for (size_t at = 0; at + PAGE <= size; at += size / 8)
            if (write(ends[1], (char *)array + at, PAGE) != (ssize_t)PAGE)
                _exit(errno == EFAULT ? 77 : 1);
        _exit(0);
    }
    close(ends[1]);
    uint64_t page[PAGE / 8];
    size_t at = 0;
    for (;;) {
        size_t got = 0;
        ssize_t n = 1;
        while (got < PAGE && (n = read(ends[0], (char *)page + got, PAGE - got)) > 0)
            got += (size_t)n;
        if (got < PAGE)
            break;
        check_words(page, PAGE / 8, 50, at / 8, "what a child wrote into a pipe");
        at += size / 8;
    }
    close(ends[0]);
    int status = finish(child);
    /* Exit code 77 stands for a documented limit of the modes in which the kernel's accesses do not trap. */
    REQUIRE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77), "writing at once: %#x", status);
}

/* Makes a child by a direct system call, which no library notices. */
static void behind_the_back(void) {
    fill_words(array, count, 80, 0);
    for (size_t n = 0; n < 6; n++) {
        size_t i = n * (count / 6) + n;
        fflush(stdout);
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        CALL(child >= 0);
        if (child == 0)
            _exit(*(volatile uint64_t *)&array[i] == word(80, 0, i) ? 0 : 9);
        int status = finish(child);
        int killed = WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
        REQUIRE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0),
                "a child by a bare system call ended with %#x at word %zu", status, i);
    }
}

static int killed(void) {
    fill_words(array, count, 10, 0);
    int ends[2];
    CALL(pipe(ends) == 0);
    pid_t child = forked();
    if (child == 0) {
        for (uint64_t round = 0;; round++) {
            write_every(3, 1, 11 + round);
            CALL(write(ends[1], "r", 1) == 1);
        }
    }
    write_every(5, 2, 200);
    char round;
    CALL(read(ends[0], &round, 1) == 1 && read(ends[0], &round, 1) == 1);
    CALL(kill(child, SIGKILL) == 0);
    int status = finish(child);
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the killed child ended with %#x", status);
    check_mixed(10, 200, 5, 2, "the parent of a killed child");
    fill_words(array, count, 12, 0);
    check_words(array, count, 12, 0, "the parent afterwards");
    puts("ok killed");
    return 0;
}

static int outlived(const char *go, const char *said) {
    fill_words(array, count, 10, 0);
    if (forked() != 0) {
        puts("the parent ends");
        return 0;
    }
    close(1);
    close(2);
    for (int waited = 0; access(go, F_OK) != 0; waited++) {
        if (waited > 60000)
            _exit(1);
        usleep(1000);
    }
    int wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong |= array[i] != word(10, 0, i);
    uint64_t *more = malloc(size);
    if (more == NULL)
        _exit(1);
    for (size_t i = 0; i < count; i++)
        more[i] = array[i] = word(11, 0, i);
    for (size_t i = 0; i < count; i++)
        wrong |= array[i] != word(11, 0, i) || more[i] != array[i];
    FILE *file = fopen(said, "w");
    if (file == NULL)
        _exit(1);
    fputs(wrong ? "wrong\n" : "ok\n", file);
    fclose(file);
    return 0;
}

static volatile int stop;

/* Uses an array in another thread of the parent, while children start and end. */
static void *meanwhile(void *argument) {
    uint64_t *words = argument;
    for (uint64_t round = 1; !stop; round++)
        for (size_t i = 0; i < count && !stop; i += 512) {
            REQUIRE(words[i] == word(2, round - 1, i), "the parent's thread: word %zu is %#llx in round %llu", i,
                    (unsigned long long)words[i], (unsigned long long)round);
            words[i] = word(2, round, i);
        }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]) / MIB * MIB;
    const char *part = argc > 2 ? argv[2] : "";
    if (argc > 2 && part[0] != '-')
        children = atoi(part);
    if (size < 4 * MIB)
        size = 4 * MIB;
    if (children < 1 || children > 19)
        children = 4;
    count = size / 8;
    CALL(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) == 0);
    if (part[0] == '-') {
        CALL((array = malloc(size)) != NULL);
        return strcmp(part, "--killed") == 0 ? killed() : argc > 4 ? outlived(argv[3], argv[4]) : 2;
    }
    pid_t child = forked(); /* before any far memory exists */
    if (child == 0) {
        CALL((array = malloc(size)) != NULL);
        fill_words(array, count, 9, 0);
        check_words(array, count, 9, 0, "a child's first array");
        _exit(0);
    }
    expect_success(child, "a child before there is anything");
    CALL((array = malloc(size)) != NULL);
    array[5] = 5;
    child = forked(); /* after few pages were accessed */
    if (child == 0) {
        REQUIRE(array[5] == 5 && array[1] == 0, "a child of one that has hardly touched its array");
        fill_words(array, count, 8, 0);
        check_words(array, count, 8, 0, "a child that fills its parent's array");
        _exit(0);
    }
    expect_success(child, "a child that fills its parent's array");
    uint64_t *busy = malloc(size);
    CALL(busy != NULL);
    for (size_t i = 0; i < count; i += 512)
        busy[i] = word(2, 0, i);
    pthread_t thread;
    for (int threads = 0; threads < 2; threads++) {
        if (threads)
            CALL((errno = pthread_create(&thread, NULL, meanwhile, busy)) == 0);
        both_write(1, "all words");
        both_write(5, "every fifth word");
        both_write(512 * 3, "a word in every third page");
        both_write(512 * 700 + 1, "a word in some pages");
        own_memory();
        executing();
        writing_at_once();
    }
    several_at_a_time();
    fill_words(array, count, 60, 0);
    child = forked();
    if (child == 0) {
        generation(0);
        _exit(0);
    }
    expect_success(child, "generations");
    outliving();
    behind_the_back();
    fill_words(array, count, 70, 0);
    check_words(array, count, 70, 0, "the parent in the end");
    stop = 1;
    CALL((errno = pthread_join(thread, NULL)) == 0);
    free(array);
    free(busy);
    printf("ok forks: %zu bytes, %d children at a time\n", size, children);
    return 0;
}
