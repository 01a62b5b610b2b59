//! Records the events of a running pager in a trace file, without making the pager wait.
//!
//! The recorder pushes records into a ring buffer of fixed size. The keeper (a background thread) moves them to the
//! file every few milliseconds. The rest is moved at the end of the run. If the ring is full or the file reaches its
//! bound, recording ends, and the trace says so. So a trace is always the beginning of a run, without gaps.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use hanare_paging::policy::Policy;
use hanare_paging::trace::{Framer, Header, Recorder, Sink, names_page};
use hanare_sys::descriptors;
use hanare_sys::futex::LockCell;
use hanare_sys::map::{MapError, Mapping};

use crate::fatal;
use crate::plan::Plan;
use hanare_settings::{Mode, Settings};
use hanare_sys::clock::now_ns;

/// Size of the ring in bytes. It holds the records of about a hundred thousand faults. This is enough for some tenths
/// of a second in which the file is slow.
const RING_BYTES: usize = 8 << 20;
/// Nanoseconds between two writes to the file.
const FLUSH_NS: u64 = 20_000_000;
/// Maximum number of bytes moved from the ring to the file in one step.
const PART_BYTES: usize = 64 << 10;

/// A ring buffer with one writer and one reader. The writer is the recorder, whose calls the pager's lock serialises.
/// The reader is the thread that holds the lock of [`Output`]. The writer advances `head` by whole records only, so the
/// reader never sees a part of a record.
struct Ring {
    bytes: *mut u8,
    /// Number of bytes ever written.
    head: AtomicUsize,
    /// Number of bytes ever read.
    tail: AtomicUsize,
    /// Whether a record about a page was written. Until then, no file is opened.
    worthwhile: AtomicBool,
    /// Whether further records are refused.
    closed: AtomicBool,
    /// Whether a record was refused for want of room.
    overrun: AtomicBool,
}

// SAFETY: `bytes` points to a mapping that only this ring uses and that is never unmapped. Writer and reader access
// disjoint parts of it, which `head` and `tail` separate.
unsafe impl Send for Ring {}
// SAFETY: all fields but `bytes` are atomic. Writer and reader access disjoint parts of `bytes`, which `head` and
// `tail` separate.
unsafe impl Sync for Ring {}

impl Ring {
    fn new() -> Result<Self, MapError> {
        Ok(Self {
            bytes: Mapping::anonymous(RING_BYTES)?.leak() as *mut u8,
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            worthwhile: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
        })
    }

    /// Writes a record to the ring. Returns false if the ring is closed or full. Only the writer may call this.
    fn push(&self, record: &[u8]) -> bool {
        let head = self.head.load(Relaxed);
        if self.closed.load(Acquire) {
            return false;
        }
        if head - self.tail.load(Acquire) + record.len() > RING_BYTES {
            self.overrun.store(true, Release);
            return false;
        }
        for (index, &byte) in record.iter().enumerate() {
            // SAFETY: the index is less than the length of the mapping. The byte is free, so only the writer accesses
            // it.
            unsafe { self.bytes.add((head + index) % RING_BYTES).write(byte) };
        }
        self.head.store(head + record.len(), Release);
        if !self.worthwhile.load(Relaxed) && names_page(record) {
            self.worthwhile.store(true, Release);
        }
        true
    }

    /// Copies the oldest bytes of the ring to `part` without removing them. Returns their number. Only the reader may
    /// call this.
    fn peek(&self, part: &mut [u8]) -> usize {
        let tail = self.tail.load(Relaxed);
        let len = (self.head.load(Acquire) - tail).min(part.len());
        let first = len.min(RING_BYTES - tail % RING_BYTES);
        // SAFETY: both source ranges lie inside the mapping and were written before `head` was advanced. `part` has
        // room for `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.bytes.add(tail % RING_BYTES), part.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(self.bytes, part.as_mut_ptr().add(first), len - first);
        }
        len
    }

    fn take(&self, len: usize) {
        self.tail.store(self.tail.load(Relaxed) + len, Release);
    }
}

struct ToRing(&'static Ring);

impl Sink for ToRing {
    fn push(&mut self, record: &[u8]) -> bool {
        self.0.push(record)
    }
}

struct Tracing {
    ring: &'static Ring,
    output: LockCell<Output>,
    flushed_ns: AtomicU64,
}

struct Output {
    path: PathBuf,
    header: Header,
    bytes_max: u64,
    part: Vec<u8>,
    file: Target,
}

enum Target {
    /// The file is not open yet, because no page was recorded.
    Untouched,
    /// The file belongs to this process. The framer packs the records into chunks of the trace format.
    Open(File, Framer),
    /// Another process records, the file is full, or the trace has ended.
    Over,
}

static TRACING: AtomicPtr<Tracing> = AtomicPtr::new(std::ptr::null_mut());

fn tracing() -> Option<&'static Tracing> {
    // SAFETY: `TRACING` is null or points to a leaked box, which is never freed.
    unsafe { TRACING.load(Acquire).as_ref() }
}

