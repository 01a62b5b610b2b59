//! Page-out: takes pages out of the program's view and saves their bytes.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use hanare_paging::{Action, Bytes, Event, PageId, limits};
use hanare_store::{Saved, Store, Write};
use hanare_sys::copy;

use super::{Engine, Todo, Work, bring, page_of};
use crate::counters::add;
use crate::span::Span;
use crate::view::{Moved, View};
use hanare_sys::clock::now_ns;

// `Fates` has one bit for each page of a batch.
const _: () = assert!(limits::VICTIMS_MAX <= u128::BITS as usize);

impl<V: View, S: Store> Engine<V, S> {
    /// Takes the page of `first` out of the program's view. A page that is moved into a frame is taken out alone. Pages
    /// that are not moved into a frame are taken out in batches, as far as they are adjacent in the queue. A batch
    /// needs fewer system calls than single pages.
    pub(super) fn take_out(&self, first: Todo, work: &mut Work) {
        let Action::TakeOut { page, frame, bytes } = first.action else { return };
        if let Some(frame) = frame.filter(|frame| frame.wide || self.small_moves) {
            let started = now_ns();
            // SAFETY: the page is in transit and the frame is empty. The pager reserved both for this action, so no
            // other call uses them.
            let ok = unsafe { self.view.move_out(self.span(page, first.units), frame, bytes == Bytes::Clean) };
            // SAFETY: the frame has the page's bytes now. Nothing writes to it before the pager learns of them.
            let is_zero =
                || unsafe { copy::equal(self.view.frame(frame), self.view.zeroes(), self.bytes(first.units)) };
            let changed = bytes != Bytes::Clean && (bytes != Bytes::MaybeZero || !ok || !is_zero());
            add(&self.counters.evict_ns, now_ns() - started);
            self.step(&[Event::TakenOut { page, ok, changed }], work);
            return self.notify(page, 1);
        }
        work.leaving.clear();
        work.leaving.push(first);
        while let Some(todo @ Todo { action: Action::TakeOut { frame, .. }, .. }) = work.todo.last().copied()
            && !frame.is_some_and(|frame| frame.wide || self.small_moves)
            && work.leaving.len() < limits::VICTIMS_MAX
        {
            work.todo.pop();
            work.leaving.push(todo);
        }
        let started = now_ns();
        let mut leaving = std::mem::take(&mut work.leaving);
        let fates = self.take_out_together(&mut leaving, work);
        add(&self.counters.evict_ns, now_ns() - started);
        self.tell_taken_out(&leaving, fates, work);
        work.leaving = leaving;
    }

    fn take_out_together(&self, leaving: &mut [Todo], work: &Work) -> Fates {
        let fates = self.stop_writes(leaving, work.places);
        self.save_dirty(leaving, fates, work);
        if fates.aside != 0 {
            let used = (u128::BITS - fates.aside.leading_zeros()) as usize;
            self.view.drop_aside(work.places, used);
        }
        let is_there = |&(index, _): &(usize, &Todo)| (fates.aside | fates.stay) >> index & 1 == 0;
        let there = leaving.iter().enumerate().filter(is_there);
        self.view.drop_together(&mut there.map(|(_, todo)| self.span(PageId(page_of(todo.action)), todo.units)));
        fates
    }

    /// Unmaps a page for reference sampling. Moves the page into its frame. Protects the page in place if it has no
    /// frame.
    pub(super) fn hide(&self, todo: Todo, work: &mut Work) {
        let Action::Hide { page, frame, is_clean } = todo.action else { return };
        let started = now_ns();
        let span = self.span(page, todo.units);
        let ok = match frame {
            // SAFETY: the page is in transit and the frame is empty. The pager reserved both for this action, so no
            // other call uses them.
            Some(frame) => unsafe { self.view.move_out(span, frame, is_clean) },
            None => {
                self.view.write_protect(span);
                true
            }
        };
        add(&self.counters.clear_bit_ns, now_ns() - started);
        self.step(&[Event::Hidden { page, ok }], work);
        self.notify(page, 1);
    }

