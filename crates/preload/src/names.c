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

/* Calls the function `name` that follows this library in the order of lookups. */
#define NEXT(name, type, arguments)                                                                                    \
    type *next = (type *)dlsym(RTLD_NEXT, #name);                                                                      \
    if (!next) {                                                                                                       \
        errno = ENOSYS;                                                                                                \
        return -1;                                                                                                     \
    }                                                                                                                  \
    return next arguments

typedef int three(int, int, int);
typedef int two(int, int);

OWN int __wrap_socket(int domain, int type, int protocol) {
    NEXT(socket, three, (domain, type, protocol));
}

OWN int __wrap_kill(pid_t process, int signal) {
    NEXT(kill, two, (process, signal));
}

OWN int __wrap_flock(int fd, int operation) {
    NEXT(flock, two, (fd, operation));
}
