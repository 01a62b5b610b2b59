/* mapping [SIZE]
 *
 * Checks that the calls that manage memory keep their meaning: munmap of parts, madvise, mprotect, mremap, mlock,
 * fixed mappings and the malloc family. Each test uses arrays of SIZE (64M). */
#define _GNU_SOURCE
#include "check.h"
#include <malloc.h>
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

static uint64_t *map(void) {
    uint64_t *words = mmap(NULL, size, PLAIN, PRIVATE, -1, 0);
    CALL((void *)words != MAP_FAILED);
    check_zero(words, PAGE, "a new mapping");
    fill_words(words, size / 8, 1, 0);
    return words;
}

/* Checks all words except those in the bytes from `from` to before `to`. */
static void check_around(uint64_t *words, size_t from, size_t to, const char *when) {
    check_words(words, from / 8, 1, 0, when);
    check_words(words + to / 8, (size - to) / 8, 1, to / 8, when);
}

static void unmapping(void) {
    uint64_t *words = map();
    char *bytes = (char *)words;
    size_t from = 3 * MIB + PAGE, to = size / 2 + 5 * PAGE;
    REQUIRE(munmap(bytes + PAGE, (size_t)1 << 47) == -1 && errno == EINVAL, "munmap beyond all addresses succeeded");
    check_words(words, size / 8, 1, 0, "after an munmap that failed");
    CALL(munmap(bytes + from, to - from) == 0);
    check_around(words, from, to, "around a hole");
    CALL(munmap(bytes, PAGE) == 0 && munmap(bytes + size - MIB, MIB) == 0);
    check_words(words + PAGE / 8, (from - PAGE) / 8, 1, PAGE / 8, "after the first page went");
    REQUIRE(munmap(bytes + 2 * PAGE + 1, PAGE) == -1 && errno == EINVAL, "munmap of an odd address succeeded");
    /* The next mapping must read as zeroes, even if it has the same address. */
    char *next = mmap(NULL, to - from, PLAIN, PRIVATE, -1, 0);
    CALL(next != MAP_FAILED);
    check_zero(next, to - from, "mapped after an unmap");
    CALL(munmap(next, to - from) == 0);
    CALL(munmap(bytes + PAGE, size - PAGE) == 0); /* the range has holes, which the kernel allows */
}

static void discarding(void) {
    static const int advices[] = {MADV_DONTNEED, MADV_FREE};
    uint64_t *words = map();
    char *bytes = (char *)words;
    for (size_t i = 0; i < 2; i++) {
        size_t from = 5 * MIB - PAGE, len = size / 4 + 3 * PAGE;
        CALL(madvise(bytes + from, len, advices[i]) == 0);
        check_around(words, from, from + len, "around discarded pages");
        if (advices[i] == MADV_DONTNEED)
            check_zero(bytes + from, len, "MADV_DONTNEED");
        /* After MADV_FREE, a page has its old bytes or zeroes. Words written after the call must stay. */
        fill_words((uint64_t *)(bytes + from), len / 8, 1, from / 8);
        check_words(words, size / 8, 1, 0, "written after a discard");
    }
    static const int hints[] = {MADV_WILLNEED, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL,
                                MADV_DONTDUMP, MADV_DODUMP,     MADV_DOFORK};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        CALL(madvise(words, size, hints[i]) == 0);
    REQUIRE(madvise(words, size, 12345) == -1 && errno == EINVAL, "an unknown advice succeeded");
    check_words(words, size / 8, 1, 0, "after hints");
    CALL(munmap(words, size) == 0);
}

static void protecting(void) {
    uint64_t *words = map();
    char *bytes = (char *)words;
    size_t from = 2 * MIB + 3 * PAGE, len = 9 * MIB;
    CALL(mprotect(bytes + from, len, PROT_READ) == 0);
    REQUIRE(touch(bytes + from + len / 2, 0) == 0, "reading read-only memory faulted");
    check_words(words, size / 8, 1, 0, "partly read-only");
    REQUIRE(touch(bytes + from, 1) == SIGSEGV, "writing read-only memory did not fault");
    REQUIRE(touch(bytes + from + len - 1, 1) == SIGSEGV, "writing the end of read-only memory did not fault");
    REQUIRE(touch(bytes + from - 1, 1) == 0 && touch(bytes + from + len, 1) == 0, "the neighbours are protected too");
    CALL(mprotect(bytes + from, len, PROT_NONE) == 0);
    REQUIRE(touch(bytes + from + 7 * PAGE, 0) == SIGSEGV, "reading PROT_NONE memory did not fault");
    check_around(words, from, from + len, "around PROT_NONE memory");
    CALL(mprotect(bytes + from, len, PLAIN) == 0);
    check_words(words, size / 8, 1, 0, "after PROT_NONE");
    REQUIRE(touch(bytes + from + 7 * PAGE, 1) == 0, "writing memory opened again faulted");
    fill_words(words, size / 8, 1, 7);
    check_words(words, size / 8, 1, 7, "written after PROT_NONE");
    CALL(munmap(words, size) == 0);
}

