/* The text of genes: a line of expressions for each gene, divided by tabs. It is generated into a file and read from
 * there byte by byte, as Cluster 3.0 does it. */
#ifndef HANARE_WORKLOADS_GENES_TEXT_H
#define HANARE_WORKLOADS_GENES_TEXT_H

#include "genes_blocks.h"

#define PATTERNS 40 /* genes follow one of these, with noise */
#define MISSING_SHARE 0.02
#define LINE_BYTES 1024 /* a line's block, before it is cut to the line's length */

static size_t genes = 2467, conditions = 79;
static double **data; /* of a gene in a condition */
static int **mask;    /* 0 where the text has no number */
static char **ids, **names, **condition_names;
static double *weights; /* of the conditions */

static char *copy_of(const char *text) {
    return strcpy(take(strlen(text) + 1), text);
}

static void write_text(FILE *file, uint64_t seed) {
    fputs("YORF\tNAME", file);
    for (size_t c = 0; c < conditions; c++)
        fprintf(file, "\ttime %zu", c);
    for (size_t i = 0; i < genes; i++) {
        fprintf(file, "\nYGL%05zu\tPATTERN %zu, GENE %zu", i, i % PATTERNS, i);
        for (size_t c = 0; c < conditions; c++)
            if (unit(seed, 0, i * conditions + c) < MISSING_SHARE)
                fputc('\t', file);
            else
                fprintf(file, "\t%.2f", 3 * unit(seed, 1, i % PATTERNS * conditions + c) +
                                            2 * unit(seed, 2, i * conditions + c) - 2.5);
    }
    CALL(fputc('\n', file) != EOF && fflush(file) == 0);
}

/* Returns the next line without its end, or NULL after the last one. */
static char *read_line(FILE *file) {
    size_t room = LINE_BYTES, length = 0;
    char *line = take(room);
    int byte;
    while ((byte = getc(file)) != EOF && byte != '\n') {
        line[length++] = (char)byte;
        if (length == room)
            line = resize(line, room += LINE_BYTES);
    }
    if (byte == EOF) {
        release(line);
        return NULL;
    }
    line[length++] = 0;
    return resize(line, length);
}

static void read_row(size_t row, char *line) {
    ids[row] = copy_of(strsep(&line, "\t"));
    names[row] = copy_of(strsep(&line, "\t"));
    data[row] = take(conditions * sizeof **data);
    mask[row] = take(conditions * sizeof **mask);
    for (size_t c = 0; c < conditions; c++) {
        const char *number = strsep(&line, "\t");
        mask[row][c] = *number != 0;
        data[row][c] = *number ? strtod(number, NULL) : 0;
    }
    REQUIRE(line == NULL, "genes: row %zu has more than %zu conditions", row, conditions);
}

static void read_text(FILE *file) {
    size_t lines = 0;
    rewind(file);
    for (char *line; (line = read_line(file)); lines++)
        release(line);
    REQUIRE(lines == genes + 1, "genes: the text has %zu lines", lines);
    data = take(genes * sizeof *data);
    mask = take(genes * sizeof *mask);
    ids = take(genes * sizeof *ids);
    names = take(genes * sizeof *names);
    condition_names = take(conditions * sizeof *condition_names);
    weights = take(conditions * sizeof *weights);
    rewind(file);
    char *line = read_line(file), *rest = line;
    strsep(&rest, "\t");
    strsep(&rest, "\t");
    for (size_t c = 0; c < conditions; c++) {
        condition_names[c] = copy_of(strsep(&rest, "\t"));
        weights[c] = 1;
    }
    release(line);
    for (size_t row = 0; row < genes; row++) {
        line = read_line(file);
        read_row(row, line);
        release(line);
    }
}

#endif
