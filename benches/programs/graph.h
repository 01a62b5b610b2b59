/* A random graph in rows (CSR), built from a list of edges as a program that reads a file builds it. */
#ifndef HANARE_BENCHES_GRAPH_H
#define HANARE_BENCHES_GRAPH_H

#include "numbers.h"

struct graph {
    uint32_t nodes;
    size_t edges;
    uint64_t *first;  /* first[n] .. first[n + 1] are the places in `others` of node n */
    uint32_t *others; /* the other ends of the edges */
};

/* Returns a graph with `degree` edges for each node, whose ends are uniform. Most of its time and its largest memory
 * go to the list of edges, which is freed at the end. */
static inline struct graph make_graph(uint32_t nodes, uint32_t degree, uint64_t seed) {
    struct graph graph = {.nodes = nodes, .edges = (size_t)nodes * degree};
    uint32_t (*list)[2] = array(graph.edges, sizeof *list);
    graph.first = array((size_t)nodes + 2, sizeof *graph.first);
    graph.others = array(graph.edges, sizeof *graph.others);
    for (size_t e = 0; e < graph.edges; e++) {
        list[e][0] = below(&seed, nodes);
        list[e][1] = below(&seed, nodes);
        graph.first[list[e][0] + 2]++;
    }
    for (size_t n = 2; n < (size_t)nodes + 2; n++)
        graph.first[n] += graph.first[n - 1];
    /* first[n + 1] is the next free place of node n. At the end it is the first place of node n + 1. */
    for (size_t e = 0; e < graph.edges; e++)
        graph.others[graph.first[list[e][0] + 1]++] = list[e][1];
    free(list);
    return graph;
}

#endif
