/* The check of genes: the distances of merged clusters are computed from their members. Its formulas differ from those
 * of the program. */
#ifndef HANARE_WORKLOADS_GENES_CHECK_H
#define HANARE_WORKLOADS_GENES_CHECK_H

#include "benchmark.h"

#define PAIRS_CHECKED_MAX 120
#define SAMPLES 64
#define ERROR_MAX 1e-9
#define NOBODY SIZE_MAX

/* A merge. A gene is its number, and the cluster of merge n is -n - 1. */
struct node {
    int left, right;
    double distance;
};

struct merges {
    size_t genes, conditions;
    double **data;
    int **mask;
    const struct node *nodes;
    int by_centroids;
};

/* Clusters as lists of their genes. Gene i is cluster i, and merge n makes cluster genes + n. */
struct members {
    size_t *firsts, *nexts;
};

/* Returns 1 - r of two rows, where NAN is a missing number. */
static double direct_distance(const double *x, const double *y, size_t conditions) {
    double mean_x = 0, mean_y = 0, product = 0, square_x = 0, square_y = 0, count = 0;
    for (size_t c = 0; c < conditions; c++)
        if (!isnan(x[c] + y[c])) {
            count++;
            mean_x += (x[c] - mean_x) / count;
            mean_y += (y[c] - mean_y) / count;
        }
    for (size_t c = 0; c < conditions; c++)
        if (!isnan(x[c] + y[c])) {
            product += (x[c] - mean_x) * (y[c] - mean_y);
            square_x += (x[c] - mean_x) * (x[c] - mean_x);
            square_y += (y[c] - mean_y) * (y[c] - mean_y);
        }
    return square_x > 0 && square_y > 0 ? 1 - product / (sqrt(square_x) * sqrt(square_y)) : 1;
}

/* Computes the mean of a cluster's numbers in each condition. */
static void direct_centroid(const double *table, size_t conditions, struct members members, size_t cluster,
                            double *mean) {
    for (size_t c = 0; c < conditions; c++) {
        double sum = 0, count = 0;
        for (size_t i = members.firsts[cluster]; i != NOBODY; i = members.nexts[i])
            if (!isnan(table[i * conditions + c])) {
                sum += table[i * conditions + c];
                count++;
            }
        mean[c] = sum / count;
    }
}

/* Returns the distance of two clusters: of their centroids, or the mean distance of their genes. */
static double distance_of_clusters(const struct merges *merges, const double *table, struct members members, size_t a,
                                   size_t b) {
    size_t conditions = merges->conditions;
    if (merges->by_centroids) {
        double *means = array(2 * conditions, sizeof *means);
        direct_centroid(table, conditions, members, a, means);
        direct_centroid(table, conditions, members, b, means + conditions);
        double found = direct_distance(means, means + conditions, conditions);
        free(means);
        return found;
    }
    double sum = 0, count = 0;
    for (size_t i = members.firsts[a]; i != NOBODY; i = members.nexts[i])
        for (size_t j = members.firsts[b]; j != NOBODY; j = members.nexts[j], count++)
            sum += direct_distance(table + i * conditions, table + j * conditions, conditions);
    return sum / count;
}

static void check_no_closer_pair(const struct merges *merges, const double *table, struct members members, size_t n) {
    for (size_t a = 1; a < merges->genes + n; a++)
        for (size_t b = 0; b < a; b++) {
            if (members.firsts[a] == NOBODY || members.firsts[b] == NOBODY)
                continue;
            double found = distance_of_clusters(merges, table, members, a, b);
            REQUIRE(found >= merges->nodes[n].distance - ERROR_MAX,
                    "genes: merge %zu is at %g, but clusters %zu and %zu are at %g", n, merges->nodes[n].distance, a, b,
                    found);
        }
}

static void join_members(struct members members, size_t a, size_t b, size_t joined) {
    size_t *end = &members.firsts[a];
    while (*end != NOBODY)
        end = &members.nexts[*end];
    *end = members.firsts[b];
    members.firsts[joined] = members.firsts[a];
    members.firsts[a] = members.firsts[b] = NOBODY;
}

static void check_merges(const struct merges *merges) {
    size_t genes = merges->genes, conditions = merges->conditions, last = genes - 2;
    size_t step = genes <= PAIRS_CHECKED_MAX ? 1 : genes / SAMPLES + 1;
    double *table = array(genes * conditions, sizeof *table);
    struct members members = {array(2 * genes, sizeof(size_t)), array(genes, sizeof(size_t))};
    for (size_t i = 0; i < genes; i++) {
        members.firsts[i] = i;
        members.nexts[i] = members.firsts[genes + i] = NOBODY;
        for (size_t c = 0; c < conditions; c++)
            table[i * conditions + c] = merges->mask[i][c] ? merges->data[i][c] : NAN;
    }
    for (size_t n = 0; n <= last; n++) {
        struct node node = merges->nodes[n];
        size_t a = node.left < 0 ? genes + (size_t)(-node.left - 1) : (size_t)node.left;
        size_t b = node.right < 0 ? genes + (size_t)(-node.right - 1) : (size_t)node.right;
        REQUIRE(a != b && a < genes + n && b < genes + n && members.firsts[a] != NOBODY && members.firsts[b] != NOBODY,
                "genes: merge %zu is of %d and %d, which are no clusters then", n, node.left, node.right);
        REQUIRE(merges->by_centroids || n == 0 || node.distance >= merges->nodes[n - 1].distance - ERROR_MAX,
                "genes: merge %zu is at %g, below the one before it", n, node.distance);
        double found = n % step == 0 || n == last ? distance_of_clusters(merges, table, members, a, b) : node.distance;
        REQUIRE(fabs(found - node.distance) <= ERROR_MAX, "genes: merge %zu is at %.12g, not %.12g", n, node.distance,
                found);
        if (step == 1)
            check_no_closer_pair(merges, table, members, n);
        join_members(members, a, b, genes + n);
    }
    free(table);
    free(members.firsts);
    free(members.nexts);
}

#endif
