/* A library that sets handlers by functions it looks up behind its own, as crash reporters do. Built with DEFINES, it
 * defines `sigaction` itself, and passes calls on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gnu/lib-names.h>
#include <signal.h>
#include <stddef.h>

typedef int action_call(int, const struct sigaction *, struct sigaction *);
typedef int mask_call(int, const sigset_t *, sigset_t *);

#ifdef DEFINES
static volatile int passed;

int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    static action_call *next;
    if (!next)
        next = (action_call *)dlsym(RTLD_NEXT, "sigaction");
    passed++;
    return next(number, new, old);
}

int hooks_passed(void) {
    return passed;
}
#else
#ifdef __x86_64__
#define VERSION "GLIBC_2.2.5"
#else
#define VERSION "GLIBC_2.17"
#endif

static void *find(int way, const char *name) {
    void *library;
    switch (way) {
    case 0: return dlsym(RTLD_NEXT, name);
    case 1: return dlvsym(RTLD_NEXT, name, VERSION);
    case 2: return dlsym(RTLD_DEFAULT, name);
    default: library = dlopen(LIBC_SO, RTLD_LAZY | RTLD_NOLOAD); return library ? dlsym(library, name) : NULL;
    }
}

int hooks_action(int way, int number, const struct sigaction *new, struct sigaction *old) {
    action_call *call = (action_call *)find(way, "sigaction");
    return call ? call(number, new, old) : -2;
}

void (*hooks_signal(int way, int number, void (*handler)(int)))(int) {
    void (*(*call)(int, void (*)(int)))(int) = (void (*(*)(int, void (*)(int)))(int))find(way, "signal");
    return call ? call(number, handler) : SIG_ERR;
}

int hooks_mask(int way, int how, const sigset_t *new, sigset_t *old) {
    mask_call *call = (mask_call *)find(way, "pthread_sigmask");
    return call ? call(how, new, old) : -2;
}
#endif
