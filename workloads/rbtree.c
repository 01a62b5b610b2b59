/* rbtree [SIZE_MB] [SEED]
 *
 * A red-black tree with nodes of 48 bytes in one arena, as in the tests of DLM's allocator: it is filled in ascending
 * order, and then nodes are deleted and inserted at random, four out of five in a fifth of the keys. A deleted node is the
 * next to be used.
 *
 * Order, colours, parents and black heights are checked at the end, and the set of keys by its sums. */
#include "kernel.h"

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

/* Moves `node` down to this side; its child of the other side takes its place. */
static void rotate(struct node *node, int side) {
    struct node *child = node->sides[!side], *moved = child->sides[side];
    node->sides[!side] = moved;
    if (moved != &nil)
        moved->parent = node;
    replace(node, child);
    child->sides[side] = node;
    node->parent = child;
}

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

/* One black node is missing above `node`. */
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

/* The node of the smallest key that is not below `key`. */
static struct node *find_from(uint64_t key) {
    struct node *found = &nil;
    for (struct node *at = root; at != &nil;) {
        if (at->key >= key)
            found = at;
        at = at->sides[at->key < key];
    }
    return found;
}

/* Checks the tree below `node`, whose keys lie in [low, high]; takes what it finds off the sums; the black height. */
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

int main(int argc, char **argv) {
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
