/* genes [--genes N] [--conditions M] [--linkage average|centroid] [--allocator malloc|dlm] [--seed SEED] [--verify]
 *       [--json]
 *
 * Hierarchical clustering of genes as Cluster 3.0 does it, the second program of DLM's paper on memory management
 * (section 4.2). A text of expressions has a line for each gene. It is read twice: to count the lines, and to keep
 * them. Each row of data, mask and triangular distance matrix is a block, and so is each name. The distance of two
 * genes is 1 - r of Pearson. Every merge scans the whole matrix for the closest pair. The lines of the result are
 * hashed and not written.
 *
 * The default is the size of the paper's text: 1.2 MB of 2,467 genes and 79 conditions. These follow from the paper's
 * counts: a merge is 16 bytes, and the largest block has 39,456; a gene takes ten calls of malloc and two of realloc.
 * The paper counts 24,773 calls of malloc, 4,937 of realloc, 1 of calloc and 24,774 of free, and at the most 12,433
 * blocks at a time. Each call is timed. With `--allocator dlm`, blocks are those of dlm_alloc, and dlm_startup removes
 * its options.
 *
 * The check computes the distances of merged clusters from their members. Up to PAIRS_CHECKED_MAX genes, it does so for
 * all pairs of clusters before each merge. For more genes, it samples the merges. */
#include "genes_check.h"
#include "genes_text.h"

/* ---- clustering ---- */

static int by_centroids;
static double **rows;      /* row i holds the distances of slot i to slots 0..i-1 */
static double **centroids; /* of the slots, if `by_centroids` */
static int **counts;       /* numbers in a centroid's condition */
static int *clusters;      /* in the slots */
static double *sizes;      /* of these clusters */
static struct node *nodes;

static double distance(const double *x, const int *has_x, const double *y, const int *has_y) {
    double sum = 0, sum_x = 0, sum_y = 0, squares_x = 0, squares_y = 0, all = 0;
    for (size_t c = 0; c < conditions; c++)
        if (has_x[c] && has_y[c]) {
            double weight = weights[c];
            sum += weight * x[c] * y[c];
            sum_x += weight * x[c];
            sum_y += weight * y[c];
            squares_x += weight * x[c] * x[c];
            squares_y += weight * y[c] * y[c];
            all += weight;
        }
    double spread_x = squares_x - sum_x * sum_x / all, spread_y = squares_y - sum_y * sum_y / all;
    if (all == 0 || spread_x <= 0 || spread_y <= 0)
        return 1;
    return 1 - (sum - sum_x * sum_y / all) / sqrt(spread_x * spread_y);
}

static double *entry(size_t a, size_t b) {
    return a > b ? &rows[a][b] : &rows[b][a];
}

static double closest(size_t slots, size_t *a, size_t *b) {
    double least = INFINITY;
    for (size_t i = 1; i < slots; i++) {
        const double *row = rows[i];
        for (size_t j = 0; j < i; j++)
            if (row[j] < least) {
                least = row[j];
                *a = i;
                *b = j;
            }
    }
    return least;
}

static void join_centroids(size_t a, size_t b) {
    for (size_t c = 0; c < conditions; c++) {
        int count = counts[a][c] + counts[b][c];
        if (count > 0)
            centroids[b][c] = (counts[a][c] * centroids[a][c] + counts[b][c] * centroids[b][c]) / count;
        counts[b][c] = count;
    }
}

/* Merges slot `a` into the smaller slot `b`. Moves the last slot to the place of `a`. */
static void merge(size_t slots, size_t a, size_t b) {
    size_t last = slots - 1;
    if (by_centroids)
        join_centroids(a, b);
    for (size_t k = 0; k < slots; k++)
        if (k != a && k != b)
            *entry(b, k) = by_centroids ? distance(centroids[b], counts[b], centroids[k], counts[k])
                                        : (sizes[a] * *entry(a, k) + sizes[b] * *entry(b, k)) / (sizes[a] + sizes[b]);
    for (size_t k = 0; k < last; k++)
        if (k != a)
            *entry(a, k) = *entry(last, k);
    sizes[b] += sizes[a];
    sizes[a] = sizes[last];
    clusters[a] = clusters[last];
    if (by_centroids) {
        memcpy(centroids[a], centroids[last], conditions * sizeof **centroids);
        memcpy(counts[a], counts[last], conditions * sizeof **counts);
    }
}

