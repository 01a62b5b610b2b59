/* The unwinder that this library is linked with. It passes each call to the libgcc_s that the process has loaded.
 *
 * The C library unwinds a cancelled thread, and loads libgcc_s for this. Some frames of this library free resources
 * when they are unwound, and then call the unwinder to continue. They must call the libgcc_s that unwinds them, because
 * only it can read its own context. This library does not depend on libgcc_s: every program of a run would then load
 * it, which doubles the start time of a small program. So each function is looked up in the libgcc_s that is loaded.
 *
 * A panic never unwinds: it prints its message and aborts. The list of exported symbols leaves these functions out. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unwind.h>

#define LIBRARY "libgcc_s.so.1"

/* Returns the function `name` of libgcc_s, or NULL. Stores it in `place` for later calls. `how` is RTLD_NOLOAD if
 * libgcc_s must be loaded already, and 0 if it may be loaded now. */
static void *find(void **place, const char *name, int how) {
    void *found = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (!found) {
        void *library = dlopen(LIBRARY, RTLD_LAZY | how);
        found = library ? dlsym(library, name) : NULL;
        __atomic_store_n(place, found, __ATOMIC_RELEASE);
    }
    return found;
}

/* Defines `call` as the function of libgcc_s with this name. The context or exception that the caller passes comes from
 * libgcc_s, so libgcc_s is loaded. */
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

/* Would start the unwinding of a panic. Returns an error instead, so the panic aborts the process. */
_Unwind_Reason_Code _Unwind_RaiseException(struct _Unwind_Exception *exception) {
    (void)exception;
    return _URC_END_OF_STACK;
}

/* Walks the stack for the backtrace of a panic. It may load libgcc_s. */
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
