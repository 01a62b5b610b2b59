/* signals SIZE [--signals N] [--seed S]
 *
 * Reads the pages of one array in random order while a timer constantly interrupts it. The signal's handler increments
 * a count in the page that is being read. Ends after N signals (20,000). No count may be missing, and no word may be
 * wrong. Then it accesses a file beyond its end, and sends fault signals to itself. Their handlers read the array. */
#define _GNU_SOURCE
#include "check.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

/* Time between two signals, in microseconds. */
#define EVERY_US 50
/* Number of words at the start of a page that hold the handler's counts. */
#define COUNTS 1

static uint64_t *volatile reading;
static volatile uint64_t signals;

static void count_in_page(int signal) {
    (void)signal;
    reading[0]++;
    signals++;
}

static void interrupt_every(long us) {
    struct itimerval timer = {.it_interval.tv_usec = us, .it_value.tv_usec = us};
    CALL(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static uint64_t *array, array_seed;
static size_t array_pages;
static sigjmp_buf after_fault;
static volatile sig_atomic_t handled;

static void read_array(void) {
    size_t per_page = PAGE / sizeof(uint64_t);
    for (size_t page = 0; page < array_pages; page++)
        check_words(array + page * per_page + COUNTS, 1, array_seed, page * per_page, "in a handler");
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    read_array();
    handled++;
    if (signal == SIGBUS && info->si_code > 0)
        siglongjmp(after_fault, 1);
}

/* The handlers have full masks, which block their own signals, too. */
static void handle_faults(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigfillset(&action.sa_mask);
    int fault_signals[] = {SIGBUS, SIGSEGV, SIGSYS};
    for (int i = 0; i < 3; i++) {
        CALL(sigaction(fault_signals[i], &action, NULL) == 0);
        CALL(raise(fault_signals[i]) == 0);
    }
    int file = memfd_create("signals", 0);
    CALL(file >= 0);
    volatile char *beyond = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
    CALL(beyond != MAP_FAILED);
    for (volatile int round = 0; round < 3; round++) {
        if (!sigsetjmp(after_fault, 1))
            REQUIRE(beyond[0] == 0 && 0, "a file can be read beyond its end");
        read_array();
    }
    REQUIRE(handled == 6, "%d of 6 signals were handled", (int)handled);
}

int main(int argc, char **argv) {
    size_t size = 0;
    uint64_t seed = 1, wanted = 20000;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--signals")))
            wanted = strtoull(value, NULL, 10);
        else if ((value = option(argv, &i, "--seed")))
            seed = strtoull(value, NULL, 10);
        else
            size = parse_size(argv[i]);
    }
    size_t per_page = PAGE / sizeof(uint64_t), pages = size / PAGE;
    if (pages == 0) {
        fprintf(stderr, "usage: signals SIZE [--signals N] [--seed S]\n");
        return 2;
    }
    uint64_t *words = malloc(pages * PAGE);
    CALL(words != NULL);
    for (size_t page = 0; page < pages; page++) {
        uint64_t *at = words + page * per_page;
        at[0] = 0;
        fill_words(at + COUNTS, per_page - COUNTS, seed, page * per_page);
    }
    reading = words;
    struct sigaction action = {.sa_handler = count_in_page, .sa_flags = SA_RESTART};
    CALL(sigaction(SIGALRM, &action, NULL) == 0);
    interrupt_every(EVERY_US);
    uint64_t state = seed;
    while (signals < wanted) {
        state = word(state, 0, 0);
        size_t page = (state >> 8) % pages, i = COUNTS + state % (per_page - COUNTS);
        reading = words + page * per_page;
        uint64_t want = word(seed, 0, page * per_page + i - COUNTS), found = reading[i];
        REQUIRE(found == want, "word %zu of page %zu is %#llx, not %#llx", i, page, (unsigned long long)found,
                (unsigned long long)want);
    }
    interrupt_every(0);
    array = words, array_pages = pages, array_seed = seed;
    handle_faults();
    uint64_t counted = 0;
    for (size_t page = 0; page < pages; page++) {
        uint64_t *at = words + page * per_page;
        counted += at[0];
        check_words(at + COUNTS, per_page - COUNTS, seed, page * per_page, "at the end");
    }
    REQUIRE(counted == signals, "%llu signals were handled and %llu counts kept", (unsigned long long)signals,
            (unsigned long long)counted);
    printf("ok signals: %zu pages\n", pages);
    return 0;
}
