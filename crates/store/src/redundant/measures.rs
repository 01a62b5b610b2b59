//! The sizes of a redundant store, and what follows from them.

use std::time::Duration;

use hanare_paging::FrameId;
use hanare_settings::Redundancy;
use hanare_wire::Session;

use super::machine;
use super::{JOB_BYTES, Named};
use crate::guard::GuardError;
use crate::remote::{EXTENT_BYTES, Opened, Remote, Sender, Shape};

/// The sizes that the store computes with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measures {
    pub(super) shape: Shape,
    pub(super) redundancy: Redundancy,
    /// The number of bytes of a part of a unit.
    pub(super) part_bytes: usize,
    /// The maximum number of bytes of a read.
    pub(super) read_bytes: usize,
    /// The silence after which a server counts as lost, even if no other server answers.
    pub(super) silent: Duration,
}

impl Measures {
    pub(super) fn data(&self) -> usize {
        self.redundancy.data.into()
    }

    pub(super) fn units_of(&self, bytes: u32) -> u32 {
        bytes / self.shape.unit_bytes as u32
    }

    /// Returns the number of frames of both sizes.
    pub(super) fn frames(&self) -> u32 {
        self.shape.small_frames + self.shape.wide_frames
    }

    pub(super) fn index_of(&self, frame: FrameId) -> u32 {
        if frame.wide { self.shape.small_frames + frame.index } else { frame.index }
    }

    pub(super) fn frame_of(&self, index: u32) -> FrameId {
        let small = self.shape.small_frames;
        if index < small { FrameId { wide: false, index } } else { FrameId { wide: true, index: index - small } }
    }

    /// Returns the frame by which members know the rebuilt part of a job. It comes after all small frames.
    pub(super) fn frame_of_job(&self, job: usize) -> FrameId {
        FrameId { wide: false, index: self.shape.small_frames + job as u32 }
    }

    /// Returns the job of a frame that a member knows. Returns `None` if the frame is one of the program's.
    pub(super) fn job_of(&self, frame: FrameId) -> Option<usize> {
        frame.index.checked_sub(self.shape.small_frames).filter(|_| !frame.wide).map(|job| job as usize)
    }

    /// Returns the number of units that a job rebuilds at most.
    pub(super) fn job_units(&self) -> u32 {
        (JOB_BYTES / self.shape.unit_bytes).max(1) as u32
    }

    /// Returns the length of an extent's part on one member, in bytes.
    pub(super) fn extent_part_bytes(&self) -> usize {
        EXTENT_BYTES / self.data()
    }

    /// Makes the store of a session with one server.
    pub(super) fn remote(&self, named: &Named, session: Session) -> Result<(Remote, Vec<Sender>), GuardError> {
        let Named { name, options, limit_bytes, .. } = named.clone();
        let capacity_bytes = session.info().capacity_bytes;
        let opened = Opened { name, session, options, capacity_bytes, limit_bytes };
        let shape = Shape {
            unit_bytes: self.part_bytes,
            slot_bytes: self.slot_bytes(),
            small_frames: self.shape.small_frames + machine::JOBS as u32,
            ..self.shape
        };
        let bounce_bytes = self.read_bytes / self.data();
        Remote::with_extents(vec![opened], shape, self.extent_part_bytes(), bounce_bytes, self.silent)
    }

    /// Returns the length of a member's slots in bytes. A slot may hold the parts of several units.
    pub(super) fn slot_bytes(&self) -> usize {
        slot_bytes(&self.shape, self.redundancy)
    }

    /// Returns the number of extents of which a member can hold a part.
    pub(super) fn extents_in(&self, bytes: u64) -> u64 {
        bytes / self.extent_part_bytes() as u64
    }
}

/// Returns the length of the slots that each server of a redundant store has, in bytes.
pub(crate) fn slot_bytes(shape: &Shape, redundancy: Redundancy) -> usize {
    (shape.slot_bytes / usize::from(redundancy.data)).max(hanare_wire::limits::SLOT_MIN as usize)
}
