/* A substitute for the unwinder: each function calls the one in the libgcc_s that the process has loaded.
 *
 * When a thread is cancelled, the C library loads libgcc_s and unwinds the thread. Frames of this library that hold
 * resources tell the unwinder where they continue. They must tell that very libgcc_s, because no other copy can read its
 * data. This library does not link libgcc_s: every program of a run would load it, and a small program would need twice
 * the time to start.
 *
 * A panic never unwinds: it prints its message and aborts. This library does not export these functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unwind.h>

#define LIBRARY "libgcc_s.so.1"

/* Returns a function of libgcc_s and stores it in `place`. `how` is RTLD_NOLOAD if the lookup must not load libgcc_s. */
static void *find(void **place, const char *name, int how) {
    void *found = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (!found) {
        void *library = dlopen(LIBRARY, RTLD_LAZY | how);
        found = library ? dlsym(library, name) : NULL;
        __atomic_store_n(place, found, __ATOMIC_RELEASE);
    }
    return found;
}

/* Finds the function of this name. A caller with a context or an exception was called by libgcc_s, so it is loaded. */
#define THERE(name)                                                                                                    \
    static void *place;                                                                                                \
    __typeof__(&name) call = (__typeof__(&name))find(&place, #name, RTLD_NOLOAD);                                       \
    if (!call)                                                                                                         \
    abort()

#define ASK(result, name)                                                                                              \
    result name(struct _Unwind_Context *context) {                                                              \
        THERE(name);                                                                                                   \
        return call(context);                                                                                          \
    }

ASK(_Unwind_Ptr, _Unwind_GetIP)
ASK(_Unwind_Word, _Unwind_GetCFA)
ASK(_Unwind_Ptr, _Unwind_GetRegionStart)
ASK(_Unwind_Ptr, _Unwind_GetDataRelBase)
ASK(_Unwind_Ptr, _Unwind_GetTextRelBase)
ASK(void *, _Unwind_GetLanguageSpecificData)

_Unwind_Ptr _Unwind_GetIPInfo(struct _Unwind_Context *context, int *before) {
    THERE(_Unwind_GetIPInfo);
    return call(context, before);
}

void _Unwind_SetGR(struct _Unwind_Context *context, int which, _Unwind_Word value) {
    THERE(_Unwind_SetGR);
    call(context, which, value);
}

void _Unwind_SetIP(struct _Unwind_Context *context, _Unwind_Ptr value) {
    THERE(_Unwind_SetIP);
    call(context, value);
}

void _Unwind_DeleteException(struct _Unwind_Exception *exception) {
    THERE(_Unwind_DeleteException);
    call(exception);
}

void _Unwind_Resume(struct _Unwind_Exception *exception) {
    THERE(_Unwind_Resume);
    call(exception);
}

/* Refuses to unwind: a panic calls this function, and aborts at this result. */
_Unwind_Reason_Code _Unwind_RaiseException(struct _Unwind_Exception *exception) {
    (void)exception;
    return _URC_END_OF_STACK;
}

/* Walks the stack, for users who ask for the backtrace of a panic. Loads libgcc_s if necessary. */
_Unwind_Reason_Code _Unwind_Backtrace(_Unwind_Trace_Fn step, void *argument) {
    static void *place;
    __typeof__(&_Unwind_Backtrace) call = (__typeof__(&_Unwind_Backtrace))find(&place, "_Unwind_Backtrace", 0);
    return call ? call(step, argument) : _URC_END_OF_STACK;
}

void *_Unwind_FindEnclosingFunction(void *pc) {
    static void *place;
    __typeof__(&_Unwind_FindEnclosingFunction) call =
        (__typeof__(&_Unwind_FindEnclosingFunction))find(&place, "_Unwind_FindEnclosingFunction", 0);
    return call ? call(pc) : NULL;
}
