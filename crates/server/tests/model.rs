//! Compares the server with a map in memory. Several clients do random reads, writes and discards at the same time, and
//! check every byte that they read.

mod common;

use std::collections::HashMap;
use std::io::IoSlice;

use common::{Client, MIB, TestServer, page};
use hanare_wire::{AckStatus, Endpoint, ErrorCode, LinkError, SessionOptions};
use proptest::prelude::RngCore;
use proptest::test_runner::{RngAlgorithm, TestRng};

const PAGE: u64 = 4096;
/// Number of pages of far space that a client uses. The number is small, so that the random ranges often overlap slots
/// that are held or were freed.
const PAGES: u64 = 3000;

struct Model {
    client: Client,
    options: SessionOptions,
    slot_pages: u64,
    /// The expected contents of each page that lies in a slot which the server holds. Pages in other slots have no
    /// entry.
    pages: HashMap<u64, Vec<u8>>,
    rng: TestRng,
    seed: u8,
}

impl Model {
    fn new(endpoint: &Endpoint, slot_size: u32, payload_checksum: bool, seed: u8) -> Model {
        let options = SessionOptions { payload_checksum, ..SessionOptions::for_endpoint(endpoint, slot_size) };
        let client = Client::open_with(endpoint, &options).expect("a session");
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        Model { client, options, slot_pages: u64::from(slot_size) / PAGE, pages: HashMap::new(), rng, seed }
    }

