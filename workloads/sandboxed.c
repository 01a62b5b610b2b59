/* sandboxed ... is sandbox.c, with an import of libseccomp. */

/* Nobody defines it: a weak import is in the table of symbols, and null. */
extern int seccomp_load(void *) __attribute__((weak));
#define IMPORTED seccomp_load

#include "sandbox.c"
