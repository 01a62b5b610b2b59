/* Calls of the C library that a program looks up only at run time. lookups.c loads this library in such a way that its
 * own dependencies are searched first. */
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
