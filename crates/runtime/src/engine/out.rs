//! Out: pages taken out of view, with their bytes to where they are kept.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use hanare_paging::{Action, Bytes, Event, FrameId, PageId, limits};
use hanare_sys::copy;

use super::{Engine, Store, Todo, Work, now_ns, page_of};
use crate::stats::add;
use crate::store::direct::Direct;
use crate::view::Span;

// Which pages of a batch were lifted is kept in a bit for each.
const _: () = assert!(limits::VICTIMS_MAX <= u128::BITS as usize);

impl Engine {
    /// Takes a page out of view, and with it all that leave by the same way, in one batch.
    pub(super) fn take_out(&self, first: Todo, work: &mut Work) {
        let Action::TakeOut { page, frame, .. } = first.action else { return };
        if let Some(frame) = frame.filter(|frame| frame.wide || self.small_moves) {
            let started = now_ns();
            // SAFETY: the pager gave page and (empty) frame to this action.
            unsafe { self.view.move_out(self.span(page, first.units), frame) };
            add(&self.counters.evict_ns, now_ns() - started);
            self.step(&[Event::TakenOut { page, ok: true, changed: true }], work);
            return self.ring(page);
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
        self.take_out_together(&mut leaving, work.bounce as *mut u8);
        add(&self.counters.evict_ns, now_ns() - started);
        self.tell_taken_out(&leaving, work);
        work.leaving = leaving;
    }

    fn take_out_together(&self, leaving: &mut [Todo], bounce: *mut u8) {
        let mut lift = (self.view.lift_frames() > 0).then(|| self.lift.lock());
        let lifted = self.stop_writes(leaving, lift.as_deref_mut());
        self.save_dirty(leaving, lifted, bounce);
        if lifted != 0 {
            self.view.drop_lifted(leaving.len());
        }
        drop(lift);
        let mut batch = self.batch.lock();
        for (index, todo) in leaving.iter().enumerate() {
            if lifted >> index & 1 == 0 {
                self.view.drop_later(self.span(PageId(page_of(todo.action)), todo.units), &mut batch);
            }
        }
        if !batch.is_empty() {
            self.view.flush(&mut batch);
        }
    }

    /// Takes a page out of sight: into a frame, or by its protection.
    pub(super) fn hide(&self, page: PageId, frame: Option<FrameId>, units: u32, work: &mut Work) {
        let started = now_ns();
        let span = self.span(page, units);
        match frame {
            // SAFETY: the pager gave page and (empty) frame to this action.
            Some(frame) => unsafe { self.view.move_out(span, frame) },
            None => self.view.freeze(span),
        }
        add(&self.counters.clear_bit_ns, now_ns() - started);
        self.step(&[Event::Hidden { page, ok: true }], work);
        self.ring(page);
    }

    /// Sees to it that nothing is written to the dirty pages of a batch any more. Answers which of them are out of view
    /// already, a bit for each: they lie in the places of their numbers.
    fn stop_writes(&self, leaving: &[Todo], mut lift: Option<&mut Lift>) -> u128 {
        let mut lifted = 0;
        if self.view.is_still() {
            return lifted;
        }
        let mut next = 0;
        while let Some(run) = self.next_dirty_run(leaving, next) {
            next = run.end;
            let pages = &leaving[run.clone()];
            let units = pages.iter().map(|todo| todo.units).sum();
            let span = self.span(PageId(page_of(pages[0].action)), units);
            let fits = units as usize == pages.len();
            let moved = |lift: &mut Lift| {
                // SAFETY: the pages are this batch's, and the places are locked and were emptied after their last use.
                fits && lift.is_due() && lift.went(unsafe { self.view.lift(span, run.start) })
            };
            if lift.as_deref_mut().is_some_and(moved) {
                lifted |= run.fold(0, |bits, index| bits | 1 << index);
            } else {
                self.view.freeze(span);
            }
        }
        lifted
    }

    /// The dirty pages of a batch, from this index on, that follow each other in memory.
    fn next_dirty_run(&self, leaving: &[Todo], from: usize) -> Option<Range<usize>> {
        let is_dirty = |todo: &Todo| !matches!(todo.action, Action::TakeOut { bytes: Bytes::Clean, .. });
        let start = from + leaving[from..].iter().position(is_dirty)?;
        let follows =
            |pair: &[Todo]| is_dirty(&pair[1]) && page_of(pair[0].action) + pair[0].units == page_of(pair[1].action);
        let more = leaving[start..].windows(2).take_while(|pair| follows(pair)).count();
        Some(start..start + 1 + more)
    }

    /// Copies dirty pages that nobody writes to any more to where they go.
    fn save_dirty(&self, leaving: &mut [Todo], lifted: u128, bounce: *mut u8) {
        for (index, todo) in leaving.iter_mut().enumerate() {
            let Action::TakeOut { page, frame, bytes } = &mut todo.action else { continue };
            if *bytes == Bytes::Clean {
                continue;
            }
            let (page, span) = (*page, Span { offset: self.bytes(page.0), len: self.bytes(todo.units) });
            let aside = (lifted >> index & 1 != 0).then(|| self.view.lifted(index));
            let copy_to = |to: *mut u8| match aside {
                // SAFETY: the page's bytes lie there, undisturbed, and `to` has room for them.
                Some(from) => unsafe { copy::copy(from, to, span.len) },
                // SAFETY: the page is in view, and nobody writes to it; `to` has room for it.
                None => unsafe { self.view.read(span, to) },
            };
            match (*frame, &self.store) {
                (Some(frame), _) => copy_to(self.view.frame(frame)),
                (None, Store::Direct(direct)) if *bytes == Bytes::Unknown => {
                    let here = aside.or_else(|| self.view.frozen(span));
                    if here.is_some_and(|here| is_as_held(direct, page, here, span.len)) {
                        *bytes = Bytes::Clean;
                    } else {
                        direct.write(page.0, span.len, bounce, copy_to);
                    }
                }
                (None, Store::Direct(direct)) => direct.write(page.0, span.len, bounce, copy_to),
                (None, Store::Remote(_)) => {}
            }
        }
    }

    fn tell_taken_out(&self, leaving: &[Todo], work: &mut Work) {
        const AT_ONCE: usize = 32;
        for part in leaving.chunks(AT_ONCE) {
            let mut events = [Event::TakenOut { page: PageId(0), ok: true, changed: false }; AT_ONCE];
            for (event, todo) in events.iter_mut().zip(part) {
                let changed = !matches!(todo.action, Action::TakeOut { bytes: Bytes::Clean, .. });
                *event = Event::TakenOut { page: PageId(page_of(todo.action)), ok: true, changed };
            }
            self.step(&events[..part.len()], work);
        }
        if self.waiters.load(SeqCst) > 0 {
            leaving.iter().for_each(|todo| self.ring(PageId(page_of(todo.action))));
        }
    }

    pub(super) fn write_back(&self, page: PageId, frame: FrameId, units: u32, work: &mut Work) {
        let len = self.bytes(units);
        match &self.store {
            Store::Remote(remote) => remote.write_back(page, frame, len as u32),
            Store::Direct(direct) => {
                let from = self.view.frame(frame);
                // SAFETY: a frame being written back is not disturbed; `write` gives a place with room for it.
                direct.write(page.0, len, work.bounce as *mut u8, |to| unsafe { copy::copy(from, to, len) });
                self.step(&[Event::WrittenBack { page, frame, ok: true }], work);
                self.ring(page);
            }
        }
    }
}

/// Whether the bytes at `here`, a page's that nobody writes to, are the very ones of its slot.
fn is_as_held(direct: &Direct, page: PageId, here: *const u8, len: usize) -> bool {
    // SAFETY: both have so many bytes; the slot is the page's, and nobody writes to it either.
    direct.look_at_slot(page.0, |there| unsafe { copy::equal(here, there, len) }).unwrap_or(false)
}

/// When lifting pages is worth trying: what a forked child still shares cannot be moved, and that lasts.
#[derive(Debug, Default)]
pub(super) struct Lift {
    pause: u32,
}

impl Lift {
    /// Runs that are not tried after one that failed.
    const PAUSE: u32 = 1024;

    fn is_due(&mut self) -> bool {
        let due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    fn went(&mut self, ok: bool) -> bool {
        if !ok {
            self.pause = Self::PAUSE;
        }
        ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_lift_that_failed_so_many_runs_are_not_tried_and_then_again() {
        let mut lift = Lift::default();
        for _ in 0..10 {
            assert!(lift.is_due() && lift.went(true), "what works is gone on with");
        }
        for _ in 0..3 {
            assert!(lift.is_due() && !lift.went(false));
            let passed_over = (0..2 * Lift::PAUSE).take_while(|_| !lift.is_due()).count();
            assert_eq!(passed_over, Lift::PAUSE as usize);
            assert!(lift.went(true) && lift.is_due(), "one that works ends the pause");
        }
    }
}
