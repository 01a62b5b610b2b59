/* npb_is: NPB IS. Integer keys are ranked ten times by counting, which is the first step of a sort. After each ranking,
 * five keys must have known ranks. At the end, all keys are put in order by their ranks. */
#include "npb.h"

#define KEYS BY_CLASS(1 << 16, 1 << 20, 1 << 23, 1 << 25)
#define KEY_MAX BY_CLASS(1 << 11, 1 << 16, 1 << 19, 1 << 21)
#define ROUNDS 10
#define TESTS 5

static int keys[KEYS], ordered[KEYS], ranks[KEY_MAX];

/* The tested keys' indices, and their ranks without the keys that a round changes. In round r, rank k is
 * rises[k] * (r + shifts[k]) higher. */
#if NPB_CLASS == 'S'
static const int test_at[TESTS] = {48427, 17148, 23627, 62548, 4431};
static const int test_rank[TESTS] = {0, 18, 346, 64917, 65463};
static const int rises[TESTS] = {1, 1, 1, -1, -1}, shifts[TESTS] = {0};
#elif NPB_CLASS == 'W'
static const int test_at[TESTS] = {357773, 934767, 875723, 898999, 404505};
static const int test_rank[TESTS] = {1249, 11698, 1039987, 1043896, 1048018};
static const int rises[TESTS] = {1, 1, -1, -1, -1}, shifts[TESTS] = {-2, -2, 0, 0, 0};
#elif NPB_CLASS == 'A'
static const int test_at[TESTS] = {2112377, 662041, 5336171, 3642833, 4250760};
static const int test_rank[TESTS] = {104, 17523, 123928, 8288932, 8388264};
static const int rises[TESTS] = {1, 1, 1, -1, -1}, shifts[TESTS] = {-1, -1, -1, -1, -1};
#else
static const int test_at[TESTS] = {41869, 812306, 5102857, 18232239, 26860214};
static const int test_rank[TESTS] = {33422937, 10244, 59149, 33135281, 99};
static const int rises[TESTS] = {-1, 1, 1, -1, 1}, shifts[TESTS] = {0};
#endif

static void make_keys(void) {
    uint64_t random = RANDOM_SEED;
    for (size_t at = 0; at < KEYS; at++) {
        double sum = random_next(&random);
        for (int more = 0; more < 3; more++)
            sum += random_next(&random);
        keys[at] = (int)(sum * (KEY_MAX / 4));
    }
}

/* Counts the keys up to each value. Returns how many of the tested keys have their known ranks. */
static int rank_keys(int round) {
    keys[round] = round;
    keys[round + ROUNDS] = KEY_MAX - round;
    memset(ranks, 0, sizeof ranks);
    for (size_t at = 0; at < KEYS; at++)
        ranks[keys[at]]++;
    for (size_t key = 1; key < KEY_MAX; key++)
        ranks[key] += ranks[key - 1];
    int right = 0;
    for (int test = 0; test < TESTS; test++) {
        int key = keys[test_at[test]];
        right += key > 0 && ranks[key - 1] == test_rank[test] + rises[test] * (round + shifts[test]);
    }
    return right;
}

static int can_be_ordered(void) {
    for (size_t at = 0; at < KEYS; at++)
        ordered[--ranks[keys[at]]] = keys[at];
    for (size_t at = 1; at < KEYS; at++)
        if (ordered[at - 1] > ordered[at])
            return 0;
    return 1;
}

int main(int argc, char **argv) {
    struct npb npb = npb_begin("npb_is", sizeof keys + sizeof ordered + sizeof ranks, argc, argv);
    make_keys();
    int right = 0;
    for (int round = 1; round <= ROUNDS; round++)
        right += rank_keys(round);
    right += can_be_ordered();
    return npb_end(&npb, right == ROUNDS * TESTS + 1, "passed", right);
}
