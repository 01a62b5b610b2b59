//! The servers of the world.

use super::*;

/// What waits to be stored on a server.
pub(super) enum Queued {
    /// The part of the page in a frame.
    Page { frame: u32, part: u8 },
    /// A rebuilt part of a run of units.
    Rebuilt { job: usize, unit: u32, part: u8, versions: Vec<u32> },
}

/// An answer that a thread is receiving.
pub(super) struct Receiving {
    ticket: Ticket,
    landing: Landing,
    versions: Vec<u32>,
}

pub(super) struct Server {
    pub(super) is_there: bool,
    /// Whether the sender of this lost server has stopped.
    pub(super) is_stopped: bool,
    /// The number of extents that fit.
    room: u64,
    /// The part and the version of each unit.
    pub(super) held: Vec<Option<(u8, u32)>>,
    pub(super) queue: VecDeque<Queued>,
    pub(super) reads: VecDeque<Request>,
    receiving: Option<Receiving>,
}

impl Server {
    pub(super) fn new(room: u64) -> Self {
        Self {
            is_there: true,
            is_stopped: false,
            room,
            held: vec![None; UNITS as usize],
            queue: VecDeque::new(),
            reads: VecDeque::new(),
            receiving: None,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.reads.is_empty() && self.receiving.is_none()
    }

    fn holds_of(&self, extent: u32) -> bool {
        let units = extent * EXTENT_UNITS..(extent + 1) * EXTENT_UNITS;
        self.held[units.start as usize..units.end as usize].iter().any(Option::is_some)
    }

    pub(super) fn has_room_for(&self, extent: u32) -> bool {
        let used = (0..EXTENTS).filter(|&other| self.holds_of(other)).count() as u64;
        self.holds_of(extent) || used < self.room
    }

    pub(super) fn release(&mut self, unit: u32, count: u32) {
        self.held[unit as usize..(unit + count) as usize].fill(None);
    }
}

impl World {
    /// Sends one of the requests that wait for a thread.
    pub(super) fn send_request(&mut self) {
        let waiting = self.requests.len() as u64;
        if waiting == 0 {
            return;
        }
        let index = self.random.below(waiting) as usize;
        let Some(request) = self.requests.remove(index) else { return };
        // A request to a lost server fails. What it asked for was asked elsewhere when the server was lost.
        if self.servers[request.member].is_there {
            self.servers[request.member].reads.push_back(request);
        }
    }

    /// Lets one server do something.
    pub(super) fn serve(&mut self) {
        let index = self.random.below(self.servers.len() as u64) as usize;
        if self.servers[index].receiving.is_some() {
            if self.random.chance(700) {
                self.receive_rest(index);
            }
            return;
        }
        if !self.servers[index].is_there {
            // The sender of a lost server stops after a while.
            if !self.servers[index].is_stopped && self.random.chance(300) {
                self.servers[index].is_stopped = true;
                self.servers[index].queue.clear();
                self.note(|| format!("server {index} has stopped"));
                self.machine.stopped(index);
            }
            return;
        }
        if self.random.chance(500) {
            self.store_next(index);
        } else if let Some(request) = self.servers[index].reads.pop_front() {
            self.answer(index, request);
        }
    }

    fn store_next(&mut self, index: usize) {
        let refuses = !self.is_calm && self.random.chance(self.per_mille_refused);
        match self.servers[index].queue.pop_front() {
            Some(Queued::Page { frame, .. }) if refuses => {
                self.disturb();
                self.note(|| format!("server {index} refuses frame {frame}"));
                self.machine.refused(frame, index);
            }
            Some(Queued::Rebuilt { job, .. }) if refuses => self.machine.rebuilt_refused(job, index),
            Some(Queued::Page { frame, part }) => {
                self.note(|| format!("server {index} has part {part} of frame {frame}"));
                let page = self.frames[frame as usize].expect("the frame still has its page");
                for unit in page.unit..page.unit + page.count {
                    self.servers[index].held[unit as usize] = Some((part, page.version));
                }
                self.machine.acknowledged(frame, index);
            }
            Some(Queued::Rebuilt { job, unit, part, versions }) => {
                self.note(|| format!("server {index} has part {part} of job {job}: units {unit} and {versions:?}"));
                for (unit, version) in (unit..).zip(versions) {
                    self.servers[index].held[unit as usize] = Some((part, version));
                }
                self.machine.rebuilt(job, index);
            }
            None => {}
        }
    }

