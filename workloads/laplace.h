/* Laplace's equation on a square of side x side points with a fixed edge. This is the common part of the versions on
 * shared memory and on messages. */
#ifndef WORKLOADS_LAPLACE_H
#define WORKLOADS_LAPLACE_H

/* The value of a point on the edge. Rows differ at the edge, so the interior changes in every iteration. */
static inline double edge(long row, long column, long side) {
    if (row == 0)
        return 100.0;
    if (column == 0)
        return 50.0;
    return row == side - 1 || column == side - 1 ? 10.0 : 0.0;
}

/* Sets the rows from `first` to before `end` of a grid. Row 0 is at `grid`. */
static inline void fill(double *grid, long first, long end, long side) {
    for (long row = first; row < end; row++)
        for (long column = 0; column < side; column++)
            grid[row * side + column] = edge(row, column, side);
}

static inline void relax(const double *from, double *to, long first, long end, long side) {
    for (long row = first; row < end; row++) {
        if (row == 0 || row == side - 1)
            continue;
        for (long column = 1; column < side - 1; column++) {
            const double *at = from + row * side + column;
            to[row * side + column] = 0.25 * (at[-side] + at[side] + at[-1] + at[1]);
        }
    }
}

#endif
