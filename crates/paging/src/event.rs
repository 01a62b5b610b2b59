//! The events that the pager receives, and the actions with which it answers.

use crate::kinds::Kind;
use crate::limits;
use crate::units::{FrameId, PageId};

/// An event. Units and pages are indices into the far space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread accessed a unit that was not mapped, or wrote to a unit that was write-protected.
    Fault {
        /// The accessed unit.
        unit: u32,
        /// Whether the access was a write.
        write: bool,
    },
    /// A fetch into a frame has completed or failed.
    Fetched {
        /// The page that was fetched.
        page: PageId,
        /// False if the fetch failed. The frame's bytes are then invalid.
        ok: bool,
    },
    /// Pages were mapped, by an install or by a fetch without a frame.
    Arrived {
        /// First page.
        page: PageId,
        /// Number of pages. It exceeds 1 only for pages of one unit.
        count: u32,
        /// False if a page that had to be write-protected is open for writing, so that it may have been written to.
        certain: bool,
        /// False if the pages were not mapped.
        ok: bool,
    },
    /// A page's write protection was removed.
    Opened {
        /// The page.
        page: PageId,
    },
    /// An attempt to unmap a page ended. The page was to be evicted or discarded.
    TakenOut {
        /// The page.
        page: PageId,
        /// Whether the page was unmapped. If false, the unmapping failed and the page is still mapped as before.
        ok: bool,
        /// Whether the page must count as written. After a comparison ([`Bytes::Unknown`], [`Bytes::MaybeZero`]), true
        /// if the bytes differ. Otherwise true if the action said [`Bytes::Dirty`].
        changed: bool,
    },
    /// An attempt to unmap a page for reference sampling ended.
    Hidden {
        /// The page.
        page: PageId,
        /// False if the page is still mapped, unchanged.
        ok: bool,
    },
    /// Time passed. If the answer is [`crate::Progress::Continue`], the engine must send another tick immediately.
    Tick {
        /// The time, in milliseconds since any fixed point.
        now_ms: u64,
    },
    /// A write-back ended.
    WrittenBack {
        /// The page.
        page: PageId,
        /// The frame from which the bytes were written.
        frame: FrameId,
        /// False if the write failed, so that the server does not hold the bytes.
        ok: bool,
        /// False if the server held the same bytes before, so that nothing was written.
        changed: bool,
    },
    /// A frame's memory was returned to the system.
    FrameFreed {
        /// The frame.
        frame: FrameId,
    },
    /// The program no longer needs the bytes of these units, which read as zeroes from now on. A step covers at most
    /// [`limits::DISCARD_UNITS_MAX`] units, and [`crate::Pager::step`] returns where to continue.
    Discard {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
    },
    /// The program allocated these units. It owns all of them, and may read and write them. So their pages may be filled
    /// with zeroes before they are accessed. A discard ends this.
    Allocated {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
        /// False if the program may no longer access all of these units.
        is_open: bool,
    },
    /// The program freed these units and may use them again. Their bytes no longer matter. Resident pages stay while
    /// there is room, and go before all others. Absent pages are discarded. A step covers at most
    /// [`limits::DISCARD_UNITS_MAX`] units, like [`Event::Discard`]. The range is unused after the last step.
    Unused {
        /// First unit.
        first: u32,
        /// The unit at which this step starts.
        next: u32,
        /// One past the last unit.
        end: u32,
    },
    /// The program uses these units again after [`Event::Unused`]. A page that stayed has its old bytes. A page that
    /// left reads as zeroes. The program must not access the units before the answer is [`crate::Progress::Done`].
    Used {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
    },
    /// The pages of these units must not be evicted from now on, wherever they are. A huge page that lies only partly in
    /// the range is split. Only a discard, [`Event::Unused`] and [`Event::Unlock`] end this.
    /// A step covers at most [`limits::DISCARD_UNITS_MAX`] units, like [`Event::Discard`]. The caller has asked
    /// [`crate::Pager::may_lock`] before.
    Lock {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
    },
    /// Ends [`Event::Lock`] for these units, in steps like it.
    Unlock {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
    },
    /// The program will need these units soon.
    WillNeed {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
    },
    /// Makes these units safe to share with a fork's child: drops unused prefetched pages, and maps sampled pages
    /// again. Afterwards each page is untouched, resident or remote. A step covers at most
    /// [`limits::DISCARD_UNITS_MAX`] units, like [`Event::Discard`].
    Settle {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
        /// Whether resident pages must be evicted, too.
        leave: bool,
    },
    /// Evicts the pages of these units, because the program will not access them for long. Pages that are locked, in
    /// transit, or used by a transfer stay. The budget does not change. A step covers at most
    /// [`limits::DISCARD_UNITS_MAX`] units, like [`Event::Discard`].
    Park {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
    },
    /// The budget changed.
    Budget {
        /// The new budget.
        units: u32,
    },
    /// Sets the kind of a unit's page, for a policy that ranks kinds ([`crate::kinds::ByKind`]). The event has an
    /// effect only if the page is untouched.
    Kind {
        /// The unit.
        unit: u32,
        /// Its kind from now on.
        kind: Kind,
    },
    /// Protects all pages of a kind from eviction, or ends this protection.
    Hold {
        /// The kind.
        kind: Kind,
        /// Whether pages of this kind are protected from eviction.
        on: bool,
    },
}

