//! Where pages of a home are that are not in its memory: in slots of a private memory server that this rank copies itself
//! (`slots`), or on memory servers behind a link (`servers`).
//!
//! This room moves bytes and knows what is held where; which pages leave it does not know. A page that comes back keeps its
//! place, so that one that is not written meanwhile need not go again.

mod servers;
mod slots;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use hanare_store::private::{self, PrivateError};
use hanare_store::{SlotsError, StoreError};
use hanare_sys::map::MapError;
use hanare_wire::{Key, KeyError, LinkError};

use super::elsewhere::Elsewhere;
use crate::coherence::Run;
use servers::Servers;
use slots::InSlots;

/// Bytes of a page.
const PAGE: usize = super::region::PAGE;

/// Why a page cannot be had, or put away.
#[derive(Debug, thiserror::Error)]
pub(super) enum AwayError {
    /// A server is lost.
    #[error("{server}: {source}")]
    Lost {
        /// Which.
        server: String,
        /// What went wrong.
        source: LinkError,
    },
    /// There is no room left.
    #[error("the memory servers are full; give more room: 'hanare serve --memory', --spill, or another --server")]
    Full,
    /// The private server.
    #[error("{what}")]
    Private {
        /// The reason.
        what: String,
        /// The exit code for it.
        code: i32,
    },
    /// It cannot be used.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// There is no memory.
    #[error("cannot have room for a page: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    /// There is no private server.
    #[error("{0}; put hanare on the PATH, or name servers in HANARE_SERVERS")]
    Start(#[from] PrivateError),
    /// The key is no use.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl AwayError {
    /// The exit code for it: those of `hanare run`.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            AwayError::Full => super::fatal::EXIT_FULL,
            AwayError::Private { code, .. } => *code,
            _ => super::fatal::EXIT_SERVER,
        }
    }
}

impl From<StoreError<'_>> for AwayError {
    fn from(error: StoreError<'_>) -> Self {
        AwayError::Private { what: error.to_string(), code: error.exit_code() }
    }
}

/// The store of one rank.
pub(super) enum Away {
    Slots(Box<InSlots>),
    Servers(Servers),
}

impl Away {
    /// Connects a rank whose region has so many pages.
    pub(super) fn open(elsewhere: &Elsewhere, pages: u32, ranks: u16) -> Result<Self, AwayError> {
        let slots = |socket: &Path| InSlots::open(socket, pages).map(|slots| Away::Slots(Box::new(slots)));
        match elsewhere {
            Elsewhere::Own => slots(&private::for_this_process(u64::from(ranks), None)?),
            Elsewhere::Private(socket) => slots(socket),
            Elsewhere::Servers { servers, key, timeout_s } => {
                let key = key.as_deref().map(Key::from_file).transpose()?;
                let silent = Duration::from_secs(u64::from(*timeout_s));
                Servers::open(servers, key, silent, pages, ranks).map(Away::Servers)
            }
        }
    }

    /// Whether this page's bytes are held.
    pub(super) fn holds(&self, page: u32) -> bool {
        match self {
            Away::Slots(slots) => slots.holds(page),
            Away::Servers(servers) => servers.holds(page),
        }
    }

    /// Puts a run of pages away, whose bytes lie at an address one behind the other. They may change from then on.
    ///
    /// # Safety
    /// So many bytes are mapped there, and nobody writes to them meanwhile.
    #[allow(unsafe_code, reason = "memory that is only borrowed from the program")]
    pub(super) unsafe fn write(&mut self, run: Run, from: *const u8) -> Result<(), AwayError> {
        match self {
            // SAFETY: the caller's promise.
            Away::Slots(slots) => unsafe { slots.write(run, from) },
            // SAFETY: the caller's promise.
            Away::Servers(servers) => unsafe { servers.write(run, from) },
        }
    }

