//! Has NumPy allocate the data of arrays in far memory, by the hook of NEP 49: a table of allocation functions in a
//! capsule, which NumPy keeps for each context (of a thread or of an asyncio task). Each array remembers the table that
//! it was allocated by, and is freed by it. So arrays outlive the time for which the hook is set.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::library;

/// `PyDataMemAllocator` of NumPy's header.
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// Bytes of a handler's name, with the zero byte at its end.
const NAME_BYTES: usize = 127;

/// `PyDataMem_Handler` of NumPy's header, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; NAME_BYTES],
    version: u8,
    allocator: Allocator,
}

// SAFETY: nothing changes a handler. Its context is null and is never used.
unsafe impl Sync for Handler {}

static HANDLER: Handler = Handler {
    name: name(b"hanare_far"),
    version: 1,
    allocator: Allocator { context: null_mut(), malloc, calloc, realloc, free },
};

const fn name(text: &[u8]) -> [c_char; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    let mut at = 0;
    while at < text.len() {
        name[at] = text[at] as c_char;
        at += 1;
    }
    name
}

unsafe extern "C" fn malloc(_: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: `dlm_alloc` takes any size. NumPy takes null for no room.
    library::chosen().map_or(null_mut(), |library| unsafe { (library.alloc)(size.max(1)) })
}

unsafe extern "C" fn calloc(_: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: `dlm_calloc` takes any sizes, and refuses a product that overflows.
    library::chosen().map_or(null_mut(), |library| unsafe { (library.calloc)(count.max(1), size.max(1)) })
}

unsafe extern "C" fn realloc(_: *mut c_void, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: NumPy passes a block of this table that only it uses. The size is never 0, which would free the block.
    library::chosen().map_or(null_mut(), |library| unsafe { (library.realloc)(block, size.max(1)) })
}

unsafe extern "C" fn free(_: *mut c_void, block: *mut c_void, _: usize) {
    if let Some(library) = library::chosen() {
        // SAFETY: NumPy passes a block of this table, whose last array is gone.
        unsafe { (library.free)(block) }
    }
}

/// Returns the capsule of the table of far memory.
pub(crate) fn handler(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let table = (&raw const HANDLER).cast_mut().cast();
    // SAFETY: the table is static, and NumPy only reads it. Without a destructor, nothing frees it. The call returns a
    // new reference to a capsule, or null with an exception set.
    unsafe {
        Ok(Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(table, c"mem_handler".as_ptr(), None))?
            .cast_into_unchecked())
    }
}

/// Places of functions in NumPy's table, which never change.
const FEATURE_VERSION: usize = 211;
const SET_HANDLER: usize = 304;
/// The version of NumPy's table that has the hook: that of NumPy 1.22.
const FEATURE_VERSION_MIN: c_uint = 0xf;

/// Sets NumPy's handler for this context, and returns the one before.
pub(crate) fn set_handler<'py>(py: Python<'py>, handler: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let table = table(py)?;
    // SAFETY: NumPy's table has this function at this place since version 1.7, and a later one since the version that
    // is checked. Both are called with the GIL held. The second returns a new reference, or null with an exception set.
    unsafe {
        let version =
            std::mem::transmute::<*mut c_void, extern "C" fn() -> c_uint>(*table.add(FEATURE_VERSION).as_ref());
        if version() < FEATURE_VERSION_MIN {
            return Err(PyImportError::new_err("far arrays need NumPy 1.22 or later: pip install --upgrade numpy"));
        }
        type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
        let set = std::mem::transmute::<*mut c_void, SetHandler>(*table.add(SET_HANDLER).as_ref());
        Bound::from_owned_ptr_or_err(py, set(handler.as_ptr()))
    }
}

/// Returns NumPy's table of functions. It stays, because NumPy cannot be unloaded.
fn table(py: Python<'_>) -> PyResult<NonNull<*mut c_void>> {
    // NumPy 2 has renamed the module.
    let module = py.import("numpy._core.multiarray").or_else(|_| py.import("numpy.core.multiarray"))?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: the capsule is a live object. The call returns null, with an exception set, if it is no capsule with a
    // name that is null.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    NonNull::new(table.cast()).ok_or_else(|| PyErr::fetch(py))
}
