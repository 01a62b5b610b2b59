/* Variables of threads in memory from malloc, for the libhanare.so of the Python package.
 *
 * A library that is loaded into a running process, as by Python, gets the variables of its threads from a reserve of
 * the C library: 1664 bytes for all libraries together. Hanare's fault handlers rely on it. But jemalloc's variable
 * alone has 1952 bytes. So jemalloc is compiled with -femulated-tls: it asks the function below for the variable's
 * address. libgcc has such a function too, but frees the memory when a thread ends before jemalloc's last access. */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number of variables there may be. jemalloc and src/heap/jemalloc.c of the runtime have one each. */
#define VARIABLES_MAX 8

/* A variable, as the compiler describes it. */
struct variable {
    size_t size, align;
    _Atomic uintptr_t number; /* counted from 1; 0 before the first access */
    void *initial;            /* null for zeroes */
};

/* The variables of one thread. */
struct block {
    unsigned rounds;
    void *at[VARIABLES_MAX];
};

static _Thread_local struct block *mine __attribute__((tls_model("initial-exec")));
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t count;
static pthread_key_t key;
static _Atomic int has_key;

static void give_up(const char *why) {
    /* Ignored: the process ends in any case. */
    (void)!write(STDERR_FILENO, why, strlen(why));
    abort();
}

static void *allocate(size_t align, size_t size) {
    void *place = aligned_alloc(align, (size + align - 1) / align * align);
    if (!place)
        give_up("hanare: there is no memory left for a thread's variables; give the process more\n");
    memset(place, 0, size);
    return place;
}

/* Frees the variables of a thread in the last round of destructors, because jemalloc's own destructor may want to run
 * once more until then. */
static void end(void *ended) {
    struct block *block = ended;
    if (++block->rounds < PTHREAD_DESTRUCTOR_ITERATIONS && pthread_setspecific(key, block) == 0)
        return;
    mine = NULL;
    for (unsigned nth = 0; nth < VARIABLES_MAX; nth++)
        free(block->at[nth]);
    free(block);
}

/* Makes the key after jemalloc's constructor has made its own, so that in each round `end` comes last. */
__attribute__((constructor)) static void begin(void) {
    if (pthread_key_create(&key, end) != 0 || (mine && pthread_setspecific(key, mine) != 0))
        give_up("hanare: there is no key left for threads' variables; load hanare before other libraries\n");
    has_key = 1;
}

static uintptr_t number_of(struct variable *variable) {
    uintptr_t number = variable->number;
    if (number)
        return number;
    pthread_mutex_lock(&lock);
    if (!variable->number)
        variable->number = ++count;
    number = variable->number;
    pthread_mutex_unlock(&lock);
    if (number > VARIABLES_MAX)
        give_up("hanare: the library has more threads' variables than emutls.c has room for; report this\n");
    return number;
}

/* Returns the calling thread's address of a variable. The compiler calls it at each access. */
__attribute__((visibility("hidden"))) void *__emutls_get_address(struct variable *variable) {
    uintptr_t number = number_of(variable);
    if (!mine) {
        mine = allocate(_Alignof(struct block), sizeof *mine);
        /* Without the key, these bytes are not freed when the thread ends. Nothing else depends on it. */
        if (has_key)
            (void)pthread_setspecific(key, mine);
    }
    void **at = &mine->at[number - 1];
    if (!*at) {
        *at = allocate(variable->align < 16 ? 16 : variable->align, variable->size);
        if (variable->initial)
            memcpy(*at, variable->initial, variable->size);
    }
    return *at;
}
