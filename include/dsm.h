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
 *     cc example.c $(pkg-config --cflags --libs hanare-dsm) -o example
 *     hanare launch -n 4 -- ./example
 *
 * Every rank runs the same program and makes the same calls in the same order with the same arguments, except for
 * dsm_lock and dsm_unlock. Memory from dsm_alloc has the same address in every rank and is used through ordinary
 * pointers. It is release consistent: other ranks see a rank's writes after the next dsm_barrier, or after they get a
 * lock that the writer has released. Several ranks may write one page between two barriers if they write different
 * 4-byte words.
 *
 * Only one thread of a rank may make calls at a time. Every thread may access the memory. A forked child has no shared
 * memory.
 *
 * A call that is not allowed ends all ranks. The loss of a rank ends the others too. Each rank then prints the reason
 * in one line on standard error. The exit code is 125 or 122. It is 120 if a memory server was lost, and 121 if all
 * servers are full.
 *
 * A signal handler may access shared memory, even if it interrupts one of these calls. But it must not make any of
 * them. During a call, signals are delayed by some milliseconds at most. A stopped rank (SIGSTOP) delays the other
 * ranks until it continues.
 *
 * A program must not close descriptors that it did not open (by closefrom, for example). One of these descriptors is a
 * userfaultfd. Without it, absent pages would read as stale bytes.
 *
 * If memory runs out when a rank first uses a page, the rank ends with one line and exit code 122. In two cases the
 * kernel does not report the shortage. At the limit of a memory cgroup, the kernel kills the rank (SIGKILL). Under
 * vm.overcommit_memory=2, a copy of another rank's page may raise SIGBUS. The other ranks then end with 122.
 */
#ifndef HANARE_DSM_H
#define HANARE_DSM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Connects to the other ranks. Call it once, before the other calls. Returns 0. If the ranks cannot connect, prints the
 * reason and ends the process. The exit code is 125, or 122 if another rank has ended meanwhile.
 *
 * `hanare launch`, srun or mpirun give the rank its number. A program that none of them started is rank 0 of 1.
 * Settings are flags of `hanare launch`, or the variables HANARE_PROTOCOL, HANARE_HOME_POLICY, HANARE_TRANSFER,
 * HANARE_BIND, HANARE_SHARED_BYTES and HANARE_SHARED_LOCAL_BYTES. HANARE_SHARED_LOCAL_BYTES bounds the shared pages
 * that a rank keeps in memory. Further pages are evicted to the servers in HANARE_SERVERS, or to a private server.
 *
 * Ranks on several hosts connect to rank 0 at HANARE_RANK0=HOST:PORT. Under srun the variable may be unset if the hosts
 * know each other's names. The links between hosts are not protected, so an address other than loopback needs
 * HANARE_TRUSTED_NETWORK=yes. Connections to that address that do not come from a rank are dropped.
 *
 * Ranks of one host meet in a directory. It must belong to the ranks' user and have mode 0700. Processes of other users
 * are not admitted, not even those of root. */
int dsm_startup(int *argc, char ***argv);

/* Waits for all ranks, then ends shared memory. No block may be used any more. */
void dsm_shutdown(void);

/* dsm_rank returns the number of this rank, counted from 0. dsm_size returns how many ranks there are. */
int dsm_rank(void);
int dsm_size(void);

/* The homes of an allocation's pages. The home of a page is the rank that keeps the page. Writing a page at its home
 * costs nothing until another rank reads the page. So the home should be the rank that writes the page most. */
struct dsm_placement {
    int kind;
    int rank;
    size_t block;      /* bytes, a multiple of 4096 */
    const int *owners; /* the home of each block; the last entry also applies to all further blocks */
    size_t count;
};

/* Divides the pages evenly: each rank is the home of one contiguous part. */
static inline struct dsm_placement dsm_block(void) {
    struct dsm_placement placement = {0, 0, 0, NULL, 0};
    return placement;
}

/* Distributes blocks of `block` bytes to the ranks in turn. With 4096 bytes, every page goes to the next rank. */
static inline struct dsm_placement dsm_cyclic(size_t block) {
    struct dsm_placement placement = {1, 0, block, NULL, 0};
    return placement;
}

