//! The engine: drives the pager (a pure state machine) on a live program. The engine submits events to the pager. It
//! carries out the pager's actions through the view and the store, and reports the results of these actions to the
//! pager. The engine makes no decisions about pages.
//!
//! Any thread may submit an event: the faulting thread itself (sigbus and sigsegv mode), the handler thread (thread
//! mode), or a thread that sends pages to a server. The pager is locked only while it processes an event. The engine
//! carries out the pager's actions without the lock. This is sound because a page in transit belongs to the thread that
//! carries out its action. The engine allocates nothing after its construction. The engine takes no lock that the
//! program could hold. Callers outside signal handlers block signals before they call the engine.

mod bring;
mod fork;
mod lock;
mod lost;
mod out;
mod park;
#[cfg(test)]
mod world;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use hanare_paging::{Action, Actions, Event, PageId, Pager, Progress, State, limits};
use hanare_store::{Kind, Polled, Read, Store, Turn, Words};
use hanare_sys::futex::{self, LockCell};
use hanare_sys::map::{MapError, Mapping};
use hanare_sys::stack::Stacks;
use hanare_sys::thread;
use hanare_wire::Wait;

use crate::accounts::{self, Accounts};
use crate::counters::Counters;
use crate::span::Span;
use crate::turns::Turns;
use crate::view::{LiveView, View};
use crate::watchdog::Waits;
use hanare_sys::clock::now_ns;

pub(crate) use fork::Kept;
pub(crate) use park::Parking;

/// Number of work spaces. At most this many threads use the engine at the same time. Further threads wait.
pub(crate) const WORKS: usize = 32;
const WAIT_QUEUES: usize = 256;
/// Maximum number of ticks that one upkeep sends to the pager. A tick is an event that tells the pager the time. Each
/// tick unmaps at most [`limits::HIDES_MAX`] pages for reference sampling.
const TICKS_MAX: u32 = 1 << 16;
/// Number of short rounds in a thread's wait for a page. In a short round, the thread polls for its page and sleeps at
/// most 50 us. A later round lasts up to 2 ms.
const SPINS: u32 = 60;
/// Number of rounds of a wait after which the waiting thread reports to the watchdog.
const ROUNDS_UNWATCHED: u32 = 200;
/// A wait without progress counts as a hang after the longest silence allowed to a server, plus this many milliseconds.
const HANG_MARGIN_MS: u64 = 2_000;

/// An engine over a view and a store. Tests use a simulated view and store.
pub(crate) struct Engine<V = LiveView, S = Kind> {
    view: V,
    store: S,
    core: LockCell<Core>,
    /// Stacks in near memory. Signal handlers use them, because the program's alternate stacks may be too small.
    /// Threads whose own stack is in far memory use them too.
    stacks: Stacks,
    traps_by_signal: bool,
    works: LockCell<Vec<Work>>,
    /// Wait queues of threads that wait in their signal handlers for a page. Several blocks of units share one queue.
    /// The number in a queue grows when a page of these blocks arrives or changes state.
    wait_queues: [AtomicU32; WAIT_QUEUES],
    waiters: AtomicU32,
    pub(crate) waits: Waits,
    /// Time that threads of this process waited for pages, in nanoseconds.
    pub(crate) swap_ns: AtomicU64,
    /// Lets threads go on one after another where their pages do not fit together.
    pub(crate) turns: Turns,
    /// Notices pages that were dropped behind the engine's back.
    repeats: lost::Repeats,
    small_moves: bool,
    unit_bytes: usize,
    block_units: u32,
    units_max: u32,
    pub(crate) counters: &'static Counters,
}

/// The state that the pager's lock protects.
struct Core {
    pager: Pager,
    actions: Actions,
    accounts: Accounts,
}

