//! The room of the servers. This module learns the room from the servers' answers, requests it and reports it.

use std::fmt;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use hanare_settings::HumanSize;
use hanare_sys::clock::now_ns;
use hanare_sys::futex;
use hanare_wire::payload::NO_QUOTA;

use super::Remote;

impl Remote {
    /// Records the room that a server reports. A placed extent counts as in use until it is freed, even if not all of
    /// it is written.
    pub(super) fn note_room(&self, index: usize, left_bytes: u64) {
        self.servers[index].room_known_ns.store(now_ns(), Relaxed);
        let mut places = self.places.lock();
        let all = places.bytes_on(index).saturating_add(left_bytes);
        places.placement.set_capacity(index, all / self.extent_bytes as u64);
    }

    /// Returns the bytes that all servers can hold for this process, and the bytes of the extents that are already
    /// placed.
    pub(super) fn capacity_and_placed_bytes(&self) -> (u64, u64) {
        let (capacity, used) = self.places.lock().placement.capacity_and_used();
        (capacity.saturating_mul(self.extent_bytes as u64), used.saturating_mul(self.extent_bytes as u64))
    }

    /// Compares the times of the servers' last room reports. Returns the oldest of them, in nanoseconds on
    /// CLOCK_MONOTONIC.
    pub(super) fn room_known_ns(&self) -> u64 {
        self.servers.iter().map(|server| server.room_known_ns.load(Relaxed)).min().unwrap_or(0)
    }

    /// Asks all servers for their room and waits for the answers. Waits at most for the time after which a silent
    /// server counts as lost.
    pub(super) fn ask_for_room(&self) {
        let numbers: Vec<u32> = self.servers.iter().map(|server| server.asked.fetch_add(1, AcqRel) + 1).collect();
        (0..self.servers.len()).for_each(|server| self.notify(server));
        let end = now_ns() + self.silent.as_nanos() as u64;
        for (server, number) in self.servers.iter().zip(numbers) {
            loop {
                let answered = server.answered.load(Acquire);
                // The server may have answered a later request already. The numbers may have wrapped, so only their
                // difference counts.
                let is_over = self.is_over.load(Acquire) || now_ns() > end;
                if number.wrapping_sub(answered) as i32 <= 0 || is_over {
                    break;
                }
                futex::wait(&server.answered, answered, Some(Duration::from_millis(100)));
            }
        }
    }

    /// Writes the room of each server, and how the user can get more.
    pub(super) fn tell_no_room(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        for (index, server) in self.servers.iter().enumerate() {
            let room = self.places.lock().placement.capacity_of(index).saturating_mul(self.extent_bytes as u64);
            let (comma, name, quota) = (if index > 0 { ", " } else { "" }, &server.name, server.info.quota_bytes);
            // The quota is mentioned only if it limits the room.
            if quota != NO_QUOTA && room.saturating_add(self.extent_bytes as u64) > quota {
                write!(out, "{comma}{name} allows this client a quota of {}", HumanSize(quota))?;
            } else {
                write!(out, "{comma}{name} has no room beyond {}", HumanSize(room))?;
            }
        }
        out.write_str(
            "; name a further --server, or give one more --memory, a --spill directory or a larger --client-quota",
        )
    }
}
