/* The unwinder that this library is linked with: whichever one of libgcc_s the process has loaded.
 *
 * A cancelled thread is unwound by the C library, which loads libgcc_s for that. Frames of this library that have something
 * to give up are on the way, and tell the unwinder where they go on. They have to tell that very unwinder, whose frames
 * nobody else can read. The library does not name it: every program of a run would load it, which doubles the start of a
 * small one. So each function is looked up in the libgcc_s that was loaded.
 *
 * A panic never unwinds: it says what it has to say and aborts. The list of exported symbols leaves these out. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unwind.h>

#define LIBRARY "libgcc_s.so.1"

/* A function of the unwinder's, kept in `place` once it was found; `how` says whether the unwinder may be loaded for it. */
static void *find(void **place, const char *name, int how) {
    void *found = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (!found) {
        void *library = dlopen(LIBRARY, RTLD_LAZY | how);
        found = library ? dlsym(library, name) : NULL;
        __atomic_store_n(place, found, __ATOMIC_RELEASE);
    }
    return found;
}

/* The function of this name. A caller with a context or an exception was called by the unwinder, so it is there. */
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

/* A panic's: refused, which aborts. */
_Unwind_Reason_Code _Unwind_RaiseException(struct _Unwind_Exception *exception) {
    (void)exception;
    return _URC_END_OF_STACK;
}

/* For who asks for a panic's backtrace. */
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
