//! What the pager is told, and what it answers.

use crate::limits;
use crate::units::{FrameId, PageId};

/// Something that happened. Units and pages are indices into the far space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread touched a unit that was absent, or wrote to one that was protected.
    Fault {
        /// The touched unit.
        unit: u32,
        /// Whether the touch was a write.
        write: bool,
    },
    /// The bytes of a fetch with a frame have arrived in it (or the fetch failed).
    Fetched {
        /// The page that was fetched.
        page: PageId,
        /// False: nothing arrived, the frame's bytes mean nothing.
        ok: bool,
    },
    /// Pages came into view: an install was done, or a fetch without a frame.
    Arrived {
        /// First page.
        page: PageId,
        /// Number of pages, each of one unit unless it is 1.
        count: u32,
        /// False: a write may have slipped in before the page was protected.
        certain: bool,
        /// False: the pages did not come into view.
        ok: bool,
    },
    /// A page was opened for writing.
    Opened {
        /// The page.
        page: PageId,
    },
    /// A page was taken out of view (or could not be).
    TakenOut {
        /// The page.
        page: PageId,
        /// False: it is still in view, unchanged.
        ok: bool,
        /// Answers [`Bytes::Unknown`] and [`Bytes::MaybeZero`]: whether they differ. As asked, otherwise.
        changed: bool,
    },
    /// A page was taken out of sight (or could not be).
    Hidden {
        /// The page.
        page: PageId,
        /// False: it is still in view, unchanged.
        ok: bool,
    },
    /// Time passed. [`crate::Progress::Continue`] says that there is more to do at once, by another of these.
    Tick {
        /// Milliseconds since any fixed point.
        now_ms: u64,
    },
    /// A write-back ended.
    WrittenBack {
        /// The page.
        page: PageId,
        /// The frame it was written from.
        frame: FrameId,
        /// False: the server does not hold the bytes.
        ok: bool,
    },
    /// A frame's memory was given back.
    FrameFreed {
        /// The frame.
        frame: FrameId,
    },
    /// The program no longer needs these units' bytes; they read as zeroes from now on. Handles at most
    /// [`limits::DISCARD_UNITS_MAX`] units; [`crate::Pager::step`] returns where to go on.
    Discard {
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
    /// These units are to come to rest: what was fetched ahead is given up, what is hidden is shown again. Handles at most
    /// [`limits::DISCARD_UNITS_MAX`] units, as [`Event::Discard`] does.
    Settle {
        /// First unit.
        first: u32,
        /// One past the last unit.
        end: u32,
        /// Whether what is in view is to leave it.
        leave: bool,
    },
    /// The budget changed, in units.
    Budget {
        /// The new budget.
        units: u32,
    },
}

/// Where the bytes of a fetch come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The memory server.
    Server,
    /// Nowhere: the page is zeroes.
    Zero,
    /// A frame that still holds them and must not be disturbed.
    Frame(FrameId),
}

/// What is known of a page's bytes as it leaves the view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// The server holds them, or they are zeroes, or nobody wants them.
    Clean,
    /// Only this page has them.
    Dirty,
    /// The page was opened for writing on a guess: compare them with the server's, and write them only if they differ.
    Unknown,
    /// The same of a page that came as zeroes and that the server does not hold: compare them with zeroes.
    MaybeZero,
}

/// Something to be done. Actions of one step are to be started in their order; `Release` must take effect before the
/// next step is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Bring bytes in. With a frame: into the frame, then tell [`Event::Fetched`]. Without: straight into view, then tell
    /// [`Event::Arrived`].
    Fetch {
        /// First page.
        page: PageId,
        /// Pages in the run; more than 1 only without a frame.
        count: u32,
        /// Where the bytes come from.
        source: Source,
        /// The frame to fill.
        frame: Option<FrameId>,
        /// How many pages of the run come into view writable: those from the first on (only without a frame).
        writable: u32,
        /// Whether a thread waits for the first page.
        demand: bool,
    },
    /// Put a filled frame into view, then tell [`Event::Arrived`]. The frame is empty afterwards.
    Install {
        /// The page.
        page: PageId,
        /// The frame with its bytes.
        frame: FrameId,
        /// Whether it comes into view writable.
        writable: bool,
    },
    /// Open a protected page for writing, then tell [`Event::Opened`].
    Open {
        /// The page.
        page: PageId,
    },
    /// Take a page out of view in one atomic step, then tell [`Event::TakenOut`].
    TakeOut {
        /// The page.
        page: PageId,
        /// Where its bytes go; none: straight to the server when dirty, nowhere when clean.
        frame: Option<FrameId>,
        /// What is known of its bytes.
        bytes: Bytes,
    },
    /// Take a page out of sight so that its next touch traps, then tell [`Event::Hidden`]. Its bytes stay local: in the
    /// frame, or in place where there is none.
    Hide {
        /// The page.
        page: PageId,
        /// The empty frame that takes its bytes.
        frame: Option<FrameId>,
        /// Whether it is protected against writes, and not open.
        is_clean: bool,
    },
    /// Bring a hidden page back into view, then tell [`Event::Arrived`]. The frame is empty afterwards.
    Show {
        /// The page.
        page: PageId,
        /// The frame with its bytes; none when they stayed in place.
        frame: Option<FrameId>,
        /// Whether it comes into view writable.
        writable: bool,
    },
    /// Write a frame to the server, then tell [`Event::WrittenBack`].
    WriteBack {
        /// The page.
        page: PageId,
        /// The frame with its bytes, undisturbed until then.
        frame: FrameId,
    },
    /// The server may forget these units.
    Release {
        /// First unit.
        unit: u32,
        /// Number of units.
        count: u32,
    },
    /// Give a free frame's memory back, then tell [`Event::FrameFreed`].
    FreeFrame {
        /// The frame.
        frame: FrameId,
    },
    /// Nothing is missing: let the threads that wait for this page try again.
    Wake {
        /// The page.
        page: PageId,
    },
}

/// A bounded list of actions, reused from step to step.
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
    /// An empty list with all the room it will ever need.
    #[must_use]
    pub fn new() -> Self {
        Self { list: Vec::with_capacity(limits::ACTIONS_MAX) }
    }

    /// Adds an action.
    ///
    /// # Panics
    /// When the list is full, which [`limits`] rules out at compile time.
    pub fn push(&mut self, action: Action) {
        assert!(self.list.len() < limits::ACTIONS_MAX, "a step answers with a bounded number of actions");
        self.list.push(action);
    }

    /// Lets one more page travel with the fetch at this index; one that comes writable follows others that do.
    pub(crate) fn extend_run(&mut self, index: usize, is_writable: bool) {
        if let Some(Action::Fetch { count, writable, .. }) = self.list.get_mut(index) {
            *count += 1;
            *writable += u32::from(is_writable);
        }
    }

    /// The actions, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Action] {
        &self.list
    }

    /// Forgets all actions, keeping the room.
    pub fn clear(&mut self) {
        self.list.clear();
    }
}
