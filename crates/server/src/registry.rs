//! The open sessions, and the connections of each.
//!
//! A session ends with its last connection, unless it is held. It is held while the server stops, so that it can be
//! kept, and after a restart, until its client has come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hanare_wire::handshake::random;
use hanare_wire::payload::TOKEN_BYTES;
use hanare_wire::socket::Socket;
use hanare_wire::{LinkError, SessionStatus};

use crate::account::{Account, SessionOwner};
use crate::host::Family;
use crate::listen::Log;
use crate::session::Session;
use crate::shared::Store;

/// Largest number of connections of one session.
const CONNECTIONS_MAX: usize = 32;
/// Time after a restart, or after its connections were taken over, for which a session waits for a request of its
/// client.
const HELD: Duration = Duration::from_secs(600);
/// Longest time for which a connection that takes a session over waits for the end of the earlier connections. It is
/// shorter than the client waits for its welcome.
const TAKING_OVER: Duration = Duration::from_secs(3);
/// Pause between two checks of whether the earlier connections have ended.
const TAKING_OVER_STEP: Duration = Duration::from_millis(1);

/// Longest time for which a client that needs room waits for sessions to end whose clients have hung up. On a loaded
/// machine, the threads of these sessions need that long to run. It is shorter than a client waits for an answer.
const ENDING: Duration = Duration::from_secs(1);
/// Pause between two checks of whether these sessions have ended.
const ENDING_STEP: Duration = Duration::from_millis(1);

/// The open sessions.
pub(crate) struct Registry {
    state: Mutex<State>,
    /// Receives a line at the begin and at the end of each session.
    journal: Log,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<u64, Entry>,
    host_sessions: BTreeMap<u64, HostEntry>,
    last_id: u64,
    last_connection: u64,
}

struct Entry {
    session: Weak<Session>,
    account: Arc<Account>,
    /// The numbers and the sockets of the session's connections.
    connections: Vec<(u64, Arc<Socket>)>,
    held: Option<Held>,
}

/// Keeps a session open that may have no connection.
struct Held {
    session: Arc<Session>,
    /// When the session is no longer held. `None` while the server stops.
    until: Option<Instant>,
}

impl Entry {
    fn new(session: &Arc<Session>) -> Entry {
        let account = Arc::clone(session.account());
        Entry { session: Arc::downgrade(session), account, connections: Vec::new(), held: None }
    }

    /// Returns the session, if a client that shows this token and slot size may join it.
    fn shown(&self, token: &[u8; TOKEN_BYTES], slot_size: u32) -> Option<Arc<Session>> {
        let session = self.session.upgrade()?;
        (is_token(&session.token, token) && session.slot_size == slot_size).then_some(session)
    }

    /// Checks whether the session ends as soon as the threads of its connections run.
    fn is_ending(&self) -> bool {
        self.held.is_none() && self.connections.iter().all(|(_, socket)| socket.has_hung_up())
    }

    fn hold(&mut self, session: Arc<Session>, until: Option<Instant>) {
        session.set_held(true);
        self.held = Some(Held { session, until });
    }

    /// Ends the holding of the session. The caller drops the result after it has unlocked the registry, because the end
    /// of a session takes time.
    fn release(&mut self) -> Option<Arc<Session>> {
        let session = self.held.take()?.session;
        session.set_held(false);
        Some(session)
    }
}

/// A connection's membership in its session. The session ends with its last membership, unless it is held.
///
/// The fields are dropped in the order of their declaration. So the registry counts a session until its slots are free.
pub(crate) struct Membership {
    session: Arc<Session>,
    /// The session's number of takeovers when this connection joined it.
    takeovers: u64,
    counted: Counted,
}

impl Membership {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Checks whether the connection may go on. It may not after another connection has taken the session over.
    pub(crate) fn is_current(&self) -> bool {
        self.session.takeovers() == self.takeovers
    }

    /// Notes a request of the client. The client is there, so the session is no longer held.
    pub(crate) fn note_request(&self) {
        if self.session.is_held() {
            self.counted.registry.release(self.session.id);
        }
    }

    /// Holds the session beyond the end of its connections, because the server stops.
    pub(crate) fn keep(&self) {
        let mut state = self.counted.registry.state();
        if let Some(entry) = state.sessions.get_mut(&self.session.id) {
            entry.hold(Arc::clone(&self.session), None);
        }
    }
}

/// A connection that is counted in its session until this value is dropped.
struct Counted {
    registry: Arc<Registry>,
    id: u64,
    number: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = self.registry.state();
        let Some(entry) = state.sessions.get_mut(&self.id) else { return };
        entry.connections.retain(|(number, _)| *number != self.number);
        if entry.connections.is_empty() && entry.held.is_none() {
            let ended = state.sessions.remove(&self.id);
            drop(state);
            self.registry.note(ended.map(|entry| entry.account.ended()));
        }
    }
}