    /// Brings held pages, ascending, each to the address that `place` gives for it. Neighbours have neighbouring addresses.
    ///
    /// # Safety
    /// A page fits at each address, and nobody else touches it meanwhile.
    #[allow(unsafe_code, reason = "memory that is only borrowed from the program")]
    pub(super) unsafe fn read(&mut self, pages: &[u32], place: impl Fn(u32) -> *mut u8) -> Result<(), AwayError> {
        match self {
            // SAFETY: the caller's promise.
            Away::Slots(slots) => unsafe { slots.read(pages, place) },
            // SAFETY: the caller's promise.
            Away::Servers(servers) => unsafe { servers.read(pages, place) },
        }
    }

    /// What is held of these pages is not needed any more.
    pub(super) fn forget(&mut self, run: Run) -> Result<(), AwayError> {
        match self {
            Away::Slots(slots) => slots.forget(run),
            Away::Servers(servers) => servers.forget(run),
        }
    }

    /// The links, to be watched for what comes by itself: acknowledgements, and ends.
    pub(super) fn links(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Away::Slots(slots) => vec![slots.link()],
            Away::Servers(servers) => servers.links(),
        }
    }

    /// Takes in what came by itself.
    pub(super) fn look(&mut self) -> Result<(), AwayError> {
        match self {
            Away::Slots(slots) => slots.look(),
            Away::Servers(servers) => servers.look(),
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "pages of the tests' own")]
mod tests {
    use hanare_server::{Server, ServerConfig};
    use hanare_sys::map::Mapping;
    use hanare_wire::Endpoint;

    use super::*;
    use hanare_settings::ServerSpec;

    const PAGES: u32 = 1500;

