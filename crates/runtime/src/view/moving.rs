//! Moves pages by the kernel's MOVE operation (userfaultfd). MOVE moves a page from one address to another, atomically
//! with respect to writes.

use hanare_sys::map::{self, Advice};
use hanare_sys::uffd::{MoveMode, Uffd};
use hanare_sys::{Errno, futex};

use super::userfaultfd::wake;
use crate::fatal::{self, EXIT_KERNEL};
use crate::near::resident;
use crate::span::OS_PAGE;

/// Maximum number of retries of a MOVE that the kernel refused for a temporary reason.
const AGAIN_MAX: u32 = 1000;
/// Maximum number of retries of a MOVE that the kernel refused because a page is held. The number is small, because a
/// transfer usually holds its pages for longer than these retries last.
const BUSY_MAX: u32 = 3;

/// The reason why pages could not be moved. The pages stay at their old addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A page is held by a transfer of the kernel or of a device, or is shared with a forked child.
    Held,
    /// The kernel does not move pages between these mappings.
    Unmovable,
}

/// Moves the whole range `from..from + len` to `to`. If the kernel refuses a page, moves all pages back.
///
/// # Safety
/// The caller owns the contents of both ranges, and the destination is empty.
pub(super) unsafe fn move_all(uffd: &Uffd, to: usize, from: usize, len: usize, mode: MoveMode) -> Result<(), Refusal> {
    // SAFETY: the caller owns both ranges, and the destination is empty.
    let (done, refusal) = unsafe { move_some(uffd, to, from, len, mode) };
    let Some(refusal) = refusal else { return Ok(()) };
    // SAFETY: `move_some` moved `done` bytes from `from` to `to`, so `from..from + done` is empty now.
    unsafe { move_back(uffd, from, to, done) };
    Err(refusal)
}

/// Moves pages from `from` back to their old address `to`. Ends the run if the kernel still refuses after a second or
/// more. The run must end, because an access to these pages would wait for ever.
///
/// # Safety
/// The caller owns the contents of both ranges, and the destination is empty.
pub(super) unsafe fn move_back(uffd: &Uffd, to: usize, from: usize, len: usize) {
    let mode = MoveMode { dontwake: true, allow_src_holes: true };
    let mut done = 0;
    for _ in 0..AGAIN_MAX {
        // SAFETY: the caller owns both ranges. The call starts after the bytes that are already moved, so its
        // destination is empty.
        done += unsafe { move_some(uffd, to + done, from + done, len - done, mode) }.0;
        if done == len {
            return;
        }
        pause();
    }
    fatal::die(EXIT_KERNEL, format_args!("the kernel does not move a page back; please report this line"));
}

/// Waits a millisecond.
fn pause() {
    let nobody = std::sync::atomic::AtomicU32::new(0);
    futex::wait(&nobody, 0, Some(std::time::Duration::from_millis(1)));
}

/// Returns whether a page is in memory. Asks the kernel for a page that is swapped out: a later call finds it, perhaps
/// after a while. An absent page stays absent.
pub(super) fn is_there(page: usize) -> bool {
    resident(page, OS_PAGE) > 0 || {
        // Ignored: if the kernel cannot read the page, the callers see it as absent, and end the run after a while.
        // SAFETY: the advice changes no contents.
        let _ = unsafe { map::advise(page, OS_PAGE, Advice::WillNeed) };
        resident(page, OS_PAGE) > 0
    }
}

/// Moves the pages of a range in order, until the kernel refuses a page. Returns the number of bytes moved, and the
/// reason of the refusal, if any.
///
/// # Safety
/// The caller owns the contents of both ranges, and the destination is empty.
unsafe fn move_some(uffd: &Uffd, to: usize, from: usize, len: usize, mode: MoveMode) -> (usize, Option<Refusal>) {
    let (mut done, mut again, mut busy) = (0, 0, 0);
    while done < len {
        // SAFETY: the caller owns both ranges. The call starts after the bytes that are already moved, so its
        // destination is empty.
        let result = unsafe { uffd.move_pages(to + done, from + done, len - done, mode) };
        done += result.done;
        if result.done > 0 {
            (again, busy) = (0, 0);
        }
        let refusal = match result.errno {
            None => continue,
            // Linux 6.18 restarts a MOVE if the processor sets the accessed bit of a page meanwhile. After the restart,
            // the kernel does not count the pages that it moved before. It finds their destination occupied (EEXIST).
            // The caller passed an empty destination. So a page that is present at `to` and absent at `from` was moved.
            Some(libc::EEXIST) if resident(from + done, OS_PAGE) == 0 && is_there(to + done) => {
                if !mode.dontwake {
                    wake(uffd, to + done, OS_PAGE);
                }
                done += OS_PAGE;
                continue;
            }
            Some(libc::EBUSY) => {
                busy += 1;
                (busy > BUSY_MAX).then_some(Refusal::Held)
            }
            Some(libc::EINVAL) => Some(Refusal::Unmovable),
            // The page may have been moved, and swapped out since then. It must not be forgotten where it is.
            Some(libc::EEXIST) => {
                pause();
                again += 1;
                (again > AGAIN_MAX).then_some(Refusal::Held)
            }
            // The reason is temporary: EAGAIN, or a shortage such as no memory for a page table. If the reason
            // persists, the page counts as held.
            Some(_) => {
                again += 1;
                (again > AGAIN_MAX).then_some(Refusal::Held)
            }
        };
        if refusal.is_some() {
            return (done, refusal);
        }
    }
    (done, None)
}

/// Makes pages private to this process, if a forked child shares or has shared them. MOVE refuses shared pages, and
/// also pages that a transfer holds. If MOVE still refuses a page after this call, a transfer holds the page.
///
/// Of a huge page, Linux 6.18 asks whether the first part is private, instead of the part that is to be moved. If that
/// first part was dropped while a child shared it, MOVE refuses the rest for ever. So such huge pages are split.
///
/// # Errors
/// `ENOENT` if a page is absent, or the kernel's errno.
///
/// # Safety
/// The pages are open for writing. Otherwise this call would fault and wait for ever, because the calling thread
/// itself would have to resolve the fault.
pub(super) unsafe fn make_own(addr: usize, len: usize) -> Result<(), Errno> {
    if resident(addr, len) < len as u64 && !(addr..addr + len).step_by(OS_PAGE).all(is_there) {
        return Err(Errno(libc::ENOENT));
    }
    // SAFETY: the call prepares the pages for writing and keeps their contents. The pages are present and open for
    // writing, so the call causes no fault that the engine must resolve.
    unsafe { map::advise(addr, len, Advice::PopulateWrite) }?;
    // Ignored: if the kernel does not split the pages, MOVE refuses them again, and they count as held.
    // SAFETY: the advice changes no contents.
    let _ = unsafe { map::advise(addr, len, Advice::Cold) };
    Ok(())
}
