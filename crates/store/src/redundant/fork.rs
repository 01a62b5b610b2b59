//! Forks of a process with a redundant store. Each server clones the session of the parent. The child's machine is the
//! copy that the fork makes.

use std::sync::atomic::Ordering::*;

use hanare_wire::{LinkError, Session};

use super::{Copyist, Redundant, SUSPECT};
use crate::guard::GuardError;

impl Redundant {
    /// Clones the sessions for a child that is about to be forked. No read or write may be in progress. A session is
    /// `None` if its server is lost, or does not answer for a second although the pages can do without it.
    ///
    /// # Errors
    /// So few servers can clone their sessions that the child would lack pages.
    pub(crate) fn share(&self) -> Result<Vec<Option<Session>>, LinkError> {
        self.pause()?;
        let mut failure = None;
        let mut sessions = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            let can_go = self.machine.lock().bears_loss_of(index);
            let limit = can_go.then_some(SUSPECT);
            let cloned = member.there().map(|remote| remote.share(limit));
            sessions.push(match cloned {
                Some(Ok(mut cloned)) => cloned.pop(),
                Some(Err(error)) if can_go => {
                    // The parent takes the server for lost when it goes on.
                    member.is_mute.store(true, Release);
                    // The child takes the server for lost. It is one server at most, because a second may be one too
                    // many.
                    if failure.replace(error).is_some() {
                        return Err(LinkError::Closed);
                    }
                    None
                }
                Some(Err(error)) => return Err(error),
                None => None,
            });
        }
        Ok(sessions)
    }

    /// Makes the child's store, with the same pages, on the child's own sessions. Returns it with its workers, which the
    /// caller must run.
    ///
    /// # Errors
    /// The child can have no key of its own.
    pub(crate) fn again(self, sessions: Vec<Option<Session>>) -> Result<(Self, Vec<Copyist>), GuardError> {
        let Self { members, machine, buffers, measures, .. } = self;
        let mut machine = machine.into_inner();
        debug_assert!(machine.is_idle(), "a store is cloned while something is under way");
        for (index, (member, session)) in members.iter().zip(sessions).enumerate() {
            let was_there = member.is_there.swap(false, AcqRel);
            let remote = member.remote.swap(std::ptr::null_mut(), AcqRel);
            if let Some(session) = session.filter(|_| was_there && !remote.is_null()) {
                // SAFETY: the pointer comes from `Box::into_raw`. The child has no other thread, so no other code uses
                // what it points to.
                let remote = *unsafe { Box::from_raw(remote) };
                let (remote, mut senders) = remote.again(vec![session])?;
                member.take_in(remote, senders.pop());
            } else {
                // The parent's store stays in the child's memory, and nobody uses it.
                machine.lost(index);
                machine.stopped(index);
            }
        }
        machine.count_anew();
        let store = Self::of(members, machine, buffers, measures);
        let copyists = (0..store.members.len()).map(Copyist::new).collect();
        Ok((store, copyists))
    }
}
