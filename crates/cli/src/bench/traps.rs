//! The cost of traps and moves by userfaultfd on memory of this process. A pager adds decisions and transfers to this
//! cost.
#![allow(unsafe_code, reason = "resolves faults of its own regions by itself")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

use hanare_sys::batch::DontNeedBatch;
use hanare_sys::features::Features;
use hanare_sys::map::{self, Advice, MapError, Mapping};
use hanare_sys::signal::{self, FaultInfo, SignalError, Verdict};
use hanare_sys::uffd::{
    CopyMode, EVENTS_PER_READ, Event, IoctlResult, MoveMode, RegisterMode, Uffd, UffdError, feature,
};
use hanare_sys::{Errno, thread};
use thiserror::Error;

use super::floor::{Floors, median_us};

const PAGE: usize = 4 << 10;
const HUGE: usize = 2 << 20;
/// Number of pages accessed for one figure.
const PAGES: usize = 2048;
/// Number of ranges that are dropped in one call.
const DROPPED_TOGETHER: usize = 64;
const SIGBUS_NUMBER: i32 = signal_hook::consts::SIGBUS;
const MISSING: RegisterMode = RegisterMode { missing: true, wp: false, minor: false };

/// Why traps were not measured.
#[derive(Debug, Error)]
pub(crate) enum TrapError {
    /// Memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Userfaultfd could not be opened.
    #[error(transparent)]
    Uffd(#[from] UffdError),
    /// The signal handler could not be installed.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// The kernel refused a request.
    #[error("cannot measure {what}: {errno}; 'hanare doctor' tells what this machine allows")]
    Refused {
        /// The request.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A move lost bytes.
    #[error(
        "a moved page at {addr:#x} does not hold what it held before; this kernel's UFFDIO_MOVE is not to be trusted"
    )]
    Torn {
        /// The page.
        addr: usize,
    },
}

/// Measures what the machine supports. The other figures stay absent.
pub(super) fn measure(features: &Features, floors: &mut Floors) -> Result<(), TrapError> {
    if features.missing {
        let copy_us = copies(features)?;
        floors.put("copy_4k_us", copy_us);
        if features.sigbus {
            floors.put("trap_us", (sigbus_touches_us(features)? - copy_us).max(0.0));
        }
        floors.put("trap_thread_us", (thread_touches_us(features)? - copy_us).max(0.0));
    }
    if features.missing && features.move_ {
        moves(features, floors, ["move_in_4k_us", "move_out_4k_us"], PAGE, 1024)?;
        moves(features, floors, ["move_in_64k_us", "move_out_64k_us"], 64 << 10, 256)?;
        if features.thp.usable() {
            moves(features, floors, ["move_in_2m_us", "move_out_2m_us"], HUGE, 32)?;
        }
    }
    floors.put("dontneed_4k_us", drops(features)?);
    Ok(())
}

fn done(what: &'static str, result: IoctlResult) -> Result<(), TrapError> {
    result.errno.map_or(Ok(()), |errno| Err(TrapError::Refused { what, errno: Errno(errno) }))
}

/// A region whose missing pages trap, and one page of bytes that resolves the traps.
struct Trapped {
    uffd: Uffd,
    far: Mapping,
    source: Mapping,
}

impl Trapped {
    fn new(features: &Features, wanted: u64) -> Result<Self, TrapError> {
        let uffd = Uffd::open(features.access, wanted)?;
        let far = Mapping::reserve(PAGES * PAGE, PAGE)?;
        uffd.register(far.addr(), far.len(), MISSING)?;
        let source = Mapping::anonymous(PAGE)?;
        write(source.addr());
        let trapped = Self { uffd, far, source };
        // This fills and then drops every page. So the page tables exist and free pages are at hand, as in a pager that
        // has run for a while.
        (0..PAGES).try_for_each(|page| done("COPY", trapped.copy_to(trapped.page(page))))?;
        trapped.drop_pages()?;
        Ok(trapped)
    }

