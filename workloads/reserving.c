/* reserving [SIZE]
 *
 * Uses memory as custom allocators do (SIZE each, 64M): address space that is reserved without access and opened part
 * by part, fixed mappings over it, files mapped into the middle, parts made executable, and the break. */
#define _GNU_SOURCE
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define PLAIN (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

static size_t size = 64 * MIB;
static sigjmp_buf escape;

static void on_fault(int signal) {
    siglongjmp(escape, signal);
}

/* Returns the signal that an access to `byte` raises, or 0 if the access succeeds. */
static int touch(volatile char *byte, int write) {
    int signal = sigsetjmp(escape, 1);
    if (signal == 0) {
        char value = *byte;
        if (write)
            *byte = value;
    }
    return signal;
}

static char *reserve(size_t len) {
    char *start = mmap(NULL, len, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0);
    CALL(start != MAP_FAILED);
    return start;
}

/* Gets aligned memory by reserving too much and unmapping the ends. Opens pieces of it out of order. */
static void opening(void) {
    size_t align = 4 * MIB, piece = MIB + PAGE;
    char *wide = reserve(size + align);
    char *start = (char *)(((uintptr_t)wide + align - 1) / align * align);
    if (start > wide)
        CALL(munmap(wide, start - wide) == 0);
    CALL(munmap(start + size, wide + align - start) == 0);
    REQUIRE(touch(start + size / 2, 0) == SIGSEGV, "reserved memory can be read");
    size_t pieces = size / piece;
    for (size_t i = 0; i < pieces; i++) {
        char *at = start + (i * 7 % pieces) * piece;
        if (i * 7 % pieces == 0 && i > 0)
            continue;
        if (i % 2)
            CALL(mprotect(at, piece, PLAIN) == 0);
        else
            CALL(mmap(at, piece, PLAIN, PRIVATE | MAP_FIXED, -1, 0) == at);
    }
    CALL(mprotect(start, pieces * piece, PLAIN) == 0);
    check_zero(start, pieces * piece, "opened memory");
    fill_words((uint64_t *)start, pieces * piece / 8, 1, 0);
    check_words((uint64_t *)start, pieces * piece / 8, 1, 0, "opened memory");
    REQUIRE(touch(start + pieces * piece, 0) == SIGSEGV, "behind the opened memory");
    /* The piece is closed and opened again, as allocators do. It must then read as zeroes. */
    CALL(mmap(start + piece, piece, PROT_NONE, PRIVATE | MAP_FIXED | MAP_NORESERVE, -1, 0) == start + piece);
    REQUIRE(touch(start + piece, 0) == SIGSEGV, "closed memory can be read");
    CALL(mprotect(start + piece, piece, PLAIN) == 0);
    check_zero(start + piece, piece, "closed and opened memory");
    check_words((uint64_t *)start, piece / 8, 1, 0, "before what was closed");
    check_words((uint64_t *)(start + 2 * piece), (pieces - 2) * piece / 8, 1, 2 * piece / 8, "behind what was closed");
    CALL(munmap(start, size) == 0);
}

/* Maps a file into the middle of memory, privately and shared. The memory around it must not change. */
static void overlaying(void) {
    char name[] = "/tmp/hanare-reserving-XXXXXX";
    int fd = mkstemp(name);
    CALL(fd >= 0 && unlink(name) == 0);
    size_t from = 3 * MIB + 5 * PAGE, len = 2 * MIB + 3 * PAGE;
    uint64_t *words = mmap(NULL, size, PLAIN, PRIVATE, -1, 0);
    CALL((void *)words != MAP_FAILED);
    fill_words(words, size / 8, 2, 0);
    CALL(ftruncate(fd, len) == 0);
    char *part = (char *)words + from;
    REQUIRE(mmap(part, len, PLAIN, MAP_PRIVATE | MAP_FIXED, 9999, 0) == MAP_FAILED && errno == EBADF,
            "a mapping of no file was made");
    check_words(words, size / 8, 2, 0, "after a refused mapping");
    for (int shared = 0; shared < 2; shared++) {
        CALL(mmap(part, len, PLAIN, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, fd, 0) == part);
        check_zero(part, len, "a file over memory");
        fill_words((uint64_t *)part, len / 8, 3, 0);
        check_words(words, from / 8, 2, 0, "before a file");
        check_words(words + (from + len) / 8, (size - from - len) / 8, 2, (from + len) / 8, "behind a file");
        check_words((uint64_t *)part, len / 8, 3, 0, "the file's pages");
    }
    uint64_t first = 0;
    CALL(pread(fd, &first, 8, 8) == 8);
    REQUIRE(first == word(3, 0, 1), "what was written to a shared file is not in it");
    /* A read past the file's end shows that the pages belong to the file. */
    CALL(ftruncate(fd, PAGE) == 0);
    REQUIRE(touch(part + 2 * PAGE, 0) == SIGBUS, "a cut file's pages can be read");
    /* Maps plain memory in the same place again. Then unmaps the whole area, across all borders. */
    CALL(mmap(part, len, PLAIN, PRIVATE | MAP_FIXED, -1, 0) == part);
    check_zero(part, len, "plain memory where a file was");
    fill_words((uint64_t *)part, len / 8, 2, from / 8);
    check_words(words, size / 8, 2, 0, "plain memory again");
    CALL(madvise(words, size, MADV_DONTNEED) == 0);
    check_zero(words, size, "discarded across the borders");
    CALL(mprotect(words, size, PROT_READ) == 0);
    REQUIRE(touch(part - 1, 1) == SIGSEGV && touch(part, 1) == SIGSEGV, "read-only across the borders");
    CALL(munmap(words, size) == 0);
    CALL(close(fd) == 0);
    /* The next mappings and blocks may get the same addresses, and must work. */
    uint64_t *next = mmap(NULL, size, PLAIN, PRIVATE, -1, 0);
    CALL((void *)next != MAP_FAILED);
    check_zero(next, size, "mapped next");
    fill_words(next, size / 8, 5, 0);
    check_words(next, size / 8, 5, 0, "mapped next");
    CALL(munmap(next, size) == 0);
    /* Maps files inside a block, which is then freed as a whole. */
    char *block = malloc(size);
    CALL(block != NULL);
    char *page = (char *)(((uintptr_t)block + size / 2) / PAGE * PAGE);
    fill_words((uint64_t *)block, size / 8, 6, 0);
    CALL(mmap(page, PAGE, PLAIN, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
    check_zero(page, PAGE, "shared memory in a block");
    check_words((uint64_t *)block, (page - block) / 8, 6, 0, "the block before it");
    free(block);
    block = malloc(size);
    CALL(block != NULL);
    fill_words((uint64_t *)block, size / 8, 7, 0);
    check_words((uint64_t *)block, size / 8, 7, 0, "the next block");
    free(block);
}

/* Checks that memory keeps its bytes when it is made executable. */
static void executing(void) {
    char *start = reserve(size);
    char *code = start + 2 * MIB + PAGE;
    size_t len = 3 * PAGE;
    CALL(mprotect(start, size / 2, PLAIN) == 0);
    fill_words((uint64_t *)start, size / 16, 8, 0);
#ifdef __x86_64__
    static const unsigned char seven[] = {0xb8, 7, 0, 0, 0, 0xc3}; /* mov $7, %eax; ret */
    memcpy(code, seven, sizeof seven);
    CALL(mprotect(code, len, PROT_READ | PROT_EXEC) == 0);
    int (*call)(void);
    memcpy(&call, &code, sizeof call);
    REQUIRE(call() == 7, "code in memory made executable");
    REQUIRE(touch(code, 1) == SIGSEGV, "code can be overwritten");
    CALL(mprotect(code, len, PLAIN) == 0);
    fill_words((uint64_t *)code, 1, 8, (code - start) / 8);
#else
    CALL(mprotect(code, len, PROT_READ | PROT_EXEC) == 0);
#endif
    check_words((uint64_t *)start, size / 16, 8, 0, "with executable pages in the middle");
    CALL(munmap(start, size) == 0);
}

/* An allocator on the break. It grows the break, shrinks it and grows it again. */
static void breaking(void) {
    void *beside = malloc(MIB); /* so the C library does not move the break itself */
    CALL(beside != NULL);
    memset(beside, 0xff, MIB);
    char *start = sbrk(0);
    CALL(start != (void *)-1);
    CALL(sbrk(size) == start);
    check_zero(start, size, "a new break");
    fill_words((uint64_t *)start, size / 8, 4, 0);
    check_words((uint64_t *)start, size / 8, 4, 0, "below the break");
    CALL(sbrk(-(intptr_t)(size / 2)) == start + size);
    REQUIRE(sbrk(0) == start + size / 2, "the break is not where it was put");
    REQUIRE(touch(start + size / 2 + PAGE, 0) == SIGSEGV, "memory beyond the break can be read");
    CALL(brk(start + size) == 0);
    check_zero(start + size / 2, size / 2, "above what the break left");
    check_words((uint64_t *)start, size / 16, 4, 0, "below what the break left");
    errno = 0;
    REQUIRE(sbrk((intptr_t)1 << 50) == (void *)-1 && errno == ENOMEM, "a break beyond all memory");
    REQUIRE(sbrk(0) == start + size, "a refused break moved");
    CALL(brk(start) == 0);
    free(beside);
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]) / (4 * MIB) * (4 * MIB);
    if (size < 16 * MIB)
        size = 16 * MIB;
    struct sigaction action = {.sa_handler = on_fault};
    CALL(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    for (int round = 0; round < 2; round++) {
        opening();
        overlaying();
        executing();
        breaking();
    }
    printf("ok reserving: opened, overlaid, executed and moved the break over %zu bytes\n", size);
    return 0;
}