    /// Stops all writes to the dirty pages of a batch. Moves the dirty page with index `n` of the batch aside, to the
    /// place `places + n`. Write-protects a page that the kernel cannot move. A page that a transfer holds stays in
    /// view.
    fn stop_writes(&self, leaving: &[Todo], places: usize) -> Fates {
        let mut fates = Fates::default();
        let mut next = 0;
        while let Some(run) = self.next_dirty_run(leaving, next) {
            next = run.end;
            let pages = &leaving[run.clone()];
            let units: u32 = pages.iter().map(|todo| todo.units).sum();
            let fits = units as usize == pages.len() && self.view.aside_units() > 0;
            let span = self.span(PageId(page_of(pages[0].action)), units);
            if !fits {
                self.view.write_protect(span);
                continue;
            }
            // SAFETY: the pages of `run` are in transit and belong to this batch, so only this thread moves them. The
            // places belong to this thread's work space and were emptied after their last use.
            match unsafe { self.view.move_aside(span, places + run.start) } {
                Moved::Gone => fates.aside |= run.fold(0, |bits, index| bits | 1 << index),
                Moved::Stays | Moved::Unmovable => {
                    run.for_each(|index| self.stop_writes_to(leaving, places, index, &mut fates))
                }
            }
        }
        fates
    }

    /// Stops all writes to one dirty page of a batch, after the kernel refused to move the run of pages around it.
    /// Moves the page aside, or write-protects it if the kernel cannot move it.
    fn stop_writes_to(&self, leaving: &[Todo], places: usize, index: usize, fates: &mut Fates) {
        let span = self.span(PageId(page_of(leaving[index].action)), 1);
        // SAFETY: the page is in transit and belongs to this batch, so only this thread moves it. The place belongs to
        // this thread's work space, and the refused move left the place empty.
        match unsafe { self.view.move_aside(span, places + index) } {
            Moved::Gone => fates.aside |= 1 << index,
            Moved::Stays => fates.stay |= 1 << index,
            Moved::Unmovable => self.view.write_protect(span),
        }
    }

    /// Finds the next run of dirty pages in a batch, from index `from` on. The pages of a run are adjacent in memory.
    fn next_dirty_run(&self, leaving: &[Todo], from: usize) -> Option<Range<usize>> {
        let is_dirty = |todo: &Todo| !matches!(todo.action, Action::TakeOut { bytes: Bytes::Clean, .. });
        let start = from + leaving[from..].iter().position(is_dirty)?;
        let follows =
            |pair: &[Todo]| is_dirty(&pair[1]) && page_of(pair[0].action) + pair[0].units == page_of(pair[1].action);
        let more = leaving[start..].windows(2).take_while(|pair| follows(pair)).count();
        Some(start..start + 1 + more)
    }

