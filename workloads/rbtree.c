/* rbtree [SIZE_MB] [SEED]
 *
 * A red-black tree with nodes of 48 bytes in one arena. It is filled in ascending order. Then nodes are deleted and
 * inserted at random. Four out of five of these keys are from a fifth of all keys. A deleted node is the next to be
 * used.
 *
 * rbtree --allocator malloc|dlm [--scale N] [--away] [--json] [--seed SEED]
 *
 * The program of DLM's paper on memory management (section 4.1): N (1) times 500,000 inserts of random numbers up to
 * a million, 100 times N times 1,000 deletes and 1,000 inserts of such numbers, and the release of all nodes. Every
 * node is a block of malloc or of dlm_alloc. As in the paper, an insert first allocates a node, and frees it if the
 * number is in the tree already. The program prints the seconds spent in allocating, in freeing and in all. Nodes are
 * allocated and freed a thousand at a time. So the clock is read seldom, and neither time contains accesses to the
 * tree. With --away, the program accesses so much other memory before the release that every node is evicted (`dlm`
 * only). dlm_startup removes its options from the arguments.
 *
 * At the end, order, colours, parents and black heights are checked. The set of keys is checked by its sums. */
#define _GNU_SOURCE
#include "../include/dlmm.h"
#include "kernel.h"
#include <sys/mman.h>
#include <time.h>

/* The symbol is weak. So the program can be built without the library. It then runs with malloc or under `hanare
 * run`. */
#pragma weak dlm_startup
#pragma weak dlm_shutdown
#pragma weak dlm_alloc
#pragma weak dlm_free
#pragma weak dlm_stats

#define NODES_PER_CHANGE 48

struct node {
    uint64_t key, value;
    struct node *parent, *sides[2]; /* smaller and larger keys */
    uint64_t red;
};

static struct node nil = {.parent = &nil, .sides = {&nil, &nil}}, *root = &nil, *unused;
static uint64_t count, key_sum, scrambled_sum;

static uint64_t value_of(uint64_t key) {
    return word(key, 0, 0);
}

static void replace(struct node *old, struct node *new) {
    *(old->parent == &nil ? &root : &old->parent->sides[old == old->parent->sides[1]]) = new;
    new->parent = old->parent;
}

/* Moves `node` down to this side. Its child of the other side gets its place. */
static void rotate(struct node *node, int side) {
    struct node *child = node->sides[!side], *moved = child->sides[side];
    node->sides[!side] = moved;
    if (moved != &nil)
        moved->parent = node;
    replace(node, child);
    child->sides[side] = node;
    node->parent = child;
}

/* Inserts a key, using the node at the front of the free list. Does nothing if the key is in the tree. */
static void insert(uint64_t key) {
    struct node *parent = &nil, *at = root;
    while (at != &nil) {
        if (at->key == key)
            return;
        parent = at;
        at = at->sides[key > at->key];
    }
    struct node *node = unused;
    REQUIRE(node != NULL, "no node is left after %llu", (unsigned long long)count);
    unused = node->parent;
    *node = (struct node){.key = key, .value = value_of(key), .parent = parent, .sides = {&nil, &nil}, .red = 1};
    *(parent == &nil ? &root : &parent->sides[key > parent->key]) = node;
    count++;
    key_sum += key;
    scrambled_sum += node->value;
    while (node->parent->red) {
        struct node *up = node->parent, *top = up->parent;
        int side = up == top->sides[1];
        struct node *uncle = top->sides[!side];
        if (uncle->red) {
            up->red = uncle->red = 0;
            top->red = 1;
            node = top;
            continue;
        }
        if (node == up->sides[!side]) {
            rotate(up, side);
            node = up;
            up = node->parent;
        }
        up->red = 0;
        top->red = 1;
        rotate(top, !side);
    }
    root->red = 0;
}

/* Repairs the tree above `node`, where one black node is missing. */
static void mend(struct node *node) {
    while (node != root && !node->red) {
        struct node *up = node->parent;
        int side = node == up->sides[1];
        struct node *other = up->sides[!side];
        if (other->red) {
            other->red = 0;
            up->red = 1;
            rotate(up, side);
            other = up->sides[!side];
        }
        if (!other->sides[0]->red && !other->sides[1]->red) {
            other->red = 1;
            node = up;
            continue;
        }
        if (!other->sides[!side]->red) {
            other->sides[side]->red = 0;
            other->red = 1;
            rotate(other, !side);
            other = up->sides[!side];
        }
        other->red = up->red;
        up->red = 0;
        other->sides[!side]->red = 0;
        rotate(up, side);
        node = root;
    }
    node->red = 0;
}

