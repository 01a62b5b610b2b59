/* straddle THREADS MOVES
 *
 * Each thread moves a word MOVES times, from one border between two blocks of 2 MiB to another. Both words lie across
 * their border. On x86-64 one instruction moves the word, so it needs four pages at the same time. Every moved word is
 * checked. Prints `ok straddle`, or says what was wrong. */
#include "check.h"

#include <pthread.h>

#define BLOCK (2 * MIB)
#define BLOCKS 64
#define HALF (BLOCKS / 2)
#define THREADS_MAX 16

static char *place;
static uint64_t moves;
static size_t threads;

/* Returns the word across the border before block `index`. */
static char *border(size_t index) {
    return place + index * BLOCK - sizeof(uint64_t) / 2;
}

static uint64_t load(const char *from) {
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static void move(char *to, const char *from) {
#ifdef __x86_64__
    __asm__ volatile("movsq" : "+S"(from), "+D"(to)::"memory");
#else
    memcpy(to, from, sizeof(uint64_t));
#endif
}

/* The words come from the first half of the blocks. Each thread writes to borders of its own in the second half. */
static void *work(void *seat) {
    size_t own = (size_t)seat, borders = HALF / threads;
    for (uint64_t i = 0; i < moves; i++) {
        size_t from = 1 + word(own, 0, i) % (HALF - 1), to = HALF + own * borders + word(own, 1, i) % borders;
        move(border(to), border(from));
        uint64_t want = word(7, 0, from), found = load(border(to));
        REQUIRE(found == want, "thread %zu, move %llu: %#llx, not %#llx", own, (unsigned long long)i,
                (unsigned long long)found, (unsigned long long)want);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t ids[THREADS_MAX];
    threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    moves = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    REQUIRE(threads >= 1 && threads <= THREADS_MAX, "1 to %d threads", THREADS_MAX);
    CALL((place = aligned_alloc(BLOCK, BLOCKS * BLOCK)) != NULL);
    for (size_t at = 0; at < BLOCKS * BLOCK; at += PAGE)
        place[at] = (char)(at / PAGE);
    for (size_t i = 1; i < BLOCKS; i++) {
        uint64_t value = word(7, 0, i);
        memcpy(border(i), &value, sizeof value);
    }
    for (size_t i = 0; i < threads; i++)
        CALL((errno = pthread_create(&ids[i], NULL, work, (void *)i)) == 0);
    for (size_t i = 0; i < threads; i++)
        CALL((errno = pthread_join(ids[i], NULL)) == 0);
    for (size_t i = 1; i < HALF; i++)
        REQUIRE(load(border(i)) == word(7, 0, i), "the word at border %zu has changed", i);
    puts("ok straddle");
    return 0;
}
