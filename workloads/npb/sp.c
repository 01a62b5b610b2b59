/* npb_sp: NPB SP. The compressible Navier-Stokes equations on a cube are stepped in time. Each step is split into the
 * three directions. For each, scalar pentadiagonal systems are solved along all lines. Errors and residuals are known.
 *
 * As in NPB 2, a component of all cells is contiguous, and the systems of all lines are kept at once. */
#include "npb.h"

#define N BY_CLASS(12, 36, 64, 102)
#define STEPS BY_CLASS(100, 400, 400, 400)
#define DT BY_CLASS(0.015, 0.0015, 0.0015, 0.001)
#define CELLS ((size_t)N * N * N)
#define FIELDS 5

/* Density, momentum in three directions, and energy. */
static double u[FIELDS][CELLS], rhs[FIELDS][CELLS], forcing[FIELDS][CELLS];
/* The five diagonals of three kinds of systems. */
static double lhs[3][5][CELLS];
static double velocity[3][CELLS], specific[CELLS], kinetic[CELLS], inverse_density[CELLS];
static double speed[CELLS], inverse_speed[CELLS];

/* The distances between neighbours in memory, and the dissipation, by direction. */
static const size_t strides[3] = {(size_t)N * N, N, 1};
static const double spreads[3] = {0.75, 0.75, 1};

#define GAMMA 1.4
#define C2 0.4
#define C3C4 0.1
#define C1C5 (1.4 * 1.4)
#define T1 ((double)(N - 1) * (N - 1))
#define T2 ((N - 1) / 2.0)
#define FOURTH 0.25

/* The coefficients of the exact solution: a constant, then x, y, z, then their squares and so on. */
static const double exact[FIELDS][13] = {
    {2, 0, 0, 4, 5, 3, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3}, {1, 0, 0, 0, 1, 2, 3, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5},
    {2, 2, 0, 0, 0, 2, 3, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4},   {2, 2, 0, 0, 0, 2, 3, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3},
    {5, 4, 3, 2, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2}};

#if NPB_CLASS == 'S'
static const double residuals[FIELDS] = {2.7470315451339479e-02, 1.0360746705285417e-02, 1.6235745065095532e-02,
                                         1.5840557224455615e-02, 3.4849040609362460e-02};
static const double errors[FIELDS] = {2.7289258557377227e-05, 1.0364446640837285e-05, 1.6154798287166471e-05,
                                      1.5750704994480102e-05, 3.4177666183390531e-05};
#elif NPB_CLASS == 'W'
static const double residuals[FIELDS] = {0.1893253733584e-02, 0.1717075447775e-03, 0.2778153350936e-03,
                                         0.2887475409984e-03, 0.3143611161242e-02};
static const double errors[FIELDS] = {0.7542088599534e-04, 0.6512852253086e-05, 0.1049092285688e-04,
                                      0.1128838671535e-04, 0.1212845639773e-03};
#elif NPB_CLASS == 'A'
static const double residuals[FIELDS] = {2.4799822399300195, 1.1276337964368832, 1.5028977888770491, 1.4217816211695179,
                                         2.1292113035138280};
static const double errors[FIELDS] = {1.0900140297820550e-04, 3.7343951769282091e-05, 5.0092785406541633e-05,
                                      4.7671093939528255e-05, 1.3621613399213001e-04};
#else
static const double residuals[FIELDS] = {0.6903293579998e+02, 0.3095134488084e+02, 0.4103336647017e+02,
                                         0.3864769009604e+02, 0.5643482272596e+02};
static const double errors[FIELDS] = {0.9810006190188e-02, 0.1022827905670e-02, 0.1720597911692e-02,
                                      0.1694479428231e-02, 0.1847456263981e-01};
#endif

static inline size_t cell(size_t i, size_t j, size_t k) {
    return (i * N + j) * N + k;
}

static double exact_at(int field, const double at[3]) {
    const double *c = exact[field];
    double sum = c[0];
    for (int d = 0; d < 3; d++)
        sum += at[d] * (c[1 + d] + at[d] * (c[4 + d] + at[d] * (c[7 + d] + at[d] * c[10 + d])));
    return sum;
}

/* Does something for each cell, or each inner cell. */
#define EACH_CELL(first, i, j, k)                                                                                      \
    for (size_t i = first; i < N - first; i++)                                                                         \
        for (size_t j = first; j < N - first; j++)                                                                     \
            for (size_t k = first; k < N - first; k++)

static void set_exact(void) {
    EACH_CELL(0, i, j, k) {
        double at[3] = {i / (N - 1.0), j / (N - 1.0), k / (N - 1.0)};
        for (int field = 0; field < FIELDS; field++)
            u[field][cell(i, j, k)] = exact_at(field, at);
    }
}

