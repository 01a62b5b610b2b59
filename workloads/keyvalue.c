/* keyvalue [--megabytes N] [--operations N] [--zipf S] [--seed SEED] [--verify] [--json]
 *
 * A key-value store in memory: a hash table whose nodes are chained. A node has a value of 48 to 512 bytes and is
 * malloc'd by itself. N megabytes (64) are the size of the store. Of the operations (1,000,000), 95 % read a value and
 * 5 % replace it by one of another size. Keys are drawn by Zipf's law with exponent S (0.99): the key of rank r is
 * drawn in proportion to 1 / r^S. Keys of neighbouring ranks are not neighbours in memory.
 *
 * The size and the bytes of a value follow from its key and its version. Every read checks all of them. With --verify,
 * the same operations are then repeated on an array of versions, and the whole table is compared with it. */
#include "benchmark.h"

#define VALUE_BYTES_MIN 48
#define VALUE_BYTES_MAX 512
#define BYTES_PER_KEY 328 /* a node with a value of mean size, malloc's header and half a bucket or more */
#define UPDATES_PER_100 5
#define RANK_STEP 2654435761u /* a prime above every number of keys, so no two ranks share a key */

struct node {
    struct node *next;
    uint32_t key, version;
    uint32_t bytes, unused;
    unsigned char value[];
};

/* The numbers of a distribution by rejection-inversion (Hoermann and Derflinger, 1996). */
struct zipf {
    double exponent, ranks, first, last, near;
};

struct requests {
    struct zipf zipf;
    uint64_t state;
    size_t rank; /* from 1 */
    uint32_t key;
    int is_update;
};

static struct node **buckets;
static size_t keys, mask;

static uint32_t bytes_of(uint32_t key, uint32_t version) {
    return VALUE_BYTES_MIN + (uint32_t)(word(1, version, key) >> 32) % (VALUE_BYTES_MAX - VALUE_BYTES_MIN + 1);
}

static uint64_t seed_of(uint32_t key, uint32_t version) {
    return word(2, version, key);
}

static struct node *make(uint32_t key, uint32_t version) {
    uint32_t bytes = bytes_of(key, version);
    struct node *node = malloc(sizeof *node + bytes);
    CALL(node != NULL);
    *node = (struct node){.key = key, .version = version, .bytes = bytes};
    for (uint32_t at = 0; at < bytes; at += 8) {
        uint64_t part = word(seed_of(key, version), 0, at);
        memcpy(node->value + at, &part, bytes - at < 8 ? bytes - at : 8);
    }
    return node;
}

/* Checks a value. Returns the sum of its words. */
static uint64_t read_value(const struct node *node) {
    uint64_t sum = 0;
    REQUIRE(node->bytes == bytes_of(node->key, node->version), "keyvalue: key %u, version %u has %u bytes", node->key,
            node->version, node->bytes);
    for (uint32_t at = 0; at < node->bytes; at += 8) {
        size_t len = node->bytes - at < 8 ? node->bytes - at : 8;
        uint64_t part = word(seed_of(node->key, node->version), 0, at);
        REQUIRE(memcmp(node->value + at, &part, len) == 0, "keyvalue: key %u, version %u is wrong from byte %u",
                node->key, node->version, at);
        sum += part;
    }
    return sum;
}

static struct node **bucket_of(uint32_t key) {
    return &buckets[word(3, 0, key) >> 8 & mask];
}

/* Returns the place that points to the node of a key. */
static struct node **find(uint32_t key) {
    struct node **place = bucket_of(key);
    while (*place && (*place)->key != key)
        place = &(*place)->next;
    REQUIRE(*place != NULL, "keyvalue: key %u is lost", key);
    return place;
}

static void update(uint32_t key) {
    struct node **place = find(key), *old = *place;
    uint32_t version = old->version + 1;
    while (bytes_of(key, version) == old->bytes)
        version++;
    struct node *new = make(key, version);
    new->next = old->next;
    *place = new;
    free(old);
}

/* An integral of x^-S, which also holds for S = 1. */
static double integral(double exponent, double x) {
    double log_x = log(x), power = (1 - exponent) * log_x;
    return fabs(power) > 1e-8 ? expm1(power) / power * log_x : log_x * (1 + power / 2);
}

static double inverse(double exponent, double y) {
    double power = (1 - exponent) * y;
    return exp(fabs(power) > 1e-8 ? log1p(power) / power * y : y * (1 - power / 2));
}

static struct zipf zipf(double exponent, size_t ranks) {
    return (struct zipf){.exponent = exponent,
                         .ranks = (double)ranks,
                         .first = integral(exponent, 1.5) - 1,
                         .last = integral(exponent, (double)ranks + 0.5),
                         .near = 2 - inverse(exponent, integral(exponent, 2.5) - pow(2, -exponent))};
}

static size_t draw_rank(const struct zipf *zipf, uint64_t *state) {
    for (;;) {
        double y = zipf->last + (double)(draw(state) >> 11) * 0x1p-53 * (zipf->first - zipf->last);
        double x = inverse(zipf->exponent, y), rank = fmin(fmax(floor(x + 0.5), 1), zipf->ranks);
        if (rank - x <= zipf->near || y >= integral(zipf->exponent, rank + 0.5) - pow(rank, -zipf->exponent))
            return (size_t)rank;
    }
}

