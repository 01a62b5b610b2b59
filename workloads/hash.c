/* A hash table on shared memory. Every rank adds to the same keys, each chain under a lock, and looks up keys that
 * others added.
 *
 *     hanare launch -n 4 -- hash [-n ADDITIONS] [--verify] [--json]
 *
 * Each rank makes ADDITIONS additions. --verify compares the table with a serial one. The exit code is 1 if a key or a
 * sum differs, and also if a rank finds a smaller sum than it added itself. */
#include "shared.h"

#define CHAINS 256
#define LOCKS 64

struct entry {
    uint64_t key;
    int64_t sum;
    int64_t next; /* index of the next entry; 0 for none */
};

static int64_t *chains;       /* first entries: indices, 0 for none */
static struct entry *entries; /* each rank takes new ones from its own part */

/* Computes the key and the summand of a rank's addition. Different ranks often have the same keys. */
static uint64_t key_of(int rank, long turn, long additions) {
    return mix((uint64_t)(turn * 7 + rank)) % (uint64_t)additions;
}

static int64_t summand(int rank, long turn) {
    return 1 + (int64_t)(mix((uint64_t)turn * 1000 + (uint64_t)rank) % 1000);
}

static struct entry *find(uint64_t key) {
    for (int64_t at = chains[mix(key) % CHAINS]; at; at = entries[at].next)
        if (entries[at].key == key)
            return &entries[at];
    return NULL;
}

/* Adds `sum` to a key, under the lock of the key's chain. If the key has no entry, uses the entry with index `fresh`.
 * Returns whether it used that entry. */
static int add(uint64_t key, int64_t sum, int64_t fresh) {
    uint64_t chain = mix(key) % CHAINS;
    struct entry *entry = find(key);
    if (entry) {
        entry->sum += sum;
        return 0;
    }
    entries[fresh] = (struct entry){.key = key, .sum = sum, .next = chains[chain]};
    chains[chain] = fresh;
    return 1;
}

static int verify(long additions) {
    int64_t *sums = calloc((size_t)additions, sizeof(int64_t));
    if (!sums)
        return 0;
    long keys = 0, found = 0;
    for (int rank = 0; rank < dsm_size(); rank++)
        for (long turn = 0; turn < additions; turn++) {
            uint64_t key = key_of(rank, turn, additions);
            keys += sums[key] == 0;
            sums[key] += summand(rank, turn);
        }
    int same = 1;
    for (int chain = 0; chain < CHAINS; chain++)
        for (int64_t at = chains[chain]; at && found <= keys; at = entries[at].next, found++)
            same = same && entries[at].key < (uint64_t)additions && sums[entries[at].key] == entries[at].sum;
    free(sums);
    return same && found == keys;
}

int main(int argc, char *argv[]) {
    dsm_startup(&argc, &argv);
    long additions = option(argc, argv, "-n", 2000);
    int rank = dsm_rank(), ranks = dsm_size();
    if (additions < 1) {
        fprintf(stderr, "hash: -n wants a number above 0\n");
        return 2;
    }
    size_t part = (sizeof(struct entry) * (size_t)(additions + 1) + 4095) / 4096 * 4096;
    chains = dsm_alloc(sizeof(int64_t) * CHAINS, dsm_cyclic(4096));
    entries = dsm_alloc(part * (size_t)ranks, dsm_cyclic(part));
    if (!chains || !entries) {
        fprintf(stderr, "hash: no room for %ld additions\n", additions);
        return 2;
    }
    dsm_barrier();
    double began = seconds();
    /* The index of the first entry that is wholly in this rank's part. Index 0 is not used. */
    int64_t fresh = (int64_t)((part * (size_t)rank + sizeof(struct entry) - 1) / sizeof(struct entry)) + (rank == 0);
    int lost = 0;
    for (long turn = 0; turn < additions; turn++) {
        uint64_t key = key_of(rank, turn, additions);
        int64_t sum = summand(rank, turn);
        int lock = (int)(mix(key) % CHAINS % LOCKS);
        dsm_lock(lock);
        fresh += add(key, sum, fresh);
        dsm_unlock(lock);
        /* Checks an entry that this rank or another rank added before. */
        uint64_t earlier = key_of(rank, turn / 2, additions);
        lock = (int)(mix(earlier) % CHAINS % LOCKS);
        dsm_lock(lock);
        struct entry *entry = find(earlier);
        lost |= !entry || entry->sum < summand(rank, turn / 2);
        dsm_unlock(lock);
    }
    dsm_barrier();
    double run_s = seconds() - began;
    if (lost)
        fprintf(stderr, "hash: rank %d lost an addition\n", rank);
    char what[40];
    snprintf(what, sizeof(what), "\"additions\":%ld", additions);
    if (given(argc, argv, "--json", NULL))
        print_counts(what, run_s);
    int wrong = given(argc, argv, "--verify", NULL) && rank == 0 && verdict("hash", verify(additions));
    dsm_shutdown();
    return wrong || lost;
}
