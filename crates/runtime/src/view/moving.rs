//! MOVE: moves pages from one place to another, atomically with respect to writes.

use hanare_sys::map::{self, Advice};
use hanare_sys::uffd::{MoveMode, Uffd};
use hanare_sys::{Errno, futex};

use super::userfaultfd::wake;
use crate::fatal::{self, EXIT_KERNEL};
use crate::near::resident;
use crate::span::OS_PAGE;

/// Most retries of a MOVE that was refused for a passing reason.
const AGAIN_MAX: u32 = 1000;
/// Most retries of a MOVE that was refused because something holds a page. Few, because that mostly lasts.
const BUSY_MAX: u32 = 3;

/// Why pages could not be moved. They are in their old place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Something holds a page: a transfer of the kernel or of a device, or a child that shares it.
    Held,
    /// The kernel does not move pages between these mappings.
    Unmovable,
}

/// Moves the whole range. On a refusal everything is back in place.
///
/// # Safety
/// The caller owns the contents of both ranges, and the destination is empty.
pub(super) unsafe fn move_all(uffd: &Uffd, to: usize, from: usize, len: usize, mode: MoveMode) -> Result<(), Refusal> {
    // SAFETY: passed on from the caller.
    let (done, refusal) = unsafe { move_some(uffd, to, from, len, mode) };
    let Some(refusal) = refusal else { return Ok(()) };
    // SAFETY: these are the very pages moved above, and where they came from is empty since.
    unsafe { move_back(uffd, from, to, done) };
    Err(refusal)
}

/// Moves pages back to their old place. If they stayed away, an access would wait for ever for a page that nobody has.
///
/// # Safety
/// As [`move_all`].
pub(super) unsafe fn move_back(uffd: &Uffd, to: usize, from: usize, len: usize) {
    let mode = MoveMode { dontwake: true, allow_src_holes: true };
    let mut done = 0;
    for _ in 0..AGAIN_MAX {
        // SAFETY: passed on from the caller; what was moved is left out.
        done += unsafe { move_some(uffd, to + done, from + done, len - done, mode) }.0;
        if done == len {
            return;
        }
        let nobody = std::sync::atomic::AtomicU32::new(0);
        // However the wait ends, the rest is retried.
        futex::wait(&nobody, 0, Some(std::time::Duration::from_millis(1)));
    }
    fatal::die(EXIT_KERNEL, format_args!("the kernel does not move a page back; please report this line"));
}

/// Moves as much as the kernel allows, from the start on. Returns the bytes moved, and the reason why not more.
///
/// # Safety
/// As [`move_all`].
unsafe fn move_some(uffd: &Uffd, to: usize, from: usize, len: usize, mode: MoveMode) -> (usize, Option<Refusal>) {
    let (mut done, mut again, mut busy) = (0, 0, 0);
    while done < len {
        // SAFETY: passed on from the caller.
        let result = unsafe { uffd.move_pages(to + done, from + done, len - done, mode) };
        done += result.done;
        if result.done > 0 {
            (again, busy) = (0, 0);
        }
        let refusal = match result.errno {
            None => continue,
            // Linux 6.18 does not count what it moved before it had to start again, and it starts again when the
            // processor notes an access to a page in that moment. The destination was empty. So a page that is present
            // there and absent here was moved.
            Some(libc::EEXIST) if resident(from + done, OS_PAGE) == 0 && resident(to + done, OS_PAGE) > 0 => {
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
            // EAGAIN, or a passing shortage such as no memory for a page table. The holder of the page is then unknown.
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

/// Makes pages private that a forked child shares or has shared: MOVE refuses such pages like held ones. A page that a
/// transfer holds is already private, so a refusal after this call is due to a transfer.
///
/// # Safety
/// The pages are open for writing. An access to an absent or protected page would wait for this very thread, which
/// resolves it.
pub(super) unsafe fn make_own(addr: usize, len: usize) -> Result<(), Errno> {
    if resident(addr, len) < len as u64 {
        return Err(Errno(libc::ENOENT));
    }
    // SAFETY: writes to the pages as the program would, without changing them.
    unsafe { map::advise(addr, len, Advice::PopulateWrite) }
}