/// The work space of one thread: its queued actions and its memory for page contents.
struct Work {
    /// The actions to carry out. The last element is the next action.
    todo: Vec<Todo>,
    /// The pages of the present batch of page-outs.
    leaving: Vec<Todo>,
    /// Address of a buffer with room for the largest page and for all bytes of a read.
    bounce: usize,
    /// Index of the first place of this work space. A place is memory to which a page is moved aside.
    places: usize,
    /// Whether the page of the last fault was local and only had to be opened for writing or mapped again.
    opened: bool,
}

/// An action to carry out. `units` is the length of the action's page in units.
#[derive(Clone, Copy)]
struct Todo {
    action: Action,
    units: u32,
}

/// The parts from which an engine is made.
pub(crate) struct Parts<V, S> {
    pub(crate) view: V,
    pub(crate) store: S,
    pub(crate) pager: Pager,
    pub(crate) small_moves: bool,
    pub(crate) unit_bytes: usize,
    pub(crate) block_units: u32,
    /// Bytes of local memory that the pager does not count.
    pub(crate) overhead_bytes: u64,
    /// Upper limit of the budget, in units.
    pub(crate) units_max: u32,
    /// Whether faults arrive as signals (sigbus and sigsegv mode).
    pub(crate) traps_by_signal: bool,
    pub(crate) counters: &'static Counters,
}

impl<V: View, S: Store> Engine<V, S> {
    pub(crate) fn new(parts: Parts<V, S>) -> Result<Self, MapError> {
        let bounce_bytes = (parts.unit_bytes * parts.block_units as usize).max(limits::RUN_BYTES_MAX as usize);
        let mut works = Vec::with_capacity(WORKS);
        for index in 0..WORKS {
            works.push(Work {
                todo: Vec::with_capacity(4 * limits::ACTIONS_MAX),
                leaving: Vec::with_capacity(limits::ACTIONS_MAX),
                bounce: Mapping::anonymous(bounce_bytes)?.leak(),
                places: index * limits::VICTIMS_MAX,
                opened: false,
            });
        }
        let accounts = Accounts::new(parts.counters, parts.unit_bytes, parts.overhead_bytes);
        Ok(Self {
            view: parts.view,
            store: parts.store,
            core: LockCell::new(Core { pager: parts.pager, actions: Actions::new(), accounts }),
            stacks: Stacks::new()?,
            traps_by_signal: parts.traps_by_signal,
            works: LockCell::new(works),
            wait_queues: [const { AtomicU32::new(0) }; WAIT_QUEUES],
            waiters: AtomicU32::new(0),
            waits: Waits::default(),
            swap_ns: AtomicU64::new(0),
            turns: Turns::new(),
            repeats: lost::Repeats::default(),
            small_moves: parts.small_moves,
            unit_bytes: parts.unit_bytes,
            block_units: parts.block_units,
            units_max: parts.units_max,
            counters: parts.counters,
        })
    }

    /// Runs `work`, the work of a fault handler. If faults arrive as signals, `work` runs on one of the engine's own
    /// stacks.
    pub(crate) fn on_own_stack(&self, work: impl FnOnce()) {
        if self.traps_by_signal { self.stacks.run(work) } else { work() }
    }

    /// Runs `work` on a stack in near memory, for a thread whose own stack is in far memory. The caller has blocked all
    /// signals of the thread.
    pub(crate) fn on_near_stack(&self, work: impl FnOnce()) {
        self.stacks.run(work);
    }

    pub(crate) fn view(&self) -> &V {
        &self.view
    }

    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    // ---- faults -----------------------------------------------------------------------------------------------------

    /// Resolves a fault of the calling thread. Returns when the thread can retry its access.
    pub(crate) fn fault_here(&self, addr: usize, write: Option<bool>) {
        let (thread, started) = (thread::gettid(), now_ns());
        let Some(unit) = self.unit_of(addr) else { return };
        self.turns.wait(thread, started);
        self.turns.begin(thread, unit, now_ns());
        // `write` is `None` if the machine does not tell whether the fault was a write. In this case a trap on a
        // readable page means a write.
        let write = write.unwrap_or_else(|| self.is_accessible(unit, false));
        let wait_queue = self.wait_queue(unit);
        let seen = wait_queue.load(Acquire);
        let opened = self.submit_fault(unit, write);
        self.wait_for(unit, write, seen);
        let now = now_ns();
        self.turns.end(thread, now);
        accounts::fault(self.counters, &self.swap_ns, opened, now - started);
    }