/* The exact solution at the faces, and between them an interpolation of the faces. */
static void set_start(void) {
    set_exact();
    EACH_CELL(1, i, j, k) {
        double at[3] = {i / (N - 1.0), j / (N - 1.0), k / (N - 1.0)};
        for (int field = 0; field < FIELDS; field++) {
            double means[3];
            for (int d = 0; d < 3; d++) {
                double low[3] = {at[0], at[1], at[2]}, high[3] = {at[0], at[1], at[2]};
                low[d] = 0;
                high[d] = 1;
                means[d] = at[d] * exact_at(field, high) + (1 - at[d]) * exact_at(field, low);
            }
            u[field][cell(i, j, k)] = means[0] + means[1] + means[2] - means[0] * means[1] - means[0] * means[2] -
                                      means[1] * means[2] + means[0] * means[1] * means[2];
        }
    }
}

static void derive(void) {
    for (size_t at = 0; at < CELLS; at++) {
        double inverse = 1 / u[0][at], squares = 0;
        inverse_density[at] = inverse;
        for (int d = 0; d < 3; d++) {
            velocity[d][at] = u[d + 1][at] * inverse;
            squares += u[d + 1][at] * u[d + 1][at];
        }
        kinetic[at] = 0.5 * squares * inverse;
        specific[at] = kinetic[at] * inverse;
        speed[at] = sqrt(GAMMA * C2 * inverse * (u[4][at] - kinetic[at]));
        inverse_speed[at] = 1 / speed[at];
    }
}

static inline double second(const double *values, size_t at, size_t s) {
    return values[at + s] - 2 * values[at] + values[at - s];
}

/* Adds the flux of a direction to the right-hand side of a cell. */
static void add_flux(int d, size_t at) {
    const double *v = velocity[d], spread = spreads[d] * T1, viscous = C3C4 * T1;
    size_t s = strides[d], up = at + s, down = at - s;
    rhs[0][at] += spread * second(u[0], at, s) - T2 * (u[d + 1][up] - u[d + 1][down]);
    for (int e = 0; e < 3; e++) {
        const double *momentum = u[e + 1];
        double pressure = e == d ? (u[4][up] - kinetic[up] - u[4][down] + kinetic[down]) * C2 : 0;
        double shear = viscous * (e == d ? 4.0 / 3 : 1);
        rhs[e + 1][at] += spread * second(momentum, at, s) + shear * second(velocity[e], at, s) -
                          T2 * (momentum[up] * v[up] - momentum[down] * v[down] + pressure);
    }
    double enthalpy_up = GAMMA * u[4][up] - C2 * kinetic[up], enthalpy_down = GAMMA * u[4][down] - C2 * kinetic[down];
    rhs[4][at] += spread * second(u[4], at, s) + viscous * (1 - C1C5) * second(specific, at, s) +
                  viscous / 6 * (v[up] * v[up] - 2 * v[at] * v[at] + v[down] * v[down]) +
                  viscous * C1C5 *
                      (u[4][up] * inverse_density[up] - 2 * u[4][at] * inverse_density[at] +
                       u[4][down] * inverse_density[down]) -
                  T2 * (enthalpy_up * v[up] - enthalpy_down * v[down]);
}

/* The weights of a fourth difference for the cells two below to two above. They differ beside the borders. */
static const double *fourth(size_t place) {
    static const double weights[5][5] = {
        {0, 0, 5, -4, 1}, {0, -4, 6, -4, 1}, {1, -4, 6, -4, 1}, {1, -4, 6, -4, 0}, {1, -4, 5, 0, 0}};
    return weights[place == 1 ? 0 : place == 2 ? 1 : place == N - 3 ? 3 : place == N - 2 ? 4 : 2];
}

static void add_dissipation(int d, size_t at, size_t place) {
    const double *weights = fourth(place);
    size_t s = strides[d];
    for (int field = 0; field < FIELDS; field++) {
        double sum = 0;
        for (int step = 0; step < 5; step++)
            if (weights[step] != 0)
                sum += weights[step] * u[field][at + (size_t)step * s - 2 * s];
        rhs[field][at] -= FOURTH * sum;
    }
}

static void set_rhs(void) {
    derive();
    memcpy(rhs, forcing, sizeof rhs);
    for (int d = 0; d < 3; d++)
        EACH_CELL(1, i, j, k) {
            size_t places[3] = {i, j, k};
            add_flux(d, cell(i, j, k));
            add_dissipation(d, cell(i, j, k), places[d]);
        }
}

