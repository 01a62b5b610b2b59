/* What jemalloc is linked with: its options, and near memory for itself. Both are hidden symbols, so that neither is
 * mixed up with those of a program that brings its own jemalloc. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Read once, when the library is loaded.
 * - narenas: as many as src/heap/arena.rs gives extent hooks to; without a far extent of its own no arena may be used.
 * - oversize_threshold: no further arena for large blocks, for the same reason.
 * - metadata_thp: with it the caches of threads lie with the metadata, which is near, and not in arena 0, which is far.
 * - dirty_decay_ms: freed pages are discarded within this time of the calls that follow; muzzy ones are not ours to have.
 * - cache_oblivious: blocks of whole pages start at a page, and cost none beyond.
 * - slab_sizes: longer slabs than the default, since each costs 128 bytes near; at most 512 blocks. */
__attribute__((visibility("hidden"))) const char *_rjem_malloc_conf =
    "narenas:4,oversize_threshold:0,metadata_thp:auto,dirty_decay_ms:1000,muzzy_decay_ms:0,cache_oblivious:false,"
    "slab_sizes:16-16:2|32-32:4|48-48:6|64-64:8|96-96:6|128-128:8|192-192:6|256-256:8|384-384:6|512-512:8|768-768:6|"
    "1024-1024:8|1536-1536:6|2048-2048:8|3072-3072:6|4096-4096:8|6144-6144:6|8192-8192:8|12288-12288:6";

/* The linker puts this in the place of `mmap` wherever a library of ours calls it. */
__attribute__((visibility("hidden"))) void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off) {
    return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, off);
}
