//! The memory of a redundant store: the parts of pages that arrive or leave. All of it is reserved at the start. The
//! kernel gives memory only for what is used.
//!
//! The data parts of a page for the program are received at their places in the destination of the read. This is memory of
//! the reader, or a buffer of the read. The read owns it from its begin to its end (see the invariants of
//! [`machine`](super::machine)).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hanare_sys::map::{MapError, Mapping};

use super::code::Code;
use super::machine::{JOBS, Landing, READS, Reading, parts_of};
use super::{Measures, PARTS_MAX};

/// The buffers.
pub(super) struct Buffers {
    measures: Measures,
    /// For each read, room for K parts of all its units, and then for all its bytes.
    reads: Mapping,
    /// For each read, the address of the reader's memory for all bytes. 0 if the read's buffer is its destination.
    places: [AtomicUsize; READS],
    /// For each frame, room for K + M parts of its page. Copies are sent from the frame itself.
    frames: Mapping,
    /// For each job, room for the part that it computes.
    jobs: Mapping,
}

impl Buffers {
    pub(super) fn new(measures: &Measures) -> Result<Self, MapError> {
        let of_frames = if measures.data() > 1 { offset_of(measures, measures.frames()) } else { 0 };
        let align = hanare_sys::map::page_size();
        Ok(Self {
            measures: *measures,
            reads: Mapping::reserve(READS * 2 * measures.read_bytes, align)?,
            places: [const { AtomicUsize::new(0) }; READS],
            frames: Mapping::reserve(of_frames.max(1), align)?,
            jobs: Mapping::reserve(JOBS * job_bytes(measures), align)?,
        })
    }

    // ---- reads -----------------------------------------------------------------------------------------------------

    /// Returns the address of a region of a read's buffer. It has room for one part of all units.
    pub(super) fn region(&self, read: u16, region: u8) -> *mut u8 {
        debug_assert!(usize::from(read) < READS && usize::from(region) < self.measures.data());
        let len = self.measures.read_bytes / self.measures.data();
        let at = usize::from(read) * 2 * self.measures.read_bytes + usize::from(region) * len;
        self.reads.as_ptr().wrapping_add(at)
    }

    /// Takes note of the destination of a read that begins: the reader's memory, or the read's buffer. The caller holds the
    /// machine, so each thread that gets an answer to the read knows the destination.
    pub(super) fn begin(&self, read: u16, place: Option<*mut u8>) {
        self.places[usize::from(read)].store(place.map_or(0, |place| place as usize), Relaxed);
    }

    /// Checks whether the destination of a read is the reader's memory.
    pub(super) fn is_at_reader(&self, read: u16) -> bool {
        self.places[usize::from(read)].load(Relaxed) != 0
    }

    /// Returns the address of the memory for all bytes of a read.
    pub(super) fn destination(&self, read: u16) -> *mut u8 {
        debug_assert!(usize::from(read) < READS);
        match self.places[usize::from(read)].load(Relaxed) {
            0 => self.reads.as_ptr().wrapping_add((usize::from(read) * 2 + 1) * self.measures.read_bytes),
            place => place as *mut u8,
        }
    }

    /// Returns the address of a data part of a segment's first unit. The parts of its other units follow, each a unit
    /// further.
    pub(super) fn place(&self, read: u16, reading: &Reading, part: u8) -> *mut u8 {
        let (done, _) = reading.segment();
        let at = done as usize * self.measures.shape.unit_bytes + usize::from(part) * self.measures.part_bytes;
        self.destination(read).wrapping_add(at)
    }

    /// Calls `work` with the parts of a segment that are in regions, in ascending order, each of `bytes` bytes.
    fn with_regions<T>(&self, read: u16, reading: &Reading, bytes: usize, work: impl FnOnce(&[&[u8]]) -> T) -> T {
        let mut regions: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let mut count = 0;
        for part in parts_of(reading.here()) {
            let Landing::Region(region) = reading.landing(part) else { continue };
            let at = self.region(read, region).cast_const();
            // SAFETY: the region has room for one part of all units of a read. Its bytes are here, so no thread receives
            // into it. The read is not over, so the region is not used for another one.
            regions[count] = unsafe { std::slice::from_raw_parts(at, bytes) };
            count += 1;
        }
        work(&regions[..count])
    }

