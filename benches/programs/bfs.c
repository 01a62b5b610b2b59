/* bfs NODES SEARCHES: breadth-first searches from several nodes of a uniform graph with 8 edges from each node. */
#include "graph.h"

#define DEGREE 8
#define UNSEEN UINT32_MAX

int main(int argc, char **argv) {
    size_t nodes = number(argc, argv, 1), searches = number(argc, argv, 2);
    struct graph graph = make_graph((uint32_t)nodes, DEGREE, 2);
    uint32_t *level = array(nodes, sizeof *level), *queue = array(nodes, sizeof *queue);
    uint64_t sum = 0;
    for (size_t search = 0; search < searches; search++) {
        memset(level, 0xff, nodes * sizeof *level);
        size_t head = 0, tail = 0;
        queue[tail++] = (uint32_t)search;
        level[search] = 0;
        while (head < tail) {
            uint32_t from = queue[head++];
            for (size_t at = graph.first[from]; at < graph.first[from + 1]; at++) {
                uint32_t to = graph.others[at];
                if (level[to] == UNSEEN) {
                    level[to] = level[from] + 1;
                    queue[tail++] = to;
                }
            }
        }
        sum = add(add(sum, tail), queue[tail / 2]);
        for (size_t n = 0; n < nodes; n++)
            sum = add(sum, level[n]);
    }
    printf("bfs %zu %016llx\n", nodes, (unsigned long long)sum);
    return 0;
}
