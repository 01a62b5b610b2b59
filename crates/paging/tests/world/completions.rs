//! The machine: carries out the pager's actions one at a time, in random order, and reports the results.

use hanare_paging::{Action, Bytes, Event, FrameId, PageId, Source};

use super::{Mapped, World};

impl World {
    /// Carries out one pending action and reports its completion to the pager.
    pub(super) fn complete(&mut self) {
        let index = self.random.below(self.pending.len() as u64) as usize;
        let (action, seen) = self.pending.swap_remove(index);
        let fails = self.random.chance(self.shape.failures_per_mille);
        match action {
            Action::Fetch { page, count, source, frame, writable, .. } => {
                let bytes = self.fetched_bytes(page, count, source, seen);
                let fails = fails && !matches!(source, Source::Frame(_));
                self.complete_fetch(page, count, frame, writable, bytes, fails);
            }
            Action::Install { page, frame, writable } => self.complete_install(page, frame, writable, fails),
            Action::Open { page } => {
                for unit in page.0..page.0 + self.span(page) {
                    self.view.get_mut(&unit).expect("an opened page is in view").writable = true;
                }
                self.step(Event::Opened { page });
                self.wake(page);
            }
            Action::TakeOut { page, frame, bytes } => self.complete_take_out(page, frame, bytes, fails),
            Action::WriteBack { page, frame, may_be_same } => {
                let bytes = self.frames[&frame].clone();
                assert_eq!(seen.as_ref(), Some(&bytes), "{frame:?} was disturbed while it was written back");
                let changed = fails || !may_be_same || bytes != self.server_bytes(page, bytes.len() as u32);
                if !fails && changed {
                    for (index, &value) in bytes.iter().enumerate() {
                        self.server.insert(page.0 + index as u32, value);
                    }
                }
                self.step(Event::WrittenBack { page, frame, ok: !fails, changed });
            }
            Action::Hide { page, frame, .. } => self.complete_hide(page, frame, fails),
            Action::Show { page, frame, writable } => match frame {
                Some(frame) => self.complete_install(page, frame, writable, fails),
                None => {
                    let take = |unit| self.hidden.remove(&unit).expect("a page shown in place was hidden there");
                    let bytes: Vec<u64> = (page.0..page.0 + self.pager.page_of(page.0).1).map(take).collect();
                    self.show(page.0, &bytes, writable);
                    self.step(Event::Arrived { page, count: 1, certain: true, ok: true });
                    self.wake(page);
                }
            },
            Action::FreeFrame { frame } => {
                self.frames.remove(&frame);
                self.step(Event::FrameFreed { frame });
            }
            Action::Release { .. } | Action::Wake { .. } => unreachable!("done when answered"),
        }
    }

    /// Returns the bytes that a fetch delivers. `seen` holds the bytes of the source when the fetch began.
    fn fetched_bytes(&self, page: PageId, count: u32, source: Source, seen: Option<Vec<u64>>) -> Vec<u64> {
        let units = self.span(page) * count;
        let bytes = match source {
            Source::Server => self.server_bytes(page, units),
            Source::Zero => vec![0; units as usize],
            Source::Frame(from) => self.frames[&from].clone(),
        };
        if let Some(seen) = seen {
            assert_eq!(seen, bytes, "the server's bytes changed under a fetch of {page:?}");
        }
        bytes
    }

    fn complete_fetch(
        &mut self,
        page: PageId,
        count: u32,
        frame: Option<FrameId>,
        writable: u32,
        bytes: Vec<u64>,
        fails: bool,
    ) {
        let (units, ok) = (bytes.len() as u32, !fails);
        let Some(frame) = frame else {
            // If a page cannot be protected, it is mapped writable.
            let slips = ok && writable < count && self.random.chance(self.shape.failures_per_mille);
            if ok {
                let open = if slips { units } else { writable * self.span(page) };
                self.show(page.0, &bytes[..open as usize], true);
                self.show(page.0 + open, &bytes[open as usize..], false);
            }
            self.step(Event::Arrived { page, count, certain: !slips, ok });
            (page.0..page.0 + count).for_each(|unit| self.wake(PageId(unit)));
            return;
        };
        self.frames.insert(frame, if ok { bytes } else { vec![u64::MAX - 1; units as usize] });
        self.step(Event::Fetched { page, ok });
    }

