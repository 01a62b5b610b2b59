//! Fork: lets a child inherit the view, and sets up the view in the child.
//!
//! The child inherits private pages in view by copy-on-write. It inherits neither the trap nor the frames. The frames
//! are empty at the fork. Foreign mappings belong to the program, so this module does not change them.

use std::sync::atomic::Ordering::Relaxed;

use hanare_sys::map::{self, Advice};
use hanare_sys::pagemap::{Pagemap, PagemapError};
use hanare_sys::{Errno, again};

use super::{Base, Doubled, LiveView, Mechanism, Userfaultfd, ViewError};
use crate::kernel::insist;
use crate::span::Span;

impl LiveView {
    /// Checks whether a forked child can inherit the pages in view by copy-on-write. Returns false in sigsegv mode.
    /// There these pages are shared memory, so all pages in view must be evicted before a fork.
    pub(crate) fn is_inherited(&self) -> bool {
        matches!(self, LiveView::Userfaultfd(_))
    }

    /// If `inherit` is true, makes forked children inherit the view. Otherwise makes them not inherit it. A view is
    /// inherited only during a fork that Hanare prepared. A child made by a direct system call finds no memory in this
    /// range, so it cannot read wrong bytes.
    ///
    /// # Errors
    /// The errno with which the kernel refuses the change. A part of the view may then be inherited, so the caller must
    /// call this with `inherit` false.
    pub(crate) fn let_fork(&self, inherit: bool) -> Result<(), Errno> {
        let advice = if inherit { Advice::DoFork } else { Advice::DontFork };
        if let (true, LiveView::Userfaultfd(view)) = (inherit, self) {
            view.has_forked.store(true, Relaxed);
        }
        let mut refused = None;
        // In sigsegv mode no page is in view at a fork, so the child inherits only the address range.
        self.each_range(|addr, span| {
            // SAFETY: the range is a mapping of far memory. The advice changes only whether children inherit it.
            let advised = again(|| unsafe { map::advise(addr, span.len, advice) });
            refused = refused.take().or(advised.err());
        });
        refused.map_or(Ok(()), Err)
    }

    /// Makes forked children not inherit the view from now on. Retries until the kernel accepts the change.
    pub(crate) fn end_fork(&self) {
        insist("leave far memory out of forked children", || self.let_fork(false));
    }

    /// Returns the view without its trap, in a forked child. The trap belongs to the parent.
    pub(crate) fn without_trap(self) -> Base {
        match self {
            LiveView::Userfaultfd(view) => view.base,
            LiveView::Doubled(view) => view.base,
        }
    }
}

impl Base {
    /// Sets up the view in a forked child, with a trap of the child's own. With userfaultfd, an access before this call
    /// makes an absent page present. So the child has not accessed the pages that are absent now.
    pub(crate) fn again(self, mechanism: Mechanism) -> Result<LiveView, ViewError> {
        let base = self.with_own_frames()?;
        Ok(match mechanism {
            Mechanism::Uffd(uffd) => LiveView::Userfaultfd(Userfaultfd::again(base, uffd)?),
            Mechanism::Protection(protection) => LiveView::Doubled(Doubled::again(base, protection)?),
        })
    }

    /// Calls `visit` with each part of a span whose pages are present, as the kernel's page table shows.
    pub(crate) fn visit_present(
        &self,
        pagemap: &Pagemap,
        span: Span,
        mut visit: impl FnMut(Span),
    ) -> Result<(), PagemapError> {
        let mut answer = Ok(());
        self.windows.runs(span, |start, part| {
            let looked = pagemap.visit_present(start, part.len, |addr, len| {
                visit(Span { offset: part.offset + (addr - start), len });
            });
            if let (Ok(()), Err(error)) = (&answer, looked) {
                answer = Err(error);
            }
        });
        answer
    }
}