/// Wraps `policy` in a recorder that records its events and actions from now on. The trace file at `path` is opened
/// when the first page is recorded. Fails if there is no memory for the ring.
pub(crate) fn record(
    policy: Box<dyn Policy>,
    path: &Path,
    settings: &Settings,
    plan: &Plan,
    mode: Mode,
) -> Result<Box<dyn Policy>, MapError> {
    let geometry = plan.config.geometry;
    let header = Header {
        unit_bytes: geometry.unit_bytes,
        block_units: geometry.block_units,
        units: geometry.units,
        budget_units: plan.config.budget_units,
        seed: settings.seed,
        hides: plan.hides(),
        policy: settings.policy.clone(),
        prefetch: settings.prefetch.clone(),
        mode: mode.to_string(),
        program: command_line(),
    };
    let ring: &'static Ring = Box::leak(Box::new(Ring::new()?));
    let part = vec![0; PART_BYTES];
    let output =
        Output { path: path.to_owned(), header, bytes_max: settings.trace_bytes, part, file: Target::Untouched };
    let tracing = Tracing { ring, output: LockCell::new(output), flushed_ns: AtomicU64::new(0) };
    TRACING.store(Box::leak(Box::new(tracing)), Release);
    Ok(Box::new(Recorder::new(policy, Box::new(ToRing(ring)))))
}

/// Returns the program and its arguments, separated by spaces.
fn command_line() -> String {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

/// Writes the recorded bytes to the file. Called periodically.
pub(crate) fn flush() {
    let Some(tracing) = tracing() else { return };
    let now = now_ns();
    if now - tracing.flushed_ns.load(Relaxed) >= FLUSH_NS {
        tracing.flushed_ns.store(now, Relaxed);
        tracing.output.lock().flush(tracing.ring);
    }
}

/// Ends recording in a forked child: the file belongs to the parent.
pub(crate) fn forked() {
    let tracing = TRACING.swap(std::ptr::null_mut(), AcqRel);
    // SAFETY: `TRACING` was null or pointed to a leaked box, which is never freed.
    if let Some(tracing) = unsafe { tracing.as_ref() } {
        tracing.ring.closed.store(true, Release);
        // Closes the child's copy of the descriptor. An open copy would keep the file locked after the parent's end.
        // The lock of `output` is free, because no thread of the parent was writing at the fork.
        tracing.output.lock().file = Target::Over;
    }
}

/// Ends the trace: later events are not recorded.
pub(crate) fn finish() {
    let Some(tracing) = tracing() else { return };
    tracing.ring.closed.store(true, Release);
    tracing.output.lock().end(tracing.ring);
}

impl Output {
    fn flush(&mut self, ring: &Ring) {
        // A process without far pages records only times, a few bytes every few tens of milliseconds. These records
        // stay in the ring.
        while ring.worthwhile.load(Acquire) {
            let len = ring.peek(&mut self.part);
            if len == 0 {
                return;
            }
            if matches!(self.file, Target::Untouched) {
                let taken = take_file(&self.path, &self.header, self.bytes_max);
                self.file = taken.map_or(Target::Over, |(file, framer)| Target::Open(file, framer));
            }
            let taken = self.write(len);
            if taken == 0 {
                ring.closed.store(true, Release);
                return;
            }
            ring.take(taken);
        }
    }

    /// Writes as much as possible of the current part. Returns the number of bytes written.
    fn write(&mut self, len: usize) -> usize {
        let Target::Open(file, framer) = &mut self.file else { return 0 };
        let (head, taken) = framer.chunk(&self.part[..len]);
        if taken == 0 {
            return 0;
        }
        if let Err(error) = file.write_all(&head).and_then(|()| file.write_all(&self.part[..taken])) {
            tell_lost(&error);
            self.file = Target::Over;
            return 0;
        }
        taken
    }

    fn end(&mut self, ring: &Ring) {
        self.flush(ring);
        if let Target::Open(mut file, framer) = std::mem::replace(&mut self.file, Target::Over)
            && let Err(error) = file.write_all(&framer.end(ring.overrun.load(Acquire)))
        {
            tell_lost(&error);
        }
    }
}

/// Prints, once per process, why the recording ends early. The run itself continues.
fn tell_lost(error: &std::io::Error) {
    fatal::say(format_args!("cannot write the trace any more: {error}; the run goes on unrecorded"));
}

/// Opens the trace file if this process is to record, otherwise returns `None`. Only one process of a run records: the
/// first one with far pages, which finds the file empty.
fn take_file(path: &Path, header: &Header, bytes_max: u64) -> Option<(File, Framer)> {
    match try_file(path, header, bytes_max) {
        Ok(taken) => taken,
        // The command that requested the trace has ended, and removed the file.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            tell_lost(&error);
            None
        }
    }
}