    /// Resolves a fault of `thread`, which is not the calling thread. The kernel resumes that thread when its page is
    /// present. Returns the unit, and whether the page was local and only had to be opened for writing or mapped again.
    /// Returns `None` if the address is not in far memory.
    pub(crate) fn fault_there(&self, thread: i32, addr: usize, write: bool) -> Option<(u32, bool)> {
        let unit = self.unit_of(addr)?;
        self.turns.begin(thread, unit, now_ns());
        Some((unit, self.submit_fault(unit, write)))
    }

    /// Checks whether the program can access this unit without a trap.
    pub(crate) fn is_accessible(&self, unit: u32, write: bool) -> bool {
        self.core.lock().pager.is_accessible(unit, write)
    }

    /// Wakes the threads that wait for a unit's page.
    pub(crate) fn wake_unit(&self, unit: u32) {
        let (page, units) = self.core.lock().pager.page_of(unit);
        self.view.wake(self.span(page, units));
    }

    /// Checks whether a fault at `addr` is resolved by copying a base page. The copy is fast, so the wake-up of the
    /// handler thread takes most of the time of such a fault.
    pub(crate) fn is_small(&self, addr: usize) -> bool {
        !self.small_moves && self.unit_of(addr).is_some_and(|unit| self.core.lock().pager.page_of(unit).1 == 1)
    }

    fn wait_for(&self, unit: u32, write: bool, seen: u32) {
        let wait_queue = self.wait_queue(unit);
        let mut rounds = 0u32;
        let mut watched = None;
        loop {
            if self.is_accessible(unit, write) || wait_queue.load(Acquire) != seen {
                drop(watched);
                return;
            }
            rounds += 1;
            if rounds == ROUNDS_UNWATCHED {
                watched = Some(self.waits.begin(now_ns()));
            }
            let wait = match rounds < SPINS {
                true => Wait::Spin { iterations: 20 },
                false => Wait::Block { timeout: Duration::from_millis(1) },
            };
            // Another thread may receive the page, or fill it from this process' own memory. That thread then notifies
            // the wait queue.
            if self.receive(wait) != Polled::Received {
                self.sleep_on(wait_queue, seen, if rounds < SPINS { 50 } else { 1000 });
            }
        }
    }

    fn sleep_on(&self, wait_queue: &AtomicU32, seen: u32, timeout_us: u64) {
        self.waiters.fetch_add(1, SeqCst);
        futex::wait(wait_queue, seen, Some(Duration::from_micros(timeout_us)));
        self.waiters.fetch_sub(1, SeqCst);
    }

    fn wait_queue(&self, unit: u32) -> &AtomicU32 {
        &self.wait_queues[(unit / self.block_units) as usize % WAIT_QUEUES]
    }

    fn unit_of(&self, addr: usize) -> Option<u32> {
        Some((self.view.offset_of(addr)? / self.unit_bytes) as u32)
    }

    // ---- the program's requests -------------------------------------------------------------------------------------

    /// Discards the units from `first` up to `end`, exclusive. The units read as zeroes from now on.
    pub(crate) fn discard(&self, first: u32, end: u32) {
        if first < end {
            self.in_steps(first, |first| Event::Discard { first, end });
        }
    }

