//! Parking: the far memory of this process is not needed for long, so all of it leaves local memory. Each page comes back
//! at its next access. Another process asks by a word in the table of budget shares, which the keeper looks at.

use crate::engine::Parking;
use crate::process::{State, inside, ready, state};

/// Why nothing was parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkError {
    /// This process has no far memory.
    NotFar,
    /// The memory servers have no room for all far memory.
    NoRoom,
}

/// Sends the far memory of this process away, until the process accesses it again. Locked pages stay, and so do pages that
/// other threads use meanwhile. Returns how many bytes have left local memory.
///
/// # Errors
/// There is no far memory, or the servers have no room.
pub fn park() -> Result<u64, ParkError> {
    let state = ready().ok_or(ParkError::NotFar)?;
    let mut parking = inside(move || begin(state).map(Box::new)).ok_or(ParkError::NoRoom)?;
    loop {
        // The pass moves into each slice and back, because a slice must not borrow from the stack of this thread, which
        // may be far.
        let is_done;
        (parking, is_done) = inside(move || {
            let is_done = state.engine.park(&mut parking);
            (parking, is_done)
        });
        if is_done {
            return Ok(parking.left_bytes());
        }
    }
}

fn begin(state: &State) -> Option<Parking> {
    let taken = state.extents.lock().spans();
    state.engine.begin_to_park(taken)
}

/// The request of another process that the keeper is carrying out, with its number.
#[derive(Default)]
pub(crate) struct Request(Option<(u64, Parking)>);

impl Request {
    /// Begins what another process asks for, or does one slice of it. Returns whether anything is left to do. Called
    /// inside the gate (the fork barrier) by the keeper.
    pub(crate) fn serve(&mut self) -> bool {
        let Some(state) = state() else { return false };
        let seat = &state.seat;
        if self.0.is_none()
            && let Some(number) = seat.park_request()
        {
            match begin(state) {
                Some(parking) => self.0 = Some((number, parking)),
                None => seat.answer_park(number, None),
            }
        }
        let Some((number, parking)) = &mut self.0 else { return false };
        if !state.engine.park(parking) {
            return true;
        }
        state.engine.publish();
        seat.answer_park(*number, Some(parking.left_bytes()));
        self.0 = None;
        false
    }
}
