//! The open sessions, and the number of connections of each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hanare_wire::handshake::random;
use hanare_wire::payload::TOKEN_BYTES;
use hanare_wire::{LinkError, SessionStatus};

use crate::account::{Account, SessionOwner};
use crate::host::Family;
use crate::session::Session;
use crate::shared::Store;

/// Largest number of connections of one session.
const CONNECTIONS_MAX: usize = 32;

/// The open sessions.
#[derive(Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<u64, Entry>,
    host_sessions: BTreeMap<u64, HostEntry>,
    last_id: u64,
}

struct Entry {
    session: Weak<Session>,
    account: Arc<Account>,
    connections: usize,
}

impl Entry {
    fn new(session: &Arc<Session>) -> Entry {
        Entry { session: Arc::downgrade(session), account: Arc::clone(session.account()), connections: 1 }
    }
}

/// A connection's membership in its session. The session ends with its last membership.
///
/// The fields are dropped in the order of their declaration. So the registry counts a session until its slots are free.
pub(crate) struct Membership {
    session: Arc<Session>,
    _counted: Counted,
}

impl Membership {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
}

/// A connection that is counted in its session until this value is dropped.
struct Counted {
    registry: Arc<Registry>,
    id: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = self.registry.state();
        let Some(entry) = state.sessions.get_mut(&self.id) else { return };
        entry.connections -= 1;
        if entry.connections == 0 {
            state.sessions.remove(&self.id);
        }
    }
}

/// The registry's entry of an open same-host session.
struct HostEntry {
    token: [u8; TOKEN_BYTES],
    account: Arc<Account>,
    family: Arc<Family>,
}

/// Keeps a same-host session in the registry. The session is counted, and can be cloned, until this value is dropped.
pub(crate) struct HostMembership {
    registry: Arc<Registry>,
    id: u64,
    pub(crate) token: [u8; TOKEN_BYTES],
    pub(crate) account: Arc<Account>,
}

impl HostMembership {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for HostMembership {
    fn drop(&mut self) {
        self.registry.state().host_sessions.remove(&self.id);
    }
}

impl Registry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of open sessions, including same-host sessions.
    pub(crate) fn count(&self) -> u64 {
        let state = self.state();
        (state.sessions.len() + state.host_sessions.len()) as u64
    }

    /// Returns the open sessions with numbers above `after`, at most `count_max` of them, in ascending order.
    pub(crate) fn list(&self, after: u64, count_max: usize) -> Vec<SessionStatus> {
        let state = self.state();
        let Some(from) = after.checked_add(1) else { return Vec::new() };
        let linked = state.sessions.range(from..).take(count_max);
        let linked = linked.map(|(_, entry)| entry.account.status(entry.connections as u64));
        let mut list: Vec<SessionStatus> = linked.collect();
        list.extend(state.host_sessions.range(from..).take(count_max).map(|(_, entry)| entry.account.status(1)));
        list.sort_by_key(|session| session.session);
        list.truncate(count_max);
        list
    }

    /// Returns the open sessions, without same-host sessions.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.state().sessions.values().filter_map(|entry| entry.session.upgrade()).collect()
    }

    /// Updates the transfer rates of every session. `elapsed` is the time since the last update.
    pub(crate) fn tick(&self, elapsed: Duration) {
        let state = self.state();
        let linked = state.sessions.values().map(|entry| &entry.account);
        let host = state.host_sessions.values().map(|entry| &entry.account);
        linked.chain(host).for_each(|account| account.tick(elapsed));
    }

    /// Opens a new session.
    pub(crate) fn open(self: &Arc<Registry>, owner: SessionOwner, store: &Arc<Store>) -> Result<Membership, LinkError> {
        let token = random::<TOKEN_BYTES>()?;
        let mut state = self.state();
        state.last_id += 1;
        let account = Arc::new(Account::new(state.last_id, owner));
        let session = Session::new(state.last_id, token, owner.slot_size, Arc::clone(store), account);
        let session = Arc::new(session);
        state.sessions.insert(session.id, Entry::new(&session));
        let counted = Counted { registry: Arc::clone(self), id: session.id };
        Ok(Membership { session, _counted: counted })
    }

    /// Opens a clone: a session that begins with the contents of the session `of`. Returns `None` if [`Registry::join`]
    /// would not let a connection with this `token` and slot size join `of`.
    pub(crate) fn open_clone(
        self: &Arc<Registry>,
        owner: SessionOwner,
        of: u64,
        token: &[u8; TOKEN_BYTES],
    ) -> Result<Option<Membership>, LinkError> {
        let Some(original) = self.join(of, token, owner.slot_size) else { return Ok(None) };
        let token = random::<TOKEN_BYTES>()?;
        let id = self.next_id();
        let account = Arc::new(Account::in_family(id, owner, original.session().account().spare().clone()));
        // Cloning takes time in proportion to the session's slots, so the registry is not locked during it.
        let session = Arc::new(original.session().cloned(id, token, account));
        self.state().sessions.insert(id, Entry::new(&session));
        Ok(Some(Membership { session, _counted: Counted { registry: Arc::clone(self), id } }))
    }

    fn next_id(&self) -> u64 {
        let mut state = self.state();
        state.last_id += 1;
        state.last_id
    }

    /// Adds a connection to the session `id`. Returns `None` if the session is not open, if its token or slot size
    /// differs, or if it has [`CONNECTIONS_MAX`] connections.
    pub(crate) fn join(self: &Arc<Registry>, id: u64, token: &[u8; TOKEN_BYTES], slot_size: u32) -> Option<Membership> {
        let mut state = self.state();
        let entry = state.sessions.get_mut(&id)?;
        let session = entry.session.upgrade()?;
        let is_meant = is_token(&session.token, token) && session.slot_size == slot_size;
        if !is_meant || entry.connections == CONNECTIONS_MAX {
            return None;
        }
        entry.connections += 1;
        Some(Membership { session, _counted: Counted { registry: Arc::clone(self), id } })
    }

    /// Enters a new same-host session into the registry.
    pub(crate) fn open_host(
        self: &Arc<Registry>,
        owner: SessionOwner,
        family: &Arc<Family>,
    ) -> Result<HostMembership, LinkError> {
        let token = random::<TOKEN_BYTES>()?;
        let id = self.next_id();
        let account = Arc::new(Account::new(id, owner));
        let entry = HostEntry { token, account: Arc::clone(&account), family: Arc::clone(family) };
        self.state().host_sessions.insert(id, entry);
        Ok(HostMembership { registry: Arc::clone(self), id, token, account })
    }

    /// Returns the family of the same-host session `id`. Returns `None` if the session is not open or has another
    /// token.
    pub(crate) fn host_family(&self, id: u64, token: &[u8; TOKEN_BYTES]) -> Option<Arc<Family>> {
        let state = self.state();
        let entry = state.host_sessions.get(&id).filter(|entry| is_token(&entry.token, token))?;
        Some(Arc::clone(&entry.family))
    }
}

/// Checks whether `shown` equals `token`. Compares every byte, so that the duration reveals nothing about the token.
fn is_token(token: &[u8; TOKEN_BYTES], shown: &[u8; TOKEN_BYTES]) -> bool {
    token.iter().zip(shown).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
