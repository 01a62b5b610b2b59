/* Calls of the C library's that a program finds only once it runs: lookups.c loads this so that the library's own needs are
 * looked for first. */
#include <stdlib.h>
#include <unistd.h>

void *plugin_malloc(size_t size) {
    return malloc(size);
}

void plugin_free(void *block) {
    free(block);
}

ssize_t plugin_write(int descriptor, const void *bytes, size_t count) {
    return write(descriptor, bytes, count);
}