static void next_request(struct requests *requests) {
    requests->rank = draw_rank(&requests->zipf, &requests->state);
    requests->key = (uint32_t)((requests->rank * (uint64_t)RANK_STEP) % keys);
    requests->is_update = (draw(&requests->state) >> 32) % 100 < UPDATES_PER_100;
}

static void check_table(struct requests requests, size_t operations) {
    uint32_t *versions = array(keys, sizeof *versions);
    memset(versions, 0, keys * sizeof *versions);
    for (size_t n = 0; n < operations; n++) {
        next_request(&requests);
        uint32_t *version = &versions[requests.key], bytes = bytes_of(requests.key, *version);
        if (requests.is_update)
            do
                ++*version;
            while (bytes_of(requests.key, *version) == bytes);
    }
    size_t found = 0;
    for (size_t bucket = 0; bucket <= mask; bucket++)
        for (struct node *node = buckets[bucket]; node; node = node->next, found++) {
            REQUIRE(node->key < keys && bucket_of(node->key) == &buckets[bucket],
                    "keyvalue: key %u is in another bucket", node->key);
            REQUIRE(node->version == versions[node->key], "keyvalue: key %u has version %u, not %u", node->key,
                    node->version, versions[node->key]);
            read_value(node);
            versions[node->key] = UINT32_MAX; /* a second node of the key has another version */
        }
    REQUIRE(found == keys, "keyvalue: the table has %zu keys, not %zu", found, keys);
    free(versions);
}

/* Compares the share of the hottest keys with Zipf's law. It lies within six standard deviations. */
static void check_share(double exponent, size_t hottest, size_t operations, double share) {
    double all = 0, hot = 0;
    for (size_t rank = 1; rank <= keys; rank++) {
        all += pow((double)rank, -exponent);
        hot = rank == hottest ? all : hot;
    }
    double expected = hot / all, most = 6 * sqrt(expected * (1 - expected) / (double)operations);
    REQUIRE(fabs(share - expected) <= most, "keyvalue: the hottest keys got %.5f of all requests, not %.5f", share,
            expected);
}

static double parse_exponent(const char *text) {
    char *rest;
    double exponent = strtod(text, &rest);
    if (rest == text || *rest || !(exponent >= 0 && exponent <= 10)) {
        fprintf(stderr, "not an exponent of 0 to 10: %s\n", text);
        exit(2);
    }
    return exponent;
}

int main(int argc, char **argv) {
    size_t megabytes = 64, operations = 1000000, hits = 0, buckets_wanted;
    double exponent = 0.99;
    uint64_t seed = 1, sum = 0;
    const char *value;
    for (int i = 1; i < argc; i++) {
        if ((value = option(argv, &i, "--megabytes")))
            megabytes = parse_count(value, 1, (size_t)1 << 19);
        else if ((value = option(argv, &i, "--operations")))
            operations = parse_count(value, 1, (size_t)1 << 40);
        else if ((value = option(argv, &i, "--zipf")))
            exponent = parse_exponent(value);
        else if ((value = option(argv, &i, "--seed")))
            seed = parse_number(value, UINT64_MAX);
        else if (!is_common_flag(argv[i]))
            end_with_usage(argv[0], "[--megabytes N] [--operations N] [--zipf S] [--seed SEED]");
    }
    keys = megabytes * MIB / BYTES_PER_KEY;
    for (buckets_wanted = 1; buckets_wanted < keys; buckets_wanted *= 2)
        ;
    mask = buckets_wanted - 1;
    buckets = calloc(buckets_wanted, sizeof *buckets);
    CALL(buckets != NULL);
    double begun = now();
    for (uint32_t key = 0; key < keys; key++) {
        struct node **place = bucket_of(key), *node = make(key, 0);
        node->next = *place;
        *place = node;
    }
    struct requests requests = {.zipf = zipf(exponent, keys), .state = seed}, first = requests;
    double start = now();
    for (size_t n = 0; n < operations; n++) {
        next_request(&requests);
        hits += requests.rank <= keys / 100;
        if (requests.is_update)
            update(requests.key);
        else
            sum += read_value(*find(requests.key));
    }
    double end = now(), share = (double)hits / (double)operations;
    if (verifies) {
        check_table(first, operations);
        check_share(exponent, keys / 100, operations, share);
    }
    if (in_json)
        printf("{\"name\": \"keyvalue\", \"bytes\": %zu, \"seconds\": %.6f, \"verified\": %s, \"keys\": %zu, "
               "\"operations\": %zu, \"operations_per_second\": %.0f, \"hottest_share\": %.5f, \"checksum\": %llu}\n",
               megabytes * MIB, end - begun, verifies ? "true" : "null", keys, operations,
               (double)operations / (end - start), share, (unsigned long long)sum);
    else
        printf("ok keyvalue: %zu keys, %zu operations, %.2f %% on the hottest hundredth, checksum %016llx\n", keys,
               operations, 100 * share, (unsigned long long)sum);
    return 0;
}
