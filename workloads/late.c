/* A library that is opened by dlopen while threads already run. Accesses to its memory must allocate nothing: a signal
 * handler may answer the trap of such an access, and thread-local variables of the library are made at their first use.
 *
 *   late libhanare.so | libhanare_dsm.so
 *
 * The exit code is 1 if anything was allocated during an access. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../include/dsm.h"

#define THREADS 4

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static __thread int touches __attribute__((tls_model("initial-exec")));
static atomic_int bad;
static pthread_barrier_t ready;
static volatile char *memory;
static size_t size = 64 << 20;

void *malloc(size_t bytes) {
    bad += touches;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    bad += touches;
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes) {
    bad += touches;
    return __libc_realloc(block, bytes);
}

static void *touch(void *number) {
    pthread_barrier_wait(&ready);
    touches = 1;
    for (int round = 0; round < 2; round++)
        for (size_t at = (uintptr_t)number * 4096; at < size; at += THREADS * 4096)
            memory[at]++;
    touches = 0;
    return NULL;
}

static void *find(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol)
        exit(3);
    return symbol;
}

int main(int argc, char *argv[]) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&ready, NULL, THREADS + 1);
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        if (pthread_create(&threads[thread], NULL, touch, (void *)thread))
            return 3;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "late: %s\n", dlerror());
        return 2;
    }
    if (strstr(argv[1], "hanare_dsm")) {
        int (*startup)(int *, char ***) = find(library, "dsm_startup");
        void *(*alloc)(size_t, struct dsm_placement) = find(library, "dsm_alloc");
        startup(&argc, &argv);
        memory = alloc(size, dsm_one(0));
    } else {
        int (*startup)(int *, char ***) = find(library, "dlm_startup");
        void *(*alloc)(size_t) = find(library, "dlm_alloc");
        startup(&argc, &argv);
        memory = alloc(size);
    }
    if (!memory)
        return 3;
    touches = 1;
    for (size_t at = 0; at < size; at += 4096)
        memory[at] = 1;
    touches = 0;
    pthread_barrier_wait(&ready);
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    for (size_t at = 0; at < size; at += 4096)
        if (memory[at] != 3)
            return 4;
    printf("%d allocations\n", (int)bad);
    fflush(stdout);
    _exit(bad != 0);
}
