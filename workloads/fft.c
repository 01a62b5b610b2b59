/* fft [SIZE_MB] [SEED]
 *
 * Three-dimensional Fourier transforms, as in NPB FT. A random field is transformed once. In every round, the
 * transform is multiplied by phases and transformed back. Lines along the second and third dimension have a stride of
 * a power of two, and are copied in blocks.
 *
 * The phases are those of a shift. So the result must be the random field, shifted by one more step in every round.
 * Every element is compared. */
#include "kernel.h"
#include <complex.h>
#include <math.h>

#define ROUNDS 6
#define BLOCK 8
#define LINE_MAX 4096
#define TOLERANCE 1e-9
#define TURN 6.283185307179586 /* M_PI is no C11 */

typedef double complex number;

static size_t sides[3]; /* the last one is contiguous */
static const size_t steps[3] = {1, 3, 5};
static number roots[LINE_MAX];

static void make_roots(size_t length, int sign) {
    for (size_t k = 0; k < length; k++)
        roots[k] = cexp(sign * TURN * I * (double)k / (double)length);
}

static void swap_reversed(number *line, size_t length) {
    for (size_t i = 1, j = 0; i < length; i++) {
        size_t bit = length >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            number kept = line[i];
            line[i] = line[j];
            line[j] = kept;
        }
    }
}

/* The product is written out, because the complex product of C first checks for infinities. */
static number times(number a, number b) {
    return CMPLX(creal(a) * creal(b) - cimag(a) * cimag(b), creal(a) * cimag(b) + cimag(a) * creal(b));
}

static void transform_line(number *line, size_t length) {
    swap_reversed(line, length);
    for (size_t half = 1; half < length; half *= 2)
        for (size_t start = 0; start < length; start += 2 * half)
            for (size_t k = 0; k < half; k++) {
                number even = line[start + k];
                number odd = times(line[start + half + k], roots[k * (length / (2 * half))]);
                line[start + k] = even + odd;
                line[start + half + k] = even - odd;
            }
}

/* Transforms `width` lines that start side by side at `base`. Each line has `length` elements at a distance of
 * `stride`. */
static void transform_block(number *base, size_t length, size_t stride, size_t width) {
    static number lines[BLOCK][LINE_MAX];
    for (size_t k = 0; k < length; k++)
        for (size_t b = 0; b < width; b++)
            lines[b][k] = base[k * stride + b];
    for (size_t b = 0; b < width; b++)
        transform_line(lines[b], length);
    for (size_t k = 0; k < length; k++)
        for (size_t b = 0; b < width; b++)
            base[k * stride + b] = lines[b][k];
}

static void transform(number *field, int sign) {
    size_t row = sides[2], plane = sides[1] * row;
    make_roots(sides[2], sign);
    for (size_t line = 0; line < sides[0] * sides[1]; line++)
        transform_line(field + line * row, row);
    make_roots(sides[1], sign);
    for (size_t i = 0; i < sides[0]; i++)
        for (size_t k = 0; k < row; k += BLOCK)
            transform_block(field + i * plane + k, sides[1], row, BLOCK);
    make_roots(sides[0], sign);
    for (size_t at = 0; at < plane; at += BLOCK)
        transform_block(field + at, sides[0], plane, BLOCK);
}

static number phase(size_t dimension, size_t index) {
    return cexp(-TURN * I * (double)(index * steps[dimension] % sides[dimension]) / (double)sides[dimension]);
}

/* Shifts the field of this transform by one more step, and copies the transform. */
static void shift(number *transformed, number *copy) {
    static number last[LINE_MAX];
    for (size_t k = 0; k < sides[2]; k++)
        last[k] = phase(2, k);
    for (size_t i = 0, at = 0; i < sides[0]; i++)
        for (size_t j = 0; j < sides[1]; j++) {
            number first = times(phase(0, i), phase(1, j));
            for (size_t k = 0; k < sides[2]; k++, at++)
                copy[at] = transformed[at] = times(transformed[at], times(first, last[k]));
        }
}

static number initial(uint64_t seed, size_t at) {
    return CMPLX(unit(seed, 0, at), unit(seed, 1, at));
}

/* Compares `field` with the random field, shifted by `times_moved` steps. Returns the largest difference. */
static double check(const number *field, uint64_t seed, size_t times_moved) {
    double scale = 1.0 / (double)(sides[0] * sides[1] * sides[2]), worst = 0;
    for (size_t i = 0, at = 0; i < sides[0]; i++)
        for (size_t j = 0; j < sides[1]; j++)
            for (size_t k = 0; k < sides[2]; k++, at++) {
                size_t from_i = (i - times_moved * steps[0]) & (sides[0] - 1);
                size_t from_j = (j - times_moved * steps[1]) & (sides[1] - 1);
                size_t from_k = (k - times_moved * steps[2]) & (sides[2] - 1);
                number expected = initial(seed, (from_i * sides[1] + from_j) * sides[2] + from_k);
                double difference = cabs(field[at] * scale - expected);
                REQUIRE(difference < TOLERANCE, "round %zu: element %zu is off by %g", times_moved, at, difference);
                worst = fmax(worst, difference);
            }
    return worst;
}

int main(int argc, char **argv) {
    struct arguments arguments = parse_arguments(argc, argv);
    size_t count = BLOCK * BLOCK * BLOCK;
    sides[0] = sides[1] = sides[2] = BLOCK;
    for (int turn = 2; 2 * count <= arguments.bytes / (2 * sizeof(number)) && 2 * sides[turn] <= LINE_MAX;
         turn = (turn + 2) % 3) {
        sides[turn] *= 2;
        count *= 2;
    }
    number *transformed = array(count, sizeof *transformed), *field = array(count, sizeof *field);
    for (size_t at = 0; at < count; at++)
        transformed[at] = initial(arguments.seed, at);
    transform(transformed, -1);
    double worst = 0;
    for (size_t round = 1; round <= ROUNDS; round++) {
        shift(transformed, field);
        transform(field, 1);
        worst = fmax(worst, check(field, arguments.seed, round));
    }
    printf("ok fft: %zu x %zu x %zu, %d rounds, off by %.1e at most\n", sides[0], sides[1], sides[2], ROUNDS, worst);
    return 0;
}
