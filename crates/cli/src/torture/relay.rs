//! A relay between the run and one server. It passes on what both send. On request, it passes nothing for a while,
//! closes the links, or flips a bit.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The number of bytes that are passed on together.
const CHUNK_BYTES: usize = 64 << 10;
/// The least number of bytes in which a bit is flipped. Smaller pieces are mostly of a handshake.
const FLIP_BYTES_MIN: usize = 512;
/// The longest time in which a link is not looked at.
const NAP: Duration = Duration::from_millis(50);
/// The time after which a connection to the server counts as failed.
const CONNECT: Duration = Duration::from_secs(5);

/// A relay. Its links are closed when this value is dropped.
pub(super) struct Relay {
    /// The address at which the run reaches the server.
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    server: SocketAddr,
    ends: AtomicBool,
    /// Whether nothing is passed on.
    is_held: Mutex<bool>,
    flows: Condvar,
    /// Which bit to flip, plus one. 0 for none. Odd numbers are for what the server sends.
    flip: AtomicU64,
    /// The two ends of each link.
    links: Mutex<BTreeMap<u64, [TcpStream; 2]>>,
}

impl Relay {
    /// Starts a relay to the server at this address.
    pub(super) fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            ends: AtomicBool::new(false),
            is_held: Mutex::new(false),
            flows: Condvar::new(),
            flip: AtomicU64::new(0),
            links: Mutex::new(BTreeMap::new()),
        });
        let own = shared.clone();
        let accepting = std::thread::Builder::new().name("relay".to_owned()).spawn(move || accept(&listener, &own))?;
        Ok(Self { address, shared, accepting: Some(accepting) })
    }

    /// Passes nothing on until the next call with `false`.
    pub(super) fn hold(&self, is_held: bool) {
        *lock(&self.shared.is_held) = is_held;
        self.shared.flows.notify_all();
    }

    /// Closes all links.
    pub(super) fn cut(&self) {
        lock(&self.shared.links).values().flatten().for_each(close);
    }

    /// Flips a bit of what is passed on next. `number` chooses the bit and the direction.
    pub(super) fn flip(&self, number: u64) {
        self.shared.flip.store((number >> 1) + 1, Release);
    }

    /// Checks whether a flip is still to be done. Afterwards none is.
    pub(super) fn forget_flip(&self) -> bool {
        self.shared.flip.swap(0, AcqRel) != 0
    }

    /// Checks whether a flip is still to be done.
    pub(super) fn is_to_flip(&self) -> bool {
        self.shared.flip.load(Acquire) != 0
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ends.store(true, Release);
        self.hold(false);
        self.cut();
        // A connection wakes the thread that accepts. Ignored: if there can be none, the thread has ended.
        let _ = TcpStream::connect_timeout(&self.address, NAP);
        if let Some(accepting) = self.accepting.take() {
            // Ignored: an error means that the thread has panicked, and the panic has been printed.
            let _ = accepting.join();
        }
        self.cut();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close(end: &TcpStream) {
    // Ignored: this fails only if the connection has ended.
    let _ = end.shutdown(Shutdown::Both);
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for number in 0_u64.. {
        let accepted = listener.accept();
        if shared.ends.load(Acquire) {
            return;
        }
        // A server that is gone refuses connections, and so does its relay.
        if let Ok((client, _)) = accepted
            && let Ok(server) = TcpStream::connect_timeout(&shared.server, CONNECT)
        {
            // Ignored: without threads or descriptors, the connection is closed, and the run tries again.
            let _ = join(shared, number, client, server);
        }
    }
}

/// Passes on between the two ends in two threads.
fn join(shared: &Arc<Shared>, number: u64, client: TcpStream, server: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = [client.try_clone()?, server.try_clone()?];
    let directions = [(client.try_clone()?, server.try_clone()?, 0), (server, client, 1)];
    lock(&shared.links).insert(number, ends);
    for (from, to, direction) in directions {
        let own = shared.clone();
        let started = std::thread::Builder::new().spawn(move || {
            // Ignored: the error of a connection ends both directions, as its orderly end does.
            let _ = pass(&own, from, to, direction);
            if let Some(ends) = lock(&own.links).remove(&number) {
                ends.iter().for_each(close);
            }
        });
        if let Err(error) = started {
            if let Some(ends) = lock(&shared.links).remove(&number) {
                ends.iter().for_each(close);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Passes on what comes from one end, until it closes.
fn pass(shared: &Shared, mut from: TcpStream, mut to: TcpStream, direction: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        let mut is_held = lock(&shared.is_held);
        while *is_held {
            is_held = shared.flows.wait_timeout(is_held, NAP).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(is_held);
        let flip = shared.flip.load(Acquire);
        let is_ours = flip != 0 && flip % 2 == direction && count >= FLIP_BYTES_MIN;
        if is_ours && shared.flip.compare_exchange(flip, 0, AcqRel, Relaxed).is_ok() {
            let bit = (flip / 2) as usize % (count * 8);
            chunk[bit / 8] ^= 1 << (bit % 8);
        }
        to.write_all(&chunk[..count])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a relay, and the two ends of a link through it.
    fn link() -> (Relay, TcpStream, TcpStream) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Relay::start(server.local_addr().unwrap()).unwrap();
        let client = TcpStream::connect(relay.address).unwrap();
        let (served, _) = server.accept().unwrap();
        for end in [&client, &served] {
            end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        (relay, client, served)
    }

    #[test]
    fn a_relay_passes_on_holds_flips_and_cuts() {
        let (relay, mut client, mut served) = link();
        let sent = [7; FLIP_BYTES_MIN];
        let mut got = [0; FLIP_BYTES_MIN];
        client.write_all(&sent).unwrap();
        served.read_exact(&mut got).unwrap();
        assert_eq!(got, sent);
        relay.hold(true);
        served.write_all(&sent).unwrap();
        client.set_read_timeout(Some(2 * NAP)).unwrap();
        assert!(client.read(&mut got).is_err(), "nothing passes");
        relay.hold(false);
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, sent);
        // The number chooses the direction from the server.
        relay.flip(0);
        client.write_all(&sent).unwrap();
        served.read_exact(&mut got).unwrap();
        assert!(got == sent && relay.is_to_flip());
        served.write_all(&sent).unwrap();
        client.read_exact(&mut got).unwrap();
        let bits: u32 = got.iter().zip(sent).map(|(got, sent)| (got ^ sent).count_ones()).sum();
        assert!(bits == 1 && !relay.is_to_flip());
        relay.cut();
        assert!(matches!(client.read(&mut got), Ok(0) | Err(_)) && matches!(served.read(&mut got), Ok(0) | Err(_)));
    }

    #[test]
    fn one_end_that_closes_closes_the_other() {
        let (_relay, client, mut served) = link();
        drop(client);
        assert!(matches!(served.read(&mut [0]), Ok(0) | Err(_)));
    }
}
