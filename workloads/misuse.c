/* Invalid calls of dsm.h, and ranks that end too early: `misuse WHAT`. The tests of shared memory list the names.
 * Every rank must end with a reason. `late` is no misuse: it ends with exit code 1 if a rank uses the CPU while it
 * waits. `transfers` ends with exit code 10 + 1 if direct I/O is refused + 2 if io_uring is. */
#define _GNU_SOURCE
#include <dsm.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns the exit code of `transfers`. */
static int transfers(void) {
    int direct = open("/proc/self/exe", O_RDONLY | O_DIRECT) < 0 && errno == EINVAL;
    int ring = syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno == ENOSYS;
    return 10 + direct + 2 * ring;
}

int main(int argc, char *argv[]) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "before"))
        dsm_barrier();
    dsm_startup(&argc, &argv);
    int rank = dsm_rank();
    volatile int *page = dsm_alloc(4096, dsm_one(0));
    if (!strcmp(what, "after")) {
        dsm_shutdown();
        dsm_barrier();
    }
    if (rank == 1) {
        if (!strcmp(what, "late"))
            nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
        if (!strcmp(what, "exit"))
            exit(7);
        if (!strcmp(what, "kill"))
            raise(SIGKILL);
        if (!strcmp(what, "unlock"))
            dsm_unlock(3);
        if (!strcmp(what, "alloc"))
            dsm_alloc(8192, dsm_one(0));
        if (!strcmp(what, "beyond"))
            page[1 << 20] = 1;
    }
    if (!strcmp(what, "alloc"))
        dsm_alloc(4096, dsm_one(0));
    dsm_barrier();
    int answer = !strcmp(what, "transfers") ? transfers() : 0;
    dsm_shutdown();
    if (answer)
        return answer;
    /* A rank that waited for the late rank must have used little CPU time. */
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return !strcmp(what, "late") && used.tv_sec * 1000 + used.tv_nsec / 1000000 > 1000;
}