    /// A server answers a request. The answer begins to arrive.
    fn answer(&mut self, index: usize, request: Request) {
        let Request { ticket, unit, count, .. } = request;
        let held = &self.servers[index].held[unit as usize..(unit + count) as usize];
        let versions: Option<Vec<u32>> =
            held.iter().map(|part| part.filter(|(part, _)| *part == ticket.part).map(|(_, version)| version)).collect();
        let is_damaged = !self.is_calm && self.is_whole_besides(unit, count) && self.random.chance(3);
        match versions {
            Some(versions) if !is_damaged => {
                let landing = self.machine.arriving(ticket);
                self.servers[index].receiving = Some(Receiving { ticket, landing, versions });
            }
            Some(_) => {
                self.note(|| format!("server {index} damages {ticket:?}"));
                self.machine.damaged(ticket);
            }
            None => {
                // The extent may have left the server after the request.
                let is_home = self.machine.home(unit / EXTENT_UNITS, ticket.part) == Some(index);
                let is_good = |unit: u32| is_home && self.machine.readable(unit) >> ticket.part & 1 != 0;
                let is_meant = self.machine.is_awaited(ticket) && (unit..unit + count).all(is_good);
                assert!(!is_meant, "server {index} was asked for {request:?}, which it lacks");
                assert!(!self.machine.damaged(ticket), "server {index} is blamed for what it need not have");
            }
        }
    }

    /// Checks whether these units could lose a further part.
    fn is_whole_besides(&self, unit: u32, count: u32) -> bool {
        let enough = u32::from(self.machine.sizes.data) + 1;
        // A write in progress may already be without a part. Only units at rest are damaged.
        (unit..unit + count)
            .all(|unit| !self.machine.writing.has(unit) && self.machine.readable(unit).count_ones() >= enough)
    }

    /// Decides whether a server that is there has sent a wrong part, where pages bear it.
    fn lies(&mut self, index: usize, ticket: super::super::Ticket) -> bool {
        let reading = self.machine.reading(ticket.read);
        let (done, len) = reading.segment();
        let first = reading.first() + done;
        let is_there = self.servers[index].is_there;
        is_there && !self.is_calm && self.is_whole_besides(first, len) && self.random.chance(3)
    }

    /// The rest of an answer arrives, or the link of a lost server breaks off.
    fn receive_rest(&mut self, index: usize) {
        let Some(Receiving { ticket, landing, versions }) = self.servers[index].receiving.take() else { return };
        if !self.servers[index].is_there && self.random.chance(800) {
            if landing != Landing::Nowhere {
                self.machine.broke_off(ticket);
            }
            return;
        }
        if landing == Landing::Nowhere {
            return;
        }
        let reading = self.machine.reading(ticket.read);
        assert!(reading.is_receiving(), "bytes of {ticket:?} arrive at memory that the read no longer owns");
        self.landed.insert((ticket.read, landing), versions);
        if self.lies(index, ticket) {
            self.note(|| format!("server {index} has sent a wrong part: {ticket:?}"));
            if self.machine.damaged(ticket) && self.machine.bears_loss_of(index) {
                // In a doomed world, other servers may already have taken the last parts of a page with them.
                assert!(self.is_doomed || self.can_lose(index), "server {index} holds parts that others lack");
                self.lose(index);
            }
            return;
        }
        if let Arrived::Segment(read) = self.machine.arrived(ticket) {
            self.pass_on(read);
        }
    }

    /// Computes the part of a job.
    pub(super) fn compute(&mut self) {
        let Some((job, read)) = self.machine.ready_job() else { return };
        let count = self.machine.job(job).count as usize;
        self.computed[job] = self.versions_of(read, count);
        self.machine.computed(job);
    }