/* Makes one rank the home of all pages. */
static inline struct dsm_placement dsm_one(int rank) {
    struct dsm_placement placement = {2, rank, 0, NULL, 0};
    return placement;
}

/* Makes the rank that first accesses a page the home of that page. */
static inline struct dsm_placement dsm_first_touch(void) {
    struct dsm_placement placement = {3, 0, 0, NULL, 0};
    return placement;
}

/* Sets the home of each block of `block` bytes: `owners` lists one rank for each block. */
static inline struct dsm_placement dsm_owners(size_t block, const int *owners, size_t count) {
    struct dsm_placement placement = {4, 0, block, owners, count};
    return placement;
}

/* Works as dsm_owners, for blocks that are read as a whole: one access also fetches the following pages of the block,
 * up to 32 KiB. */
static inline struct dsm_placement dsm_whole_blocks(size_t block, const int *owners, size_t count) {
    struct dsm_placement placement = {5, 0, block, owners, count};
    return placement;
}

/* Allocates `size` zeroed bytes, in whole pages, at the same address in every rank. All ranks must make this call.
 * Returns NULL with errno ENOMEM in every rank if the shared region (HANARE_SHARED_BYTES) is used up. */
void *dsm_alloc(size_t size, struct dsm_placement placement);

/* Frees a block. All ranks must make this call. */
void dsm_free(void *block);

/* Waits for all ranks (memory barrier). After the barrier, each rank sees what any rank wrote before the barrier. */
void dsm_barrier(void);

/* dsm_lock waits until this rank gets a lock. dsm_unlock releases the lock. Locks are numbered from 0 to 65535. */
void dsm_lock(int lock);
void dsm_unlock(int lock);

/* Replaces each of `count` values (at most 64, of 8 bytes each) by the sum, minimum or maximum of all ranks' values.
 * All ranks must make this call. The values are combined in the order of the ranks. This call is not a memory
 * barrier. */
#define DSM_SUM_INT64 1
#define DSM_MIN_INT64 2
#define DSM_MAX_INT64 3
#define DSM_SUM_DOUBLE 4
#define DSM_MIN_DOUBLE 5
#define DSM_MAX_DOUBLE 6
void dsm_reduce(int operation, void *values, size_t count);

/* The counters of this rank. Times are in nanoseconds. */
struct dsm_stats {
    uint64_t barriers;      /* memory barriers */
    uint64_t barrier_ns;    /* time of all barriers */
    uint64_t update_ns;     /* the part of barrier_ns spent on page updates */
    uint64_t read_faults;   /* read accesses that trapped */
    uint64_t write_faults;  /* write accesses that trapped */
    uint64_t fault_ns;      /* time of read and write faults */
    uint64_t share_ns;      /* the part of fault_ns spent on page shares */
    uint64_t page_shares;   /* pages fetched from their homes */
    uint64_t page_updates;  /* pages sent to sharers at memory barriers */
    uint64_t invalidations; /* copies of this rank that were invalidated */
    uint64_t twins;         /* twins (copies of pages before their first write) made */
    uint64_t diffs;         /* pages compared with their twins */
    uint64_t flushes;       /* messages with diffs: one for each home and barrier or release */
    uint64_t homes_moved;   /* pages whose home this rank gave away */
    uint64_t locks;         /* times that this rank got a lock */
    uint64_t frames_sent;   /* frames sent to other ranks */
    uint64_t bytes_sent;    /* bytes of the frames sent to other ranks */
    uint64_t pages_dropped; /* copies dropped for lack of room (hanare launch --local) */
    uint64_t pages_out;         /* home pages evicted for lack of room */
    uint64_t pages_out_written; /* evicted home pages that had changed, and so were written to memory servers */
    uint64_t pages_back;        /* evicted pages fetched again */
    uint64_t bytes_out;         /* bytes written to memory servers */
    uint64_t bytes_back;        /* bytes fetched from memory servers */
    uint64_t local_bytes_peak;  /* most bytes that shared pages and twins took; 0 without --local */
};
void dsm_stats(struct dsm_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