static void moving(void) {
    uint64_t *words = map();
    REQUIRE(mremap(words, size, size, 0) == words, "mremap to the same size moves");
    words = mremap(words, size, size / 2, 0);
    CALL((void *)words != MAP_FAILED);
    check_words(words, size / 16, 1, 0, "mremap, shrunk");
    words = mremap(words, size / 2, size, MREMAP_MAYMOVE);
    CALL((void *)words != MAP_FAILED);
    check_words(words, size / 16, 1, 0, "mremap, grown");
    check_zero((char *)words + size / 2, size / 2, "mremap, the new half");
    fill_words(words, size / 8, 1, 0);
    uint64_t *fence = map();
    uint64_t *moved = mremap(words, size, 2 * size, MREMAP_MAYMOVE);
    CALL((void *)moved != MAP_FAILED);
    check_words(moved, size / 8, 1, 0, "mremap, moved");
    check_zero((char *)moved + size, size, "mremap, behind the moved");
    check_words(fence, size / 8, 1, 0, "beside the moved");
    /* Moves a part out of the middle of a mapping. The rest of the mapping must stay. */
    size_t part = size / 4 + PAGE;
    char *middle = mremap((char *)fence + part, part, part + MIB, MREMAP_MAYMOVE);
    CALL(middle != MAP_FAILED);
    check_words((uint64_t *)middle, part / 8, 1, part / 8, "mremap from the middle");
    check_around(fence, part, 2 * part, "around what was moved out");
    CALL(munmap(middle, part + MIB) == 0 && munmap(fence, size) == 0 && munmap(moved, 2 * size) == 0);
}

