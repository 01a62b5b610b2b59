/* dlmm.h: large memory for C programs.
 *
 * The calls of DLM (Saito, Midorikawa, Kai), as its programs use them:
 *
 *     #include <dlmm.h>
 *     int main(int argc, char *argv[]) {
 *         dlm_startup(&argc, &argv);
 *         int *a = dlm_alloc(sizeof(int) * N);
 *         ... a[i] ...
 *         dlm_free(a);
 *         dlm_shutdown();
 *     }
 *
 *     cc example.c $(pkg-config --cflags --libs hanare) -o example
 *     ./example -f hostfile -n 2
 *
 * Memory from dlm_alloc is used through ordinary pointers. Only as much of it as the local budget allows is in this
 * machine's memory; the rest is on the memory servers and comes when it is touched. All calls may be made from any
 * thread. Link with -lhanare. The calls also work in a program run under `hanare run`, whose servers and budget then
 * hold.
 */
#ifndef HANARE_DLMM_H
#define HANARE_DLMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts far memory. To be called once, before the other calls, with the addresses of main's arguments (or two null
 * pointers). Takes these options out of them, up to a `--`, and leaves all others:
 *
 *     -f HOSTFILE           lines `HOST MEGABYTES`; the first is the compute node and gives the local budget, the others
 *                           (HOST or HOST:PORT) are memory servers; `//` and `#` begin a comment
 *     -n COUNT              use the first COUNT hosts of the file, the compute node counted
 *     --local SIZE|PERCENT  the local budget (256M, 25%); default: the host file's first line, else half of the free memory
 *     --server HOST:PORT[=CAPACITY]  a memory server, instead of a host file; may be repeated
 *     --page-size S, --policy P, --prefetch F, --mode M, --key FILE  as for `hanare run`
 *
 * The long ones may be written --name=VALUE. An option goes before its HANARE_* environment variable. When no server is named
 * in either, a private one is started (`hanare serve`, found by HANARE_BIN, or in PATH) and ended
 * with the program.
 *
 * Returns 0. When far memory cannot be started it says why in one line on standard error and ends the process with 125.
 */
int dlm_startup(int *argc, char ***argv);

/* Ends far memory: every block is gone. Does nothing under `hanare run`, where far memory ends with the program. */
void dlm_shutdown(void);

/* As malloc, calloc, realloc and free, and as fast, but every block is far, whatever its size. Blocks are aligned to 16
 * bytes, those above 14 KiB to pages of 4 KiB, those from 2 MiB on to 2 MiB. Neither allocating nor freeing touches a far
 * page, but to zero a reused block of less than 64 KiB, or to move one. NULL with errno ENOMEM when the address space set
 * aside (HANARE_RESERVE) is used up, when the size overflows, and, after a line on standard error, before dlm_startup. A
 * pointer that is no block's, or whose block was freed before, aborts with a line that names it. dlm_free and free are
 * not interchangeable. A forked child has copies of all blocks and
 * part of the budget. A private server ends with the process that started it: a child that outlives its parent loses its
 * blocks then, and ends with a line. */
void *dlm_alloc(size_t size);
void *dlm_calloc(size_t count, size_t size);
void *dlm_realloc(void *block, size_t size);
void dlm_free(void *block);

/* What the program is about to do with the bytes from `start` on, which lie in one of its blocks. */
#define DLM_WILLNEED 1 /* it will use them soon: fetch them ahead */
#define DLM_DISCARD 2  /* it no longer needs their contents: whole pages among them read as zeroes afterwards */

/* Returns 0, or -1 with errno EINVAL: unknown advice, or not far memory. */
int dlm_advise(void *start, size_t len, int advice);

/* Counters of this run. Bytes are bytes, times nanoseconds. */
struct dlm_stats {
    uint64_t local_bytes_budget; /* bytes the budget allows in local memory */
    uint64_t local_bytes;        /* bytes in local memory now: resident, staged and in flight */
    uint64_t local_bytes_peak;   /* the most there ever were */
    uint64_t far_bytes;          /* bytes allocated far now */
    uint64_t far_bytes_peak;     /* the most there ever were */
    uint64_t faults;             /* touches that had to be answered, of every kind */
    uint64_t pages_in;           /* pages fetched from memory servers */
    uint64_t bytes_in;           /* their bytes */
    uint64_t pages_out;          /* pages written back to memory servers */
    uint64_t bytes_out;          /* their bytes */
    uint64_t prefetch_pages;     /* pages fetched ahead of need */
    uint64_t prefetch_used;      /* of those, pages that were then used */
    uint64_t swap_ns;            /* time the program's threads waited for pages */
};

/* Fills `stats`. Returns 0, or -1 with errno EINVAL before dlm_startup. */
int dlm_stats(struct dlm_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
