/* touch SIZE [--passes N] [--while FILE] [--random] [--seed S] [--killed]
 *
 * Writes every word of an array, then reads and checks every word. It does so N times (1), in ascending order or with
 * the pages in random order. Every pass writes other values, so that a stale page is noticed. With --while, more passes
 * follow as long as FILE is there. With --killed, the program then kills itself. */
#include "check.h"

#include <unistd.h>

/* Visits each of 0 to count-1 once, in a scrambled order. It uses a full-period generator over the next power of
 * two. */
struct order {
    uint64_t at, mask, count;
    int random;
};

static struct order start_order(uint64_t count, int random, uint64_t seed) {
    uint64_t mask = 1;
    while (mask < count)
        mask <<= 1;
    mask--;
    return (struct order){.at = random ? seed & mask : 0, .mask = mask, .count = count, .random = random};
}

static uint64_t next(struct order *order) {
    if (!order->random)
        return order->at++;
    do
        order->at = (order->at * 0x5851f42d4c957f2du + 0x14057b7ef767814fu) & order->mask;
    while (order->at >= order->count);
    return order->at;
}

static size_t words_of_page(size_t total, uint64_t page, size_t *first) {
    size_t per_page = PAGE / sizeof(uint64_t);
    *first = page * per_page;
    return total - *first < per_page ? total - *first : per_page;
}

int main(int argc, char **argv) {
    size_t size = 0, passes = 1;
    uint64_t seed = 1;
    int random = 0, killed = 0;
    const char *file = NULL;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--passes")))
            passes = parse_size(value);
        else if ((value = option(argv, &i, "--seed")))
            seed = strtoull(value, NULL, 10);
        else if ((value = option(argv, &i, "--while")))
            file = value;
        else if (strcmp(argv[i], "--random") == 0)
            random = 1;
        else if (strcmp(argv[i], "--killed") == 0)
            killed = 1;
        else
            size = parse_size(argv[i]);
    }
    if (size < sizeof(uint64_t)) {
        fprintf(stderr, "usage: touch SIZE [--passes N] [--while FILE] [--random] [--seed S] [--killed]\n");
        return 2;
    }
    size_t total = size / sizeof(uint64_t), pages = (total * sizeof(uint64_t) + PAGE - 1) / PAGE, first;
    uint64_t *words = malloc(size);
    CALL(words != NULL);
    size_t pass = 0;
    for (; pass < passes || (file && access(file, F_OK) == 0); pass++) {
        struct order order = start_order(pages, random, seed + pass);
        for (size_t n = 0; n < pages; n++)
            for (size_t count = words_of_page(total, next(&order), &first), i = 0; i < count; i++)
                words[first + i] = word(seed, pass, first + i);
        order = start_order(pages, random, seed ^ pass);
        for (size_t n = 0; n < pages; n++)
            for (size_t count = words_of_page(total, next(&order), &first), i = 0; i < count; i++) {
                uint64_t want = word(seed, pass, first + i), found = words[first + i];
                REQUIRE(found == want, "pass %zu: word %zu at %p is %#llx, not %#llx", pass, first + i,
                        (void *)&words[first + i], (unsigned long long)found, (unsigned long long)want);
            }
    }
    if (killed)
        CALL(kill(getpid(), SIGKILL) == 0);
    free(words);
    printf("ok touch: %zu bytes, %zu passes, %s\n", size, pass, random ? "random" : "sequential");
    return 0;
}
