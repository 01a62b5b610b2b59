/* named
 *
 * Defines functions with the names of POSIX functions. ISO C allows it, because it does not have them. None of them may
 * be called. Reads and writes 64 MiB. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define OWN(name)                                                                                                      \
    int name(void);                                                                                                    \
    int name(void) {                                                                                                   \
        fputs("wrong: the program's own " #name " was called\n", stderr);                                              \
        abort();                                                                                                       \
    }

OWN(accept) OWN(access) OWN(bind) OWN(chdir) OWN(close) OWN(connect) OWN(dup) OWN(fcntl) OWN(flock) OWN(fork)
OWN(getauxval) OWN(getpid) OWN(gettid) OWN(ioctl) OWN(kill) OWN(link) OWN(listen) OWN(lseek64) OWN(madvise)
OWN(mprotect) OWN(munmap) OWN(nanosleep) OWN(open) OWN(pipe) OWN(poll) OWN(prctl) OWN(read) OWN(recv) OWN(recvmsg)
OWN(sched_yield) OWN(send) OWN(sendmsg) OWN(sigaction) OWN(socket) OWN(stat) OWN(sysconf) OWN(usleep) OWN(wait)
OWN(write)

#define WORDS ((size_t)8 << 20)

int main(void) {
    uint64_t *words = malloc(8 * WORDS), sum = 0;
    if (!words)
        return 1;
    for (uint64_t round = 0; round < 3; round++)
        for (size_t at = 0; at < WORDS; at++)
            words[at] = round ? words[at] + round * at : at;
    for (size_t at = 0; at < WORDS; at++)
        sum += words[at] != 4 * at;
    if (sum)
        return fputs("wrong: words are lost\n", stderr), 1;
    printf("ok named: %zu\n", 8 * WORDS);
    return 0;
}
