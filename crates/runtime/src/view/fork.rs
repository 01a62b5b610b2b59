//! Fork: the view in a child.
//!
//! The child inherits private pages in view by copy-on-write. It inherits neither the trap nor the frames, which are
//! empty at rest. Foreign mappings belong to the program and are left alone.

use std::sync::atomic::Ordering::Relaxed;

use hanare_sys::map::{self, Advice};
use hanare_sys::pagemap::{Pagemap, PagemapError};
use hanare_sys::{Errno, again};

use super::{Base, Doubled, LiveView, Mechanism, Userfaultfd, ViewError};
use crate::kernel::insist;
use crate::span::Span;

impl LiveView {
    /// Whether a forked child inherits the pages in view. In sigsegv mode they are shared memory, which must be out of
    /// view.
    pub(crate) fn is_inherited(&self) -> bool {
        matches!(self, LiveView::Userfaultfd(_))
    }

    /// Lets the next fork inherit the view, or leaves it out again. Only prepared forks inherit it, so that a child
    /// made by a direct system call finds no memory instead of wrong bytes.
    ///
    /// # Errors
    /// The kernel's refusal; then some of the view is inherited, and the caller must leave it out again.
    pub(crate) fn let_fork(&self, inherit: bool) -> Result<(), Errno> {
        let advice = if inherit { Advice::DoFork } else { Advice::DontFork };
        if let (true, LiveView::Userfaultfd(view)) = (inherit, self) {
            view.has_forked.store(true, Relaxed);
        }
        let mut refused = None;
        // In sigsegv mode nothing is in view, and the child inherits only the address range.
        self.each_range(|addr, span| {
            // SAFETY: our own mapping; the advice changes no contents.
            let advised = again(|| unsafe { map::advise(addr, span.len, advice) });
            refused = refused.take().or(advised.err());
        });
        refused.map_or(Ok(()), Err)
    }

    /// Leaves the view out of the next fork.
    pub(crate) fn end_fork(&self) {
        insist("leave far memory out of forked children", || self.let_fork(false));
    }

    /// The view in a child without its trap, which belongs to the parent.
    pub(crate) fn without_trap(self) -> Base {
        match self {
            LiveView::Userfaultfd(view) => view.base,
            LiveView::Doubled(view) => view.base,
        }
    }
}

impl Base {
    /// The view in a forked child, with a trap of its own. No absent page has been accessed since the fork.
    pub(crate) fn again(self, mechanism: Mechanism, batches: bool) -> Result<LiveView, ViewError> {
        let base = self.with_own_frames()?;
        Ok(match mechanism {
            Mechanism::Uffd(uffd) => LiveView::Userfaultfd(Userfaultfd::again(base, uffd, batches)?),
            Mechanism::Protection(protection) => LiveView::Doubled(Doubled::again(base, protection)?),
        })
    }

    /// Calls `visit` with the parts of a span that are in view.
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
