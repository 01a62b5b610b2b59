/* is [SIZE_MB] [SEED]
 *
 * Ranks integer keys several times by counting within buckets, as NPB IS does. The keys are read from front to back
 * and distributed to the buckets. The buckets in the middle are the fullest.
 *
 * At the end the keys are ordered by their ranks. They must ascend and be the original keys. In every round two keys
 * change. In the last round, the ranks of these two keys are compared with a plain count of smaller keys. */
#include "kernel.h"

#define ROUNDS 10
#define BUCKETS_MAX 1024
#define KEYS_PER_VALUE 16

static uint32_t *keys, *dealt, *below; /* below[v]: how many keys are smaller than v */
static size_t count, buckets;
static uint32_t values;

/* Two sums that identify a set of keys, whatever its order is. */
struct sums {
    uint64_t plain, scrambled;
};

static void add(struct sums *sums, uint32_t key) {
    sums->plain += key;
    sums->scrambled += word(0, 0, key);
}

/* Returns the mean of four random numbers, as in NPB. */
static uint32_t random_key(uint64_t seed, size_t index) {
    uint64_t random = word(seed, 0, index), sum = 0;
    for (int n = 0; n < 4; n++)
        sum += random >> 16 * n & 0xffff;
    /* The low bits are drawn separately, because there may be more values than sums. */
    return (uint32_t)(((sum << 16) + (word(seed, 1, index) & 0xffff)) * values >> 34);
}

static uint32_t changed_key(int round, int which) {
    return which == 0 ? (uint32_t)round : values - 1 - (uint32_t)round;
}

static size_t changed_at(int round, int which) {
    return which == 0 ? (size_t)round : (size_t)(ROUNDS + round);
}

static void rank(void) {
    size_t next[BUCKETS_MAX] = {0}, width = (values + buckets - 1) / buckets;
    uint64_t key_sum = 0, dealt_sum = 0;
    for (size_t i = 0; i < count; i++) {
        REQUIRE(keys[i] < values, "key %zu is %u", i, keys[i]);
        next[keys[i] / width]++;
        key_sum += keys[i];
    }
    for (size_t b = 0, start = 0; b < buckets; b++) {
        size_t size = next[b];
        next[b] = start;
        start += size;
    }
    for (size_t i = 0; i < count; i++)
        dealt[next[keys[i] / width]++] = keys[i];
    /* next[b] is now the end of bucket b, which is the start of bucket b + 1. */
    for (size_t b = 0; b < buckets; b++) {
        size_t first = b * width, end = first + width < values ? first + width : values;
        if (first >= end)
            continue;
        memset(below + first, 0, (end - first) * sizeof *below);
        for (size_t i = b ? next[b - 1] : 0; i < next[b]; i++) {
            REQUIRE(dealt[i] >= first && dealt[i] < end, "key %u lies in bucket %zu", dealt[i], b);
            below[dealt[i]]++;
            dealt_sum += dealt[i];
        }
        uint32_t sum = (uint32_t)(b ? next[b - 1] : 0);
        for (size_t v = first; v < end; v++) {
            uint32_t of_this = below[v];
            below[v] = sum;
            sum += of_this;
        }
        REQUIRE(sum == next[b], "%u keys counted up to bucket %zu, not %zu", sum, b, next[b]);
    }
    REQUIRE(dealt_sum == key_sum, "the keys' sum became %llu, not %llu", (unsigned long long)dealt_sum,
            (unsigned long long)key_sum);
}

static void check_rank_of_changed(int round) {
    for (int which = 0; which < 2; which++) {
        uint32_t key = changed_key(round, which);
        uint32_t smaller = 0;
        for (size_t i = 0; i < count; i++)
            smaller += keys[i] < key;
        REQUIRE(below[key] == smaller, "key %u has rank %u, not %u", key, below[key], smaller);
    }
}

/* Orders the keys by their ranks. Returns the sums of the keys that it saw. */
static struct sums sort(void) {
    struct sums sums = {0};
    for (size_t i = 0; i < count; i++) {
        uint32_t key = dealt[i];
        REQUIRE(below[key] < count, "rank %u of %zu keys", below[key], count);
        keys[below[key]++] = key;
        add(&sums, key);
    }
    return sums;
}

int main(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    count = arguments.bytes / (8 * KEYS_PER_VALUE + 4) * KEYS_PER_VALUE;
    REQUIRE(count < UINT32_MAX, "%zu keys are too many", count);
    values = (uint32_t)(count / KEYS_PER_VALUE);
    /* There is one bucket for eight pages of 64K. So the pages at the ends of all buckets are a quarter of the pages
     * at most. */
    for (buckets = 4; buckets < BUCKETS_MAX && buckets * 2 <= arguments.bytes / (512 * 1024);)
        buckets *= 2;
    keys = array(count, sizeof *keys);
    dealt = array(count, sizeof *dealt);
    below = array(values, sizeof *below);
    for (size_t i = 0; i < count; i++)
        keys[i] = random_key(arguments.seed, i);
    for (int round = 0; round < ROUNDS; round++) {
        for (int which = 0; which < 2; which++)
            keys[changed_at(round, which)] = changed_key(round, which);
        rank();
    }
    check_rank_of_changed(ROUNDS - 1);
    struct sums expected = {0}, found = {0}, dealt_out = sort();
    for (size_t i = 2 * ROUNDS; i < count; i++)
        add(&expected, random_key(arguments.seed, i));
    for (int round = 0; round < ROUNDS; round++)
        for (int which = 0; which < 2; which++)
            add(&expected, changed_key(round, which));
    for (size_t i = 0; i < count; i++) {
        REQUIRE(i == 0 || keys[i - 1] <= keys[i], "key %zu is %u, the one before it %u", i, keys[i], keys[i - 1]);
        add(&found, keys[i]);
    }
    REQUIRE(found.plain == expected.plain && found.scrambled == expected.scrambled, "other keys than there were");
    REQUIRE(dealt_out.scrambled == expected.scrambled, "other keys in the buckets than there were");
    printf("ok is: %zu keys below %u, %zu buckets, %d rounds, sum %llu\n", count, values, buckets, ROUNDS,
           (unsigned long long)found.plain);
    return 0;
}