static void delete(struct node *node) {
    struct node *child;
    uint64_t was_red = node->red;
    REQUIRE(node->value == value_of(node->key), "node %p has another key's value", (void *)node);
    count--;
    key_sum -= node->key;
    scrambled_sum -= node->value;
    if (node->sides[0] == &nil || node->sides[1] == &nil) {
        child = node->sides[node->sides[0] == &nil];
        replace(node, child);
    } else {
        struct node *next = node->sides[1];
        while (next->sides[0] != &nil)
            next = next->sides[0];
        was_red = next->red;
        child = next->sides[1];
        if (next->parent == node) {
            child->parent = next;
        } else {
            replace(next, child);
            next->sides[1] = node->sides[1];
            next->sides[1]->parent = next;
        }
        replace(node, next);
        next->sides[0] = node->sides[0];
        next->sides[0]->parent = next;
        next->red = node->red;
    }
    if (!was_red)
        mend(child);
    node->parent = unused;
    unused = node;
}

/* Returns the node with the smallest key that is not below `key`. */
static struct node *find_from(uint64_t key) {
    struct node *found = &nil;
    for (struct node *at = root; at != &nil;) {
        if (at->key >= key)
            found = at;
        at = at->sides[at->key < key];
    }
    return found;
}

/* Checks the tree below `node`, whose keys lie in [low, high]. Subtracts the keys from the sums. Returns the black
 * height. */
static unsigned check(struct node *node, struct node *parent, uint64_t low, uint64_t high) {
    if (node == &nil)
        return 1;
    REQUIRE(node->parent == parent, "node %p has a wrong parent", (void *)node);
    REQUIRE(node->key >= low && node->key <= high, "key %llx is out of order", (unsigned long long)node->key);
    REQUIRE(!(node->red && parent->red), "two red nodes at key %llx", (unsigned long long)node->key);
    REQUIRE(node->value == value_of(node->key), "node %p has another key's value", (void *)node);
    unsigned left = check(node->sides[0], node, low, node->key - 1);
    count--;
    key_sum -= node->key;
    scrambled_sum -= node->value;
    unsigned right = check(node->sides[1], node, node->key + 1, high);
    REQUIRE(left == right, "black heights %u and %u at key %llx", left, right, (unsigned long long)node->key);
    return left + !node->red;
}

static int run_in_arena(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    size_t nodes = arguments.bytes / sizeof(struct node), changes = nodes / NODES_PER_CHANGE;
    struct node *arena = array(nodes, sizeof *arena);
    uint64_t gap = (uint64_t)1 << 40, state = arguments.seed, keys = nodes - nodes / 16;
    for (size_t n = 0; n < keys; n++) {
        unused = &arena[n];
        unused->parent = NULL;
        insert((n + 1) * gap + draw(&state) % gap);
    }
    for (size_t n = keys; n < nodes; n++) {
        arena[n].parent = unused;
        unused = &arena[n];
    }
    for (size_t n = 0; n < changes; n++) {
        uint64_t range = draw(&state) % 5 < 4 ? keys / 5 * gap : keys * gap;
        struct node *node = find_from(draw(&state) % range);
        if (node != &nil)
            delete(node);
        insert(1 + draw(&state) % range);
    }
    uint64_t held = count;
    unsigned height = check(root, &nil, 1, UINT64_MAX);
    REQUIRE(count == 0 && key_sum == 0 && scrambled_sum == 0, "the keys are not those that were inserted");
    printf("ok rbtree: %llu nodes, %zu changes, black height %u\n", (unsigned long long)held, changes, height);
    return 0;
}

/* ---- the paper's program ---- */

#define INSERTS 500000
#define KEYS 1000000
#define ROUNDS 100
#define CHANGES 1000

static int uses_dlm, moves_away, in_json;
static size_t scale = 1;
static double alloc_s, free_s;