/// The place that a fetch reads its bytes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The memory server.
    Server,
    /// No place: the page starts as zeroes.
    Zero,
    /// A frame that still holds the page's bytes and must not change.
    Frame(FrameId),
}

/// The pager's knowledge about a page's bytes when it evicts or discards the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// The server holds the bytes, or they are zeroes, or the program no longer needs them.
    Clean,
    /// Only local memory holds the bytes, so they must be saved.
    Dirty,
    /// The page was opened for writing on a prediction, or because it could not be protected. So it may be unchanged. The
    /// engine compares the bytes with the server's, now or in the write-back, and writes them only if they differ.
    Unknown,
    /// Like [`Bytes::Unknown`], but the page started as zeroes and the server does not hold it. The engine compares the
    /// bytes with zeroes.
    MaybeZero,
}

/// An action for the engine. The engine starts the actions of one step in their order. `Release` must take effect
/// before the next step begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Fetch pages. With a frame, the engine fills the frame and reports [`Event::Fetched`]. Without a frame, it brings
    /// the bytes straight to the pages' addresses and reports [`Event::Arrived`].
    Fetch {
        /// First page.
        page: PageId,
        /// Number of pages in the run. It exceeds 1 only without a frame.
        count: u32,
        /// Where the bytes come from.
        source: Source,
        /// The frame to fill. `None` means that the bytes go straight to the pages' addresses.
        frame: Option<FrameId>,
        /// Number of pages of the run that are mapped writable, counted from the first. It is 0 if there is a frame.
        writable: u32,
        /// Whether a thread waits for the first page.
        demand: bool,
    },
    /// Map a page whose bytes are in a filled frame, then report [`Event::Arrived`]. The frame is empty afterwards.
    Install {
        /// The page.
        page: PageId,
        /// The frame with its bytes.
        frame: FrameId,
        /// Whether the page is mapped writable.
        writable: bool,
    },
    /// Remove a page's write protection, then report [`Event::Opened`].
    Open {
        /// The page.
        page: PageId,
    },
    /// Unmap a page to evict or discard it, and save its bytes, in one atomic step. Then report [`Event::TakenOut`].
    TakeOut {
        /// The page.
        page: PageId,
        /// The frame that receives the bytes. With `None`, dirty bytes go straight to the server, and clean bytes are
        /// dropped.
        frame: Option<FrameId>,
        /// Whether and how the engine must save the bytes.
        bytes: Bytes,
    },
    /// Unmap a page so that its next access traps (a hint fault), then report [`Event::Hidden`]. The bytes stay in
    /// local memory: in the frame, or at the page's address if there is no frame.
    Hide {
        /// The page.
        page: PageId,
        /// The empty frame that receives the bytes. `None` means that the bytes stay at the page's address.
        frame: Option<FrameId>,
        /// Whether the page is protected against writes.
        is_clean: bool,
    },
    /// Map a page again that was unmapped for reference sampling, then report [`Event::Arrived`]. The frame, if any, is
    /// empty afterwards.
    Show {
        /// The page.
        page: PageId,
        /// The frame with the bytes. `None` means that the bytes stayed at the page's address.
        frame: Option<FrameId>,
        /// Whether the page is mapped writable.
        writable: bool,
    },
    /// Write a frame to the server, then report [`Event::WrittenBack`].
    WriteBack {
        /// The page.
        page: PageId,
        /// The frame with the bytes. They must not change until [`Event::WrittenBack`].
        frame: FrameId,
        /// Whether the server holds bytes of the page that may be the same. If they are, the engine need not write them.
        may_be_same: bool,
    },
    /// Let the server drop these units.
    Release {
        /// First unit.
        unit: u32,
        /// Number of units.
        count: u32,
    },
    /// Return a free frame's memory to the system, then report [`Event::FrameFreed`].
    FreeFrame {
        /// The frame.
        frame: FrameId,
    },
    /// Let the threads that wait for this page repeat their access. No other action for the page follows.
    Wake {
        /// The page.
        page: PageId,
    },
}

/// A bounded list of actions. It is reused from step to step.
#[derive(Debug)]
pub struct Actions {
    list: Vec<Action>,
}

impl Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

impl Actions {
    /// Makes an empty list whose capacity never has to grow.
    #[must_use]
    pub fn new() -> Self {
        Self { list: Vec::with_capacity(limits::ACTIONS_MAX) }
    }

    /// Adds an action.
    ///
    /// # Panics
    /// Panics if the list is full. [`limits`] rules this out at compile time.
    pub fn push(&mut self, action: Action) {
        assert!(self.list.len() < limits::ACTIONS_MAX, "a step answers with a bounded number of actions");
        self.list.push(action);
    }

    /// Extends the fetch at this index by one page. A writable page may only follow writable pages.
    pub(crate) fn extend_run(&mut self, index: usize, is_writable: bool) {
        if let Some(Action::Fetch { count, writable, .. }) = self.list.get_mut(index) {
            *count += 1;
            *writable += u32::from(is_writable);
        }
    }

    /// Returns the actions in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Action] {
        &self.list
    }

    /// Removes all actions and keeps the capacity.
    pub fn clear(&mut self) {
        self.list.clear();
    }
}
