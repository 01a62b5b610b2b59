/* Blocked LU factorisation without pivoting, as in SPLASH-2 with contiguous blocks. This is the common part of the
 * versions on shared memory and on threads. A matrix of n x n numbers consists of count x count blocks of side x side
 * numbers. The blocks are stored by rows of blocks, at a distance of `stride` numbers. */
#ifndef WORKLOADS_LU_H
#define WORKLOADS_LU_H

struct lu {
    double *blocks;
    long side, count, stride;
    int rows, columns; /* of the grid of workers; worker (i % rows, j % columns) has block (i, j) */
};

static inline double *lu_block(const struct lu *lu, long i, long j) {
    return lu->blocks + (i * lu->count + j) * lu->stride;
}

static inline int lu_owner(const struct lu *lu, long i, long j) {
    return (int)(i % lu->rows) * lu->columns + (int)(j % lu->columns);
}

/* Chooses the grid of `workers` workers that is closest to a square. */
static inline void lu_grid(struct lu *lu, int workers) {
    lu->rows = 1;
    for (int rows = 1; rows * rows <= workers; rows++)
        if (workers % rows == 0)
            lu->rows = rows;
    lu->columns = workers / lu->rows;
}

/* Factorises a block on the diagonal into L (with ones on the diagonal) and U. */
static inline void lu_factor(double *a, long n) {
    for (long k = 0; k < n; k++)
        for (long i = k + 1; i < n; i++) {
            double factor = a[i * n + k] /= a[k * n + k];
            for (long j = k + 1; j < n; j++)
                a[i * n + j] -= factor * a[k * n + j];
        }
}

/* Computes a block below the diagonal: a = a U^-1. */
static inline void lu_below(double *a, const double *diagonal, long n) {
    for (long i = 0; i < n; i++)
        for (long k = 0; k < n; k++) {
            double factor = a[i * n + k] /= diagonal[k * n + k];
            for (long j = k + 1; j < n; j++)
                a[i * n + j] -= factor * diagonal[k * n + j];
        }
}

/* Computes a block right of the diagonal: a = L^-1 a. */
static inline void lu_right(double *a, const double *diagonal, long n) {
    for (long k = 0; k < n; k++)
        for (long i = k + 1; i < n; i++) {
            double factor = diagonal[i * n + k];
            for (long j = 0; j < n; j++)
                a[i * n + j] -= factor * a[k * n + j];
        }
}

/* Computes any other block: a -= left * above. */
static inline void lu_inner(double *restrict a, const double *restrict left, const double *restrict above, long n) {
    for (long i = 0; i < n; i++)
        for (long k = 0; k < n; k++) {
            double factor = left[i * n + k];
            for (long j = 0; j < n; j++)
                a[i * n + j] -= factor * above[k * n + j];
        }
}

/* Makes one worker's part of the factorisation. `barrier` waits for all workers. */
static inline void lu_run(const struct lu *lu, int worker, void (*barrier)(void)) {
    long n = lu->side, count = lu->count;
    for (long k = 0; k < count; k++) {
        double *diagonal = lu_block(lu, k, k);
        if (lu_owner(lu, k, k) == worker)
            lu_factor(diagonal, n);
        barrier();
        for (long i = k + 1; i < count; i++) {
            if (lu_owner(lu, i, k) == worker)
                lu_below(lu_block(lu, i, k), diagonal, n);
            if (lu_owner(lu, k, i) == worker)
                lu_right(lu_block(lu, k, i), diagonal, n);
        }
        barrier();
        for (long i = k + 1; i < count; i++)
            for (long j = k + 1; j < count; j++)
                if (lu_owner(lu, i, j) == worker)
                    lu_inner(lu_block(lu, i, j), lu_block(lu, i, k), lu_block(lu, k, j), n);
    }
    barrier();
}

/* Returns the number at (row, column) before the factorisation. It is random, and large on the diagonal, so that no
 * pivot is small. */
static inline double lu_number(uint64_t (*mix)(uint64_t), long row, long column, long n) {
    double random = (double)(mix((uint64_t)(row * n + column)) >> 11) * 0x1p-53;
    return row == column ? random + (double)n : random;
}

static inline void lu_fill_block(const struct lu *lu, long i, long j, uint64_t (*mix)(uint64_t)) {
    long side = lu->side;
    for (long row = 0; row < side; row++)
        for (long column = 0; column < side; column++)
            lu_block(lu, i, j)[row * side + column] =
                lu_number(mix, i * side + row, j * side + column, side * lu->count);
}

#endif
