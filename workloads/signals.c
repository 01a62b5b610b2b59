/* signals SIZE [--signals N] [--seed S]
 *
 * Reads the pages of one array in random order while a timer constantly interrupts it. The signal's handler increments
 * a count in the page that is being read. Ends after N signals (20,000). No count may be missing, and no word may be
 * wrong. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
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
