/* dsm.h: memory shared by the ranks of one program.
 *
 *     #include <dsm.h>
 *     int main(int argc, char *argv[]) {
 *         dsm_startup(&argc, &argv);
 *         double *a = dsm_alloc(sizeof(double) * N, dsm_block());
 *         ... every rank writes its part of a ...
 *         dsm_barrier();
 *         ... every rank reads all of a ...
 *         dsm_free(a);
 *         dsm_shutdown();
 *     }
 *
 *     cc example.c -lhanare_dsm -o example
 *     hanare launch -n 4 -- ./example
 *
 * Every rank runs the same program and makes the same calls with the same arguments in the same order (dsm_lock and
 * dsm_unlock apart). Memory from dsm_alloc has one address in every rank and is used through ordinary pointers. The
 * consistency is release consistency: what a rank writes is seen by the others after the next dsm_barrier of all, and by
 * whoever gets a lock after the writer gave that lock back. Several ranks may write one page between two barriers, as
 * long as they write different 4-byte words.
 *
 * A call that cannot be made, and a rank that is lost, end all ranks: each says why in one line on standard error, the
 * exit code is 125 or 122; 120 when a memory server is lost, 121 when all are full. Calls are made by one thread of a rank at a time; every thread may touch. A forked child has
 * no shared memory.
 *
 * A signal handler may touch shared memory, also one that interrupts a call; it must make no calls. In a call signals are held
 * back for some milliseconds at most. A rank that is stopped (SIGSTOP) delays the others until it goes on.
 *
 * A program must not close descriptors that it did not open (closefrom, for example): userfaultfd is one of them, and without
 * it pages read as whatever was there last. Memory that runs out is one line and exit code 122 where the kernel says so, which it
 * does for pages a rank uses first. It does not within a memory cgroup, which kills the rank (SIGKILL), nor for copies of
 * others' pages under vm.overcommit_memory=2 (SIGBUS): the other ranks then end with 122.
 */
#ifndef HANARE_DSM_H
#define HANARE_DSM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Meets the other ranks; to be called once, before the other calls. Which rank this is comes from `hanare launch`, srun or
 * mpirun; started by nobody, it is rank 0 of 1. Settings: flags of `hanare launch`, or HANARE_PROTOCOL,
 * HANARE_HOME_POLICY, HANARE_TRANSFER, HANARE_BIND, HANARE_SHARED_BYTES and HANARE_SHARED_LOCAL_BYTES (what a rank keeps in
 * memory; the rest goes to HANARE_SERVERS, or to a private server). Ranks on several hosts
 * meet at HANARE_RANK0=HOST:PORT, which for srun need not be given where hosts know each other's names; their links are
 * not guarded, so an address that is not of loopback wants HANARE_TRUSTED_NETWORK=yes. Whatever else connects there is dropped.
 * Ranks of one host meet in a directory that belongs to their user and has mode 0700 (another is refused), and let in that
 * user only: not even root, whose ranks could not reach theirs. Returns 0; when ranks cannot meet it says why and ends
 * the process with 125, or with 122 when one of them ended meanwhile. */
int dsm_startup(int *argc, char ***argv);

/* Waits for all ranks, then ends sharing: the memory is gone. */
void dsm_shutdown(void);

/* This rank, from 0, and how many there are. */
int dsm_rank(void);
int dsm_size(void);

/* Where pages have their homes. Writing at home costs nothing until somebody else reads the page, so a page's home
 * should be the rank that writes it most. */
struct dsm_placement {
    int kind;
    int rank;
    size_t block;      /* bytes, a multiple of 4096 */
    const int *owners; /* the home of each block; the last stands for all that follow */
    size_t count;
};

/* As many neighbouring pages to each rank as divide evenly. */
static inline struct dsm_placement dsm_block(void) {
    struct dsm_placement placement = {0, 0, 0, NULL, 0};
    return placement;
}

/* Blocks of so many bytes to each rank in turn; 4096 is cyclic by page. */
static inline struct dsm_placement dsm_cyclic(size_t block) {
    struct dsm_placement placement = {1, 0, block, NULL, 0};
    return placement;
}

/* All to one rank. */
static inline struct dsm_placement dsm_one(int rank) {
    struct dsm_placement placement = {2, rank, 0, NULL, 0};
    return placement;
}

/* Each page to the rank that touches it first. */
static inline struct dsm_placement dsm_first_touch(void) {
    struct dsm_placement placement = {3, 0, 0, NULL, 0};
    return placement;
}

/* A given rank for each block of so many bytes. */
static inline struct dsm_placement dsm_owners(size_t block, const int *owners, size_t count) {
    struct dsm_placement placement = {4, 0, block, owners, count};
    return placement;
}

/* The same for blocks that are read whole: a touch of one brings the pages behind too, up to 32 KiB at once. */
static inline struct dsm_placement dsm_whole_blocks(size_t block, const int *owners, size_t count) {
    struct dsm_placement placement = {5, 0, block, owners, count};
    return placement;
}

/* All ranks together: so many bytes, zero, at one address everywhere, in whole pages. NULL with errno ENOMEM in every rank
 * when the shared region (HANARE_SHARED_BYTES) is used up. */
void *dsm_alloc(size_t size, struct dsm_placement placement);

/* All ranks together: gives a block back. */
void dsm_free(void *block);

/* The memory barrier: waits for all ranks, and everyone sees what anyone wrote before. */
void dsm_barrier(void);

/* Locks, numbered from 0 to 65535. */
void dsm_lock(int lock);
void dsm_unlock(int lock);

/* All ranks together: replaces each of the values (at most 64, of 8 bytes) by what comes of those of all ranks, combined
 * in the order of the ranks. It is no memory barrier. */
#define DSM_SUM_INT64 1
#define DSM_MIN_INT64 2
#define DSM_MAX_INT64 3
#define DSM_SUM_DOUBLE 4
#define DSM_MIN_DOUBLE 5
#define DSM_MAX_DOUBLE 6
void dsm_reduce(int operation, void *values, size_t count);

/* What this rank counted. Times are nanoseconds. */
struct dsm_stats {
    uint64_t barriers;      /* memory barriers */
    uint64_t barrier_ns;    /* their time */
    uint64_t update_ns;     /* its part for page updates */
    uint64_t read_faults;   /* touches that trapped, by reads */
    uint64_t write_faults;  /* and by writes */
    uint64_t fault_ns;      /* their time */
    uint64_t share_ns;      /* its part for page shares */
    uint64_t page_shares;   /* pages fetched from their homes */
    uint64_t page_updates;  /* pages sent to sharers at memory barriers */
    uint64_t invalidations; /* copies taken away from this rank */
    uint64_t twins;         /* twins made */
    uint64_t diffs;         /* pages compared with their twins */
    uint64_t flushes;       /* messages with diffs: one a home and barrier or release */
    uint64_t homes_moved;   /* pages whose home this rank gave away */
    uint64_t locks;         /* locks got */
    uint64_t frames_sent;   /* to other ranks */
    uint64_t bytes_sent;    /* of those frames */
    uint64_t pages_dropped; /* copies given up for want of room: hanare launch --local */
    uint64_t pages_out;         /* pages at home taken out of memory for want of room */
    uint64_t pages_out_written; /* those of them that were written to memory servers: the others had not changed */
    uint64_t pages_back;        /* pages that came back from there */
    uint64_t bytes_out;         /* bytes written to memory servers */
    uint64_t bytes_back;        /* and fetched from them */
    uint64_t local_bytes_peak;  /* most that shared pages and twins took at once; 0 without --local */
};
void dsm_stats(struct dsm_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
