/* Implements execl, execlp and execle. Each makes a list of its arguments and calls this library's own execv, execvp or
 * execve. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

/* Returns the number of arguments, without the null at their end. */
static size_t count(const char *argument, va_list rest) {
    size_t many = 0;
    for (; argument; argument = va_arg(rest, const char *))
        many++;
    return many;
}

/* Defines `list` with the arguments from `first` to the null. Afterwards `rest` points behind that null. */
#define LIST(first)                                                                                                    \
    va_list rest;                                                                                                      \
    va_start(rest, first);                                                                                             \
    size_t many = count(first, rest);                                                                                  \
    va_end(rest);                                                                                                      \
    const char *list[many + 1];                                                                                        \
    va_start(rest, first);                                                                                             \
    list[0] = first;                                                                                                   \
    for (size_t nth = 1; nth <= many; nth++)                                                                           \
    list[nth] = va_arg(rest, const char *)

int hanare_execl(const char *path, const char *first, ...) {
    LIST(first);
    va_end(rest);
    return execv(path, (char *const *)list);
}

int hanare_execlp(const char *file, const char *first, ...) {
    LIST(first);
    va_end(rest);
    return execvp(file, (char *const *)list);
}

int hanare_execle(const char *path, const char *first, ...) {
    LIST(first);
    char *const *environment = va_arg(rest, char *const *);
    va_end(rest);
    return execve(path, (char *const *)list, environment);
}