    fn show(&mut self, first: u32, values: &[u64], writable: bool) {
        for (index, &value) in values.iter().enumerate() {
            let old = self.view.insert(first + index as u32, Mapped { value, writable });
            assert!(old.is_none(), "unit {} came into view twice", first + index as u32);
        }
    }

    fn complete_install(&mut self, page: PageId, frame: FrameId, writable: bool, fails: bool) {
        if fails {
            self.step(Event::Arrived { page, count: 1, certain: true, ok: false });
            return;
        }
        let bytes = self.frames.remove(&frame).expect("an installed frame is filled");
        // A write may happen after the page is mapped and before it is protected. The page is then reported as possibly
        // written.
        let slips = !writable && self.random.chance(2 * self.shape.failures_per_mille);
        self.show(page.0, &bytes, writable || slips);
        if slips && self.random.chance(500) && !self.discarding.contains(&page.0) {
            self.fresh += 1;
            let value = self.fresh;
            self.view.get_mut(&page.0).expect("just shown").value = value;
            self.model.insert(page.0, value);
        }
        self.step(Event::Arrived { page, count: 1, certain: !slips, ok: true });
        self.wake(page);
    }

    fn complete_hide(&mut self, page: PageId, frame: Option<FrameId>, fails: bool) {
        let fails = fails || self.is_pinned(page);
        if !fails {
            let take = |unit| self.view.remove(&unit).expect("a page that is hidden was in view").value;
            let bytes: Vec<u64> = (page.0..page.0 + self.pager.page_of(page.0).1).map(take).collect();
            match frame {
                Some(frame) => assert!(self.frames.insert(frame, bytes).is_none(), "{frame:?} was not empty"),
                None => self.hidden.extend((page.0..).zip(bytes)),
            }
        }
        self.step(Event::Hidden { page, ok: !fails });
        self.wake(page);
    }

    fn complete_take_out(&mut self, page: PageId, frame: Option<FrameId>, known: Bytes, fails: bool) {
        let span = self.span(page);
        // A discarded page is dropped without saving its bytes. A transfer into the page then writes to memory that no
        // longer belongs to the program.
        let dropped = frame.is_none() && known == Bytes::Clean;
        if fails || !dropped && self.is_pinned(page) {
            self.step(Event::TakenOut { page, ok: false, changed: false });
            return;
        }
        let take = |unit| match self.view.remove(&unit) {
            Some(mapped) => mapped.value,
            None => self.hidden.remove(&unit).expect("a page is taken out of view once"),
        };
        let bytes: Vec<u64> = (page.0..page.0 + span).map(take).collect();
        let changed = match known {
            Bytes::Clean => false,
            Bytes::Dirty => true,
            // Bytes that go into a frame are compared when the frame is written back, or now.
            Bytes::Unknown => frame.is_some() && self.random.chance(500) || bytes != self.server_bytes(page, span),
            Bytes::MaybeZero => bytes.iter().any(|&value| value != 0),
        };
        match frame {
            Some(frame) => {
                // If pages of this size are copied to their addresses, the frames are buffers that keep their contents
                // when they become free.
                let moves = if frame.wide { self.shape.wide_moves } else { self.shape.small_moves };
                let old = self.frames.insert(frame, bytes);
                assert!(old.is_none() || !moves, "{frame:?} was not empty");
            }
            None if changed => self.server.extend((page.0..).zip(bytes)),
            None => {}
        }
        self.step(Event::TakenOut { page, ok: true, changed });
    }
}
