//! Fork: the view in a child.
//!
//! Private pages in view are inherited by the operating system's copy-on-write; what traps touches is not. The frames stay
//! behind: nothing is in them at rest. Holes are the program's own mappings, and are left alone.

use std::sync::atomic::Ordering::Relaxed;

use hanare_sys::copy::OwnMemory;
use hanare_sys::map::{self, Advice, MapError, Mapping, Prot};
use hanare_sys::pagemap::{Pagemap, PagemapError};
use hanare_sys::{Errno, again};

use super::{Mechanism, TRAPPING, Trap, View, ViewError, pool};
use crate::kernel::insist;
use crate::span::Span;

impl View {
    /// Whether a forked child inherits what is in view. In sigsegv mode it is shared memory, which must be out of view.
    pub(crate) fn is_inherited(&self) -> bool {
        self.file.is_none()
    }

    /// Visits every range of addresses that is far, with the span it shows; neighbours are one where nothing is in between.
    fn each_range(&self, mut visit: impl FnMut(usize, Span)) {
        let whole = Span { offset: 0, len: self.sizes.reserve };
        if self.windows.hole_bytes() > 0 {
            return self.windows.runs(whole, visit);
        }
        visit(self.base, whole);
        for (addr, len) in self.windows.ranges() {
            if let Some(offset) = self.windows.offset_of(addr) {
                visit(addr, Span { offset, len });
            }
        }
    }

    /// Lets the next fork inherit the view, or leaves it out again. It is left out but for the moment of a fork that was
    /// prepared, so that a child made behind our back (by a bare system call) finds nothing rather than wrong bytes.
    ///
    /// # Errors
    /// The kernel's refusal; then some of the view is inherited, and the caller must leave it out again.
    pub(crate) fn let_fork(&self, inherit: bool) -> Result<(), Errno> {
        let advice = if inherit { Advice::DoFork } else { Advice::DontFork };
        if inherit {
            self.has_forked.store(true, Relaxed);
        }
        let mut refused = None;
        // In sigsegv mode nothing is in view, and the child inherits no more than the place.
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

    /// Without its trap, in a child: the trap is the parent's.
    pub(crate) fn without_trap(self) -> Self {
        Self { uffd: None, ..self }
    }

    /// The view in a forked child, with a trap of its own. Nothing that was missing has been touched since the fork.
    pub(crate) fn again(self, mechanism: Mechanism) -> Result<Self, ViewError> {
        const ALIGN: usize = 2 << 20;
        let sizes = self.sizes;
        let Trap { uffd, file, guards } = Trap::new(mechanism, &sizes)?;
        let io_base = match &file {
            Some(file) => Mapping::shared_aligned(file, sizes.reserve, ALIGN)?.leak(),
            None => 0,
        };
        let small_pool = pool(sizes.small_frames * sizes.unit, ALIGN)?;
        let wide_pool = pool(sizes.wide_frames * sizes.block, ALIGN)?;
        let aside_pool = pool(sizes.aside_units * sizes.unit, ALIGN)?;
        // Few programs close pages by mprotect. One that has left `/proc` behind is told when such a page has to leave.
        let memory = OwnMemory::open();
        let view = Self { uffd, file, guards, io_base, small_pool, wide_pool, aside_pool, memory, ..self };
        let mut refused = None;
        view.each_range(|addr, span| refused = refused.take().or(view.set_up_again(addr, span).err()));
        if let Some(error) = refused {
            return Err(error);
        }
        for (addr, len) in view.pools().chain([(view.io_base, sizes.reserve)]).filter(|&(addr, _)| addr != 0) {
            view.advise(addr, len)?;
        }
        view.register_frames()?;
        Ok(view)
    }

    fn set_up_again(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        if let Some(file) = &self.file {
            // SAFETY: far memory; none of it is in view, and the child has no other thread.
            again(|| unsafe { map::replace_with_shared(addr, span.len, file, span.offset as u64, Prot::NONE) })
                .map_err(|errno| MapError::Reserve { len: span.len, errno })?;
        }
        self.advise(addr, span.len)?;
        match &self.uffd {
            Some(uffd) => Ok(uffd.register(addr, span.len, TRAPPING)?),
            None => Ok(()),
        }
    }

    /// Hands the parts of a span that are in view to `visit`.
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