/* The forcing makes the exact solution a steady one. */
static void set_forcing(void) {
    set_exact();
    set_rhs();
    for (int field = 0; field < FIELDS; field++)
        EACH_CELL(1, i, j, k)
            forcing[field][cell(i, j, k)] = -rhs[field][cell(i, j, k)];
}

/* Lines that are solved together: `outer` times `inner` of them. */
struct lines {
    size_t start, outer, outer_stride, inner;
};

/* Does something for a place on each of the lines. `at` is its cell. */
#define EACH_LINE(lines, d, place, at)                                                                                 \
    for (size_t o_ = 0; o_ < (lines).outer; o_++)                                                                      \
        for (size_t at = (lines).start + (place) * strides[d] + o_ * (lines).outer_stride, end_ = at + (lines).inner;  \
             at < end_; at++)

static void set_systems(int d, struct lines lines) {
    const double first = DT * T1, second = DT * T2, z = DT * FOURTH, *v = velocity[d];
    size_t s = strides[d];
    for (size_t place = 1; place < N - 1; place++) {
        const double *weights = fourth(place);
        EACH_LINE(lines, d, place, at) {
            /* The largest of NPB's four spectral radii, as densities are positive. */
            double below = spreads[d] + C1C5 * C3C4 * inverse_density[at - s];
            double here = spreads[d] + C1C5 * C3C4 * inverse_density[at];
            double above = spreads[d] + C1C5 * C3C4 * inverse_density[at + s];
            double row[5] = {0, -second * v[at - s] - first * below, 1 + 2 * first * here,
                             second * v[at + s] - first * above, 0};
            for (int kind = 0; kind < 3; kind++) {
                double sound = kind == 0 ? 0 : kind == 1 ? second : -second;
                for (int diagonal = 0; diagonal < 5; diagonal++)
                    lhs[kind][diagonal][at] = row[diagonal] + z * weights[diagonal];
                lhs[kind][1][at] -= sound * speed[at - s];
                lhs[kind][3][at] += sound * speed[at + s];
            }
        }
    }
}

/* Solves the systems of a kind, for the fields from `field` on, by elimination without pivots. */
static void solve_systems(int d, struct lines lines, int kind, int field, int end) {
    double(*a)[CELLS] = lhs[kind];
    size_t s = strides[d];
    for (size_t place = 0; place < N; place++)
        EACH_LINE(lines, d, place, at) {
            double factor = 1 / a[2][at];
            a[3][at] *= factor;
            a[4][at] *= factor;
            for (int m = field; m < end; m++)
                rhs[m][at] *= factor;
            for (size_t ahead = 1; ahead <= 2 && place + ahead < N; ahead++) {
                size_t next = at + ahead * s;
                double weight = a[2 - ahead][next];
                a[3 - ahead][next] -= weight * a[3][at];
                a[4 - ahead][next] -= weight * a[4][at];
                for (int m = field; m < end; m++)
                    rhs[m][next] -= weight * rhs[m][at];
            }
        }
    for (size_t place = N - 1; place-- > 0;)
        EACH_LINE(lines, d, place, at)
            for (int m = field; m < end; m++) {
                rhs[m][at] -= a[3][at] * rhs[m][at + s];
                if (place + 2 < N)
                    rhs[m][at] -= a[4][at] * rhs[m][at + 2 * s];
            }
}

static void solve_lines(int d, struct lines lines) {
    set_systems(d, lines);
    solve_systems(d, lines, 0, 0, 3);
    solve_systems(d, lines, 1, 3, 4);
    solve_systems(d, lines, 2, 4, 5);
}

static void solve(int d) {
    if (d == 0)
        solve_lines(d, (struct lines){cell(0, 1, 1), N - 2, N, N - 2});
    for (size_t i = 1; d == 1 && i < N - 1; i++)
        solve_lines(d, (struct lines){cell(i, 0, 1), 1, 0, N - 2});
    for (size_t i = 1; d == 2 && i < N - 1; i++)
        for (size_t j = 1; j < N - 1; j++)
            solve_lines(d, (struct lines){cell(i, j, 0), 1, 0, 1});
}

#define HALF_ROOT 0.70710678118654752440

/* The transforms to the characteristic variables, from those of one direction to those of the next, and back. */
static void enter_x(size_t at) {
    double r[FIELDS] = {rhs[0][at], rhs[1][at], rhs[2][at], rhs[3][at], rhs[4][at]};
    double inverse = inverse_density[at], x = velocity[0][at], y = velocity[1][at], z = velocity[2][at];
    double t1 = C2 * inverse_speed[at] * inverse_speed[at] *
                (specific[at] * r[0] - x * r[1] - y * r[2] - z * r[3] + r[4]);
    double t2 = HALF_ROOT * inverse * (x * r[0] - r[1]), t3 = HALF_ROOT * inverse * speed[at] * t1;
    rhs[0][at] = r[0] - t1;
    rhs[1][at] = -inverse * (z * r[0] - r[3]);
    rhs[2][at] = inverse * (y * r[0] - r[2]);
    rhs[3][at] = t3 - t2;
    rhs[4][at] = t2 + t3;
}

