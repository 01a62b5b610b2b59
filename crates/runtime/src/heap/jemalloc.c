/* The C code that is linked with jemalloc: jemalloc's options, its mappings for metadata, and its fork handlers. All
 * symbols are local to the library, so that they do not conflict with the symbols of a program's own jemalloc. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* jemalloc's options. jemalloc reads them once, when the library is loaded.
 * - narenas: the number of arenas. src/heap/arena.rs gives its extent hooks to each arena. An arena without these
 *   hooks would allocate near memory, so jemalloc must not create further arenas.
 * - oversize_threshold: 0, so that jemalloc does not create a further arena for large blocks.
 * - metadata_thp: auto, which makes jemalloc allocate the caches of threads with its metadata, in near memory.
 *   Otherwise they would be in arena 0, which is far.
 * - dirty_decay_ms: the milliseconds within which later calls discard freed pages.
 * - muzzy_decay_ms: 0, so that there are no muzzy pages (pages that jemalloc discards lazily).
 * - cache_oblivious: false, so that a block of whole pages starts at a page boundary and needs no additional page.
 * - slab_sizes: the pages of a slab for each size. Slabs are longer than by default, because each slab needs 128 bytes
 *   of near memory. A slab has at most 512 blocks. */
#define OPTIONS \
    "oversize_threshold:0,metadata_thp:auto,dirty_decay_ms:1000,muzzy_decay_ms:0,cache_oblivious:false," \
    "slab_sizes:16-16:2|32-32:4|48-48:6|64-64:8|96-96:6|128-128:8|192-192:6|256-256:8|384-384:6|512-512:8|768-768:6|" \
    "1024-1024:8|1536-1536:6|2048-2048:8|3072-3072:6|4096-4096:8|6144-6144:6|8192-8192:8|12288-12288:6"
__attribute__((visibility("hidden"))) const char *_rjem_malloc_conf = "narenas:4," OPTIONS;

/* The number of arenas. Each arena needs 90 KB of near memory before its first block. Two arenas suffice if the process
 * may use at most two processors, because at most two threads allocate at the same time. */
__attribute__((visibility("hidden"))) unsigned hanare_heap_arenas = 4;

/* Sets the number of arenas. The priority makes this constructor run before jemalloc's own, which has no priority. The
 * preload library binds its calls with priority 101, so this constructor runs afterwards. */
__attribute__((constructor(102))) static void count_arenas(void) {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) <= 2) {
        hanare_heap_arenas = 2;
        _rjem_malloc_conf = "narenas:2," OPTIONS;
    }
}

/* The mappings that jemalloc made for its metadata. The runtime counts their bytes as local memory. Each mapping has a
 * few megabytes and is longer than the mapping before. jemalloc never unmaps them. */
#define MAPS_MAX 256
__attribute__((visibility("hidden"))) struct {
    _Atomic size_t addr, len;
} hanare_jemalloc_maps[MAPS_MAX];
static _Atomic size_t maps;

/* Alignment of jemalloc's mappings for metadata, in bytes. If a mapping were not aligned, jemalloc itself would map
 * more memory and unmap the ends. */
#define BOUNDARY ((size_t)2 << 20)

/* The linker replaces `mmap` by this function in Hanare's libraries. Only jemalloc may call `mmap` in these libraries.
 * This function uses `syscall`, which may be the function that the preload library defines. If that function called
 * `mmap`, the two functions would call each other without end. */
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

/* Refuses the program break to jemalloc. The break may be far memory, and a request for it would start the engine. But
 * the start of the engine needs jemalloc. */
__attribute__((visibility("hidden"))) void *__wrap_sbrk(intptr_t increment) {
    (void)increment;
    return (void *)-1;
}

/* jemalloc acquires its locks before each fork, which writes to about thirty pages. The handlers below skip this work
 * if the program has no far memory. In this case only jemalloc's constructor has used the locks. */
typedef void handler(void);

extern int __register_atfork(handler *, handler *, handler *, void *);
extern void *__dso_handle __attribute__((visibility("hidden")));

static handler *lock_all, *unlock_in_parent, *unlock_in_child;
static _Atomic int is_used;
/* Whether the present fork of this thread has acquired jemalloc's locks. `is_used` does not tell this, because another
 * thread may open the heap during the fork. */
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

/* The linker replaces `pthread_atfork` by this function in Hanare's libraries. For jemalloc, the function registers the
 * handlers of this file, which call jemalloc's handlers. For other callers it registers their handlers unchanged. */
__attribute__((visibility("hidden"))) int __wrap_pthread_atfork(handler *prepare, handler *parent, handler *child) {
    if (prepare != _rjem_je_jemalloc_prefork)
        return __register_atfork(prepare, parent, child, &__dso_handle);
    lock_all = prepare;
    unlock_in_parent = parent;
    unlock_in_child = child;
    return __register_atfork(before_fork, after_fork_in_parent, after_fork_in_child, &__dso_handle);
}

/* Notes that the program has a heap. The runtime calls this before the first allocation. */
__attribute__((visibility("hidden"))) void hanare_heap_is_used(void) { is_used = 1; }

/* Acquires jemalloc's locks for a fork. The runtime calls this before the fork keeps threads out of the engine.
 * Otherwise a thread that waits to enter the engine could hold one of these locks. */
__attribute__((visibility("hidden"))) void hanare_heap_before_fork(void) {
    if (lock_all)
        before_fork();
}

/* Returns whether the present fork of this thread acquires jemalloc's locks: it has acquired them already, or jemalloc
 * registered its own handlers because `__wrap_pthread_atfork` is not linked in. */
__attribute__((visibility("hidden"))) int hanare_heap_is_locked(void) { return has_locked || lock_all == 0; }