    /// Saves the bytes of the dirty pages of a batch. All writes to these pages were stopped before.
    fn save_dirty(&self, leaving: &mut [Todo], fates: Fates, work: &Work) {
        let bounce = work.bounce as *mut u8;
        for (index, todo) in leaving.iter_mut().enumerate() {
            let Action::TakeOut { page, frame, bytes } = &mut todo.action else { continue };
            if *bytes == Bytes::Clean || fates.stay >> index & 1 != 0 {
                continue;
            }
            let (page, span) = (*page, Span { offset: self.bytes(page.0), len: self.bytes(todo.units) });
            let aside = (fates.aside >> index & 1 != 0).then(|| self.view.aside(work.places + index));
            let copy_to = |to: *mut u8| match aside {
                // SAFETY: `from` is the place that holds the page's bytes, and nothing writes to this place. `to` has
                // room for `span.len` bytes.
                Some(from) => unsafe { copy::copy(from, to, span.len) },
                // SAFETY: the page is present and write-protected, so its bytes do not change. `to` has room for
                // `span.len` bytes.
                None => unsafe { self.view.read(span, to) },
            };
            // SAFETY: `here` and the zeroes have `span.len` bytes each, and nothing writes to them.
            let is_zero = |here| unsafe { copy::equal(here, self.view.zeroes(), span.len) };
            if let Some(frame) = *frame {
                let here = self.view.frame(frame);
                copy_to(here);
                if *bytes == Bytes::MaybeZero && is_zero(here.cast_const()) {
                    *bytes = Bytes::Clean;
                }
                continue;
            }
            let here = if *bytes == Bytes::Dirty { None } else { aside.or_else(|| self.view.protected_bytes(span)) };
            if *bytes == Bytes::MaybeZero && here.is_some_and(is_zero) {
                *bytes = Bytes::Clean;
                continue;
            }
            let may_be_same = *bytes == Bytes::Unknown;
            let write = Write { page, bytes: span.len as u32, frame: None, at: here, may_be_same, spare: bounce };
            // SAFETY: all writes to the page were stopped, so the bytes at `here` do not change. `bounce` belongs to
            // this thread's work space.
            if unsafe { self.save(&write, &mut |to| copy_to(to)) } == Saved::Same {
                *bytes = Bytes::Clean;
            }
        }
    }

    /// Writes a page to the store. Ends the run if the store fails.
    ///
    /// # Safety
    /// The conditions of [`Store::write`] hold.
    unsafe fn save(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Saved {
        // SAFETY: the caller promises the conditions of `Store::write`.
        unsafe { self.store.write(write, fill) }.unwrap_or_else(|error| bring::end(&error))
    }

    fn tell_taken_out(&self, leaving: &[Todo], fates: Fates, work: &mut Work) {
        const AT_ONCE: usize = 32;
        for (part, first) in leaving.chunks(AT_ONCE).zip((0..).step_by(AT_ONCE)) {
            let mut events = [Event::TakenOut { page: PageId(0), ok: true, changed: false }; AT_ONCE];
            for ((event, todo), index) in events.iter_mut().zip(part).zip(first..) {
                let changed = !matches!(todo.action, Action::TakeOut { bytes: Bytes::Clean, .. });
                let ok = fates.stay >> index & 1 == 0;
                *event = Event::TakenOut { page: PageId(page_of(todo.action)), ok, changed };
            }
            self.step(&events[..part.len()], work);
        }
        if self.waiters.load(SeqCst) > 0 {
            leaving.iter().for_each(|todo| self.notify(PageId(page_of(todo.action)), 1));
        }
    }

    pub(super) fn write_back(&self, action: Action, units: u32, work: &mut Work) {
        let Action::WriteBack { page, frame, may_be_same } = action else { return };
        let (from, len) = (self.view.frame(frame), self.bytes(units));
        let (at, spare) = (Some(from.cast_const()), work.bounce as *mut u8);
        let write = Write { page, bytes: len as u32, frame: Some(frame), at, may_be_same, spare };
        // SAFETY: the bytes at `from` do not change, because the pager does not reuse a frame during its write-back.
        // `to` has room for `len` bytes. `spare` belongs to this thread's work space.
        let saved = unsafe { self.save(&write, &mut |to| copy::copy(from, to, len)) };
        if saved != Saved::Later {
            let changed = saved != Saved::Same;
            self.step(&[Event::WrittenBack { page, frame, ok: true, changed }], work);
            self.notify(page, 1);
        }
    }
}

/// The outcome for each page of a batch. Bit `n` belongs to the page with index `n` in the batch.
#[derive(Clone, Copy, Default)]
struct Fates {
    /// Pages that were moved aside. The page with index `n` is in place `n` of the thread's work space.
    aside: u128,
    /// Pages that stay in the program's view because a transfer holds them.
    stay: u128,
}
