//! Rebuilding: finds units of which a part is missing, and gives the part a new home.
//!
//! A job reads K parts of a run of units, computes the missing part, and writes it to the part's home. A program's write
//! or release of any of these units makes the job void. A void job writes nothing more. If its write is under way
//! already, the server drops the rebuilt part after it, before any newer part is sent there.

use super::{Machine, Order, parts_of};

/// The maximum number of jobs under way.
pub(in crate::redundant) const JOBS: usize = 4;
/// The maximum number of extents that one step looks through. The machine is locked meanwhile.
const LOOKED_MAX: usize = 256;

/// The state of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::redundant) enum Running {
    /// There is no job.
    #[default]
    No,
    /// The parts are being read, by the read with this index.
    Reading(u16),
    /// The parts are here, in the buffers of the read with this index. The part must be computed.
    Ready(u16),
    /// The part is being written.
    Writing,
}

/// A job.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::redundant) struct Job {
    pub(in crate::redundant) running: Running,
    pub(in crate::redundant) unit: u32,
    pub(in crate::redundant) count: u32,
    pub(in crate::redundant) part: u8,
    member: usize,
    is_void: bool,
}

impl Job {
    fn overlaps(&self, unit: u32, count: u32) -> bool {
        self.running != Running::No && self.unit < unit + count && unit < self.unit + self.count
    }
}

/// A run of units that lack the same part.
struct Missing {
    unit: u32,
    count: u32,
    part: u8,
    member: usize,
}

impl Machine {
    /// Returns a job.
    pub(in crate::redundant) fn job(&self, job: usize) -> Job {
        self.jobs[job]
    }

    /// Returns the number of units that got a missing part.
    pub(in crate::redundant) fn rebuilt_units(&self) -> u64 {
        self.rebuilt_units
    }

    /// Checks whether no job is under way.
    pub(in crate::redundant) fn are_jobs_idle(&self) -> bool {
        self.jobs.iter().all(|job| job.running == Running::No)
    }

    /// Begins one more job, if a part is missing that can be rebuilt. Returns true if it did.
    pub(in crate::redundant) fn rebuild(&mut self) -> bool {
        let Some(job) = self.jobs.iter().position(|job| job.running == Running::No) else { return false };
        let Some(Missing { unit, count, part, member }) = self.find_missing() else { return false };
        let Some(read) = self.read_for_job(job, unit, count) else { return false };
        self.jobs[job] = Job { running: Running::Reading(read), unit, count, part, member, is_void: false };
        // All units of the run lack the same parts and have K others, so the read has a single segment.
        debug_assert_eq!(self.reading(read).segment(), (0, count));
        true
    }

    /// Finds units that lack a part. Gives parts without a home a new one.
    fn find_missing(&mut self) -> Option<Missing> {
        for _ in 0..LOOKED_MAX {
            let extent = match self.behind.next(self.cursor) {
                Some(extent) => extent,
                None => {
                    self.cursor = 0;
                    return None;
                }
            };
            let first = extent * self.sizes.extent_units;
            let is_free = !self.jobs.iter().any(|job| job.overlaps(first, self.sizes.extent_units));
            if is_free {
                if self.used[extent as usize] > 0 {
                    (0..self.parts()).for_each(|part| self.settle_again(extent, part));
                }
                if let Some(missing) = self.missing_in(extent) {
                    // The next step goes on in this extent after the run.
                    self.cursor = extent;
                    return Some(missing);
                }
                if self.used[extent as usize] == 0 || self.homed(extent) & !self.refusing(extent) == self.all_parts() {
                    // Writes under way mark the extent again if they end without a part.
                    self.behind.clear(extent, 1);
                    self.behind_count -= 1;
                }
            }
            self.cursor = extent + 1;
        }
        None
    }

    /// Gives a part of an extent a home if it has none, or another one if its server refused it.
    fn settle_again(&mut self, extent: u32, part: u8) {
        let refusing = self.home(extent, part).filter(|&home| self.members[home].has_refused());
        if let Some(member) = refusing
            && self.has_choice(extent)
        {
            self.leave(extent, part, member);
        }
        if self.home(extent, part).is_none() {
            self.settle(extent, part);
        }
    }

    /// Returns the parts of an extent whose servers have refused parts.
    fn refusing(&self, extent: u32) -> u8 {
        let has_refused = |part: &u8| self.home(extent, *part).is_some_and(|home| self.members[home].has_refused());
        parts_of(self.homed(extent)).filter(has_refused).fold(0, |mask, part| mask | 1 << part)
    }

    /// Returns the first run of units in an extent that lack a part which could be rebuilt now.
    fn missing_in(&self, extent: u32) -> Option<Missing> {
        let (first, units) = (extent * self.sizes.extent_units, self.sizes.extent_units);
        let homed = self.homed(extent) & !self.refusing(extent);
        let lacks = |unit: u32| {
            let readable = self.readable(unit);
            let may = !self.writing.has(unit) && self.is_enough(readable);
            if may { homed & !readable } else { 0 }
        };
        let unit = (first..first + units).find(|&unit| lacks(unit) != 0)?;
        let part = parts_of(lacks(unit)).next()?;
        let member = self.home(extent, part)?;
        // Units that lack the same parts may differ in parts at servers that have refused others. Their parts could not be
        // read as one segment.
        let same = |&other: &u32| lacks(other) == lacks(unit) && self.readable(other) == self.readable(unit);
        let count = (unit..first + units).take(self.sizes.job_units as usize).take_while(same).count() as u32;
        Some(Missing { unit, count, part, member })
    }

