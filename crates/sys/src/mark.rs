//! Marks a process. A child process does not inherit the mark, however it was created.
//!
//! A child that was created by a direct `clone` system call runs no fork handler of any library. Hanare's code in such
//! a child must not use the child's copy of the parent's tables. It recognises such a child by the missing mark.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

use crate::map::{self, Advice, MapError, Mapping};

static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Marks this process.
///
/// # Errors
/// [`MapError`] if there is no memory, or if the kernel (before 4.14) cannot wipe memory on fork.
pub fn set() -> Result<(), MapError> {
    if MARK.load(Acquire).is_null() {
        let page = Mapping::anonymous(map::page_size())?;
        // SAFETY: `page` is a new mapping that no other code uses yet, so wiping it in children loses nothing.
        unsafe { map::advise(page.addr(), page.len(), Advice::WipeOnFork) }
            .map_err(|errno| MapError::Reserve { len: page.len(), errno })?;
        MARK.store(page.addr() as *mut AtomicU32, Release);
        // The page stays mapped until the process ends.
        std::mem::forget(page);
    }
    if let Some(mark) = mark() {
        mark.store(1, Release);
    }
    Ok(())
}

/// Checks whether [`set`] was called in this process itself. A call in its parent does not count.
#[inline]
pub fn is_set() -> bool {
    mark().is_some_and(|mark| mark.load(Acquire) != 0)
}

fn mark() -> Option<&'static AtomicU32> {
    // SAFETY: `MARK` is null or the beginning of a page that is never unmapped. Any bits are a valid `AtomicU32`.
    unsafe { MARK.load(Acquire).as_ref() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_child_by_a_bare_system_call_bears_no_mark() {
        super::set().unwrap();
        assert!(super::is_set());
        // SAFETY: this clone without flags works like fork, and the child only exits.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if child == 0 {
            // SAFETY: `_exit` ends the child immediately and runs no exit handlers.
            unsafe { libc::_exit(i32::from(super::is_set())) };
        }
        let mut status = -1;
        // SAFETY: `waitpid` waits for the child made above and writes to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, super::is_set()), (0, true));
    }
}
