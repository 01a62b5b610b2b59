/* The parts linked with jemalloc: its options, and near memory for its own data. All its symbols are local to the
 * library, so that none conflicts with those of a program that has its own jemalloc. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Read once, when the library is loaded.
 * - narenas: the number of arenas to which src/heap/arena.rs gives extent hooks; no arena without far extents may be
 *   used.
 * - oversize_threshold: no further arena for large blocks, for the same reason.
 * - metadata_thp: with it the caches of threads lie with the metadata, which is near, and not in arena 0, which is far.
 * - dirty_decay_ms: later calls discard freed pages within this time; muzzy pages do not exist here.
 * - cache_oblivious: blocks of whole pages start at a page, and cost no further page.
 * - slab_sizes: longer slabs than the default, since each costs 128 bytes near; at most 512 blocks. */
#define OPTIONS \
    "oversize_threshold:0,metadata_thp:auto,dirty_decay_ms:1000,muzzy_decay_ms:0,cache_oblivious:false," \
    "slab_sizes:16-16:2|32-32:4|48-48:6|64-64:8|96-96:6|128-128:8|192-192:6|256-256:8|384-384:6|512-512:8|768-768:6|" \
    "1024-1024:8|1536-1536:6|2048-2048:8|3072-3072:6|4096-4096:8|6144-6144:6|8192-8192:8|12288-12288:6"
__attribute__((visibility("hidden"))) const char *_rjem_malloc_conf = "narenas:4," OPTIONS;

/* How many arenas there are. Each takes 90 KB of near memory before its first block, and two are as good as four where no
 * more than two threads can allocate at the same time. */
__attribute__((visibility("hidden"))) unsigned hanare_heap_arenas = 4;

/* Before jemalloc's own constructor, which has no priority. */
__attribute__((constructor(101))) static void count_arenas(void) {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) <= 2) {
        hanare_heap_arenas = 2;
        _rjem_malloc_conf = "narenas:2," OPTIONS;
    }
}

/* The mappings that jemalloc made for itself, so that they can be counted. Each maps a few megabytes, more than the
 * last, and none is returned. */
#define MAPS_MAX 256
__attribute__((visibility("hidden"))) struct {
    _Atomic size_t addr, len;
} hanare_jemalloc_maps[MAPS_MAX];
static _Atomic size_t maps;

/* jemalloc needs its metadata on such boundaries, and would map and cut until it has one. */
#define BOUNDARY ((size_t)2 << 20)

/* The linker replaces `mmap` by this in our libraries, where only jemalloc calls it. `syscall` may be ours, and would
 * call this function again. */
__attribute__((visibility("hidden"))) void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off) {
    if (addr || len % BOUNDARY != 0 || len > SIZE_MAX - BOUNDARY)
        return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, off);
    size_t start = (size_t)syscall(SYS_mmap, addr, len + BOUNDARY, prot, flags, fd, off);
    if (start == (size_t)MAP_FAILED)
        return MAP_FAILED;
    size_t lead = -start % BOUNDARY, nth = atomic_fetch_add(&maps, 1);
    if (lead > 0)
        syscall(SYS_munmap, start, lead);
    if (BOUNDARY - lead > 0)
        syscall(SYS_munmap, start + lead + len, BOUNDARY - lead);
    if (nth < MAPS_MAX) {
        atomic_store(&hanare_jemalloc_maps[nth].addr, start + lead);
        atomic_store(&hanare_jemalloc_maps[nth].len, len);
    }
    return (void *)(start + lead);
}

/* No program break for jemalloc: the break may be far, and a request would start the engine, which needs jemalloc. */
__attribute__((visibility("hidden"))) void *__wrap_sbrk(intptr_t increment) {
    (void)increment;
    return (void *)-1;
}

/* jemalloc takes its locks around each fork, which writes to some thirty pages. A program without far memory avoids
 * that: only jemalloc's constructor has used those locks. */
typedef void handler(void);

extern int __register_atfork(handler *, handler *, handler *, void *);
extern void *__dso_handle __attribute__((visibility("hidden")));

static handler *lock_all, *unlock_in_parent, *unlock_in_child;
static _Atomic int is_used;
/* Whether this thread's fork took the locks. Another thread may open the heap in the middle of a fork. */
static _Thread_local int has_locked;

static void before_fork(void) {
    if (is_used && !has_locked) {
        lock_all();
        has_locked = 1;
    }
}

static void after_fork_in_parent(void) {
    if (has_locked) {
        has_locked = 0;
        unlock_in_parent();
    }
}

static void after_fork_in_child(void) {
    if (has_locked) {
        has_locked = 0;
        unlock_in_child();
    }
}

extern handler _rjem_je_jemalloc_prefork __attribute__((weak));

/* The linker replaces `pthread_atfork` by this in our libraries. Handlers of other callers than jemalloc are registered
 * unchanged. */
__attribute__((visibility("hidden"))) int __wrap_pthread_atfork(handler *prepare, handler *parent, handler *child) {
    if (prepare != _rjem_je_jemalloc_prefork)
        return __register_atfork(prepare, parent, child, &__dso_handle);
    lock_all = prepare;
    unlock_in_parent = parent;
    unlock_in_child = child;
    return __register_atfork(before_fork, after_fork_in_parent, after_fork_in_child, &__dso_handle);
}

/* Before the heap's first call of jemalloc. */
__attribute__((visibility("hidden"))) void hanare_heap_is_used(void) { is_used = 1; }

/* Must precede the point at which a fork keeps threads out of the engine: a waiting thread may hold a lock of jemalloc. */
__attribute__((visibility("hidden"))) void hanare_heap_before_fork(void) {
    if (lock_all)
        before_fork();
}

/* Whether the locks were taken, in a fork with a heap. Where this file's handlers are not linked in, jemalloc takes
 * them itself. */
__attribute__((visibility("hidden"))) int hanare_heap_is_locked(void) { return has_locked || lock_all == 0; }