static double now(void) {
    struct timespec time;
    CALL(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static uint64_t faults(void) {
    struct dlm_stats stats = {0};
    return uses_dlm && dlm_stats(&stats) == 0 ? stats.faults : 0;
}

static uint64_t draw_key(uint64_t *state) {
    return 1 + (draw(state) >> 1) % (KEYS * scale);
}

static void release(struct node **nodes, size_t held) {
    double start = now();
    if (uses_dlm)
        for (size_t n = 0; n < held; n++)
            dlm_free(nodes[n]);
    else
        for (size_t n = 0; n < held; n++)
            free(nodes[n]);
    free_s += now() - start;
}

/* Inserts CHANGES random numbers. If a number is in the tree already, frees its node again. */
static void insert_some(uint64_t *state) {
    struct node *nodes[CHANGES];
    size_t left = 0;
    double start = now();
    if (uses_dlm)
        for (size_t n = 0; n < CHANGES; n++)
            nodes[n] = dlm_alloc(sizeof(struct node));
    else
        for (size_t n = 0; n < CHANGES; n++)
            nodes[n] = malloc(sizeof(struct node));
    alloc_s += now() - start;
    for (size_t n = 0; n < CHANGES; n++) {
        CALL(nodes[n] != NULL);
        nodes[n]->parent = NULL;
        unused = nodes[n];
        insert(draw_key(state));
        if (unused)
            nodes[left++] = unused;
    }
    unused = NULL;
    release(nodes, left);
}

/* Draws CHANGES random numbers. Deletes those that are in the tree, and frees their nodes. */
static void delete_some(uint64_t *state) {
    struct node *gone[CHANGES];
    size_t held = 0;
    for (size_t n = 0; n < CHANGES; n++) {
        uint64_t key = draw_key(state);
        struct node *node = find_from(key);
        if (node == &nil || node->key != key)
            continue;
        delete(node);
        gone[held++] = node;
    }
    unused = NULL;
    release(gone, held);
}

/* Collects every node's address in the order of the keys. The list is in near memory, which is never evicted. */
static size_t collect(struct node **nodes) {
    size_t held = 0;
    for (struct node *at = root; at != &nil;) {
        while (at->sides[0] != &nil)
            at = at->sides[0];
        for (;;) {
            nodes[held++] = at;
            if (at->sides[1] != &nil) {
                at = at->sides[1];
                break;
            }
            while (at->parent != &nil && at == at->parent->sides[1])
                at = at->parent;
            at = at->parent;
            if (at == &nil)
                return held;
        }
    }
    return held;
}

/* Accesses twice the budget of other far memory, so that all pages accessed before are evicted. */
static void move_away(void) {
    struct dlm_stats stats;
    CALL(dlm_stats(&stats) == 0);
    size_t bytes = stats.local_bytes_budget * 2;
    unsigned char *other = dlm_alloc(bytes);
    CALL(other != NULL);
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < bytes; at += PAGE)
            other[at]++;
}

static void take_options(int argc, char **argv, uint64_t *seed) {
    const char *value, *allocator = "";
    for (int i = 1; i < argc; i++) {
        if ((value = option(argv, &i, "--allocator")))
            allocator = value;
        else if ((value = option(argv, &i, "--scale")))
            scale = parse_number(value, 1000);
        else if ((value = option(argv, &i, "--seed")))
            *seed = parse_number(value, UINT64_MAX);
        else if (strcmp(argv[i], "--away") == 0)
            moves_away = 1;
        else if (strcmp(argv[i], "--json") == 0)
            in_json = 1;
        else
            scale = 0;
    }
    uses_dlm = strcmp(allocator, "dlm") == 0;
    if (scale == 0 || (!uses_dlm && (moves_away || strcmp(allocator, "malloc") != 0))) {
        fprintf(stderr, "usage: %s --allocator malloc|dlm [--scale N] [--away (dlm)] [--json] [--seed SEED]\n", argv[0]);
        exit(2);
    }
}

static void tell(size_t nodes, double total_s, uint64_t faults_in_release) {
    const char *allocator = uses_dlm ? "dlm" : "malloc";
    struct dlm_stats stats = {0};
    if (uses_dlm)
        CALL(dlm_stats(&stats) == 0);
    if (in_json)
        printf("{\"allocator\": \"%s\", \"nodes\": %zu, \"alloc_s\": %.6f, \"free_s\": %.6f, \"total_s\": %.6f, "
               "\"faults\": %llu, \"faults_in_release\": %llu, \"far_bytes_peak\": %llu, \"pages_in\": %llu}\n",
               allocator, nodes, alloc_s, free_s, total_s, (unsigned long long)stats.faults,
               (unsigned long long)faults_in_release, (unsigned long long)stats.far_bytes_peak,
               (unsigned long long)stats.pages_in);
    else
        printf("ok rbtree: %zu nodes of %s, alloc %.3f s, free %.3f s, in all %.3f s, %llu faults in the release\n", nodes,
               allocator, alloc_s, free_s, total_s, (unsigned long long)faults_in_release);
}

static int run_with_allocator(int argc, char **argv) {
    uint64_t state = 1;
    if (dlm_startup)
        dlm_startup(&argc, &argv);
    take_options(argc, argv, &state);
    REQUIRE(!uses_dlm || dlm_alloc, "there is no dlm_alloc: link with libhanare, or run under 'hanare run'");
    size_t most = (INSERTS + ROUNDS * CHANGES) * scale;
    struct node **nodes = mmap(NULL, most * sizeof *nodes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CALL(nodes != MAP_FAILED);
    double start = now();
    for (size_t n = 0; n < INSERTS * scale; n += CHANGES)
        insert_some(&state);
    for (size_t round = 0; round < ROUNDS * scale; round++) {
        delete_some(&state);
        insert_some(&state);
    }
    double checked = now();
    uint64_t held = count;
    unsigned height = check(root, &nil, 1, UINT64_MAX);
    REQUIRE(height > 0 && count == 0 && key_sum == 0 && scrambled_sum == 0, "the keys are not those that were inserted");
    checked = now() - checked;
    size_t listed = collect(nodes);
    REQUIRE(listed == held, "%zu nodes are listed of %llu", listed, (unsigned long long)held);
    double away = now();
    if (moves_away)
        move_away();
    away = now() - away;
    uint64_t before = faults();
    release(nodes, listed);
    uint64_t after = faults();
    tell((size_t)held, now() - start - checked - away, after - before);
    if (uses_dlm)
        dlm_shutdown();
    return 0;
}

int main(int argc, char **argv) {
    int in_arena = argc < 2 || strncmp(argv[1], "--", 2) != 0;
    return in_arena ? run_in_arena(argc, argv) : run_with_allocator(argc, argv);
}
