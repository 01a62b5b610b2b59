//! Access: what access the program left to its far memory (mprotect), and the protections that trap in sigsegv mode.

use hanare_sys::map::{self, Prot};

use super::{Base, LiveView};
use crate::kernel::insist;
use crate::span::Span;

const USUAL: Prot = Prot::READ_WRITE;

impl LiveView {
    /// Changes the program's access to a range of its far memory. Where page protection traps, the pages leave the view
    /// until they are shown again ([`super::View::show_again`]), each with the access that the program left.
    ///
    /// # Errors
    /// The kernel's errno.
    pub(crate) fn restrict(&self, span: Span, prot: i32) -> Result<(), i32> {
        let is_usual = Prot(prot & USUAL.0) == USUAL;
        if !is_usual {
            self.restrictions.set(span, prot);
        }
        let prot = match self {
            LiveView::Userfaultfd(_) => Prot(prot),
            LiveView::Doubled(view) => {
                if let Some(guards) = view.guards() {
                    if is_usual {
                        self.restrictions.set(span, USUAL.0);
                    }
                    return view.reapply(&guards, span).map_err(|errno| errno.0);
                }
                Prot::NONE
            }
        };
        let mut refused = None;
        self.windows.runs(span, |addr, part| {
            // SAFETY: the range lies in far memory, whose owner asks for this; contents do not change.
            let answer = unsafe { map::protect(addr, part.len, prot) };
            refused = refused.or(answer.err());
        });
        if let Some(errno) = refused {
            return Err(errno.0);
        }
        if is_usual {
            self.restrictions.set(span, USUAL.0);
        }
        Ok(())
    }

    /// Sets a range's access: the usual one, or none for a moment. Retries until the kernel grants it, because the
    /// caller relies on the result.
    pub(crate) fn set_access(&self, span: Span, prot: Prot) {
        insist("change the access to far memory", || self.restrict(span, prot.0).map_err(hanare_sys::Errno));
    }

    /// Restores the usual access of freed memory.
    pub(crate) fn unrestrict(&self, span: Span) {
        if self.restrictions.touch(span) {
            self.set_access(span, USUAL);
        }
    }
}

impl Base {
    /// Allocated bytes that the program has made inaccessible, or replaced by a mapping of its own.
    pub(crate) fn idle_bytes(&self) -> usize {
        self.restrictions.closed_bytes() + self.windows.hole_bytes()
    }

    /// Whether the program's own protection allows the access that trapped.
    pub(crate) fn permits(&self, offset: usize, write: bool) -> bool {
        let wanted = if write { libc::PROT_WRITE } else { libc::PROT_READ };
        self.restrictions.at(offset).0 & wanted != 0
    }

    /// Whether the program ever restricted access to any of its far memory.
    pub(crate) fn has_restrictions(&self) -> bool {
        self.restrictions.are_any()
    }

    /// The access that the program left to a page of the operating system.
    pub(crate) fn access(&self, offset: usize) -> Prot {
        self.restrictions.at(offset)
    }
}
