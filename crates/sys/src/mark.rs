//! A mark that a process has and that its children do not inherit, however they were created. A child created by a
//! direct system call runs no handler of any library. It must not use its copy of the parent's tables, and recognises
//! this by the missing mark.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

use crate::map::{self, Advice, MapError, Mapping};

static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Marks this process.
///
/// # Errors
/// There is no memory, or the kernel (before 4.14) cannot wipe memory on fork.
pub fn set() -> Result<(), MapError> {
    if MARK.load(Acquire).is_null() {
        let page = Mapping::anonymous(map::page_size())?;
        // SAFETY: our own mapping, which is still unused.
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

/// Whether [`set`] was called in this very process.
#[inline]
pub fn is_set() -> bool {
    mark().is_some_and(|mark| mark.load(Acquire) != 0)
}

fn mark() -> Option<&'static AtomicU32> {
    // SAFETY: null, or the beginning of a page that is never unmapped. Atomics may have any bits.
    unsafe { MARK.load(Acquire).as_ref() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_child_by_a_bare_system_call_bears_no_mark() {
        super::set().unwrap();
        assert!(super::is_set());
        // SAFETY: as for fork. The child only ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(super::is_set())) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, super::is_set()), (0, true));
    }
}