    /// Submits an event for a range of units, from `first` on, until it is done. Waits for pages in transit.
    fn in_steps(&self, first: u32, event: impl Fn(u32) -> Event) {
        let mut next = first;
        let mut watched = None;
        loop {
            match self.submit_asking(event(next)) {
                Progress::Done => return,
                Progress::Continue(unit) => {
                    watched = None;
                    next = unit;
                }
                Progress::Busy(unit) => {
                    watched = watched.or_else(|| Some(self.waits.begin(now_ns())));
                    next = unit;
                    self.receive(Wait::Now);
                    let wait_queue = self.wait_queue(unit);
                    self.sleep_on(wait_queue, wait_queue.load(Acquire), 200);
                }
            }
        }
    }

    /// Tells the pager that the program has allocated these units, or that it may no longer access all of them.
    pub(crate) fn allocated(&self, (first, end): (u32, u32), is_open: bool) {
        if first < end {
            self.submit(Event::Allocated { first, end, is_open });
        }
    }

    /// Marks the units as unused. They are resident as before while there is room, and read as zeroes after that.
    pub(crate) fn unuse(&self, (first, end): (u32, u32)) {
        let mut next = first;
        while let Progress::Continue(unit) = self.submit_asking(Event::Unused { first, next, end }) {
            next = unit;
        }
    }

    /// Ends the state of [`Engine::unuse`]. Waits while a page is being dropped.
    pub(crate) fn reuse(&self, (first, end): (u32, u32)) {
        let mut next = first;
        while next < end {
            match self.submit_asking(Event::Used { first: next, end }) {
                Progress::Done => break,
                Progress::Continue(unit) => next = unit,
                Progress::Busy(unit) => {
                    next = unit;
                    self.settle(unit);
                }
            }
        }
    }

    /// Returns whether all of these units are resident.
    pub(crate) fn are_resident(&self, (first, end): (u32, u32)) -> bool {
        let core = self.core.lock();
        (first..end).all(|unit| core.pager.state_of(unit) == State::Resident)
    }

    /// Checks whether a unit was not accessed since its allocation or its last discard. Such a unit reads as zeroes.
    pub(crate) fn is_untouched(&self, unit: u32) -> bool {
        self.core.lock().pager.state_of(unit) == State::Untouched
    }

    /// Returns three figures in bytes: the far memory that was accessed, the server room that this memory occupies or
    /// will need, and the budget of local memory.
    pub(crate) fn touched_placed_and_budget_bytes(&self) -> (u64, u64, u64) {
        let core = self.core.lock();
        let bytes = |units: u32| u64::from(units) * self.unit_bytes as u64;
        let Core { pager, .. } = &*core;
        (bytes(pager.touched_units()), bytes(pager.placed_units()), bytes(pager.budget_units()))
    }

    /// Checks whether any page is in transit.
    pub(crate) fn is_moving(&self) -> bool {
        self.core.lock().pager.is_moving()
    }

    /// Waits while the page of this unit is in transit.
    pub(crate) fn settle(&self, unit: u32) {
        let moving = || {
            let core = self.core.lock();
            let state = core.pager.state_of(core.pager.page_of(unit).0.0);
            !matches!(state, State::Untouched | State::Remote | State::Resident | State::Staged)
        };
        let _watched = self.waits.begin(now_ns());
        while moving() {
            self.receive(Wait::Now);
            let wait_queue = self.wait_queue(unit);
            self.sleep_on(wait_queue, wait_queue.load(Acquire), 200);
        }
    }

    pub(crate) fn will_need(&self, offset: usize, len: usize) {
        let (first, end) = (offset / self.unit_bytes, (offset + len).div_ceil(self.unit_bytes));
        self.submit(Event::WillNeed { first: first as u32, end: end as u32 });
    }

    pub(crate) fn set_budget(&self, bytes: u64) {
        let units = (bytes / self.unit_bytes as u64)
            .clamp(u64::from(limits::BUDGET_PAGES_MIN), u64::from(self.units_max)) as u32;
        self.submit(Event::Budget { units });
    }

    // ---- events and actions -----------------------------------------------------------------------------------------