/* mremap keeps the protection of what it moves and grows. Pages with different protection do not move together. */
static void moving_protected(void) {
    char *bytes = (char *)map();
    CALL(mprotect(bytes + MIB, MIB, PROT_READ) == 0);
    REQUIRE(mremap(bytes, 3 * MIB, 4 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT,
            "pages with different protection moved together");
    char *moved = mremap(bytes + MIB, MIB, 2 * MIB, MREMAP_MAYMOVE);
    CALL(moved != MAP_FAILED);
    check_words((uint64_t *)moved, MIB / 8, 1, MIB / 8, "mremap of a protected part");
    REQUIRE(touch(moved, 1) == SIGSEGV && touch(moved + 2 * MIB - 1, 1) == SIGSEGV, "mremap opened a protected part");
    CALL(munmap(moved, 2 * MIB) == 0 && munmap(bytes, size) == 0);
}

static void locking(void) {
    uint64_t *words = map();
    /* With few pages of local memory, none of them may be locked. */
    CALL(mlock((char *)words + MIB, 8 * PAGE) == 0 || errno == ENOMEM);
    check_words(words, size / 8, 1, 0, "with locked pages");
    CALL(munlock((char *)words + MIB, 8 * PAGE) == 0);
    CALL(munmap(words, size) == 0);
}

static void fixing(void) {
    uint64_t *words = map();
    void *none = mmap(NULL, MIB, PLAIN, PRIVATE, -1, 1);
    REQUIRE(none == MAP_FAILED && errno == EINVAL, "an offset that is no page's gives %p", none);
    char *part = (char *)words + 4 * MIB - PAGE;
    size_t len = 3 * MIB;
    CALL(mmap(part, len, PLAIN, PRIVATE | MAP_FIXED, -1, 0) == part);
    check_zero(part, len, "a fixed mapping");
    check_around(words, part - (char *)words, part - (char *)words + len, "around a fixed mapping");
    CALL(mmap(part, len, PROT_NONE, PRIVATE | MAP_FIXED | MAP_NORESERVE, -1, 0) == part);
    REQUIRE(touch(part + len / 2, 0) == SIGSEGV, "a fixed PROT_NONE mapping is readable");
    CALL(mprotect(part, len, PLAIN) == 0);
    check_zero(part, len, "a fixed mapping opened again");
    /* Makes fixed mappings over a hole: one over a smaller hole, and one over a larger hole. */
    CALL(munmap(part + PAGE, MIB) == 0);
    CALL(mmap(part, len, PLAIN, PRIVATE | MAP_FIXED, -1, 0) == part);
    check_zero(part, len, "a fixed mapping over a hole");
    memset(part, 1, len);
    /* On x86-64 and aarch64, memory that may be written may be read. */
    CALL(mprotect(part, len, PROT_WRITE) == 0);
    for (size_t i = 0; i < len; i += PAGE)
        part[i] += 2;
    for (size_t i = 0; i < len; i += PAGE)
        REQUIRE(part[i] == 3 && part[i + 1] == 1, "a byte of PROT_WRITE alone is %d", part[i]);
    CALL(mprotect(part, len, PLAIN) == 0);
    /* A shared mapping where memory was given back keeps its addresses from later allocations. */
    CALL(munmap(part, len) == 0);
    char *shared = mmap(part, len, PLAIN, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CALL(shared == part);
    memset(shared, 0x55, len);
    char *others[8];
    for (int i = 0; i < 8; i++) {
        CALL((others[i] = mmap(NULL, len / 4, PLAIN, PRIVATE, -1, 0)) != MAP_FAILED);
        memset(others[i], 7, len / 4);
    }
    for (size_t i = 0; i < len; i++)
        REQUIRE(shared[i] == 0x55, "byte %zu of a shared mapping is %#x", i, shared[i]);
    for (int i = 0; i < 8; i++)
        CALL(munmap(others[i], len / 4) == 0);
    CALL(munmap(words, size) == 0);
    CALL(mmap(words, size, PROT_NONE, PRIVATE | MAP_FIXED | MAP_NORESERVE, -1, 0) == words);
    CALL(mprotect(words, size, PLAIN) == 0);
    check_zero(words, size, "a fixed mapping where all was given back");
    fill_words(words, size / 8, 9, 0);
    check_words(words, size / 8, 9, 0, "a fixed mapping where all was given back");
    CALL(munmap(words, size) == 0);
}

/* A compiler within a program wants its code near that of the program. It asks for small mappings at free addresses there,
 * and may ask for ever if it does not get them. */
static void hinting(void) {
    uintptr_t near = ((uintptr_t)hinting & ~(uintptr_t)(PAGE - 1)) - 512 * MIB;
    char *bytes = mmap((void *)near, 16 * PAGE, PLAIN, PRIVATE, -1, 0);
    REQUIRE((uintptr_t)bytes == near, "a small mapping wanted at %p is at %p", (void *)near, (void *)bytes);
    memset(bytes, 1, 16 * PAGE);
    CALL(munmap(bytes, 16 * PAGE) == 0);
}

static void allocating(void) {
    for (int round = 0; round < 3; round++) {
        void *aligned = NULL;
        CALL((errno = posix_memalign(&aligned, 2 * MIB, size / 2)) == 0);
        REQUIRE((uintptr_t)aligned % (2 * MIB) == 0, "posix_memalign: %p is not aligned", aligned);
        fill_words(aligned, size / 16, 2, 0);
        void *page = aligned_alloc(16 * PAGE, size / 4 / (16 * PAGE) * (16 * PAGE));
        CALL(page != NULL && (uintptr_t)page % (16 * PAGE) == 0);
        uint64_t *zeroes = calloc(size / 8, 8);
        CALL(zeroes != NULL);
        check_zero(zeroes, size, "calloc");
        fill_words(zeroes, size / 8, 1, 0);
        size_t usable = malloc_usable_size(zeroes);
        REQUIRE(usable >= size, "malloc_usable_size: %zu of %zu", usable, size);
        memset((char *)zeroes + size, 0xee, usable - size);
        zeroes = realloc(zeroes, size + usable / 2);
        CALL(zeroes != NULL);
        check_words(zeroes, size / 8, 1, 0, "realloc, grown");
        zeroes = reallocarray(zeroes, 1000, 8);
        CALL(zeroes != NULL);
        check_words(zeroes, 1000, 1, 0, "realloc, small");
        zeroes = realloc(zeroes, size);
        CALL(zeroes != NULL);
        check_words(zeroes, 1000, 1, 0, "realloc, large again");
        check_words(aligned, size / 16, 2, 0, "posix_memalign");
        free(zeroes);
        free(page);
        free(aligned);
    }
    volatile size_t huge = SIZE_MAX / 2;
    errno = 0;
    REQUIRE(malloc(huge) == NULL && errno == ENOMEM, "malloc of half the address space succeeded");
    errno = 0;
    REQUIRE(calloc(huge, 4) == NULL && errno == ENOMEM, "calloc of more than the address space succeeded");
    /* Rounded up to whole pages, these sizes are 0. */
    uint64_t *kept = malloc(size);
    CALL(kept != NULL);
    fill_words(kept, size / 8, 3, 0);
    for (volatile size_t less = 1; less <= 4 * MIB; less = less * 2 + 1) {
        errno = 0;
        REQUIRE(realloc(kept, -less) == NULL && errno == ENOMEM, "realloc to SIZE_MAX - %zu succeeded", less - 1);
        errno = 0;
        REQUIRE(malloc(-less) == NULL && errno == ENOMEM, "malloc of SIZE_MAX - %zu succeeded", less - 1);
    }
    check_words(kept, size / 8, 3, 0, "refused realloc");
    free(kept);
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]) / (4 * MIB) * (4 * MIB);
    if (size < 16 * MIB)
        size = 16 * MIB;
    struct sigaction action = {.sa_handler = on_fault};
    CALL(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    struct sigaction back;
    CALL(sigaction(SIGSEGV, NULL, &back) == 0);
    REQUIRE(back.sa_handler == on_fault, "sigaction does not give back the handler that was set");
    unmapping();
    discarding();
    protecting();
    moving();
    moving_protected();
    locking();
    fixing();
    hinting();
    allocating();
    printf("ok mapping: munmap, madvise, mprotect, mremap, mlock, fixed, malloc family on %zu bytes\n", size);
    return 0;
}
