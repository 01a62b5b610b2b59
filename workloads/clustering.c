/* clustering [SIZE_MB] [SEED]
 *
 * Hierarchical clustering by single linkage, as in the Cluster 3.0 library. Every merge scans the whole triangular
 * distance matrix for the closest pair, and then changes a row and a column.
 *
 * The heights of the merges must be the lengths of the shortest edges of a minimum spanning tree. The tree is computed
 * from the points themselves. At the end every remaining distance is compared with a distance computed from the
 * points. */
#include "kernel.h"
#include <math.h>

#define MERGES 24
#define DIMENSIONS 4
#define NOBODY SIZE_MAX

static float (*points)[DIMENSIONS];
static float *matrix;           /* row i holds its distances to 0..i-1 */
static size_t *firsts, *others; /* a slot's first item; the item after an item */

static float distance(size_t a, size_t b) {
    float sum = 0;
    for (int d = 0; d < DIMENSIONS; d++)
        sum += (points[a][d] - points[b][d]) * (points[a][d] - points[b][d]);
    return sum;
}

static float *entry(size_t a, size_t b) {
    return a > b ? &matrix[a * (a - 1) / 2 + b] : &matrix[b * (b - 1) / 2 + a];
}

static float closest(size_t clusters, size_t *a, size_t *b) {
    float least = INFINITY;
    const float *at = matrix;
    for (size_t i = 1; i < clusters; i++)
        for (size_t j = 0; j < i; j++, at++)
            if (*at < least) {
                least = *at;
                *a = i;
                *b = j;
            }
    return least;
}

/* Merges slot `a` into the smaller slot `b`. Moves the last slot to the place of `a`. */
static void merge(size_t clusters, size_t a, size_t b) {
    size_t last = clusters - 1, item = firsts[b];
    for (size_t k = 0; k < clusters; k++)
        if (k != a && k != b)
            *entry(b, k) = fminf(*entry(b, k), *entry(a, k));
    while (others[item] != NOBODY)
        item = others[item];
    others[item] = firsts[a];
    firsts[a] = firsts[last];
    for (size_t k = 0; k < last; k++)
        if (k != a)
            *entry(a, k) = *entry(last, k);
}

/* Computes the lengths of the edges of a minimum spanning tree, by Prim's algorithm. */
static void grow_tree(size_t count, float *edges) {
    float *nearest = array(count, sizeof *nearest);
    for (size_t i = 0; i < count; i++)
        nearest[i] = INFINITY;
    for (size_t in = 0, n = 0; n + 1 < count; n++) {
        size_t next = in;
        nearest[in] = -1;
        for (size_t i = 0; i < count; i++) {
            if (nearest[i] < 0)
                continue;
            nearest[i] = fminf(nearest[i], distance(in, i));
            if (next == in || nearest[i] < nearest[next])
                next = i;
        }
        edges[n] = nearest[next];
        in = next;
    }
    free(nearest);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void check_left(size_t clusters) {
    for (size_t a = 1; a < clusters; a++)
        for (size_t b = 0; b < a; b++) {
            float least = INFINITY;
            for (size_t i = firsts[a]; i != NOBODY; i = others[i])
                for (size_t j = firsts[b]; j != NOBODY; j = others[j])
                    least = fminf(least, distance(i, j));
            REQUIRE(*entry(a, b) == least, "clusters %zu and %zu are %g apart, not %g", a, b, *entry(a, b), least);
        }
}

int main(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    size_t count = (size_t)sqrt((double)arguments.bytes / sizeof(float) * 2), clusters = count;
    points = array(count, sizeof *points);
    firsts = array(count, sizeof *firsts);
    others = array(count, sizeof *others);
    for (size_t i = 0; i < count; i++) {
        firsts[i] = i;
        others[i] = NOBODY;
        for (int d = 0; d < DIMENSIONS; d++)
            points[i][d] = (float)unit(arguments.seed, (uint64_t)d, i);
    }
    matrix = array(count * (count - 1) / 2, sizeof *matrix);
    for (size_t i = 1; i < count; i++)
        for (size_t j = 0; j < i; j++)
            *entry(i, j) = distance(i, j);
    float heights[MERGES], *edges = array(count, sizeof *edges);
    for (int n = 0; n < MERGES; n++, clusters--) {
        size_t a = 1, b = 0;
        heights[n] = closest(clusters, &a, &b);
        merge(clusters, a, b);
    }
    grow_tree(count, edges);
    qsort(edges, count - 1, sizeof *edges, ascending);
    for (int n = 0; n < MERGES; n++)
        REQUIRE(heights[n] == edges[n], "merge %d is at height %g, not %g", n, heights[n], edges[n]);
    check_left(clusters);
    printf("ok clustering: %zu items, %d merges, the last at %.6e\n", count, MERGES, heights[MERGES - 1]);
    return 0;
}
