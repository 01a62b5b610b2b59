//! Page-in: reads pages from the store, or fills them from this process' own memory.

use std::sync::atomic::Ordering::SeqCst;

use hanare_paging::{Event, PageId, Source};
use hanare_store::{Begun, Kind, Polled, Progress, Read, Store, StoreError, Take, Telling, Turn, Words, Worker};
use hanare_sys::copy;
use hanare_sys::futex;
use hanare_wire::Wait;

use super::{Engine, Work, writable_bytes};
use crate::counters::add;
use crate::fatal;
use crate::span::Span;
use crate::view::View;

/// Number of polls for arrived pages before a refused read is retried. The store refuses a read while too many reads
/// are in progress.
const FULL_SPINS: u32 = 1000;

/// Receives the pages of reads from the store, one read after another.
struct In<'a, V, S> {
    engine: &'a Engine<V, S>,
    /// The work space of a thread that starts a read. The actions that follow from an arrival are queued in this work
    /// space, and the thread carries them out later. `None` for a thread that only polls. Such a thread carries out the
    /// actions immediately.
    work: Option<&'a mut Work>,
    /// Whether all pages of the present read have the protection that the pager asked for. False if a page that had to
    /// be write-protected is open for writing.
    certain: bool,
}

impl<'a, V: View, S: Store> In<'a, V, S> {
    /// Makes a receiver for a thread that only polls and holds no work space.
    fn outside(engine: &'a Engine<V, S>) -> Self {
        Self { engine, work: None, certain: true }
    }

    fn span(&self, read: &Read) -> Span {
        Span { offset: self.engine.bytes(read.page.0), len: read.bytes as usize }
    }

    /// Makes the event that reports a complete read to the pager.
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
            Some(frame) => Some(self.engine.view.frame_to_fill(frame)),
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
        // SAFETY: the caller promises `len` bytes at `from` that do not change. The pages of the read are in transit,
        // so no other thread fills them.
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
        // The store may have asked another receiver for the place of the next read.
        self.certain = true;
    }

    fn spare(&mut self) -> *mut u8 {
        // The store asks for spare memory only in `Store::read`. A thread that calls `Store::read` has a work space.
        self.work.as_ref().map_or(std::ptr::null_mut(), |work| work.bounce as *mut u8)
    }
}

/// Ends the run because the store has failed.
pub(super) fn end(error: &StoreError<'_>) -> ! {
    fatal::die(error.exit_code(), format_args!("{error}"))
}

impl<V: View> Engine<V, Kind> {
    /// Runs as the main function of a thread that works for the store.
    pub(crate) fn run_worker(&self, mut worker: Worker) -> ! {
        let mut noted = Progress::default();
        loop {
            let mut ended = |page, frame, changed| self.submit(Event::WrittenBack { page, frame, ok: true, changed });
            let worked = self.store.work(&mut worker, &mut ended, &mut In::outside(self));
            add(&self.counters.requests, worked.unwrap_or_else(|error| end(&error)));
            if let Some(notice) = self.store.notice(&mut worker) {
                fatal::say(format_args!("{notice}"));
            }
            if let Worker::Rebuilder(_) = worker {
                self.note_progress(&mut noted);
            }
        }
    }

    /// Counts what the rebuilder of missing parts did since the last call, and tells the user about losses of servers.
    fn note_progress(&self, noted: &mut Progress) {
        let now = self.store.progress();
        let last = std::mem::replace(noted, now);
        let counters = self.counters;
        // The counters are sums over all processes. So changes are added, also negative ones.
        add(&counters.servers_lost, now.losses.wrapping_sub(last.losses));
        add(&counters.parts_behind_bytes, now.behind_bytes.wrapping_sub(last.behind_bytes));
        add(&counters.parts_rebuilt_bytes, now.rebuilt_bytes.wrapping_sub(last.rebuilt_bytes));
        add(&counters.degraded_ns, now.degraded_ns.wrapping_sub(last.degraded_ns));
        while self.store.has_news() {
            fatal::tell(format_args!("{}", Telling(&self.store, Words::News)));
        }
    }
}

impl<V: View, S: Store> Engine<V, S> {
    /// Receives all pages that have arrived, including pages that other threads wait for.
    pub(crate) fn receive(&self, wait: Wait) -> Polled {
        self.poll(Turn::Receive(wait))
    }

    /// Polls the store and receives the pages that have arrived. Ends the run if the store fails.
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

    /// Fills the pages of a read without a server: with the bytes of a frame in this process' own memory, or with
    /// zeroes.
    fn fill(&self, read: &Read, source: Source, take: &mut In<'_, V, S>) {
        let len = read.bytes as usize;
        let from = match source {
            Source::Frame(from) => Some(self.view.frame(from)),
            Source::Zero | Source::Server => None,
        };
        match (read.frame, from) {
            // SAFETY: the pager reserved `frame` for this fetch, so no other call uses the frame. It has room for `len`
            // bytes. The bytes at `from` do not change during the copy.
            (Some(frame), Some(from)) => unsafe { copy::copy(from, self.view.frame_to_fill(frame), len) },
            // SAFETY: the pager reserved `frame` for this fetch, so no other call uses the frame. Its bytes are not
            // needed.
            (Some(frame), None) => unsafe { self.view.zero_frame(frame) },
            (None, Some(from)) => {
                // SAFETY: the page is in transit, and this call alone fills it. The bytes at `from` do not change
                // during the copy.
                take.certain = unsafe { self.view.copy_in(take.span(read), from, read.writable > 0) };
            }
            // SAFETY: the pages are in transit, and this call alone fills them. The zeroes never change.
            (None, None) => take.certain = unsafe { self.show(read, take.span(read), self.view.zeroes()) },
        }
    }

    /// Copies bytes of a read into the program's view. The first `read.writable` pages of the read become writable. All
    /// others become write-protected. Returns false if a page was present already or could not be protected.
    ///
    /// # Safety
    /// The pages are in transit. `from` points to `span.len` bytes, which do not change during the call.
    unsafe fn show(&self, read: &Read, span: Span, from: *const u8) -> bool {
        let at = span.offset - self.bytes(read.page.0);
        let first = writable_bytes(read).saturating_sub(at).min(span.len);
        let rest = Span { offset: span.offset + first, len: span.len - first };
        // SAFETY: the caller promises pages in transit and constant bytes at `from`. Both hold for each part of `span`.
        let part = |span: Span, from, writable| span.len == 0 || unsafe { self.view.copy_in(span, from, writable) };
        let came = part(Span { len: first, ..span }, from, true);
        part(rest, from.wrapping_add(first), false) && came
    }

    /// Wakes the threads that wait in their signal handlers for one of the `count` pages from `page` on.
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