/// The registry's entry of an open same-host session.
struct HostEntry {
    token: [u8; TOKEN_BYTES],
    account: Arc<Account>,
    family: Arc<Family>,
    socket: Arc<Socket>,
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
        let ended = self.registry.state().host_sessions.remove(&self.id);
        self.registry.note(ended.map(|entry| entry.account.ended()));
    }
}

impl Registry {
    /// Makes an empty registry. `journal` receives a line at the begin and at the end of each session.
    pub(crate) fn new(journal: Log) -> Self {
        Self { state: Mutex::default(), journal }
    }

    /// Passes a line on. The caller has not locked the registry, because this may take time.
    fn note(&self, line: Option<String>) {
        line.iter().for_each(|line| (self.journal)(line));
    }

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
        let linked = linked.map(|(_, entry)| entry.account.status(entry.connections.len() as u64));
        let mut list: Vec<SessionStatus> = linked.collect();
        list.extend(state.host_sessions.range(from..).take(count_max).map(|(_, entry)| entry.account.status(1)));
        list.sort_by_key(|session| session.session);
        list.truncate(count_max);
        list
    }

    /// Waits until the sessions whose clients have hung up have ended and their slots are free, or [`ENDING`] has
    /// passed. Returns false at once if there is no such session.
    pub(crate) fn await_ending(&self) -> bool {
        let ending = self.ending();
        let end = Instant::now() + ENDING;
        while !ending.is_disjoint(&self.ending()) && Instant::now() < end {
            std::thread::sleep(ENDING_STEP);
        }
        !ending.is_empty()
    }

    /// Returns the numbers of the sessions that end as soon as the threads of their connections run.
    fn ending(&self) -> BTreeSet<u64> {
        let state = self.state();
        let linked = state.sessions.iter().filter(|(_, entry)| entry.is_ending()).map(|(id, _)| *id);
        let host = state.host_sessions.iter().filter(|(_, entry)| entry.socket.has_hung_up()).map(|(id, _)| *id);
        linked.chain(host).collect()
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

    /// Adds a connection to a session that is in the registry or enters it now.
    fn enter(self: &Arc<Registry>, state: &mut State, session: Arc<Session>, socket: &Arc<Socket>) -> Membership {
        state.last_connection += 1;
        let number = state.last_connection;
        let entry = state.sessions.entry(session.id).or_insert_with(|| Entry::new(&session));
        entry.connections.push((number, Arc::clone(socket)));
        let counted = Counted { registry: Arc::clone(self), id: session.id, number };
        Membership { takeovers: session.takeovers(), session, counted }
    }

    /// Opens a new session, with the connection `socket`.
    pub(crate) fn open(
        self: &Arc<Registry>,
        owner: SessionOwner,
        store: &Arc<Store>,
        socket: &Arc<Socket>,
    ) -> Result<Membership, LinkError> {
        let token = random::<TOKEN_BYTES>()?;
        let mut state = self.state();
        state.last_id += 1;
        let account = Arc::new(Account::new(state.last_id, owner));
        let began = account.began();
        let session = Session::new(state.last_id, token, owner.slot_size, Arc::clone(store), account);
        let membership = self.enter(&mut state, Arc::new(session), socket);
        drop(state);
        self.note(Some(began));
        Ok(membership)
    }

    /// Opens a clone: a session that begins with the contents of the session `of`. Returns `None` if [`Registry::join`]
    /// would not let a connection with this `token` and slot size join `of`.
    pub(crate) fn open_clone(
        self: &Arc<Registry>,
        owner: SessionOwner,
        of: u64,
        token: &[u8; TOKEN_BYTES],
        socket: &Arc<Socket>,
    ) -> Result<Option<Membership>, LinkError> {
        let Some(original) = self.join(of, token, owner.slot_size, socket) else { return Ok(None) };
        let token = random::<TOKEN_BYTES>()?;
        let id = self.next_id();
        let account = Arc::new(Account::in_family(id, owner, original.session().account().spare().clone()));
        // Cloning takes time in proportion to the session's slots, so the registry is not locked during it.
        self.note(Some(format!("{}, a clone of session {of}", account.began())));
        let session = Arc::new(original.session().cloned(id, token, account));
        Ok(Some(self.enter(&mut self.state(), session, socket)))
    }

    fn next_id(&self) -> u64 {
        let mut state = self.state();
        state.last_id += 1;
        state.last_id
    }

    /// Adds a connection to the session `id`. Returns `None` if the session is not open, if its token or slot size
    /// differs, or if it has [`CONNECTIONS_MAX`] connections.
    pub(crate) fn join(
        self: &Arc<Registry>,
        id: u64,
        token: &[u8; TOKEN_BYTES],
        slot_size: u32,
        socket: &Arc<Socket>,
    ) -> Option<Membership> {
        let mut state = self.state();
        let entry = state.sessions.get(&id).filter(|entry| entry.connections.len() < CONNECTIONS_MAX)?;
        let session = entry.shown(token, slot_size)?;
        Some(self.enter(&mut state, session, socket))
    }

    /// As [`Registry::join`], after the session's earlier connections have ended. A request that has arrived on one of
    /// them is carried out before that or never. The session is held until the client's next request, because the
    /// client may give this connection up too.
    ///
    /// # Errors
    /// An earlier connection does not end.
    pub(crate) fn take_over(
        self: &Arc<Registry>,
        id: u64,
        token: &[u8; TOKEN_BYTES],
        slot_size: u32,
        socket: &Arc<Socket>,
    ) -> Result<Option<Membership>, LinkError> {
        let end = Instant::now() + TAKING_OVER;
        let session = {
            let mut state = self.state();
            let Some(entry) = state.sessions.get_mut(&id) else { return Ok(None) };
            let Some(session) = entry.shown(token, slot_size) else { return Ok(None) };
            session.take_over();
            entry.hold(Arc::clone(&session), Some(Instant::now() + HELD));
            entry.connections.iter().for_each(|(_, old)| old.sever());
            session
        };
        loop {
            let mut state = self.state();
            if state.sessions.get(&id).is_none_or(|entry| entry.connections.is_empty()) {
                return Ok(Some(self.enter(&mut state, session, socket)));
            }
            drop(state);
            if Instant::now() > end {
                return Err(LinkError::Silent { seconds: TAKING_OVER.as_secs() as u32 });
            }
            std::thread::sleep(TAKING_OVER_STEP);
        }
    }

    // ---- held sessions ----------------------------------------------------------------------------------------------

    /// Enters sessions that were kept over a restart. They wait for their clients.
    pub(crate) fn adopt(&self, sessions: impl IntoIterator<Item = Arc<Session>>) {
        let until = Some(Instant::now() + HELD);
        let mut state = self.state();
        for session in sessions {
            let mut entry = Entry::new(&session);
            let id = session.id;
            entry.hold(session, until);
            state.sessions.insert(id, entry);
        }
    }

    /// Makes the numbers of later sessions higher than `id`.
    pub(crate) fn skip(&self, id: u64) {
        let mut state = self.state();
        state.last_id = state.last_id.max(id);
    }

    fn release(&self, id: u64) {
        let released = self.state().sessions.get_mut(&id).and_then(Entry::release);
        // A member calls this, so the session does not end here.
        drop(released);
    }

    /// Ends the sessions whose clients have not come back in time. Returns their numbers.
    pub(crate) fn end_unclaimed(&self, now: Instant) -> Vec<u64> {
        let mut released = Vec::new();
        let mut ended = Vec::new();
        self.state().sessions.retain(|id, entry| {
            let is_over = entry.held.as_ref().and_then(|held| held.until).is_some_and(|until| until <= now);
            if is_over {
                released.extend(entry.release());
                if entry.connections.is_empty() {
                    ended.push(*id);
                    return false;
                }
            }
            true
        });
        ended
    }

    /// Removes the held sessions from the registry, and returns them in the order of their numbers.
    pub(crate) fn take_held(&self) -> Vec<Arc<Session>> {
        let mut held = Vec::new();
        self.state().sessions.retain(|_, entry| {
            held.extend(entry.release());
            !entry.connections.is_empty()
        });
        held
    }

    // ---- same-host sessions -----------------------------------------------------------------------------------------

    /// Enters a new same-host session into the registry.
    pub(crate) fn open_host(
        self: &Arc<Registry>,
        owner: SessionOwner,
        family: &Arc<Family>,
        socket: &Arc<Socket>,
    ) -> Result<HostMembership, LinkError> {
        let token = random::<TOKEN_BYTES>()?;
        let id = self.next_id();
        let account = Arc::new(Account::new(id, owner));
        let (family, socket) = (Arc::clone(family), Arc::clone(socket));
        let entry = HostEntry { token, account: Arc::clone(&account), family, socket };
        self.state().host_sessions.insert(id, entry);
        self.note(Some(account.began()));
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

#[cfg(test)]
mod tests {
    use hanare_wire::payload::NO_QUOTA;
    use hanare_wire::{Identity, Transport};

    use super::*;

    #[test]
    fn a_kept_session_ends_if_its_client_does_not_come_back() {
        let (registry, store) = (Registry::new(Arc::new(|_| {})), Store::new(8 << 20, None, None, None));
        let (client, slot_size) = (Identity::unknown(), 4096);
        let owner = SessionOwner { client, transport: Transport::Tcp, slot_size, quota_bytes: NO_QUOTA };
        let session = Session::new(7, [1; TOKEN_BYTES], slot_size, store, Arc::new(Account::new(7, owner)));
        registry.skip(7);
        registry.adopt([Arc::new(session)]);
        let now = Instant::now();
        assert_eq!((registry.count(), registry.end_unclaimed(now + HELD / 2)), (1, Vec::new()));
        assert_eq!(registry.list(0, 9)[0].connections, 0);
        assert_eq!((registry.end_unclaimed(now + 2 * HELD), registry.count()), (vec![7], 0));
        assert_eq!(registry.next_id(), 8);
    }
}