    fn page(&self, number: usize) -> usize {
        self.far.addr() + number * PAGE
    }

    fn copy_to(&self, addr: usize) -> IoctlResult {
        // SAFETY: callers pass only pages of `far`, which no other code uses. `source` holds a page.
        unsafe { self.uffd.copy(addr, self.source.addr(), PAGE, CopyMode::default()) }
    }

    fn access_us(&self) -> Result<f64, TrapError> {
        self.drop_pages()?;
        median_us(PAGES, |page| {
            read(self.page(page));
            Ok(())
        })
    }

    /// Makes every page missing.
    fn drop_pages(&self) -> Result<(), TrapError> {
        // SAFETY: `far` owns the range, and its contents are not needed any more.
        unsafe { map::advise(self.far.addr(), self.far.len(), Advice::DontNeed) }
            .map_err(|errno| TrapError::Refused { what: "accesses", errno })
    }
}

/// Returns the time of a COPY request alone, in microseconds.
fn copies(features: &Features) -> Result<f64, TrapError> {
    let trapped = Trapped::new(features, 0)?;
    median_us(PAGES, |page| done("COPY", trapped.copy_to(trapped.page(page))))
}

/// The region that the SIGBUS handler resolves. It is never freed, because the handler may read it at any time.
static SIGBUS: OnceLock<Trapped> = OnceLock::new();

fn resolve(fault: FaultInfo) -> Verdict {
    match SIGBUS.get() {
        Some(trapped) if (trapped.far.addr()..trapped.far.end()).contains(&fault.addr) => {
            if trapped.copy_to(fault.addr & !(PAGE - 1)).is_ok() { Verdict::Handled } else { Verdict::NotOurs }
        }
        _ => Verdict::NotOurs,
    }
}

fn sigbus_touches_us(features: &Features) -> Result<f64, TrapError> {
    if SIGBUS.get().is_none() {
        // Ignored: only one thread measures, so no other thread can have set the region.
        let _ = SIGBUS.set(Trapped::new(features, feature::SIGBUS)?);
    }
    let Some(trapped) = SIGBUS.get() else { return Ok(0.0) };
    signal::install(SIGBUS_NUMBER, resolve)?;
    let accessed = trapped.access_us();
    signal::uninstall(SIGBUS_NUMBER)?;
    accessed
}

/// Returns the time of an access that a handler thread resolves, in microseconds. The handler thread runs on the CPU of
/// the accessing thread, and sleeps until the access.
fn thread_touches_us(features: &Features) -> Result<f64, TrapError> {
    let trapped = Trapped::new(features, 0)?;
    let cpu = thread::current_cpu();
    let pin = |errno| TrapError::Refused { what: "accesses on one CPU", errno };
    thread::set_affinity(&[cpu]).map_err(pin)?;
    let stop = AtomicBool::new(false);
    let accessed = std::thread::scope(|scope| {
        let handler = scope.spawn(|| serve(&trapped, cpu, &stop));
        let accessed = trapped.access_us();
        stop.store(true, Release);
        handler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(accessed)
    });
    thread::set_affinity_all().map_err(pin)?;
    accessed
}

fn serve(trapped: &Trapped, cpu: usize, stop: &AtomicBool) -> Result<(), TrapError> {
    let mut outcome =
        thread::set_affinity(&[cpu]).map_err(|errno| TrapError::Refused { what: "accesses on one CPU", errno });
    let mut events = [Event::EMPTY; EVENTS_PER_READ];
    while !stop.load(Acquire) {
        let refused = |errno| TrapError::Refused { what: "its own traps", errno };
        let count = trapped.uffd.read_events(&mut events).map_err(refused)?;
        for event in &events[..count] {
            if let Event::Fault { addr, .. } = *event {
                let copied = done("COPY", trapped.copy_to(addr));
                if copied.is_err() {
                    // Without this, the accessing thread would wait for ever.
                    let _ = trapped.uffd.unregister(trapped.far.addr(), trapped.far.len());
                    outcome = copied;
                }
            }
        }
        if count == 0 {
            trapped.uffd.wait(None, Some(Duration::from_millis(5))).map_err(refused)?;
        }
    }
    outcome
}