fn try_file(path: &Path, header: &Header, bytes_max: u64) -> std::io::Result<Option<(File, Framer)>> {
    let file = File::options().write(true).open(path)?;
    let mut file = File::from(descriptors::keep(file.into()));
    // SAFETY: `flock` accesses no memory, and `file` is open. The lock is released when the file is closed at the end
    // of the trace.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 || file.metadata()?.len() != 0 {
        return Ok(None);
    }
    let (framer, bytes) = Framer::start(header, bytes_max);
    file.write_all(&bytes)?;
    Ok(Some((file, framer)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_paging::PageId;
    use hanare_paging::policy::{Cause, Space, build};
    use hanare_paging::trace::{Reader, Record};

    fn output(path: &Path, bytes_max: u64) -> Output {
        let header = Header { units: 1 << 22, block_units: 1, policy: "fifo".into(), ..Header::default() };
        Output { path: path.to_owned(), header, bytes_max, part: vec![0; PART_BYTES], file: Target::Untouched }
    }

    fn recorder(ring: &'static Ring) -> Recorder {
        let policy = build("fifo", Space { units: 1 << 22, block_units: 1, seed: 0, hides: true }).unwrap();
        Recorder::new(policy, Box::new(ToRing(ring)))
    }

    fn inserted(bytes: &[u8]) -> (Vec<u32>, bool) {
        let mut reader = Reader::new(bytes).unwrap();
        let pages = reader.by_ref().map(|record| match record.unwrap() {
            Record::Inserted(page, _) => page.0,
            other => panic!("{other:?}"),
        });
        let pages = pages.collect();
        (pages, reader.end().unwrap().cut)
    }

    #[test]
    fn all_that_passes_the_ring_while_it_is_emptied_is_in_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ring: &'static Ring = Box::leak(Box::new(Ring::new().unwrap()));
        let mut output = output(file.path(), u64::MAX);
        // Long jumps between pages make records of four bytes. So more bytes pass through the ring than it can hold.
        const ROUNDS: u32 = 3 << 20;
        let page = |round: u32| (round % 2) * (1 << 21) + round / 2;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut recorder = recorder(ring);
                for round in 0..ROUNDS {
                    while ring.head.load(Relaxed) - ring.tail.load(Acquire) > RING_BYTES / 2 {
                        std::thread::yield_now();
                    }
                    recorder.inserted(PageId(page(round)), Cause::Read);
                }
            });
            while !writer.is_finished() {
                output.flush(ring);
            }
        });
        output.end(ring);
        let (pages, cut) = inserted(&std::fs::read(file.path()).unwrap());
        assert!(!cut && pages.len() == ROUNDS as usize);
        assert!(pages.iter().enumerate().all(|(round, &got)| got == page(round as u32)));
    }

    #[test]
    fn a_full_ring_and_a_full_file_leave_the_beginning_marked_as_cut() {
        for bytes_max in [u64::MAX, 200_000] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let ring: &'static Ring = Box::leak(Box::new(Ring::new().unwrap()));
            let mut output = output(file.path(), bytes_max);
            let mut recorder = recorder(ring);
            // Either no reader empties the ring, or the file's limit is reached.
            let rounds = if bytes_max == u64::MAX { 2 << 20 } else { 100_000 };
            for round in 0..rounds {
                recorder.inserted(PageId((round % 2) * (1 << 21) + round / 2), Cause::Read);
                recorder.tick(u64::from(round) << 30);
            }
            output.end(ring);
            let bytes = std::fs::read(file.path()).unwrap();
            let mut reader = Reader::new(&bytes).unwrap();
            assert!(reader.by_ref().all(|record| record.is_ok()));
            assert!(reader.end().unwrap().cut);
            assert!(bytes.len() as u64 <= bytes_max.min(2 * RING_BYTES as u64));
            assert!(bytes.len() as u64 > bytes_max.min(RING_BYTES as u64) - 100);
        }
    }

    #[test]
    fn a_file_that_has_something_is_left_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "mine").unwrap();
        let ring: &'static Ring = Box::leak(Box::new(Ring::new().unwrap()));
        let mut recorder = recorder(ring);
        recorder.inserted(PageId(1), Cause::Read);
        let mut output = output(file.path(), u64::MAX);
        output.flush(ring);
        assert!(matches!(output.file, Target::Over) && ring.closed.load(Acquire));
        assert_eq!(std::fs::read(file.path()).unwrap(), b"mine");
    }
}