    /// Returns what the parts of a read that are here give, for each unit.
    pub(super) fn versions_of(&self, read: u16, count: usize) -> Vec<u32> {
        let reading = self.machine.reading(read);
        let landings: Vec<Landing> = parts_of(reading.here()).map(|part| reading.landing(part)).collect();
        let is_alone = |landing: &Landing| landings.iter().filter(|other| *other == landing).count() == 1;
        assert!(landings.iter().all(is_alone), "two parts are in the same memory: {landings:?}");
        let regions: Vec<&Vec<u32>> = landings.iter().map(|landing| &self.landed[&(read, *landing)]).collect();
        assert_eq!(regions.len(), usize::from(self.machine.sizes.data));
        let one = |unit: usize| match regions.iter().all(|region| region[unit] == regions[0][unit]) {
            true => regions[0][unit],
            false => TORN,
        };
        (0..count).map(one).collect()
    }

    pub(super) fn rebuild(&mut self) {
        self.machine.rebuild();
    }

    // ---- losses ----------------------------------------------------------------------------------------------------

    pub(super) fn disturb_servers(&mut self) {
        if self.random.chance(500) {
            return self.bring_back();
        }
        let index = self.random.below(self.servers.len() as u64) as usize;
        if self.random.chance(self.per_mille_lost) && self.servers[index].is_there {
            let is_meant = self.is_doomed && self.random.chance(100);
            let can_lose = self.can_lose(index);
            // A server that only falls silent may be lost, if the machine says so.
            assert!(self.is_doomed || can_lose || !self.machine.bears_loss_of(index), "server {index} is needed");
            if is_meant || can_lose {
                self.lose(index);
            }
        }
    }

    /// Checks whether each page would keep K parts.
    fn can_lose(&self, index: usize) -> bool {
        let part_at = |extent: u32| {
            parts_of(self.machine.homed(extent)).find(|&part| self.machine.home(extent, part) == Some(index))
        };
        let mask_at = |extent: u32| part_at(extent).map_or(0, |part| 1_u8 << part);
        let is_written = |page: &Page| {
            let extent = page.unit / EXTENT_UNITS;
            let frame = self.frames.iter().position(|other| other.is_some_and(|other| other.version == page.version));
            let pending = frame.map_or(0, |frame| self.machine.frames[frame].pending);
            let to = frame.map_or([0; PARTS_MAX], |frame| self.machine.frames[frame].to);
            let there = parts_of(pending).filter(|&part| {
                let to = usize::from(to[usize::from(part)]);
                to > 0 && to - 1 != index && self.machine.home(extent, part) == Some(to - 1)
            });
            let there = there.fold(self.machine.readable(page.unit) & !mask_at(extent), |mask, part| mask | 1 << part);
            self.machine.is_enough(there)
        };
        let is_held = |unit: u32| {
            self.model[unit as usize] == 0
                || self.machine.writing.has(unit)
                || self.machine.is_enough(self.machine.readable(unit) & !mask_at(unit / EXTENT_UNITS))
        };
        // The program goes on writing, so K hosts must be left.
        self.hosts_left_without(index) >= usize::from(self.machine.sizes.data)
            && (0..UNITS).all(is_held)
            && self.frames.iter().flatten().all(is_written)
    }

    fn hosts_left_without(&self, index: usize) -> usize {
        let hosts = usize::from(self.hosts());
        let there = |host: &usize| {
            (0..self.servers.len())
                .any(|other| other != index && other % hosts == *host && self.servers[other].is_there)
        };
        (0..hosts).filter(there).count()
    }

    pub(super) fn lose(&mut self, index: usize) {
        if !self.servers[index].is_there {
            return;
        }
        self.losses += 1;
        self.note(|| format!("server {index} is lost"));
        self.disturb();
        let server = &mut self.servers[index];
        server.is_there = false;
        server.is_stopped = false;
        server.reads.clear();
        assert!(self.machine.lost(index) && !self.machine.lost(index));
    }

    /// Lets a lost server come back without its contents.
    pub(super) fn bring_back(&mut self) {
        let index = self.random.below(self.servers.len() as u64) as usize;
        let server = &mut self.servers[index];
        if server.is_stopped && server.receiving.is_none() {
            let room = server.room;
            self.note(|| format!("server {index} is back"));
            let server = &mut self.servers[index];
            *server = Server::new(room);
            self.machine.joined(index, u64::from(EXTENTS));
        }
    }
}