    /// The parts of a job are here.
    pub(super) fn is_ready(&mut self, job: usize) {
        if let Running::Reading(read) = self.jobs[job].running {
            self.jobs[job].running = Running::Ready(read);
        }
    }

    /// Returns a job whose part must be computed, with its read.
    pub(in crate::redundant) fn ready_job(&self) -> Option<(usize, u16)> {
        self.jobs.iter().enumerate().find_map(|(index, job)| match job.running {
            Running::Ready(read) => Some((index, read)),
            _ => None,
        })
    }

    /// The part of a job is computed. It is written if the job still holds.
    pub(in crate::redundant) fn computed(&mut self, job: usize) {
        let Job { running: Running::Ready(read), unit, part, member, is_void, .. } = self.jobs[job] else { return };
        self.end_read(read);
        let is_home = self.home(self.extent_of(unit), part) == Some(member);
        if (is_void && !self.counts_void()) || !is_home {
            self.jobs[job] = Job::default();
            return;
        }
        self.jobs[job].running = Running::Writing;
        self.orders.push_back(Order::WriteRebuilt { member, job });
    }

    /// A server has acknowledged a rebuilt part.
    pub(in crate::redundant) fn rebuilt(&mut self, job: usize, member: usize) {
        let Job { running: Running::Writing, unit, count, part, is_void, member: to } = self.jobs[job] else { return };
        if to != member {
            return;
        }
        self.jobs[job] = Job::default();
        let is_home = self.home(self.extent_of(unit), part) == Some(member);
        if is_home && (!is_void || self.counts_void()) {
            (unit..unit + count).for_each(|unit| self.good[unit as usize] |= 1 << part);
            self.rebuilt_units += u64::from(count);
        } else {
            // Nothing newer is there yet, because a newer part waits for the end of this write.
            self.orders.push_back(Order::Release { member, unit, count });
            self.release_late(unit, count);
        }
        self.send_waiting(member);
    }

    /// A server had no room for a rebuilt part.
    pub(in crate::redundant) fn rebuilt_refused(&mut self, job: usize, member: usize) {
        let Job { running: Running::Writing, unit, part, member: to, .. } = self.jobs[job] else { return };
        if to != member {
            return;
        }
        self.jobs[job] = Job::default();
        self.leave(self.extent_of(unit), part, member);
        self.send_waiting(member);
    }

    /// Ends the jobs whose part goes to a lost server.
    pub(super) fn end_jobs_at(&mut self, member: usize) {
        for job in &mut self.jobs {
            if job.running == Running::Writing && job.member == member {
                *job = Job::default();
            }
        }
    }

    /// Gives a job up, because too few parts can be read.
    pub(super) fn give_up(&mut self, job: usize) {
        let read = match self.jobs[job].running {
            Running::Reading(read) => read,
            _ => return,
        };
        // A thread that receives a part still uses the read's buffers. Then the read goes on, and the job is void.
        if self.reading(read).is_receiving() {
            self.jobs[job].is_void = true;
            return;
        }
        self.end_read(read);
        self.jobs[job] = Job::default();
    }

    /// Makes jobs void, because the program writes or releases these units.
    pub(super) fn void(&mut self, unit: u32, count: u32) {
        self.jobs.iter_mut().filter(|job| job.overlaps(unit, count)).for_each(|job| job.is_void = true);
    }

    /// Checks whether the program has written or released a unit of a job.
    pub(super) fn is_void(&self, job: usize) -> bool {
        self.jobs[job].is_void
    }

    /// Checks whether a rebuilt part of any of these units is on its way to a server.
    pub(super) fn is_rebuilt_at(&self, member: usize, unit: u32, count: u32) -> bool {
        self.jobs.iter().any(|job| job.running == Running::Writing && job.member == member && job.overlaps(unit, count))
    }

    /// Returns the range of units in an extent whose rebuilt part is on its way to a server. An extent has one job at a
    /// time.
    pub(super) fn rebuilt_at(&self, member: usize, extent: u32) -> Option<(u32, u32)> {
        let (first, count) = (extent * self.sizes.extent_units, self.sizes.extent_units);
        let is_it = |job: &&Job| job.running == Running::Writing && job.member == member && job.overlaps(first, count);
        self.jobs.iter().find(is_it).map(|job| (job.unit, job.unit + job.count))
    }

    #[cfg(test)]
    fn counts_void(&self) -> bool {
        self.mistake == Some(super::Mistake::RebuildsStale)
    }

    #[cfg(not(test))]
    fn counts_void(&self) -> bool {
        false
    }

    #[cfg(test)]
    fn release_late(&mut self, unit: u32, count: u32) {
        if self.mistake == Some(super::Mistake::ReleasesLate) {
            let extent = self.extent_of(unit);
            for part in parts_of(self.homed(extent)) {
                if let Some(member) = self.home(extent, part) {
                    self.orders.push_back(Order::Release { member, unit, count });
                }
            }
        }
    }

    #[cfg(not(test))]
    fn release_late(&mut self, _: u32, _: u32) {}
}
