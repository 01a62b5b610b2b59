//! Access rights: records which access the program allows to its far memory (mprotect). In sigsegv mode, combines these
//! rights with the page protection by which accesses trap.

use hanare_sys::map::{self, Prot};

use super::{Base, LiveView};
use crate::kernel::insist;
use crate::span::Span;

const USUAL: Prot = Prot::READ_WRITE;

impl LiveView {
    /// Changes the access that the program allows to a range of its far memory. In sigsegv mode without guards, this
    /// makes the whole range inaccessible. The next access to each page traps. [`super::View::show_again`] then gives
    /// the page the access that the program allows.
    ///
    /// # Errors
    /// The errno with which the kernel refuses the change.
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
            // SAFETY: the range is a part of far memory. The program owns the range and asks for this change. A change
            // of protection keeps the contents.
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

    /// Sets the program's access to a range. Retries until the kernel accepts the change, because the caller cannot
    /// continue without it.
    pub(crate) fn set_access(&self, span: Span, prot: Prot) {
        insist("change the access to far memory", || self.restrict(span, prot.0).map_err(hanare_sys::Errno));
    }

    /// Restores read and write access to a range that was freed.
    pub(crate) fn unrestrict(&self, span: Span) {
        if self.restrictions.touch(span) {
            self.set_access(span, USUAL);
        }
    }
}

impl Base {
    /// Returns how many allocated bytes the program has made inaccessible, or has replaced by mappings of its own.
    pub(crate) fn idle_bytes(&self) -> usize {
        self.restrictions.closed_bytes() + self.windows.hole_bytes()
    }

    /// Checks whether the program's own protection (mprotect) allows a read or write at this offset.
    pub(crate) fn permits(&self, offset: usize, write: bool) -> bool {
        let wanted = if write { libc::PROT_WRITE } else { libc::PROT_READ };
        self.restrictions.at(offset).0 & wanted != 0
    }

    /// Checks whether the program restricted the access to a part of this range.
    pub(crate) fn is_restricted(&self, span: Span) -> bool {
        self.restrictions.touch(span)
    }

    /// Checks whether the program ever restricted the access to any part of its far memory.
    pub(crate) fn has_restrictions(&self) -> bool {
        self.restrictions.are_any()
    }

    /// Returns the access that the program allows to the operating system's page at this offset.
    pub(crate) fn access(&self, offset: usize) -> Prot {
        self.restrictions.at(offset)
    }
}