static void begin_centroids(void) {
    centroids = take(genes * sizeof *centroids);
    counts = take(genes * sizeof *counts);
    for (size_t i = 0; i < genes; i++) {
        centroids[i] = memcpy(take(conditions * sizeof **data), data[i], conditions * sizeof **data);
        counts[i] = memcpy(take(conditions * sizeof **mask), mask[i], conditions * sizeof **mask);
    }
}

static void cluster(void) {
    rows = take(genes * sizeof *rows);
    clusters = take(genes * sizeof *clusters);
    sizes = take(genes * sizeof *sizes);
    nodes = take((genes - 1) * sizeof *nodes);
    for (size_t i = 0; i < genes; i++) {
        rows[i] = i ? take(i * sizeof **rows) : NULL;
        clusters[i] = (int)i;
        sizes[i] = 1;
        for (size_t j = 0; j < i; j++)
            rows[i][j] = distance(data[i], mask[i], data[j], mask[j]);
    }
    if (by_centroids)
        begin_centroids();
    for (size_t n = 0; n + 1 < genes; n++) {
        size_t a = 1, b = 0;
        double least = closest(genes - n, &a, &b);
        nodes[n] = (struct node){.left = clusters[a], .right = clusters[b], .distance = least};
        merge(genes - n, a, b);
        clusters[b] = -(int)n - 1;
    }
    for (size_t i = 1; i < genes; i++)
        release(rows[i]);
    release(rows);
    release(clusters);
    release(sizes);
    if (by_centroids) {
        release_all(centroids, genes);
        release_all(counts, genes);
    }
}

/* ---- the result ---- */

static uint64_t checksum = 0xcbf29ce484222325u; /* FNV-1a */

static void write_bytes(const void *start, size_t len) {
    const unsigned char *bytes = start;
    for (size_t n = 0; n < len; n++)
        checksum = (checksum ^ bytes[n]) * 0x100000001b3u;
}

static void write_word(const char *text) {
    write_bytes(text, strlen(text) + 1);
}

static char *make_id(const char *kind, size_t number) {
    char *id = take(strlen(kind) + 22);
    sprintf(id, "%s%zuX", kind, number);
    return id;
}

/* Writes the name of a gene or cluster, and returns its number of genes. */
static size_t write_side(int side, char **node_ids, const size_t *node_sizes) {
    if (side < 0) {
        write_word(node_ids[-side - 1]);
        return node_sizes[-side - 1];
    }
    char *id = make_id("GENE", (size_t)side);
    write_word(id);
    release(id);
    return 1;
}

static void write_result(void) {
    size_t merges = genes - 1, *node_sizes = take_zeroed(merges, sizeof *node_sizes);
    char **node_ids = take(merges * sizeof *node_ids);
    for (size_t n = 0; n < merges; n++) {
        node_ids[n] = make_id("NODE", n + 1);
        write_word(node_ids[n]);
        node_sizes[n] += write_side(nodes[n].left, node_ids, node_sizes);
        node_sizes[n] += write_side(nodes[n].right, node_ids, node_sizes);
        write_bytes(&node_sizes[n], sizeof node_sizes[n]);
        write_bytes(&nodes[n].distance, sizeof nodes[n].distance);
    }
    release_all(node_ids, merges);
    release(node_sizes);
    for (size_t c = 0; c < conditions; c++)
        write_word(condition_names[c]);
    for (size_t i = 0; i < genes; i++) {
        char *id = make_id("GENE", i);
        write_word(id);
        write_word(ids[i]);
        write_word(names[i]);
        write_bytes(data[i], conditions * sizeof **data);
        release(id);
    }
}

static void release_the_rest(void) {
    release_all(data, genes);
    release_all(mask, genes);
    release_all(ids, genes);
    release_all(names, genes);
    release_all(condition_names, conditions);
    release(weights);
    release(nodes);
}

