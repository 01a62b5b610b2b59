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
 * Memory from dlm_alloc is used through ordinary pointers. The part of it in this machine's memory is never larger than
 * the local budget. The rest is on the memory servers. A page there is fetched when the program accesses it. Every
 * thread may make calls. Link with -lhanare. The calls also work in a program under `hanare run`. It then uses the
 * servers and the budget of the run.
 */
#ifndef HANARE_DLMM_H
#define HANARE_DLMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts far memory. Call it once, before the other calls, with the addresses of main's arguments (or two null
 * pointers). It removes these options from the arguments, up to the word `--`, and keeps all other arguments:
 *
 *     -f HOSTFILE           a file with lines `HOST MEGABYTES`. The first host is the compute node and gives the local
 *                           budget. The other hosts (HOST or HOST:PORT) are memory servers. `//` and `#` begin a
 *                           comment
 *     -n COUNT              use the first COUNT hosts of the file, including the compute node
 *     --local SIZE|PERCENT  the local budget (256M, 25%). The default is the first line of the host file, or half of
 *                           the free memory without a host file
 *     --server HOST:PORT[=CAPACITY]  a memory server, instead of a host file; may be repeated
 *     --page-size S, --policy P, --prefetch F, --mode M, --key FILE, --seal on|off|auto, --redundancy R,
 *     --on-loss end|wait    as for `hanare run`
 *
 * Long options may be written --name=VALUE. An option overrides its HANARE_* environment variable. If neither options
 * nor variables name a server, a private server is started, and ends with the program. It is started by the command in
 * HANARE_BIN, or by `hanare` beside the library or in its ../bin, or by `hanare` in PATH.
 *
 * Returns 0. If far memory cannot be started, prints the reason in one line on standard error and ends the process with
 * exit code 125.
 */
int dlm_startup(int *argc, char ***argv);

/* Ends the use of far memory. No block may be used any more. Does nothing under `hanare run`, where far memory lasts as
 * long as the program. */
void dlm_shutdown(void);

/* These calls work like malloc, calloc, realloc and free, and are as fast. But every block is far, whatever its size.
 * Blocks are aligned to 16 bytes. Blocks of more than 14 KiB are aligned to 4 KiB, and blocks of 2 MiB or more to 2
 * MiB. Allocating and freeing access no far page, except to zero a reused block of less than 64 KiB or to move a block.
 *
 * The calls return NULL with errno ENOMEM if the servers have no room, if the reserved address space (HANARE_RESERVE)
 * is used up, or if the size overflows. They also do so before dlm_startup, and print a line on standard error. If a
 * pointer is not the start of a block, or its block was freed before, the program ends with SIGABRT and a line that
 * names the pointer. Blocks of dlm_alloc must be freed by dlm_free and not by free.
 *
 * A forked child has copies of all blocks and a part of the budget. A private server ends with the process that started
 * it. A child that outlives that process loses its blocks, and ends with a line on standard error. */
void *dlm_alloc(size_t size);
void *dlm_calloc(size_t count, size_t size);
void *dlm_realloc(void *block, size_t size);
void dlm_free(void *block);

/* Advice for dlm_advise about a range of bytes inside one of the program's blocks. */
#define DLM_WILLNEED 1 /* the program will use the bytes soon: prefetch them */
#define DLM_DISCARD 2  /* the program no longer needs the contents: whole pages of the range read as zeroes then */

/* Returns 0. Returns -1 with errno EINVAL if the advice is unknown or the range does not lie in far memory. */
int dlm_advise(void *start, size_t len, int advice);

/* Sends the far memory of this process away until the process accesses it again. The budget stays as it is, and locked
 * pages stay near. Returns 0 when all has left, but for what other threads access meanwhile. Returns -1 with errno EINVAL
 * if far memory is not running, or ENOSPC if the memory servers have no room for all of it: nothing is parked then. */
int dlm_park(void);

/* Counters of this run. Times are in nanoseconds. */
struct dlm_stats {
    uint64_t local_bytes_budget; /* bytes the budget allows in local memory */
    uint64_t local_bytes;        /* bytes in local memory now: resident pages, staged pages and pages in transit */
    uint64_t local_bytes_peak;   /* the peak of local_bytes */
    uint64_t far_bytes;          /* bytes of far memory allocated now */
    uint64_t far_bytes_peak;     /* the peak of far_bytes */
    uint64_t faults;             /* accesses that trapped, of every kind */
    uint64_t pages_in;           /* pages fetched from memory servers */
    uint64_t bytes_in;           /* bytes of the pages in pages_in */
    uint64_t pages_out;          /* pages written back to memory servers */
    uint64_t bytes_out;          /* bytes of the pages in pages_out */
    uint64_t prefetch_pages;     /* pages fetched before the program accessed them */
    uint64_t prefetch_used;      /* prefetched pages that the program then accessed */
    uint64_t swap_ns;            /* time that the program's threads waited for pages */
};

/* Copies the counters to `stats`. Returns 0. Returns -1 with errno EINVAL if far memory is not running. */
int dlm_stats(struct dlm_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
