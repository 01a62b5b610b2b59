//! The servers: which are there, how much room they have, and which of them hold the parts of an extent.

use super::{Fatal, Frame, Machine, NOBODY, Order, parts_of};

/// How a server stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The server is there.
    There,
    /// The server is lost. Its sender may still read frames.
    Lost,
    /// The server is lost, and its sender has stopped.
    Stopped,
}

/// A server.
#[derive(Clone, Copy, Debug)]
pub(in crate::redundant) struct Member {
    /// The number of the host. Two parts of an extent are never on the same host.
    host: u16,
    state: State,
    /// The number of extents' parts that the server can hold, including those in use.
    room: u64,
    used: u64,
    has_refused: bool,
}

impl Member {
    /// Makes a server on a host, with room for parts of `room` extents. It is stopped if it `is_lost`.
    pub(in crate::redundant) fn new(host: u16, room: u64, is_lost: bool) -> Self {
        Self { host, state: if is_lost { State::Stopped } else { State::There }, room, used: 0, has_refused: false }
    }

    /// Checks whether the server is the home of any extent's part.
    #[cfg(test)]
    pub(super) fn is_in_use(&self) -> bool {
        self.used > 0
    }

    /// The server has refused a part. Its room is what is in use.
    pub(super) fn refuses(&mut self) {
        self.room = self.used;
        self.has_refused = true;
    }

    /// Checks whether the server has refused a part since it last had room.
    pub(super) fn has_refused(&self) -> bool {
        self.has_refused
    }
}

impl Machine {
    /// Returns the number of servers that are lost.
    pub(in crate::redundant) fn lost_members(&self) -> u32 {
        self.members.iter().filter(|member| member.state != State::There).count() as u32
    }

    /// Checks whether every page has all its parts.
    pub(in crate::redundant) fn is_whole(&self) -> bool {
        self.behind_count == 0
    }

    /// Returns an upper bound of the number of units that lack a part.
    pub(in crate::redundant) fn units_behind(&self) -> u64 {
        let next = |extent: &u32| self.behind.next(extent + 1);
        let extents = std::iter::successors(self.behind.next(0), next);
        extents.map(|extent| u64::from(self.used[extent as usize])).sum()
    }

    /// Checks whether each page would have K parts at other servers if this server were lost, and K hosts would be left. Looks
    /// at each unit of the extents that are being rebuilt.
    pub(in crate::redundant) fn bears_loss_of(&self, member: usize) -> bool {
        let next = |extent: &u32| self.behind.next(extent + 1);
        let mut extents = std::iter::successors(self.behind.next(0), next);
        let is_safe = |extent: u32| {
            let mut parts = parts_of(self.homed(extent)).filter(|&part| self.home(extent, part) == Some(member));
            parts.all(|part| self.can_do_without(extent, part))
        };
        self.hosts_without(member) >= usize::from(self.sizes.data)
            && extents.all(is_safe)
            && self.writes_bear_loss_of(member)
    }

    /// Returns the number of hosts with a server that is there, besides this server.
    fn hosts_without(&self, member: usize) -> usize {
        let is_there = |index: usize| index != member && self.members[index].state == State::There;
        let is_first = |index: &usize| {
            let host = self.members[*index].host;
            is_there(*index) && !(0..*index).any(|other| is_there(other) && self.members[other].host == host)
        };
        (0..self.members.len()).filter(is_first).count()
    }

    /// Checks whether each page that is being written would have K parts at other servers than this one. An extent counts
    /// as behind only after the write of a page that lacks a part.
    fn writes_bear_loss_of(&self, member: usize) -> bool {
        let is_safe = |page: &Frame| {
            let extent = self.extent_of(page.unit);
            let mut parts = parts_of(self.homed(extent)).filter(|&part| self.home(extent, part) == Some(member));
            parts.all(|part| self.is_written_without(page, part))
        };
        self.frames.iter().filter(|page| page.is_busy).all(is_safe)
    }

