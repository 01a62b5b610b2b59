//! Which sessions are open, and how many connections hold each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hanare_wire::LinkError;
use hanare_wire::handshake::random;
use hanare_wire::payload::TOKEN_BYTES;

use crate::session::Session;
use crate::shared::Store;

/// The open sessions.
#[derive(Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<u64, Entry>,
    last_id: u64,
    host_sessions: u64,
}

struct Entry {
    session: Arc<Session>,
    connections: usize,
}

/// A connection's hold on its session; the session ends with the last one.
pub(crate) struct Membership {
    registry: Arc<Registry>,
    session: Arc<Session>,
}

impl Membership {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.registry.state();
        let Some(entry) = state.sessions.get_mut(&self.session.id) else { return };
        entry.connections -= 1;
        if entry.connections == 0 {
            state.sessions.remove(&self.session.id);
        }
    }
}

/// A same-host session, counted as long as this lives.
pub(crate) struct HostMembership {
    registry: Arc<Registry>,
    pub(crate) id: u64,
}

impl Drop for HostMembership {
    fn drop(&mut self) {
        self.registry.state().host_sessions -= 1;
    }
}

impl Registry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sessions are open.
    pub(crate) fn count(&self) -> u64 {
        let state = self.state();
        state.sessions.len() as u64 + state.host_sessions
    }

    /// Opens a new session.
    pub(crate) fn open(self: &Arc<Registry>, slot_size: u32, store: &Arc<Store>) -> Result<Membership, LinkError> {
        let token = random::<TOKEN_BYTES>()?;
        let mut state = self.state();
        state.last_id += 1;
        let session = Arc::new(Session::new(state.last_id, token, slot_size, Arc::clone(store)));
        let entry = Entry { session: Arc::clone(&session), connections: 1 };
        state.sessions.insert(session.id, entry);
        Ok(Membership { registry: Arc::clone(self), session })
    }

    /// Joins an open session, for those who know its token.
    pub(crate) fn join(self: &Arc<Registry>, id: u64, token: &[u8; TOKEN_BYTES], slot_size: u32) -> Option<Membership> {
        let mut state = self.state();
        let entry = state.sessions.get_mut(&id)?;
        // Every byte is looked at, so that the time taken tells nothing of the token.
        let differences = entry.session.token.iter().zip(token).fold(0, |all, (a, b)| all | (a ^ b));
        if differences != 0 || entry.session.slot_size != slot_size {
            return None;
        }
        entry.connections += 1;
        Some(Membership { registry: Arc::clone(self), session: Arc::clone(&entry.session) })
    }

    /// Counts a new same-host session.
    pub(crate) fn open_host(self: &Arc<Registry>) -> HostMembership {
        let mut state = self.state();
        state.last_id += 1;
        state.host_sessions += 1;
        HostMembership { registry: Arc::clone(self), id: state.last_id }
    }
}
