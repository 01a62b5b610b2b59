/* LAPLACE over MPI, to compare workloads/laplace.c with: the same rows to each rank, the same arithmetic, edge rows exchanged
 * by messages after each iteration.
 *
 *     mpirun -n 2 laplace_mpi [INNER [ITERATIONS]]
 *
 * Rank 0 prints the time and the sum of the points as JSON. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../workloads/laplace.h"

int main(int argc, char *argv[]) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long inner = argc > 1 ? atol(argv[1]) : 1022, iterations = argc > 2 ? atol(argv[2]) : 50, side = inner + 2;
    long each = side / ranks, more = side % ranks;
    long first = rank * each + (rank < more ? rank : more), end = first + each + (rank < more);
    /* One row of each neighbour beside this rank's own. */
    size_t rows = (size_t)(end - first + 2);
    double *memory[2] = {malloc(sizeof(double) * rows * (size_t)side), malloc(sizeof(double) * rows * (size_t)side)};
    if (!memory[0] || !memory[1] || end - first < 1)
        MPI_Abort(MPI_COMM_WORLD, 2);
    /* Where row 0 would be, so that rows have their numbers. */
    uintptr_t before = sizeof(double) * (uintptr_t)((first - 1) * side);
    double *from = (double *)((uintptr_t)memory[0] - before), *to = (double *)((uintptr_t)memory[1] - before);
    long low = first > 0 ? first - 1 : first, high = end < side ? end + 1 : end;
    fill(from, low, high, side);
    fill(to, low, high, side);
    int above = first > 0 ? rank - 1 : MPI_PROC_NULL, below = end < side ? rank + 1 : MPI_PROC_NULL;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (long iteration = 0; iteration < iterations; iteration++) {
        relax(from, to, first, end, side);
        double *other = from;
        from = to, to = other;
        MPI_Sendrecv(from + first * side, (int)side, MPI_DOUBLE, above, 0, from + end * side, (int)side, MPI_DOUBLE,
                     below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(from + (end - 1) * side, (int)side, MPI_DOUBLE, below, 1, from + (first - 1) * side, (int)side,
                     MPI_DOUBLE, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double run_s = MPI_Wtime() - began, mine = 0, sum = 0;
    for (long index = first * side; index < end * side; index++)
        mine += from[index];
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"ranks\":%d,\"inner\":%ld,\"iterations\":%ld,\"run_s\":%.6f,\"sum\":%.9g}\n", ranks, inner, iterations,
               run_s, sum);
    MPI_Finalize();
    return 0;
}