    /// Returns the number of extents that fit onto the servers, including those in use. Each takes K + M different hosts.
    pub(in crate::redundant) fn room(&self) -> u64 {
        let parts = u64::from(self.parts());
        let there = move || self.members.iter().enumerate().filter(|(_, member)| member.state == State::There);
        // The room of a host is counted at its first server.
        let is_first =
            move |index: usize, host: u16| !there().any(|(other, member)| other < index && member.host == host);
        let hosts = move || there().filter(move |(index, member)| is_first(*index, member.host));
        let room_of = |host: u16| -> u64 {
            there()
                .filter(|(_, member)| member.host == host)
                .fold(0, |sum, (_, member)| member.room.saturating_add(sum))
        };
        let wanted = parts.min(hosts().count() as u64);
        if wanted < u64::from(self.sizes.data) {
            return 0;
        }
        let fits = |extents: u64| {
            let sum = hosts().fold(0_u128, |sum, (_, member)| sum + u128::from(room_of(member.host).min(extents)));
            sum >= u128::from(extents) * u128::from(wanted)
        };
        let (mut low, mut high) = (0, self.used.len() as u64);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// A server has told its room, in extents, including those in use.
    pub(in crate::redundant) fn set_room(&mut self, member: usize, extents: u64) {
        let member = &mut self.members[member];
        member.room = extents.max(member.used);
        member.has_refused &= member.room == member.used;
    }

    // ---- homes -----------------------------------------------------------------------------------------------------

    /// Returns the server with the largest free share of its room, on a host that holds no part of the extent.
    fn choose(&self, extent: u32) -> Option<usize> {
        let homes = || parts_of(self.homed(extent)).filter_map(|part| self.home(extent, part));
        let may = |member: &Member| {
            member.state == State::There
                && member.used < member.room
                && !homes().any(|home| self.members[home].host == member.host)
        };
        let candidates = self.members.iter().enumerate().filter(|(_, member)| may(member));
        candidates
            .max_by(|(a, x), (b, y)| {
                // The shares are compared by cross-multiplication, which is exact and needs no division.
                let left = u128::from(x.room - x.used) * u128::from(y.room);
                let right = u128::from(y.room - y.used) * u128::from(x.room);
                left.cmp(&right).then(b.cmp(a))
            })
            .map(|(index, _)| index)
    }

    /// Checks whether a further server could hold a part of the extent.
    pub(super) fn has_choice(&self, extent: u32) -> bool {
        self.choose(extent).is_some()
    }

    /// Chooses homes for the parts of an extent, if fewer than K parts have one.
    pub(super) fn place(&mut self, extent: u32) -> Result<(), Fatal> {
        let parts = self.parts();
        if self.is_enough(self.homed(extent)) {
            return Ok(());
        }
        // The parts begin at another index in each extent. Otherwise the same servers would hold all parity parts.
        for part in (0..parts).map(|part| ((u32::from(part) + extent) % u32::from(parts)) as u8) {
            if self.home(extent, part).is_none() && !self.settle(extent, part) {
                self.mark_behind(extent);
            }
        }
        if self.is_enough(self.homed(extent)) {
            return Ok(());
        }
        let there = self.members.len() as u32 - self.lost_members();
        let fatal = if there < u32::from(self.sizes.data) { Fatal::Lost } else { Fatal::Full };
        self.fail(fatal);
        Err(fatal)
    }

    /// Chooses a home for a part of an extent. No unit has this part there yet. Returns false if no server is left.
    pub(super) fn settle(&mut self, extent: u32, part: u8) -> bool {
        let Some(member) = self.choose(extent) else { return false };
        self.members[member].used += 1;
        self.homes[extent as usize][usize::from(part)] = member as u16 + 1;
        let (first, count) = (extent * self.sizes.extent_units, self.sizes.extent_units);
        let count = if self.used[extent as usize] == 0 { 0 } else { count };
        for unit in first..first + count {
            let good = &mut self.good[unit as usize];
            let had = *good != 0;
            *good &= !(1 << part);
            if had && *good == 0 && !self.writing.has(unit) {
                // No part of the unit is left. It is no longer held.
                self.count_unit(unit, false);
            }
        }
        true
    }

    /// Forgets the home of a part of an extent.
    pub(super) fn vacate(&mut self, extent: u32, part: u8) {
        if let Some(member) = self.home(extent, part) {
            let used = &mut self.members[member].used;
            *used = used.saturating_sub(1);
            self.homes[extent as usize][usize::from(part)] = NOBODY;
        }
    }

    // ---- losses ----------------------------------------------------------------------------------------------------

    /// A server is lost. What was asked of it is asked elsewhere. Returns false if it was lost before.
    pub(in crate::redundant) fn lost(&mut self, member: usize) -> bool {
        if self.members[member].state != State::There {
            return false;
        }
        self.members[member].state = State::Lost;
        let mark = member as u16 + 1;
        for extent in 0..self.homes.len() as u32 {
            for part in 0..self.parts() {
                if self.homes[extent as usize][usize::from(part)] == mark {
                    self.vacate(extent, part);
                    self.mark_behind(extent);
                }
            }
        }
        self.ask_elsewhere(member);
        true
    }

    /// The sender of a lost server has stopped. It reads no frame any more. Its parts count as missing.
    pub(in crate::redundant) fn stopped(&mut self, member: usize) {
        if self.members[member].state != State::Lost {
            return;
        }
        for frame in 0..self.frames.len() as u32 {
            while let Some(part) = self.pending_at(frame, member) {
                let page = &mut self.frames[frame as usize];
                page.pending &= !(1 << part);
                self.stop_waiting(frame, part);
                self.end_if_done(frame);
            }
        }
        self.end_jobs_at(member);
        self.members[member].state = State::Stopped;
    }

    /// Removes a part from those that wait for a rebuilt part. Returns true if it was among them.
    pub(super) fn stop_waiting(&mut self, frame: u32, part: u8) -> bool {
        let page = &mut self.frames[frame as usize];
        let waited = page.waiting >> part & 1 != 0;
        if waited {
            page.waiting &= !(1 << part);
            self.frames_waiting -= u32::from(page.waiting == 0);
        }
        waited
    }

    /// Sends the parts that have waited for a rebuilt part at this server.
    pub(super) fn send_waiting(&mut self, member: usize) {
        for frame in 0..self.frames.len() as u32 {
            if self.frames_waiting == 0 {
                return;
            }
            let Frame { unit, count, waiting, to, .. } = self.frames[frame as usize];
            for part in parts_of(waiting).filter(|&part| usize::from(to[usize::from(part)]) == member + 1) {
                if !self.is_rebuilt_at(member, unit, count) && self.stop_waiting(frame, part) {
                    self.orders.push_back(Order::Write { member, part, frame });
                }
            }
        }
    }

    /// A lost server is there again. It holds nothing.
    pub(in crate::redundant) fn joined(&mut self, member: usize, extents: u64) {
        debug_assert_eq!(self.members[member].state, State::Stopped);
        let host = self.members[member].host;
        self.members[member] = Member::new(host, extents, false);
    }
}
