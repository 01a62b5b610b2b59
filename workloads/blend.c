/* blend [--threads T] [--ops N] [--size SIZE] [--seed S]
 *
 * T threads (2) each make N (300) random changes to 24 pieces of memory of up to SIZE (4M), blocks of malloc and
 * mappings. Mappings are shortened at either end, moved, replaced in the middle, emptied, and protected for a while. Parts
 * of all pieces are locked and unlocked. Every word of a piece is checked before the piece changes. The first thread also forks. Its children check and change all
 * pieces of this thread, and may fork themselves. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECES 24
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

enum kind { NONE, BLOCK, MAPPING };

struct piece {
    char *start;
    size_t size;
    uint64_t number; /* its words are computed from this number */
    enum kind kind;
};

struct state {
    struct piece pieces[PIECES];
    uint64_t drawn;
    int generation; /* of the process: 0 for the first, 1 for its children, 2 for theirs */
    int forks;
};

static size_t threads = 2, ops = 300, most = 4 * MIB;
static uint64_t seed = 1;

static uint64_t draw(struct state *state) {
    state->drawn++;
    return word(seed, 7, state->drawn) >> 9;
}

static void check(const struct piece *piece, const char *when) {
    check_words((uint64_t *)piece->start, piece->size / 8, seed, piece->number, when);
}

static void fill(struct piece *piece, struct state *state) {
    piece->number = draw(state);
    fill_words((uint64_t *)piece->start, piece->size / 8, seed, piece->number);
}

/* Draws a size from all powers of two. */
static size_t draw_size(struct state *state) {
    size_t size = most >> draw(state) % 10;
    return 8 + draw(state) % size;
}

static size_t whole_pages(size_t size) {
    return (size + PAGE - 1) / PAGE * PAGE;
}

