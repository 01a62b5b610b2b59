/* The C library's streams, which it resets in a forked child. Far memory works in the child only after that. So the streams
 * must be present at the fork. They are near, except in a program that defines `malloc` itself. */
#include <stdio.h>

#define OWN __attribute__((visibility("hidden")))

extern FILE *_IO_list_all;
void _IO_list_lock(void);
void _IO_list_unlock(void);

/* Calls a function for each place that the C library accesses in a stream, until the function returns false. Returns
 * whether all calls returned true. Accesses a stream only after its call. */
OWN int hanare_visit_streams(int (*visit)(const void *place)) {
    int goes_on = 1;
    _IO_list_lock();
    for (FILE *stream = _IO_list_all; stream && goes_on; stream = stream->_chain)
        goes_on = visit(stream) && visit(&stream->_chain) && visit(&stream->_lock) &&
                  (!stream->_lock || visit(stream->_lock));
    _IO_list_unlock();
    return goes_on;
}