    /// Computes the missing parts of a segment. K parts of it are here.
    pub(super) fn complete(&self, code: &Code, read: u16, reading: &Reading) {
        let Measures { shape, part_bytes, .. } = self.measures;
        let (_, len) = reading.segment();
        let to = self.place(read, reading, 0);
        // SAFETY: the destination has room for all bytes of the read. K parts of the segment are here, so no thread
        // receives into the destination, and only the thread that has received the last of them uses it.
        let page = unsafe { std::slice::from_raw_parts_mut(to, len as usize * shape.unit_bytes) };
        self.with_regions(read, reading, len as usize * part_bytes, |others| {
            code.complete(reading.here(), others, shape.unit_bytes, page);
        });
    }

    // ---- writes ----------------------------------------------------------------------------------------------------

    /// Computes the parts of the page in a frame. A page of one unit has its data parts in the frame itself.
    pub(super) fn encode(&self, code: &Code, page: &[u8], frame: u32) {
        let Measures { shape, redundancy, .. } = self.measures;
        let len = page.len() / self.measures.data() * usize::from(redundancy.parts());
        let at = self.frames.as_ptr().wrapping_add(offset_of(&self.measures, frame));
        // SAFETY: each frame has its own range, with room for all parts of the largest page. The frame's last write has
        // ended, so no sender reads the range.
        let parts = unsafe { std::slice::from_raw_parts_mut(at, len) };
        code.encode(page, shape.unit_bytes, page.len() == shape.unit_bytes, parts);
    }

    /// Returns the address of a part of the page in a frame. The page has `count` units and is at `page`.
    pub(super) fn part_of_page(&self, page: usize, frame: u32, part: u8, count: u32) -> *const u8 {
        let (data, part) = (self.measures.data(), usize::from(part));
        if data == 1 {
            return page as *const u8;
        }
        if count == 1 && part < data {
            return (page + part * self.measures.part_bytes) as *const u8;
        }
        let at = offset_of(&self.measures, frame) + part * count as usize * self.measures.part_bytes;
        self.frames.as_ptr().wrapping_add(at).cast_const()
    }

    // ---- jobs ------------------------------------------------------------------------------------------------------

    /// Returns the address of the part that a job computes.
    pub(super) fn job(&self, job: usize) -> *const u8 {
        debug_assert!(job < JOBS);
        self.jobs.as_ptr().wrapping_add(job * job_bytes(&self.measures)).cast_const()
    }

    /// Computes a missing part of `count` units from the parts that a job has read.
    pub(super) fn rebuild(&self, code: &Code, job: usize, part: u8, count: u32, read: u16, reading: &Reading) {
        let bytes = count as usize * self.measures.part_bytes;
        debug_assert!(bytes <= job_bytes(&self.measures));
        // SAFETY: the job has its own range. Its last write has ended, so no sender reads the range. Only the rebuilder
        // computes.
        let out = unsafe { std::slice::from_raw_parts_mut(self.job(job).cast_mut(), bytes) };
        self.with_regions(read, reading, bytes, |parts| code.part(reading.here(), parts, part, out));
    }
}

fn job_bytes(measures: &Measures) -> usize {
    measures.job_units() as usize * measures.part_bytes
}

/// Returns where the parts of a frame's page begin, in bytes.
fn offset_of(measures: &Measures, frame: u32) -> usize {
    let Measures { shape, redundancy, .. } = measures;
    let all = |bytes: usize| bytes / usize::from(redundancy.data) * usize::from(redundancy.parts());
    let (small, wide) = (frame.min(shape.small_frames), frame.saturating_sub(shape.small_frames));
    small as usize * all(shape.unit_bytes) + wide as usize * all(shape.slot_bytes.max(shape.unit_bytes))
}