static void make(struct piece *piece, struct state *state) {
    size_t size = draw_size(state);
    *piece = (struct piece){.size = size, .kind = BLOCK};
    switch (draw(state) % 4) {
    case 0:
        piece->start = malloc(size);
        break;
    case 1:
        CALL((piece->start = calloc(1, size)) != NULL);
        check_zero(piece->start, size, "calloc");
        break;
    case 2: {
        size_t align = (size_t)16 << draw(state) % 18;
        CALL((errno = posix_memalign((void **)&piece->start, align, size)) == 0);
        REQUIRE((uintptr_t)piece->start % align == 0, "%p is not aligned to %zu", (void *)piece->start, align);
        break;
    }
    case 3:
        *piece = (struct piece){.size = whole_pages(size), .kind = MAPPING};
        piece->start = mmap(NULL, piece->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CALL(piece->start != MAP_FAILED);
        check_zero(piece->start, piece->size, "mmap");
        break;
    }
    CALL(piece->start != NULL);
    fill(piece, state);
}

/* Locks or unlocks memory, or excludes it from core dumps, which may lock it, too. None of it changes a word. */
static void lock(char *start, size_t len, struct state *state) {
    char *page = (char *)((uintptr_t)start & -PAGE);
    size_t whole = whole_pages(len + (size_t)(start - page));
    switch (draw(state) % 6) {
    case 0:
        CALL(mlock(start, len) == 0 || errno == ENOMEM || errno == EAGAIN || errno == EPERM);
        break;
    case 1:
        CALL(mlock2(start, len, MLOCK_ONFAULT) == 0 || errno == ENOMEM || errno == EAGAIN || errno == EPERM);
        break;
    case 2:
        CALL(munlock(start, len) == 0);
        break;
    case 3:
        if (draw(state) % 8 == 0)
            CALL(munlockall() == 0);
        break;
    case 4:
        CALL(madvise(page, whole, MADV_DONTDUMP) == 0);
        break;
    case 5:
        CALL(madvise(page, whole, MADV_DODUMP) == 0);
        break;
    }
}

static void change_block(struct piece *piece, struct state *state) {
    if (draw(state) % 3 == 0) {
        free(piece->start);
        *piece = (struct piece){.kind = NONE};
    } else if (draw(state) % 2 == 0) {
        size_t size = draw_size(state);
        piece->size = piece->size < size ? piece->size : size;
        CALL((piece->start = realloc(piece->start, size)) != NULL);
        check(piece, "realloc");
        piece->size = size;
        fill(piece, state);
    } else {
        lock(piece->start, piece->size, state);
        fill(piece, state);
    }
}

/* Changes a drawn range of pages of a mapping, and checks that the rest keeps its words. */
static void change_inside(struct piece *piece, struct state *state, uint64_t how) {
    size_t pages = piece->size / PAGE, first = draw(state) % pages, count = 1 + draw(state) % (pages - first);
    char *start = piece->start + first * PAGE;
    size_t len = count * PAGE;
    if (how == 0) {
        CALL(mprotect(start, len, PROT_READ) == 0);
        check(piece, "while a part is protected");
        CALL(mprotect(start, len, PROT_READ | PROT_WRITE) == 0);
        return;
    }
    if (how == 1) {
        /* The kernel drops locked memory only by this advice, which old kernels do not know. */
        if (madvise(start, len, MADV_DONTNEED_LOCKED) != 0)
            CALL(munlock(start, len) == 0 && madvise(start, len, MADV_DONTNEED) == 0);
    } else
        CALL(mmap(start, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
    check_zero(start, len, how == 1 ? "MADV_DONTNEED" : "a new mapping in the middle");
    fill_words((uint64_t *)start, len / 8, seed, piece->number + first * (PAGE / 8));
    check(piece, "beside the part that changed");
}

static void change_mapping(struct piece *piece, struct state *state) {
    size_t pages = piece->size / PAGE, cut = draw(state) % pages * PAGE;
    uint64_t how = draw(state) % 10;
    switch (how) {
    case 3:
        CALL(munmap(piece->start, piece->size) == 0);
        *piece = (struct piece){.kind = NONE};
        break;
    case 4: /* keeps the first pages */
        if (cut > 0)
            CALL(munmap(piece->start + cut, piece->size - cut) == 0);
        piece->size = cut > 0 ? cut : piece->size;
        break;
    case 5: /* keeps the last pages */
        if (cut > 0)
            CALL(munmap(piece->start, cut) == 0);
        piece->start += cut;
        piece->size -= cut;
        piece->number += cut / 8;
        break;
    case 6: {
        size_t size = whole_pages(draw_size(state)), old = piece->size;
        char *moved = mremap(piece->start, old, size, MREMAP_MAYMOVE);
        /* The kernel moves nothing that consists of several mappings, and lets no more memory become locked than it may. */
        if (moved == MAP_FAILED && (errno == EFAULT || errno == EAGAIN))
            break;
        CALL(moved != MAP_FAILED);
        *piece = (struct piece){moved, old < size ? old : size, piece->number, MAPPING};
        check(piece, "mremap");
        piece->size = size;
        if (size > old)
            check_zero(moved + old, size - old, "what mremap added");
        fill(piece, state);
        break;
    }
    case 7:
        fill(piece, state);
        break;
    case 8:
    case 9:
        lock(piece->start + cut, piece->size - cut, state);
        check(piece, "beside a lock");
        break;
    default:
        change_inside(piece, state, how);
    }
}

static void fork_once(struct state *state);

static void blend(struct state *state, size_t count) {
    for (size_t n = 0; n < count; n++) {
        struct piece *piece = &state->pieces[draw(state) % PIECES];
        if (piece->kind != NONE)
            check(piece, "before it changes");
        if (piece->kind == NONE)
            make(piece, state);
        else if (piece->kind == BLOCK)
            change_block(piece, state);
        else
            change_mapping(piece, state);
        if (state->forks && draw(state) % 40 == 0)
            fork_once(state);
    }
    for (struct piece *piece = state->pieces; piece < state->pieces + PIECES; piece++)
        if (piece->kind != NONE)
            check(piece, "at the end");
}

static void fork_once(struct state *state) {
    pid_t child = fork();
    CALL(child >= 0);
    if (child == 0) {
        state->generation++;
        state->forks = state->generation < 2;
        state->drawn += (uint64_t)state->generation << 32;
        blend(state, 20);
        _exit(0);
    }
    blend(&(struct state){.drawn = state->drawn + ((uint64_t)1 << 40)}, 5);
    for (struct piece *piece = state->pieces; piece < state->pieces + PIECES; piece += 3)
        if (piece->kind != NONE)
            fill(piece, state);
    int status;
    CALL(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0, "a child ended with %s %d", WIFSIGNALED(status) ? "signal" : "exit code",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void *work(void *number) {
    struct state state = {.drawn = (uint64_t)(uintptr_t)number << 48, .forks = number == NULL};
    blend(&state, ops);
    return NULL;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--threads")))
            threads = parse_size(value);
        else if ((value = option(argv, &i, "--ops")))
            ops = parse_size(value);
        else if ((value = option(argv, &i, "--size")))
            most = parse_size(value);
        else if ((value = option(argv, &i, "--seed")))
            seed = parse_size(value);
        else
            threads = 0;
    }
    if (threads == 0 || threads > 64 || most < 64 * 1024) {
        fprintf(stderr, "usage: blend [--threads T] [--ops N] [--size SIZE (64K or more)] [--seed S]\n");
        return 2;
    }
    pthread_t handles[64];
    for (size_t t = 0; t < threads; t++)
        CALL((errno = pthread_create(&handles[t], NULL, work, (void *)t)) == 0);
    for (size_t t = 0; t < threads; t++)
        CALL((errno = pthread_join(handles[t], NULL)) == 0);
    printf("ok blend: %zu threads, %zu changes each, pieces of up to %zu bytes\n", threads, ops, most);
    return 0;
}
