/* named
 *
 * Defines functions with the names of functions that the C library has, too. ISO C lets a program use most of these
 * names. None of the functions here may be called: the library's own calls must reach the C library. Reads and writes
 * 64 MiB. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Defines a function whose type is not the type in the C library. */
#define OWN(name)                                                                                                      \
    int own_##name(void) __asm__(#name);                                                                               \
    int own_##name(void) {                                                                                             \
        fputs("wrong: the program's own " #name " was called\n", stderr);                                              \
        abort();                                                                                                       \
    }

/* Functions that the library exports. */
OWN(accept) OWN(access) OWN(bind) OWN(chdir) OWN(close) OWN(connect) OWN(fcntl) OWN(fork) OWN(ioctl) OWN(link)
OWN(madvise) OWN(mprotect) OWN(munmap) OWN(nanosleep) OWN(open) OWN(pipe) OWN(poll) OWN(prctl) OWN(pthread_create)
OWN(read) OWN(recv) OWN(recvmsg) OWN(send) OWN(sendmsg) OWN(sigaction) OWN(stat) OWN(wait) OWN(write)

/* Functions that the library only calls. */
OWN(__cxa_atexit) OWN(__errno_location) OWN(__getauxval) OWN(__getpid) OWN(__lseek) OWN(__res_init)
OWN(__sched_cpucount) OWN(__sched_yield) OWN(__sysconf) OWN(__xpg_strerror_r) OWN(_exit) OWN(bcmp) OWN(closedir)
OWN(dirfd) OWN(dl_iterate_phdr) OWN(dladdr1) OWN(dup) OWN(fdopendir) OWN(flock) OWN(flockfile) OWN(freeaddrinfo)
OWN(funlockfile) OWN(gai_strerror) OWN(getaddrinfo) OWN(getauxval) OWN(getenv) OWN(getgrouplist) OWN(getpid) OWN(gettid)
OWN(gettimeofday) OWN(gnu_get_libc_version) OWN(kill) OWN(listen) OWN(lseek64) OWN(memchr) OWN(memcmp) OWN(pidfd_getpid)
OWN(pidfd_spawnp) OWN(posix_spawn_file_actions_addchdir) OWN(posix_spawn_file_actions_addchdir_np)
OWN(posix_spawn_file_actions_adddup2) OWN(posix_spawn_file_actions_destroy) OWN(posix_spawn_file_actions_init)
OWN(posix_spawnattr_destroy) OWN(posix_spawnattr_init) OWN(posix_spawnattr_setflags) OWN(posix_spawnattr_setpgroup)
OWN(posix_spawnattr_setsigdefault) OWN(pthread_attr_destroy) OWN(pthread_attr_getstack) OWN(pthread_attr_init)
OWN(pthread_attr_setdetachstate) OWN(pthread_attr_setstack) OWN(pthread_attr_setstacksize) OWN(pthread_cond_init)
OWN(pthread_cond_signal) OWN(pthread_cond_timedwait) OWN(pthread_cond_wait) OWN(pthread_getspecific) OWN(pthread_join)
OWN(pthread_key_create) OWN(pthread_key_delete) OWN(pthread_mutex_init) OWN(pthread_mutex_lock)
OWN(pthread_mutex_trylock) OWN(pthread_mutex_unlock) OWN(pthread_mutexattr_destroy) OWN(pthread_mutexattr_init)
OWN(pthread_mutexattr_settype) OWN(pthread_self) OWN(pthread_setcancelstate) OWN(pthread_setspecific) OWN(putenv)
OWN(readdir64) OWN(realpath) OWN(sched_getcpu) OWN(sched_yield) OWN(secure_getenv) OWN(setpgid) OWN(setsid)
OWN(sigaddset) OWN(sigemptyset) OWN(sigfillset) OWN(socket) OWN(strchr) OWN(strcmp) OWN(strerror_r) OWN(strlen)
OWN(strncmp) OWN(strncpy) OWN(strnlen) OWN(sysconf) OWN(usleep)

/* The C library has a variable with this name. It keeps its environment in `__environ`. */
int environ = 5;

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
