/* processor WHAT
 *
 * Uses far memory while the processor is in an unusual mode. WHAT is one of these:
 *
 *   floats     all exceptions of floating-point arithmetic end the program, first from before its first far block and
 *              then set after it. Also a child and a thread use far memory so. The mode and its marks stay as they were
 *   alignment  unaligned accesses are forbidden (the flag AC of x86-64), and the program makes none
 *   clock      the program forbids the time stamp counter (PR_SET_TSC). This is refused with EINVAL, or works
 *
 * Every word is checked. Prints `ok processor`, or says what was wrong. The exit code is 77 if the machine has no such
 * mode. */
#include "check.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS ((size_t)(24 << 20) / sizeof(uint64_t))
#define ALIGNMENT_CHECKS 0x40000
#define SKIPPED 77

static uint64_t *words;

static uint64_t *fresh(void) {
    uint64_t *array = malloc(WORDS * sizeof *array);
    if (array == NULL)
        _exit(3);
    for (size_t i = 0; i < WORDS; i++)
        array[i] = i;
    return array;
}

/* Adds one to every word, three times. Returns the number of wrong words. */
static size_t change(uint64_t *array, uint64_t *by) {
    size_t wrong = 0;
    for (int pass = 0; pass < 3; pass++, ++*by)
        for (size_t i = 0; i < WORDS; i++)
            wrong += array[i]++ != i + *by;
    return wrong;
}

static void *in_thread(void *unused) {
    (void)unused;
    uint64_t *array = fresh(), by = 0;
    size_t wrong = change(array, &by);
    free(array);
    return (void *)wrong;
}

/* Exceptions end the program from here on. Nothing may compute with floating point before they are masked again. */
static size_t with_exceptions(uint64_t *by) {
    void *of_thread = NULL;
    pthread_t thread;
    int status = -1;
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_ALL_EXCEPT);
    if (words == NULL)
        words = fresh();
    size_t wrong = change(words, by);
    for (int i = 0; i < 2000; i++)
        free(malloc(200000));
    if (pthread_create(&thread, NULL, in_thread, NULL) || pthread_join(thread, &of_thread))
        wrong++;
    pid_t child = fork();
    if (child == 0) {
        size_t own = change(words, by) + (size_t)in_thread(NULL);
        _exit(own != 0 || fegetexcept() != FE_ALL_EXCEPT);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        status = -1;
    int marks = fetestexcept(FE_ALL_EXCEPT), enabled = fegetexcept();
    fedisableexcept(FE_ALL_EXCEPT);
    feclearexcept(FE_ALL_EXCEPT);
    if (status != 0)
        printf("wrong: the child ended with status %x\n", status);
    if (marks != 0 || enabled != FE_ALL_EXCEPT)
        printf("wrong: marks %x, exceptions %x\n", marks, enabled);
    return wrong + (size_t)of_thread + (status != 0) + (marks != 0) + (enabled != FE_ALL_EXCEPT);
}

static size_t floats(void) {
    uint64_t by = 0;
    size_t wrong = with_exceptions(&by);
    return wrong + with_exceptions(&by);
}

static size_t alignment(void) {
#ifdef __x86_64__
    uint64_t by = 0;
    words = fresh();
    __asm__ volatile("pushfq; orq %0, (%%rsp); popfq" ::"i"(ALIGNMENT_CHECKS) : "memory", "cc");
    size_t wrong = change(words, &by);
    __asm__ volatile("pushfq; andq %0, (%%rsp); popfq" ::"i"(~ALIGNMENT_CHECKS) : "memory", "cc");
    return wrong;
#else
    printf("skipped: the processor has no checks of alignment\n");
    exit(SKIPPED);
#endif
}

static size_t without_clock(void) {
#ifdef __x86_64__
    uint64_t by = 0;
    words = fresh();
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) && errno != EINVAL) {
        perror("PR_SET_TSC");
        return 1;
    }
    size_t wrong = change(words, &by);
    prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0);
    return wrong;
#else
    printf("skipped: the processor has no time stamp counter\n");
    exit(SKIPPED);
#endif
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    size_t wrong;
    if (!strcmp(what, "floats"))
        wrong = floats();
    else if (!strcmp(what, "alignment"))
        wrong = alignment();
    else if (!strcmp(what, "clock"))
        wrong = without_clock();
    else
        return fprintf(stderr, "usage: processor floats|alignment|clock\n"), 2;
    if (wrong)
        return printf("wrong: %s, %zu words or more\n", what, wrong), 1;
    printf("ok processor: %s\n", what);
    return 0;
}
