/* pagerank NODES ROUNDS: PageRank on a uniform graph with 8 edges into each node. The ranks are whole numbers, so their
 * sums do not depend on the order. */
#include "graph.h"

#define DEGREE 8
#define ONE ((uint64_t)1 << 32)

int main(int argc, char **argv) {
    size_t nodes = number(argc, argv, 1), rounds = number(argc, argv, 2);
    struct graph graph = make_graph((uint32_t)nodes, DEGREE, 1);
    uint64_t *rank = array(nodes, sizeof *rank), *share = array(nodes, sizeof *share);
    uint32_t *out = array(nodes, sizeof *out);
    for (size_t e = 0; e < graph.edges; e++)
        out[graph.others[e]]++;
    for (size_t n = 0; n < nodes; n++)
        rank[n] = ONE;
    for (size_t round = 0; round < rounds; round++) {
        for (size_t n = 0; n < nodes; n++)
            share[n] = out[n] ? rank[n] / out[n] : 0;
        for (size_t n = 0; n < nodes; n++) {
            uint64_t sum = 0;
            for (size_t at = graph.first[n]; at < graph.first[n + 1]; at++)
                sum += share[graph.others[at]];
            rank[n] = ONE * 15 / 100 + sum / 100 * 85;
        }
    }
    uint64_t sum = 0;
    for (size_t n = 0; n < nodes; n++)
        sum = add(sum, rank[n]);
    printf("pagerank %zu %016llx\n", nodes, (unsigned long long)sum);
    return 0;
}
