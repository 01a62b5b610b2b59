//! Page-out: pages taken out of view, and their bytes saved.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use hanare_paging::{Action, Bytes, Event, FrameId, PageId, limits};
use hanare_store::{Saved, Store, Write};
use hanare_sys::copy;

use super::{Engine, Todo, Work, bring, page_of};
use crate::counters::add;
use crate::span::Span;
use crate::view::{Moved, View};
use hanare_sys::clock::now_ns;

// The outcome of each page of a batch is one bit.
const _: () = assert!(limits::VICTIMS_MAX <= u128::BITS as usize);

impl<V: View, S: Store> Engine<V, S> {
    /// Takes a page out of view, together with all queued pages that leave in the same way.
    pub(super) fn take_out(&self, first: Todo, work: &mut Work) {
        let Action::TakeOut { page, frame, bytes } = first.action else { return };
        if let Some(frame) = frame.filter(|frame| frame.wide || self.small_moves) {
            let started = now_ns();
            // SAFETY: the pager gave page and (empty) frame to this action.
            let ok = unsafe { self.view.move_out(self.span(page, first.units), frame, bytes == Bytes::Clean) };
            add(&self.counters.evict_ns, now_ns() - started);
            self.step(&[Event::TakenOut { page, ok, changed: true }], work);
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

    /// Unmaps a page for reference sampling: moves it into a frame, or changes its protection.
    pub(super) fn hide(&self, todo: Todo, work: &mut Work) {
        let Action::Hide { page, frame, is_clean } = todo.action else { return };
        let started = now_ns();
        let span = self.span(page, todo.units);
        let ok = match frame {
            // SAFETY: the pager gave page and (empty) frame to this action.
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

    /// Stops all writes to the dirty pages of a batch. Moves each aside, to the places from `places` on, or
    /// write-protects it if the kernel does not move it.
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
            // SAFETY: the pages are this batch's, and the places this thread's, emptied after their last use.
            match unsafe { self.view.move_aside(span, places + run.start) } {
                Moved::Gone => fates.aside |= run.fold(0, |bits, index| bits | 1 << index),
                Moved::Stays | Moved::Unmovable => {
                    run.for_each(|index| self.stop_writes_to(leaving, places, index, &mut fates))
                }
            }
        }
        fates
    }

    /// Does the same for one page, when the kernel refused its run.
    fn stop_writes_to(&self, leaving: &[Todo], places: usize, index: usize, fates: &mut Fates) {
        let span = self.span(PageId(page_of(leaving[index].action)), 1);
        // SAFETY: as above.
        match unsafe { self.view.move_aside(span, places + index) } {
            Moved::Gone => fates.aside |= 1 << index,
            Moved::Stays => fates.stay |= 1 << index,
            Moved::Unmovable => self.view.write_protect(span),
        }
    }

    /// The next dirty pages of a batch, from index `from` on, that are adjacent in memory.
    fn next_dirty_run(&self, leaving: &[Todo], from: usize) -> Option<Range<usize>> {
        let is_dirty = |todo: &Todo| !matches!(todo.action, Action::TakeOut { bytes: Bytes::Clean, .. });
        let start = from + leaving[from..].iter().position(is_dirty)?;
        let follows =
            |pair: &[Todo]| is_dirty(&pair[1]) && page_of(pair[0].action) + pair[0].units == page_of(pair[1].action);
        let more = leaving[start..].windows(2).take_while(|pair| follows(pair)).count();
        Some(start..start + 1 + more)
    }

    /// Saves the bytes of dirty pages that can no longer be written to.
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
                // SAFETY: the page's bytes lie there, undisturbed, and `to` has room for them.
                Some(from) => unsafe { copy::copy(from, to, span.len) },
                // SAFETY: the page is in view, and nobody writes to it; `to` has room for it.
                None => unsafe { self.view.read(span, to) },
            };
            if let Some(frame) = *frame {
                copy_to(self.view.frame(frame));
                continue;
            }
            let here = if *bytes == Bytes::Dirty { None } else { aside.or_else(|| self.view.protected_bytes(span)) };
            // SAFETY: both have `span.len` bytes, and nobody writes to either.
            let is_zero = |here| unsafe { copy::equal(here, self.view.zeroes(), span.len) };
            if *bytes == Bytes::MaybeZero && here.is_some_and(is_zero) {
                *bytes = Bytes::Clean;
                continue;
            }
            let may_be_same = *bytes == Bytes::Unknown;
            let write = Write { page, bytes: span.len as u32, frame: None, at: here, may_be_same, spare: bounce };
            // SAFETY: nobody writes to the page any more; the spare room is this work's.
            if unsafe { self.save(&write, &mut |to| copy_to(to)) } == Saved::Same {
                *bytes = Bytes::Clean;
            }
        }
    }

    /// Writes a page through the store.
    ///
    /// # Safety
    /// As for [`Store::write`].
    unsafe fn save(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Saved {
        // SAFETY: passed on from the caller.
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

    pub(super) fn write_back(&self, page: PageId, frame: FrameId, units: u32, work: &mut Work) {
        let (from, len) = (self.view.frame(frame), self.bytes(units));
        let (at, spare) = (Some(from.cast_const()), work.bounce as *mut u8);
        let write = Write { page, bytes: len as u32, frame: Some(frame), at, may_be_same: false, spare };
        // SAFETY: a frame does not change during its write-back; `to` has room for it, and the spare room is this
        // work's.
        let saved = unsafe { self.save(&write, &mut |to| copy::copy(from, to, len)) };
        if saved != Saved::Later {
            self.step(&[Event::WrittenBack { page, frame, ok: true }], work);
            self.notify(page, 1);
        }
    }
}

/// The outcome for the pages of a batch, one bit for each.
#[derive(Clone, Copy, Default)]
struct Fates {
    /// Pages that were moved aside. The page with index `n` of the batch is in place `n`.
    aside: u128,
    /// Pages that a transfer holds. They stay in view.
    stay: u128,
}
