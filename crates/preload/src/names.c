/* Functions of the C library that this library calls, and that a program may define itself. ISO C does not have them, so
 * it lets a program use their names. The linker gives each call of this library the function `__wrap_NAME` here. It calls
 * the C library by a name that no program may define, or looks the function up behind the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/types.h>

#define OWN __attribute__((visibility("hidden")))

pid_t __getpid(void);
long __sysconf(int);
unsigned long __getauxval(unsigned long);
int __sched_yield(void);
off64_t __lseek(int, off64_t, int);

OWN pid_t __wrap_getpid(void) {
    return __getpid();
}

OWN long __wrap_sysconf(int name) {
    return __sysconf(name);
}

OWN unsigned long __wrap_getauxval(unsigned long type) {
    return __getauxval(type);
}

OWN int __wrap_sched_yield(void) {
    return __sched_yield();
}

OWN off64_t __wrap_lseek64(int fd, off64_t offset, int whence) {
    return __lseek(fd, offset, whence);
}

/* The functions that follow this library in the order of lookups. They are looked up once, before the program's `main`:
 * in a forked child, a lookup could wait for a lock that no thread will release. */
static int (*next_socket)(int, int, int), (*next_kill)(int, int), (*next_flock)(int, int);

__attribute__((constructor)) static void look_up(void) {
    next_socket = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    next_kill = (int (*)(int, int))dlsym(RTLD_NEXT, "kill");
    next_flock = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
}

/* Calls a function above. Looks the functions up first if another constructor calls before `look_up` has run. */
#define CALL_NEXT(next, arguments)                                                                                     \
    if (!next)                                                                                                         \
        look_up();                                                                                                     \
    if (next)                                                                                                          \
        return next arguments;                                                                                         \
    errno = ENOSYS;                                                                                                    \
    return -1

OWN int __wrap_socket(int domain, int type, int protocol) {
    CALL_NEXT(next_socket, (domain, type, protocol));
}

OWN int __wrap_kill(pid_t process, int signal) {
    CALL_NEXT(next_kill, (process, signal));
}

OWN int __wrap_flock(int fd, int operation) {
    CALL_NEXT(next_flock, (fd, operation));
}