static void x_to_y(size_t at) {
    double r[FIELDS] = {rhs[0][at], rhs[1][at], rhs[2][at], rhs[3][at], rhs[4][at]};
    double t1 = HALF_ROOT * r[2], t2 = 0.5 * (r[3] + r[4]);
    rhs[0][at] = -r[1];
    rhs[1][at] = r[0];
    rhs[2][at] = HALF_ROOT * (r[3] - r[4]);
    rhs[3][at] = t2 - t1;
    rhs[4][at] = t1 + t2;
}

static void y_to_z(size_t at) {
    double r[FIELDS] = {rhs[0][at], rhs[1][at], rhs[2][at], rhs[3][at], rhs[4][at]};
    double t1 = HALF_ROOT * r[0], t2 = 0.5 * (r[3] + r[4]);
    rhs[0][at] = HALF_ROOT * (r[3] - r[4]);
    rhs[1][at] = -r[2];
    rhs[2][at] = r[1];
    rhs[3][at] = t2 - t1;
    rhs[4][at] = t1 + t2;
}

static void leave_z(size_t at) {
    double r[FIELDS] = {rhs[0][at], rhs[1][at], rhs[2][at], rhs[3][at], rhs[4][at]};
    double density = u[0][at], x = velocity[0][at], y = velocity[1][at], z = velocity[2][at];
    double t1 = HALF_ROOT * density * inverse_speed[at] * (r[3] + r[4]), t2 = r[2] + t1;
    double t3 = HALF_ROOT * density * (r[3] - r[4]);
    rhs[0][at] = t2;
    rhs[1][at] = -density * r[1] + x * t2;
    rhs[2][at] = density * r[0] + y * t2;
    rhs[3][at] = z * t2 + t3;
    rhs[4][at] = density * (y * r[0] - x * r[1]) + specific[at] * t2 + 2.5 * speed[at] * speed[at] * t1 + z * t3;
}

static void step(void) {
    set_rhs();
    EACH_CELL(1, i, j, k) {
        for (int field = 0; field < FIELDS; field++)
            rhs[field][cell(i, j, k)] *= DT;
        enter_x(cell(i, j, k));
    }
    solve(0);
    EACH_CELL(1, i, j, k)
        x_to_y(cell(i, j, k));
    solve(1);
    EACH_CELL(1, i, j, k)
        y_to_z(cell(i, j, k));
    solve(2);
    EACH_CELL(1, i, j, k)
        leave_z(cell(i, j, k));
    for (int field = 0; field < FIELDS; field++)
        EACH_CELL(1, i, j, k)
            u[field][cell(i, j, k)] += rhs[field][cell(i, j, k)];
}

static double root_mean(double sum) {
    return sqrt(sum / ((double)(N - 2) * (N - 2) * (N - 2)));
}

int main(int argc, char **argv) {
    size_t bytes = sizeof u + sizeof rhs + sizeof forcing + sizeof lhs + sizeof velocity + 5 * sizeof speed;
    struct npb npb = npb_begin("npb_sp", bytes, argc, argv);
    /* Rows of border cells stay those of the identity. */
    for (int kind = 0; kind < 3; kind++)
        for (size_t at = 0; at < CELLS; at++)
            lhs[kind][2][at] = 1;
    set_forcing();
    set_start();
    for (int count = 0; count < STEPS; count++)
        step();

    double error[FIELDS] = {0}, residual[FIELDS] = {0};
    EACH_CELL(0, i, j, k) {
        double at[3] = {i / (N - 1.0), j / (N - 1.0), k / (N - 1.0)};
        for (int field = 0; field < FIELDS; field++) {
            double difference = u[field][cell(i, j, k)] - exact_at(field, at);
            error[field] += difference * difference;
        }
    }
    set_rhs();
    EACH_CELL(1, i, j, k)
        for (int field = 0; field < FIELDS; field++)
            residual[field] += rhs[field][cell(i, j, k)] * rhs[field][cell(i, j, k)];
    int is_right = 1;
    for (int field = 0; field < FIELDS; field++)
        is_right = is_right && is_near(root_mean(residual[field]), residuals[field], 1e-8) &&
                   is_near(root_mean(error[field]), errors[field], 1e-8);
    return npb_end(&npb, is_right, "residual", root_mean(residual[0]));
}