    /// Returns a model of a clone of the session, with a copy of the expected pages.
    fn cloned(&self, seed: u8) -> Model {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let client = self.client.cloned(&self.options);
        Model {
            client,
            options: self.options.clone(),
            slot_pages: self.slot_pages,
            pages: self.pages.clone(),
            rng,
            seed,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// Returns a random range: its first page and its number of pages. Most ranges are short. The longest ranges are 4
    /// MiB long.
    fn range(&mut self) -> (u64, u64) {
        let first = self.below(PAGES);
        let most = if self.below(8) == 0 { 1024 } else { 20 };
        (first, 1 + self.below(most))
    }

    fn slots(&self, first: u64, count: u64) -> std::ops::RangeInclusive<u64> {
        first / self.slot_pages..=(first + count - 1) / self.slot_pages
    }

    fn holds_slot(&self, slot: u64) -> bool {
        self.pages.contains_key(&(slot * self.slot_pages))
    }

    fn step(&mut self, n: u64) {
        let (first, count) = self.range();
        match self.below(5) {
            0 | 1 => self.write(first, count, n),
            2 | 3 => self.read(first, count),
            _ => self.discard(first, count),
        }
    }

    fn write(&mut self, first: u64, count: u64, n: u64) {
        for slot in self.slots(first, count) {
            if !self.holds_slot(slot) {
                // The pages of a new slot that are not written must read as zeroes.
                let pages = slot * self.slot_pages..(slot + 1) * self.slot_pages;
                self.pages.extend(pages.map(|number| (number, vec![0; PAGE as usize])));
            }
        }
        let mut bytes = Vec::new();
        for number in first..first + count {
            let content = page(u64::from(self.seed) << 16 | number, n);
            bytes.extend_from_slice(&content);
            self.pages.insert(number, content);
        }
        // Writes the bytes in many parts whose lengths are not multiples of a page, because a client may do so.
        let parts: Vec<IoSlice<'_>> = bytes.chunks(bytes.len() / 40 + 7).map(IoSlice::new).collect();
        self.client.writer.write(n, first * PAGE, &parts).expect("sent");
        assert_eq!(self.client.ack(n).expect("an answer"), AckStatus::Done);
    }

    fn read(&mut self, first: u64, count: u64) {
        let result = self.client.read(first * PAGE, (count * PAGE) as u32);
        if self.slots(first, count).all(|slot| self.holds_slot(slot)) {
            let bytes = result.expect("pages that were written");
            for (number, bytes) in (first..).zip(bytes.chunks(PAGE as usize)) {
                assert!(bytes == self.pages[&number], "seed {}: page {number} is wrong", self.seed);
            }
        } else {
            let error = result.expect_err("a range that was not written");
            assert!(matches!(error, LinkError::Server { code: ErrorCode::NotHeld, .. }), "{error:?}");
        }
    }

    fn discard(&mut self, first: u64, count: u64) {
        self.client.discard(first * PAGE, (count * PAGE) as u32);
        for slot in first.div_ceil(self.slot_pages)..(first + count) / self.slot_pages {
            for number in slot * self.slot_pages..(slot + 1) * self.slot_pages {
                self.pages.remove(&number);
            }
        }
    }

    fn run(mut self, steps: u64) {
        for n in 1..=steps {
            self.step(n);
        }
        self.read_all();
    }

    fn read_all(&mut self) {
        let held: Vec<u64> = self.pages.keys().copied().collect();
        for number in held {
            self.read(number, 1);
        }
    }
}

fn several_clients(server: &TestServer, endpoint: &Endpoint) {
    std::thread::scope(|scope| {
        for (seed, slot_size, checksum) in [(1, 4096, false), (2, 4096, true), (3, 65536, true), (4, 2 << 20, false)] {
            let model = Model::new(endpoint, slot_size, checksum, seed);
            scope.spawn(move || model.run(250));
        }
    });
    // The server frees a session's slots a moment after the session ends. All blocks must be free then.
    let status = server.status_until(|status| {
        let held = (status.sessions, status.slots, status.slots_free, status.spill_bytes);
        held == (0, 0, 0, 0) && status.memory_bytes == status.memory_free_bytes
    });
    assert!(status.slots_reused > 0, "{status:?}");
}

#[test]
fn several_clients_over_tcp() {
    let server = TestServer::start(128 * MIB);
    several_clients(&server, &server.tcp);
}

#[test]
fn several_clients_over_unix() {
    let server = TestServer::start(128 * MIB);
    several_clients(&server, &server.unix);
}

/// The server has so little memory that it spills nearly all pages. Slots are freed and reused in memory and in the
/// spill file.
#[test]
fn several_clients_that_spill() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let server = TestServer::start_with(6 * MIB, |config| {
        config.spill = Some(spill.path().to_owned());
        config.spill_margin = 0;
    });
    several_clients(&server, &server.tcp);
}

/// Compares sessions and several generations of their clones with one model for each session. First one thread uses all
/// sessions of a family in turn. Then each session has a thread of its own.
fn families(server: &TestServer, endpoint: &Endpoint) {
    for (seed, slot_size, checksum) in [(50, 4096, true), (80, 65536, false), (110, 2 << 20, false)] {
        let mut family = vec![Model::new(endpoint, slot_size, checksum, seed)];
        for n in 1..=300 {
            let members = family.len() as u64;
            let which = family[0].below(members) as usize;
            family[which].step(n);
            if n % 37 == 0 {
                let other = family[which].cloned(seed + n as u8 % 29);
                family.push(other);
            }
            if n % 101 == 0 {
                // Closes the oldest session, which may be the original one. Its clones must keep their contents.
                let first = family.remove(0);
                drop(first);
            }
        }
        for member in &mut family {
            member.read_all();
        }
        std::thread::scope(|scope| {
            for member in family {
                scope.spawn(|| member.run(60));
            }
        });
        let status = server.status_until(|status| status.sessions == 0);
        assert_eq!((status.slots, status.slots_free, status.spill_bytes), (0, 0, 0), "{status:?}");
        assert_eq!(status.memory_bytes, status.memory_free_bytes, "all blocks are free: {status:?}");
    }
}

#[test]
fn clones_over_tcp() {
    let server = TestServer::start(192 * MIB);
    families(&server, &server.tcp);
}

#[test]
fn clones_that_spill() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let server = TestServer::start_with(6 * MIB, |config| {
        config.spill = Some(spill.path().to_owned());
        config.spill_margin = 0;
    });
    families(&server, &server.unix);
}
