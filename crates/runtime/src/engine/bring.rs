//! Page-in: pages read from the store, or filled from this process' own memory.

use std::sync::atomic::Ordering::SeqCst;

use hanare_paging::{Event, PageId, Source};
use hanare_store::{Begun, Kind, Polled, Read, Sender, Store, StoreError, Take, Turn};
use hanare_sys::copy;
use hanare_sys::futex;
use hanare_wire::Wait;

use super::{Engine, Work, writable_bytes};
use crate::counters::add;
use crate::fatal;
use crate::span::Span;
use crate::view::View;

/// Attempts to receive before a refused read is retried. The store refuses reads while too many are in progress.
const FULL_SPINS: u32 = 1000;

/// Takes over the pages of one read after another.
struct In<'a, V, S> {
    engine: &'a Engine<V, S>,
    /// The work of a thread that reads. Arrivals add their actions to it, and the thread carries them out later.
    work: Option<&'a mut Work>,
    /// Whether every page of this read that must be protected is protected.
    certain: bool,
}

impl<'a, V: View, S: Store> In<'a, V, S> {
    /// Takes pages over for a thread that has no work of its own.
    fn outside(engine: &'a Engine<V, S>) -> Self {
        Self { engine, work: None, certain: true }
    }

    fn span(&self, read: &Read) -> Span {
        Span { offset: self.engine.bytes(read.page.0), len: read.bytes as usize }
    }

    /// The pager's event for a complete read.
    fn event(&self, read: &Read) -> Event {
        if read.frame.is_some() {
            return Event::Fetched { page: read.page, ok: true };
        }
        if !self.certain {
            self.engine.view.open(self.span(read));
        }
        Event::Arrived { page: read.page, count: read.count, certain: self.certain, ok: true }
    }
}

impl<V: View, S: Store> Take for In<'_, V, S> {
    fn place(&mut self, read: &Read) -> Option<*mut u8> {
        self.certain = true;
        match read.frame {
            Some(frame) => Some(self.engine.view.frame(frame)),
            None => self.engine.view.receive_place(self.span(read).offset),
        }
    }

    fn placed(&mut self, read: &Read) {
        if read.frame.is_some() {
            return;
        }
        let span = self.span(read);
        let first = writable_bytes(read);
        let rest = Span { offset: span.offset + first, len: span.len - first };
        let view = &self.engine.view;
        self.certain &= first == 0 || view.show(Span { len: first, ..span }, true);
        self.certain &= rest.len == 0 || view.show(rest, false);
    }

    unsafe fn part(&mut self, read: &Read, at: usize, from: *const u8, len: usize) {
        let span = Span { offset: self.span(read).offset + at, len };
        // SAFETY: passed on from the caller; the pages are in transit.
        self.certain &= unsafe { self.engine.show(read, span, from) };
    }

    fn arrived(&mut self, read: &Read) {
        let event = self.event(read);
        match &mut self.work {
            Some(work) => {
                self.engine.step(&[event], work);
            }
            None => self.engine.submit(event),
        }
        if read.frame.is_none() {
            self.engine.notify(read.page, read.count);
        }
    }

    fn spare(&mut self) -> *mut u8 {
        // The store asks for spare memory only during a read, and a thread that reads has work space.
        self.work.as_ref().map_or(std::ptr::null_mut(), |work| work.bounce as *mut u8)
    }
}

/// Ends a run whose store has failed.
pub(super) fn end(error: &StoreError<'_>) -> ! {
    fatal::die(error.exit_code(), format_args!("{error}"))
}

impl<V: View> Engine<V, Kind> {
    /// The main function of a thread that sends pages to a memory server.
    pub(crate) fn run_sender(&self, mut sender: Sender) {
        let Kind::Remote(remote) = &self.store else { return };
        loop {
            let mut ended = |page, frame| self.submit(Event::WrittenBack { page, frame, ok: true });
            let sent = remote.send(&mut sender, &mut ended).unwrap_or_else(|error| end(&error));
            add(&self.counters.requests, sent);
        }
    }
}

impl<V: View, S: Store> Engine<V, S> {
    /// Receives pages that have arrived, whichever thread waits for them.
    pub(crate) fn receive(&self, wait: Wait) -> Polled {
        self.poll(Turn::Receive(wait))
    }

    /// Lets the store receive.
    pub(super) fn poll(&self, turn: Turn) -> Polled {
        self.store.poll(turn, &mut In::outside(self)).unwrap_or_else(|error| end(&error))
    }

    pub(super) fn fetch(&self, read: Read, source: Source, work: &mut Work) {
        let mut take = In { engine: self, work: Some(work), certain: true };
        match source {
            Source::Server => loop {
                match self.store.read(&read, &mut take).unwrap_or_else(|error| end(&error)) {
                    Begun::Done => break,
                    Begun::Later => return add(&self.counters.requests, 1),
                    Begun::Full => {
                        let turn = Turn::Receive(Wait::Spin { iterations: FULL_SPINS });
                        if self.store.poll(turn, &mut take).unwrap_or_else(|error| end(&error)) == Polled::Busy {
                            std::thread::yield_now();
                        }
                    }
                }
            },
            Source::Zero | Source::Frame(_) => self.fill(&read, source, &mut take),
        }
        take.arrived(&read);
    }

    /// Fills pages from this process' own memory.
    fn fill(&self, read: &Read, source: Source, take: &mut In<'_, V, S>) {
        let len = read.bytes as usize;
        let from = match source {
            Source::Frame(from) => Some(self.view.frame(from)),
            Source::Zero | Source::Server => None,
        };
        match (read.frame, from) {
            // SAFETY: the frame is in transit and has room for its page; the source does not change meanwhile.
            (Some(frame), Some(from)) => unsafe { copy::copy(from, self.view.frame(frame), len) },
            // SAFETY: as above.
            (Some(frame), None) => unsafe { copy::zero(self.view.frame(frame), len) },
            (None, Some(from)) => {
                // SAFETY: the page is in transit; the frame does not change while it is copied.
                take.certain = unsafe { self.view.copy_in(take.span(read), from, read.writable > 0) };
            }
            // SAFETY: as above, and nothing is written to the zeroes.
            (None, None) => take.certain = unsafe { self.show(read, take.span(read), self.view.zeroes()) },
        }
    }

    /// Copies bytes of a read into view, the first pages writable and the others protected. Returns false when a page
    /// was there already.
    ///
    /// # Safety
    /// The pages are in transit, and the span's bytes lie at `from`.
    unsafe fn show(&self, read: &Read, span: Span, from: *const u8) -> bool {
        let at = span.offset - self.bytes(read.page.0);
        let first = writable_bytes(read).saturating_sub(at).min(span.len);
        let rest = Span { offset: span.offset + first, len: span.len - first };
        // SAFETY: passed on from the caller.
        let part = |span: Span, from, writable| span.len == 0 || unsafe { self.view.copy_in(span, from, writable) };
        let came = part(Span { len: first, ..span }, from, true);
        part(rest, from.wrapping_add(first), false) && came
    }

    /// Wakes the threads that wait for these pages in their handlers.
    pub(super) fn notify(&self, page: PageId, count: u32) {
        for unit in (page.0..page.0 + count).step_by(self.block_units as usize) {
            let wait_queue = self.wait_queue(unit);
            wait_queue.fetch_add(1, SeqCst);
            if self.waiters.load(SeqCst) > 0 {
                futex::wake_all(wait_queue);
            }
        }
    }
}
