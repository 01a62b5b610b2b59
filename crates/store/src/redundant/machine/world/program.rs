//! The program of the world.

use super::*;

impl World {
    /// Writes the page of a free frame: one unit, or a block of four.
    pub(super) fn write(&mut self) {
        let Some(frame) = self.frames.iter().position(Option::is_none) else { return };
        let count = if self.random.chance(300) { 4 } else { 1 };
        let unit = self.random.below(u64::from(UNITS / count)) as u32 * count;
        let units = unit as usize..(unit + count) as usize;
        if self.is_busy[units.clone()].contains(&true) {
            return;
        }
        self.version += 1;
        self.is_busy[units.clone()].fill(true);
        self.model[units].fill(self.version);
        let extent = unit / EXTENT_UNITS;
        let homed = self.machine.homed(extent);
        let is_whole =
            homed == self.machine.all_parts() || homed == 0 && self.servers.iter().all(|server| server.is_there);
        // Where room is short, an extent may leave a server at any time.
        let is_disturbed = self.is_tight || !is_whole;
        self.note(|| format!("write frame {frame}: units {unit} + {count}"));
        self.frames[frame] = Some(Page { unit, count, version: self.version, is_disturbed });
        if let Err(fatal) = self.machine.write(frame as u32, unit, count) {
            assert!(self.is_doomed, "a write ends the run: {fatal:?}");
        }
    }

    /// Begins to read a run of held units.
    pub(super) fn begin_read(&mut self) {
        let unit = self.random.below(u64::from(UNITS)) as u32;
        let most = 1 + self.random.below(6) as u32;
        let can = |unit: &u32| self.model[*unit as usize] != 0 && !self.is_busy[*unit as usize];
        let count = (unit..UNITS).take(most as usize).take_while(can).count() as u32;
        if count > 0 {
            self.read_run(unit, count);
        }
    }

    pub(super) fn read_run(&mut self, unit: u32, count: u32) {
        self.note(|| format!("read units {unit} + {count}"));
        let read = Read { page: PageId(unit), count, bytes: count, frame: None, writable: 0 };
        let Some(index) = self.machine.read(read, unit, count) else { return };
        let units = unit as usize..(unit + count) as usize;
        self.is_busy[units.clone()].fill(true);
        let versions = self.model[units].to_vec();
        let before = self.reads.insert(index, Expected { unit, versions });
        assert!(before.is_none(), "a read is over before its buffers are used again");
        self.obey();
    }

    /// A segment of a read is here. Its bytes must be those of the last writes.
    pub(super) fn pass_on(&mut self, read: u16) {
        let (done, len) = self.machine.reading(read).segment();
        let versions = self.versions_of(read, len as usize);
        let expected = &self.reads[&read];
        let wanted = &expected.versions[done as usize..(done + len) as usize];
        assert_eq!(versions, wanted, "units {} and on", expected.unit + done);
        self.note(|| format!("read {read} has units {done} + {len}"));
        if self.machine.passed_on(read) {
            let Expected { unit, versions, .. } = self.reads.remove(&read).expect("a read in progress");
            self.is_busy[unit as usize..unit as usize + versions.len()].fill(false);
            self.reads_done += 1;
        }
    }

    /// Asks for one more part of a read that has lasted long.
    pub(super) fn hedge(&mut self) {
        if let Some(&read) = self.reads.keys().min_by_key(|&&read| u64::from(read) ^ (self.random.0 % 7)) {
            self.machine.slow(read);
        }
    }

    /// Releases a run of units that nobody uses. Some of them may hold nothing.
    pub(super) fn release(&mut self) {
        let unit = self.random.below(u64::from(UNITS)) as u32;
        let end = (unit / EXTENT_UNITS + 1) * EXTENT_UNITS;
        let most = 1 + self.random.below(8) as usize;
        let count = (unit..end).take(most).take_while(|&unit| !self.is_busy[unit as usize]).count() as u32;
        if count > 0 {
            self.note(|| format!("release units {unit} + {count}"));
            self.model[unit as usize..(unit + count) as usize].fill(0);
            self.machine.release(unit, count);
        }
    }
}