    /// Submits an event to the pager and carries out all actions that follow from the event.
    pub(crate) fn submit(&self, event: Event) {
        self.submit_asking(event);
    }

    fn submit_fault(&self, unit: u32, write: bool) -> bool {
        let mut work = self.take_work();
        work.opened = false;
        self.step(&[Event::Fault { unit, write }], &mut work);
        let opened = work.opened;
        self.carry_out(&mut work);
        self.works.lock().push(work);
        opened
    }

    fn submit_asking(&self, event: Event) -> Progress {
        let mut work = self.take_work();
        let progress = self.step(&[event], &mut work);
        self.carry_out(&mut work);
        self.works.lock().push(work);
        progress
    }

    fn take_work(&self) -> Work {
        loop {
            if let Some(work) = self.works.lock().pop() {
                return work;
            }
            // All work spaces are in use. Each thread returns its work space after a bounded time.
            std::thread::yield_now();
        }
    }

    /// Submits events to the pager in order. Queues the pager's actions before the actions already in the queue.
    fn step(&self, events: &[Event], work: &mut Work) -> Progress {
        let mut progress = Progress::Done;
        let mut core = self.core.lock();
        let Core { pager, actions, accounts } = &mut *core;
        let at = work.todo.len();
        for &event in events {
            if is_completion(event) {
                self.waits.completed();
            }
            actions.clear();
            progress = pager.step(event, actions);
            for &action in actions.as_slice() {
                work.opened |=
                    matches!((event, action), (Event::Fault { .. }, Action::Open { .. } | Action::Show { .. }));
                if let Action::Release { unit, count } = action {
                    // The store releases the units while the pager is locked. Otherwise a later write-back of a unit
                    // could reach the store first, and the release would drop the new bytes.
                    self.store.release(unit, count);
                } else {
                    work.todo.push(Todo { action, units: pager.page_of(page_of(action)).1 });
                }
            }
        }
        accounts.stepped(pager);
        drop(core);
        work.todo[at..].reverse();
        progress
    }

    fn carry_out(&self, work: &mut Work) {
        while let Some(todo) = work.todo.pop() {
            let units = todo.units;
            match todo.action {
                Action::Fetch { page, count, source, frame, writable, .. } => {
                    let read = Read { page, count, bytes: self.bytes(units * count) as u32, frame, writable };
                    self.fetch(read, source, work);
                }
                Action::Install { page, frame, writable } => {
                    let span = self.span(page, units);
                    // SAFETY: the page is in transit and the frame is filled. The pager reserved both for this action,
                    // so no other call uses them.
                    let certain = unsafe { self.view.move_in(span, frame, writable) };
                    self.step(&[Event::Arrived { page, count: 1, certain, ok: true }], work);
                    self.notify(page, 1);
                }
                Action::Hide { .. } => self.hide(todo, work),
                Action::Show { page, frame, writable } => {
                    let span = self.span(page, units);
                    let certain = match frame {
                        // SAFETY: the page is in transit and the frame is filled. The pager reserved both for this
                        // action, so no other call uses them.
                        Some(frame) => unsafe { self.view.move_in(span, frame, writable) },
                        None => self.view.show(span, writable),
                    };
                    self.step(&[Event::Arrived { page, count: 1, certain, ok: true }], work);
                    self.notify(page, 1);
                }
                Action::Open { page } => {
                    self.view.open(self.span(page, units));
                    self.step(&[Event::Opened { page }], work);
                    self.notify(page, 1);
                }
                Action::TakeOut { .. } => self.take_out(todo, work),
                Action::WriteBack { .. } => self.write_back(todo.action, units, work),
                Action::FreeFrame { frame } => {
                    self.view.empty_frame(frame);
                    self.step(&[Event::FrameFreed { frame }], work);
                }
                Action::Wake { page } => {
                    self.wake(page, units, work);
                    self.notify(page, 1);
                }
                Action::Release { unit, count } => self.store.release(unit, count),
            }
        }
    }

