/* Replaces libhanare_preload.so, so that the command is tested by itself. It counts its process in the counters that
 * HANARE_STATS_FD names. If STAND_IN_FILL is set, it writes the index of each counter (1, 2, ...) into that counter. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PROCESSES = 38, SCALARS = 54, HISTOGRAM = SCALARS + 1, BUCKETS = 128, POLICY = HISTOGRAM + BUCKETS, WORDS = POLICY + 16 };

__attribute__((constructor)) static void start(void) {
    const char *fd = getenv("HANARE_STATS_FD");
    if (!fd)
        return;
    uint64_t *words = mmap(0, WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0);
    if (words == MAP_FAILED)
        _Exit(99);
    if (getenv("STAND_IN_FILL"))
        for (int i = 1; i <= SCALARS; i++)
            words[i] = (uint64_t)i;
    words[PROCESSES] = 1;
    ((char *)&words[POLICY])[0] = 'p';
    ((char *)&words[POLICY + 8])[0] = 'f';
}