    /// Runs a test on servers of its own with so much memory each: a directory for all, and their TCP and Unix endpoints.
    fn with_servers(memory: &[u64], test: impl FnOnce(&Path, &[ServerSpec])) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut running = Vec::new();
        let mut specs = Vec::new();
        for (index, &bytes) in memory.iter().enumerate() {
            let unix = Endpoint::Unix(dir.path().join(index.to_string()));
            let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address"), unix], bytes);
            config.spill = (memory.len() == 1).then(|| dir.path().to_owned());
            let server = Server::bind(config).expect("a server");
            specs.push(ServerSpec { endpoint: server.local_addrs()[0].clone(), capacity: None });
            running.push((server.stop_handle(), std::thread::spawn(move || server.run())));
        }
        test(dir.path(), &specs);
        for (stop, thread) in running {
            stop.stop();
            thread.join().expect("no panic").expect("a good end");
        }
    }

    struct Pages(Mapping);

    impl Pages {
        fn at(&self, page: u32) -> *mut u8 {
            std::ptr::with_exposed_provenance_mut(self.0.addr() + page as usize * PAGE)
        }

        fn fill(&self, page: u32, value: u8) {
            // SAFETY: a page of the mapping, to which there are no references.
            unsafe { self.at(page).write_bytes(value, PAGE) };
        }

        fn holds(&self, page: u32, value: u8) -> bool {
            // SAFETY: as above.
            (0..PAGE).step_by(97).all(|at| unsafe { self.at(page).add(at).read() } == value)
        }
    }

    /// Random runs are written, read after their bytes were destroyed, and forgotten, against a model.
    fn check_against_a_model(away: &mut Away, seed: u64) {
        let pages = Pages(Mapping::anonymous(PAGES as usize * PAGE).expect("memory"));
        let mut model: Vec<Option<u8>> = vec![None; PAGES as usize];
        let mut random = seed;
        let mut below = |n: u32| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % u64::from(n)) as u32
        };
        for turn in 0..600_u32 {
            let first = below(PAGES);
            let run = Run { first, count: 1 + below((PAGES - first).min(40)) };
            match below(10) {
                0 => {
                    away.forget(run).expect("forgotten");
                    run.pages().for_each(|page| model[page as usize] = None);
                }
                1..5 => {
                    let value = (turn % 251) as u8 + 1;
                    run.pages().for_each(|page| pages.fill(page, value));
                    // SAFETY: pages of the test's own.
                    unsafe { away.write(run, pages.at(run.first)) }.expect("written");
                    run.pages().for_each(|page| pages.fill(page, 0xee));
                    run.pages().for_each(|page| model[page as usize] = Some(value));
                }
                _ => {
                    let held: Vec<u32> = run.pages().filter(|&page| model[page as usize].is_some()).collect();
                    // SAFETY: as above.
                    unsafe { away.read(&held, |page| pages.at(page)) }.expect("read");
                    for page in held {
                        let value = model[page as usize].expect("held");
                        assert!(pages.holds(page, value), "page {page} at turn {turn}");
                        pages.fill(page, 0xee);
                    }
                }
            }
            let agree = |page: u32| away.holds(page) == model[page as usize].is_some();
            assert!(run.pages().all(agree), "what is held, at turn {turn}");
            away.look().expect("the servers are there");
        }
    }

    #[test]
    fn slots_give_back_what_was_put_there_also_when_spilled() {
        with_servers(&[2 << 20], |dir, _| {
            let private = Elsewhere::Private(dir.join("0"));
            let mut away = Away::open(&private, PAGES, 1).expect("a link");
            check_against_a_model(&mut away, 1);
        });
    }

    #[test]
    fn servers_give_back_what_was_put_there_and_share_the_load() {
        with_servers(&[16 << 20, 16 << 20], |_, specs| {
            let elsewhere = Elsewhere::Servers { servers: specs.to_vec(), key: None, timeout_s: 5 };
            let mut away = Away::open(&elsewhere, PAGES, 1).expect("links");
            check_against_a_model(&mut away, 2);
            let Away::Servers(servers) = &away else { panic!("servers were named") };
            assert!(servers.used().iter().all(|&pages| pages > 0), "{:?}", servers.used());
        });
    }

    #[test]
    fn a_bound_is_for_all_ranks_and_full_servers_say_so() {
        with_servers(&[64 << 20], |_, specs| {
            let bound = ServerSpec { capacity: Some(64 * PAGE as u64), ..specs[0].clone() };
            let elsewhere = Elsewhere::Servers { servers: vec![bound], key: None, timeout_s: 5 };
            let mut away = Away::open(&elsewhere, PAGES, 2).expect("links");
            let pages = Pages(Mapping::anonymous(PAGES as usize * PAGE).expect("memory"));
            // SAFETY: pages of the test's own.
            let mut write = |first, count| unsafe { away.write(Run { first, count }, pages.at(first)) };
            write(0, 32).expect("half of the bound for one of two ranks");
            write(0, 32).expect("the same pages again");
            let error = write(40, 1).expect_err("one more");
            assert_eq!(error.exit_code(), super::super::fatal::EXIT_FULL);
        });
    }

    #[test]
    fn a_server_that_is_gone_is_named() {
        let mut kept = None;
        with_servers(&[16 << 20, 16 << 20], |dir, specs| {
            let elsewhere = Elsewhere::Servers { servers: specs[..1].to_vec(), key: None, timeout_s: 1 };
            let servers = Away::open(&elsewhere, PAGES, 1).expect("a link");
            let slots = Away::open(&Elsewhere::Private(dir.join("1")), PAGES, 1).expect("a link");
            kept = Some((servers, slots, specs[0].endpoint.to_string()));
        });
        let (mut servers, mut slots, name) = kept.expect("the test ran");
        let error = servers.look().expect_err("it has ended");
        assert!(error.to_string().contains(&name) && error.exit_code() == super::super::fatal::EXIT_SERVER, "{error}");
        let error = slots.look().expect_err("it has ended");
        assert!(
            matches!(error, AwayError::Private { .. }) && error.exit_code() == super::super::fatal::EXIT_SERVER,
            "{error}"
        );
    }
}