/// Times moves of pages of one size from a pool into a region and back.
fn moves(
    features: &Features,
    floors: &mut Floors,
    [name_in, name_out]: [&'static str; 2],
    size: usize,
    count: usize,
) -> Result<(), TrapError> {
    let uffd = Uffd::open(features.access, feature::MOVE)?;
    let region = Mapping::reserve(size * count, HUGE)?;
    let pool = Mapping::reserve(size * count, HUGE)?;
    let advice = if size == HUGE { Advice::HugePage } else { Advice::NoHugePage };
    for mapping in [&region, &pool] {
        // SAFETY: `mapping` owns the range, and the advice changes no contents. If the advice is refused, moves are
        // only slower.
        let _ = unsafe { map::advise(mapping.addr(), mapping.len(), advice) };
    }
    // This must precede the registration of the pool. After the registration, a missing page would trap.
    (0..pool.len()).step_by(PAGE).for_each(|at| write(pool.addr() + at));
    uffd.register(region.addr(), region.len(), MISSING)?;
    uffd.register(pool.addr(), pool.len(), MISSING)?;
    let step = |to: &Mapping, from: &Mapping, round: usize| {
        let (to, from) = (to.addr() + round * size, from.addr() + round * size);
        // SAFETY: both ranges lie in mappings of this function, which no other code uses.
        done("MOVE", unsafe { uffd.move_pages(to, from, size, MoveMode::default()) })
    };
    floors.put(name_in, median_us(count, |round| step(&region, &pool, round))?);
    floors.put(name_out, median_us(count, |round| step(&pool, &region, round))?);
    let torn = (0..pool.len()).step_by(PAGE).map(|at| pool.addr() + at).find(|&addr| read(addr) != addr as u64);
    torn.map_or(Ok(()), |addr| Err(TrapError::Torn { addr }))
}

/// Returns the time per page of a call that drops many small pages, in microseconds.
fn drops(features: &Features) -> Result<f64, TrapError> {
    const CALLS: usize = 32;
    let memory = Mapping::reserve(2 * CALLS * DROPPED_TOGETHER * PAGE, PAGE)?;
    // SAFETY: `memory` owns the range, and the advice changes no contents.
    let _ = unsafe { map::advise(memory.addr(), memory.len(), Advice::NoHugePage) };
    // Only every other page is used, so that no two ranges merge.
    let page = |number: usize| memory.addr() + 2 * number * PAGE;
    (0..CALLS * DROPPED_TOGETHER).for_each(|number| write(page(number)));
    let mut batch = DontNeedBatch::new(features.process_madvise);
    let call_us = median_us(CALLS, |call| {
        for number in 0..DROPPED_TOGETHER {
            if !batch.push(page(call * DROPPED_TOGETHER + number), PAGE) {
                break;
            }
        }
        let mut refusal = None;
        // SAFETY: the ranges in the batch lie in `memory`, and their contents are not needed any more.
        unsafe { batch.flush(|_, _, errno| refusal = Some(errno)) };
        refusal.map_or(Ok(()), |errno| Err(TrapError::Refused { what: "dropped pages", errno }))
    })?;
    Ok(call_us / DROPPED_TOGETHER as f64)
}

fn read(addr: usize) -> u64 {
    let word: *const u64 = std::ptr::with_exposed_provenance(addr);
    // SAFETY: callers pass only aligned addresses in mappings of this module.
    unsafe { word.read_volatile() }
}

/// Writes a page's address into its first word.
fn write(addr: usize) {
    let word: *mut u64 = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: callers pass only aligned addresses in mappings of this module.
    unsafe { word.write_volatile(addr as u64) };
}
