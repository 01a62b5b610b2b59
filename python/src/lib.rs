//! The extension module `hanare._far`, which the Python package `hanare` calls. It has all unsafe code of the package:
//! `library` calls the C API of far memory, `arrays` has NumPy allocate with it. It must not know settings, messages or
//! shapes of arrays; those are in Python.

use std::ffi::CString;
use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

mod arrays;
mod library;

use library::{Advice, Library};

/// Returns the library that `find` or `load` chose.
fn library() -> PyResult<&'static Library> {
    library::chosen().ok_or_else(|| PyRuntimeError::new_err("no library of far memory is chosen yet"))
}

/// Chooses the library that is in this process already, as under `hanare run`. Returns whether there is one.
#[pyfunction]
fn find() -> bool {
    library::find()
}

/// Loads the library at a path and chooses it, unless one is chosen.
#[pyfunction]
fn load(path: PathBuf) -> PyResult<()> {
    library::load(&path).map_err(PyOSError::new_err)
}

/// Starts far memory with these words as options. If it cannot start, the process ends with 125 and one line.
#[pyfunction]
fn start(words: Vec<Vec<u8>>) -> PyResult<()> {
    let words = words.into_iter().map(CString::new).collect::<Result<_, _>>();
    let words = words.map_err(|error| PyValueError::new_err(format!("an option holds a zero byte: {error}")))?;
    library()?.start(words);
    Ok(())
}

/// Returns the counters in the order of `struct dlm_stats`, or `None` if far memory does not run.
#[pyfunction]
fn stats() -> PyResult<Option<[u64; library::COUNTERS]>> {
    Ok(library()?.stats())
}

/// Sends all far memory of this process away until it is accessed again. Raises `OSError` with `EINVAL` if far memory
/// does not run, and with `ENOSPC` if the servers have no room.
#[pyfunction]
fn park(py: Python<'_>) -> PyResult<()> {
    let library = library()?;
    // Other threads of Python go on meanwhile.
    py.detach(|| library.park()).map_err(PyErr::from)
}

/// Prefetches a range of bytes. Returns whether it lies in far memory.
#[pyfunction]
fn prefetch(start: usize, length: usize) -> PyResult<bool> {
    // SAFETY: prefetching changes no byte of the range.
    Ok(unsafe { library()?.advise(start, length, Advice::WillNeed) })
}

/// Discards the contents of whole pages in a range of bytes. Returns whether it lies in far memory. The caller owns the
/// range.
#[pyfunction]
fn discard(start: usize, length: usize) -> PyResult<bool> {
    // SAFETY: `hanare.advise` passes the bytes of a writable, contiguous array, which the caller holds.
    Ok(unsafe { library()?.advise(start, length, Advice::Discard) })
}

/// Returns whether a byte lies in far memory.
#[pyfunction]
fn contains(address: usize) -> PyResult<bool> {
    Ok(library()?.contains(address))
}

/// Has NumPy allocate far in this context, and returns the handler that it had before.
#[pyfunction]
fn enter(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    library()?;
    let handler = arrays::handler(py)?;
    arrays::set_handler(py, handler.as_any())
}

/// Has NumPy allocate by the handler that `enter` returned.
#[pyfunction]
fn leave<'py>(py: Python<'py>, handler: &Bound<'py, PyCapsule>) -> PyResult<()> {
    arrays::set_handler(py, handler.as_any()).map(drop)
}

#[pymodule]
fn _far(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(find, module)?)?;
    module.add_function(wrap_pyfunction!(load, module)?)?;
    module.add_function(wrap_pyfunction!(start, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    module.add_function(wrap_pyfunction!(park, module)?)?;
    module.add_function(wrap_pyfunction!(prefetch, module)?)?;
    module.add_function(wrap_pyfunction!(discard, module)?)?;
    module.add_function(wrap_pyfunction!(contains, module)?)?;
    module.add_function(wrap_pyfunction!(enter, module)?)?;
    module.add_function(wrap_pyfunction!(leave, module)?)?;
    Ok(())
}
