/* npb_ft: NPB FT. A three-dimensional diffusion equation is solved in Fourier space: random numbers are transformed
 * once, and in each step damped and transformed back. A checksum of each step's values is known. */
#include "npb.h"

#define NX BY_CLASS(64, 128, 256, 512)
#define NY BY_CLASS(64, 128, 256, 256)
#define NZ BY_CLASS(64, 32, 128, 256)
#define STEPS BY_CLASS(6, 6, 6, 20)
#define CELLS ((size_t)NX * NY * NZ)
#define LONGEST 512
#define ALPHA 1e-6

struct complex {
    double re, im;
};

static struct complex spectrum[CELLS], values[CELLS];
static double damping[CELLS];

static const struct complex references[STEPS] = {
#if NPB_CLASS == 'S'
    {554.6087004964, 484.5363331978}, {554.6385409189, 486.5304269511}, {554.6148406171, 488.3910722336},
    {554.5423607415, 490.1273169046}, {554.4255039624, 491.7475857993}, {554.2683411902, 493.2597244941},
#elif NPB_CLASS == 'W'
    {567.3612178944, 529.3246849175}, {563.1436885271, 528.2149986629}, {559.4024089970, 527.0996558037},
    {556.0698047020, 526.0027904925}, {553.0898991250, 524.9400845633}, {550.4159734538, 523.9212247086},
#elif NPB_CLASS == 'A'
    {504.6735008193, 511.4047905510}, {505.9412319734, 509.8809666433}, {506.9376896287, 509.8144042213},
    {507.7892868474, 510.1336130759}, {508.5233095391, 510.4914655194}, {509.1487099959, 510.7917842803},
#else
    {517.7643571579, 507.7803458597}, {515.4521291263, 508.8249431599}, {514.6409228649, 509.6208912659},
    {514.2378756213, 510.1023387619}, {513.9626667737, 510.3976610617}, {513.7423460082, 510.5948019802},
    {513.5547056878, 510.7404165783}, {513.3910925466, 510.8576573661}, {513.2470705390, 510.9577278523},
    {513.1197729984, 511.0460304483}, {513.0070319283, 511.1252433800}, {512.9070537032, 511.1968077718},
    {512.8182883502, 511.2616233064}, {512.7393733383, 511.3203605551}, {512.6691062020, 511.3735928093},
    {512.6064276004, 511.4218460548}, {512.5504076570, 511.4656139760}, {512.5002331720, 511.5053595966},
    {512.4551951846, 511.5415130407}, {512.4146770029, 511.5744692211},
#endif
};

/* Lines that are transformed together. */
#define LINES 16

static struct complex roots[LONGEST];

/* Transforms the lines of `length` values in `from`, with `to` as room. Line l's value i is at [i * LINES + l]. Returns
 * the one of the two that has the result. The method is Stockham's: it needs no reordering. */
static struct complex *transform(struct complex *from, struct complex *to, size_t length, double direction) {
    for (size_t left = length / 2, together = 1; left > 0; left /= 2, together *= 2) {
        for (size_t part = 0; part < left; part++) {
            struct complex root = roots[part * (LONGEST / 2 / left)];
            root.im *= direction;
            for (size_t at = 0; at < together * LINES; at++) {
                struct complex one = from[part * together * LINES + at];
                struct complex other = from[(part + left) * together * LINES + at];
                struct complex difference = {one.re - other.re, one.im - other.im};
                to[2 * part * together * LINES + at] = (struct complex){one.re + other.re, one.im + other.im};
                to[(2 * part + 1) * together * LINES + at] =
                    (struct complex){difference.re * root.re - difference.im * root.im,
                                     difference.re * root.im + difference.im * root.re};
            }
        }
        struct complex *next = to;
        to = from;
        from = next;
    }
    return from;
}

/* Transforms LINES lines of `grid`. A line's values are `stride` cells apart, the lines `beside` cells. */
static void transform_lines(struct complex *grid, size_t length, size_t stride, size_t beside, double direction) {
    static struct complex buffer[2][LONGEST * LINES];
    for (size_t at = 0; at < length; at++)
        for (size_t line = 0; line < LINES; line++)
            buffer[0][at * LINES + line] = grid[at * stride + line * beside];
    const struct complex *result = transform(buffer[0], buffer[1], length, direction);
    for (size_t at = 0; at < length; at++)
        for (size_t line = 0; line < LINES; line++)
            grid[at * stride + line * beside] = result[at * LINES + line];
}

static void transform_grid(struct complex *grid, double direction) {
    for (size_t row = 0; row < (size_t)NY * NZ; row += LINES)
        transform_lines(grid + row * NX, NX, 1, NX, direction);
    for (size_t z = 0; z < NZ; z++)
        for (size_t x = 0; x < NX; x += LINES)
            transform_lines(grid + z * NX * NY + x, NY, NX, 1, direction);
    for (size_t column = 0; column < (size_t)NX * NY; column += LINES)
        transform_lines(grid + column, NZ, (size_t)NX * NY, 1, direction);
}

/* Returns a frequency's square. The upper half of the frequencies is negative. */
static double square(size_t at, size_t length) {
    double frequency = at < length / 2 ? (double)at : (double)at - (double)length;
    return frequency * frequency;
}

static void begin(void) {
    for (size_t at = 0; at < LONGEST; at++) {
        roots[at].re = cos(2 * M_PI * (double)at / LONGEST);
        roots[at].im = sin(2 * M_PI * (double)at / LONGEST);
    }
    uint64_t random = RANDOM_SEED;
    for (size_t cell = 0; cell < CELLS; cell++) {
        spectrum[cell].re = random_next(&random);
        spectrum[cell].im = random_next(&random);
    }
    for (size_t z = 0; z < NZ; z++)
        for (size_t y = 0; y < NY; y++)
            for (size_t x = 0; x < NX; x++)
                damping[(z * NY + y) * NX + x] =
                    exp(-4 * ALPHA * M_PI * M_PI * (square(x, NX) + square(y, NY) + square(z, NZ)));
    transform_grid(spectrum, 1);
}

static struct complex checksum(void) {
    struct complex sum = {0, 0};
    for (size_t at = 1; at <= 1024; at++) {
        struct complex value = values[(5 * at % NZ * NY + 3 * at % NY) * NX + at % NX];
        sum.re += value.re / (double)CELLS;
        sum.im += value.im / (double)CELLS;
    }
    return sum;
}

int main(int argc, char **argv) {
    struct npb npb = npb_begin("npb_ft", sizeof spectrum + sizeof values + sizeof damping, argc, argv);
    begin();
    int is_right = 1;
    struct complex sum = {0, 0};
    for (int step = 0; step < STEPS; step++) {
        for (size_t cell = 0; cell < CELLS; cell++) {
            spectrum[cell].re *= damping[cell];
            spectrum[cell].im *= damping[cell];
            values[cell] = spectrum[cell];
        }
        transform_grid(values, -1);
        sum = checksum();
        const struct complex *reference = &references[step];
        is_right = is_right && is_near(sum.re, reference->re, 1e-12) && is_near(sum.im, reference->im, 1e-12);
    }
    return npb_end(&npb, is_right, "checksum", sum.re);
}