/* ---- the program ---- */

static void take_options(int argc, char **argv, uint64_t *seed) {
    const char *value, *allocator = "malloc", *linkage = "average";
    int is_known = 1;
    for (int i = 1; i < argc; i++) {
        if ((value = option(argv, &i, "--genes")))
            genes = parse_count(value, 2, 1000000);
        else if ((value = option(argv, &i, "--conditions")))
            conditions = parse_count(value, 2, 100000);
        else if ((value = option(argv, &i, "--linkage")))
            linkage = value;
        else if ((value = option(argv, &i, "--allocator")))
            allocator = value;
        else if ((value = option(argv, &i, "--seed")))
            *seed = parse_number(value, UINT64_MAX);
        else
            is_known &= is_common_flag(argv[i]);
    }
    by_centroids = strcmp(linkage, "centroid") == 0;
    is_known &= by_centroids || strcmp(linkage, "average") == 0;
    if (!is_known || strcmp(allocator, uses_dlm ? "dlm" : "malloc") != 0)
        end_with_usage(argv[0], "[--genes N] [--conditions M] [--linkage average|centroid] [--allocator malloc|dlm] "
                                "[--seed SEED]");
}

/* Starts far memory before other arguments are read, because dlm_startup removes its own. */
static void start_dlm(int *argc, char ***argv) {
    for (int i = 1; i + 1 < *argc; i++)
        uses_dlm |= strcmp((*argv)[i], "--allocator") == 0 && strcmp((*argv)[i + 1], "dlm") == 0;
    if (!uses_dlm)
        return;
    REQUIRE(dlm_alloc, "genes: there is no dlm_alloc: link with libhanare, or run under 'hanare run'");
    dlm_startup(argc, argv);
}

static void tell(double seconds) {
    const char *linkage = by_centroids ? "centroid" : "average";
    size_t rows_bytes = genes * conditions * (sizeof **data + sizeof **mask) * (by_centroids ? 2 : 1);
    size_t bytes = genes * (genes - 1) / 2 * sizeof **rows + rows_bytes;
    if (!in_json) {
        printf("ok genes: %zu genes, %zu conditions, %s linkage, %zu blocks at most, checksum %016llx\n", genes,
               conditions, linkage, live_max, (unsigned long long)checksum);
        return;
    }
    printf("{\"name\": \"genes\", \"bytes\": %zu, \"seconds\": %.6f, \"verified\": %s, ", bytes, seconds,
           verifies ? "true" : "null");
    printf("\"genes\": %zu, \"conditions\": %zu, \"linkage\": \"%s\", \"allocator\": \"%s\", ", genes, conditions,
           linkage, uses_dlm ? "dlm" : "malloc");
    printf("\"mallocs\": %zu, \"reallocs\": %zu, \"callocs\": %zu, \"frees\": %zu, ", mallocs, reallocs, callocs,
           frees);
    printf("\"live_max\": %zu, \"largest\": %zu, \"alloc_s\": %.6f, \"realloc_s\": %.6f, ", live_max, largest, alloc_s,
           realloc_s);
    printf("\"calloc_s\": %.6f, \"free_s\": %.6f, \"checksum\": %llu}\n", calloc_s, free_s,
           (unsigned long long)checksum);
}

int main(int argc, char **argv) {
    uint64_t seed = 1;
    start_dlm(&argc, &argv);
    take_options(argc, argv, &seed);
    FILE *file = tmpfile();
    CALL(file != NULL);
    write_text(file, seed);
    double start = now(), checked = 0;
    read_text(file);
    cluster();
    if (verifies) {
        checked = now();
        check_merges(&(struct merges){genes, conditions, data, mask, nodes, by_centroids});
        checked = now() - checked;
    }
    write_result();
    release_the_rest();
    double seconds = now() - start - checked;
    REQUIRE(live == 0, "genes: %zu blocks are left", live);
    fclose(file);
    tell(seconds);
    if (uses_dlm)
        dlm_shutdown();
    return 0;
}
