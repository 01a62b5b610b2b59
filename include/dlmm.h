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
 * Memory from dlm_alloc is used through ordinary pointers. At any moment, at most the local budget of it is in this
 * machine's memory. The rest is on the memory servers and comes back when the program accesses it. Every thread may
 * make calls. Link with -lhanare. The calls also work in a program under `hanare run`; the servers and the budget are then
 * those of the run.
 */
#ifndef HANARE_DLMM_H
#define HANARE_DLMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts far memory. Call it once, before the other calls, with the addresses of main's arguments (or two null
 * pointers). It takes these options out of the arguments, up to a `--`, and leaves all others:
 *
 *     -f HOSTFILE           lines `HOST MEGABYTES`; the first is the compute node and gives the local budget, the others
 *                           (HOST or HOST:PORT) are memory servers; `//` and `#` begin a comment
 *     -n COUNT              use the first COUNT hosts of the file, including the compute node
 *     --local SIZE|PERCENT  the local budget (256M, 25%); default: the host file's first line, else half of the free memory
 *     --server HOST:PORT[=CAPACITY]  a memory server, instead of a host file; may be repeated
 *     --page-size S, --policy P, --prefetch F, --mode M, --key FILE  as for `hanare run`
 *
 * Long options may be written --name=VALUE. An option overrides its HANARE_* environment variable. If neither names
 * a server, a private one is started, and ends with the program. Its command is HANARE_BIN, or `hanare` in PATH.
 *
 * Returns 0. If far memory cannot be started, says why in one line on standard error and ends the process with 125.
 */
int dlm_startup(int *argc, char ***argv);

/* Ends far memory: every block is gone. Does nothing under `hanare run`, where far memory ends with the program. */
void dlm_shutdown(void);

/* As malloc, calloc, realloc and free, and as fast, but every block is far, whatever its size. Blocks are aligned to 16
 * bytes, above 14 KiB to 4 KiB, and from 2 MiB on to 2 MiB. Allocating and freeing access no far page, except to zero a
 * reused block of less than 64 KiB or to move a block.
 *
 * They return NULL with errno ENOMEM if the servers have no room, if the reserved address space (HANARE_RESERVE) is used
 * up, if the size overflows, and before dlm_startup (with a line on standard error). A pointer that is not the start
 * of a block, or whose block was freed before, ends the program with SIGABRT and a line that names it. Blocks of dlm_alloc
 * must be freed by dlm_free and not by free.
 *
 * A forked child has copies of all blocks and a part of the budget. A private server ends with the process that started
 * it. A child that outlives that process loses its blocks, and ends with a line. */
void *dlm_alloc(size_t size);
void *dlm_calloc(size_t count, size_t size);
void *dlm_realloc(void *block, size_t size);
void dlm_free(void *block);

/* Advice for dlm_advise about a range of bytes inside one of the program's blocks. */
#define DLM_WILLNEED 1 /* the program will use the bytes soon: prefetch them */
#define DLM_DISCARD 2  /* the program no longer needs the contents: whole pages of the range read as zeroes then */

/* Returns 0, or -1 with errno EINVAL: unknown advice, or not far memory. */
int dlm_advise(void *start, size_t len, int advice);

/* Counters of this run. Times are in nanoseconds. */
struct dlm_stats {
    uint64_t local_bytes_budget; /* bytes the budget allows in local memory */
    uint64_t local_bytes;        /* bytes in local memory now: resident, staged and in flight */
    uint64_t local_bytes_peak;   /* their peak */
    uint64_t far_bytes;          /* bytes allocated far now */
    uint64_t far_bytes_peak;     /* their peak */
    uint64_t faults;             /* accesses that trapped, of every kind */
    uint64_t pages_in;           /* pages fetched from memory servers */
    uint64_t bytes_in;           /* their bytes */
    uint64_t pages_out;          /* pages written back to memory servers */
    uint64_t bytes_out;          /* their bytes */
    uint64_t prefetch_pages;     /* pages fetched ahead of need */
    uint64_t prefetch_used;      /* of those, pages that were then used */
    uint64_t swap_ns;            /* time that the program's threads waited for pages */
};

/* Fills `stats`. Returns 0, or -1 with errno EINVAL before dlm_startup. */
int dlm_stats(struct dlm_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