    /// Resolves a trap on a page that is in the program's view. In sigsegv mode, a page also traps after the program
    /// changed its protection by `mprotect`. This function then makes the page accessible again. The pager is locked
    /// meanwhile, so that no thread evicts the page. If the page cannot be write-protected again, the function reports
    /// a write to the pager. The pager then opens the page for writing.
    fn wake(&self, page: PageId, units: u32, work: &mut Work) {
        let span = self.span(page, units);
        let core = self.core.lock();
        let is_in_view = core.pager.is_accessible(page.0, false);
        // While the pager is locked, a page that it takes for accessible is in view.
        if is_in_view
            && self.repeats.are_many(page)
            && let Some(addr) = self.view.lost_page(span)
        {
            lost::end(addr);
        }
        let is_shown = !is_in_view || self.view.show_again(span, core.pager.is_accessible(page.0, true));
        drop(core);
        self.view.wake(span);
        if !is_shown {
            self.step(&[Event::Fault { unit: page.0, write: true }], work);
        }
    }

    fn bytes(&self, units: u32) -> usize {
        units as usize * self.unit_bytes
    }

    fn span(&self, page: PageId, units: u32) -> Span {
        Span { offset: self.bytes(page.0), len: self.bytes(units) }
    }

    // ---- upkeep -----------------------------------------------------------------------------------------------------

    /// Does the periodic upkeep: sends the pager the time, and lets the store maintain its links.
    pub(crate) fn keep(&self) {
        let now_ms = now_ns() / 1_000_000;
        // Each tick unmaps a limited number of pages. If `TICKS_MAX` ticks do not suffice, the other pages wait for the
        // next upkeep.
        for _ in 0..TICKS_MAX {
            if self.submit_asking(Event::Tick { now_ms }) == Progress::Done {
                break;
            }
        }
        self.poll(Turn::Upkeep);
    }

    /// Writes the state of the pager and of the store's links, for the message that ends a hanging run.
    pub(crate) fn write_stand(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        match self.core.try_lock() {
            Some(core) => core.pager.write_stand(out)?,
            None => out.write_str("the pager is locked")?,
        }
        self.store.tell(Words::Stand, out)
    }

    /// Adds the events since the last call to the shared counters.
    pub(crate) fn publish(&self) {
        let mut core = self.core.lock();
        let Core { pager, accounts, .. } = &mut *core;
        accounts.publish(pager, self.swap_ns.load(Relaxed));
    }
}

impl<V> Engine<V, Kind> {
    /// Returns the milliseconds without progress after which a wait counts as a hang.
    pub(crate) fn hang_ms(&self) -> u64 {
        self.store.silent().as_millis() as u64 + HANG_MARGIN_MS
    }
}

/// Checks whether an event reports that an action succeeded.
fn is_completion(event: Event) -> bool {
    match event {
        Event::Fetched { ok, .. }
        | Event::Arrived { ok, .. }
        | Event::TakenOut { ok, .. }
        | Event::Hidden { ok, .. }
        | Event::WrittenBack { ok, .. } => ok,
        Event::Opened { .. } => true,
        _ => false,
    }
}

/// Returns how many bytes of a read become visible to the program as writable pages.
fn writable_bytes(read: &Read) -> usize {
    read.bytes as usize / read.count as usize * read.writable as usize
}

/// Returns the first unit of an action's page. Returns 0 for an action without a page.
fn page_of(action: Action) -> u32 {
    match action {
        Action::Fetch { page, .. }
        | Action::Install { page, .. }
        | Action::Hide { page, .. }
        | Action::Show { page, .. }
        | Action::Open { page }
        | Action::TakeOut { page, .. }
        | Action::WriteBack { page, .. }
        | Action::Wake { page } => page.0,
        Action::Release { unit, .. } => unit,
        Action::FreeFrame { .. } => 0,
    }
}
