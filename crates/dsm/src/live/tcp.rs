//! Meeting by TCP: every rank knows the address of rank 0, and learns the addresses of the other ranks from rank 0.
//!
//! A rank connects to rank 0 and introduces itself with the port at which it listens. When all ranks have connected,
//! rank 0 sends each rank a table of all addresses. Then each rank connects to the ranks below itself, as on one host.
//! With a key, these links are encrypted, and only ranks that hold the key are met. Without one, nothing protects them
//! against readers or forgers.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hanare_wire::Key;

use super::job::Job;
use super::join::{HELLO_BYTES, Join};
use super::meet::{MeetError, Meeting, Met};
use super::reception::{Guard, MORE_BYTES, Reception};
use crate::coherence::Rank;

/// Size in bytes of an entry of the address table: an IPv6 address (or a mapped IPv4 address) and a port.
const ENTRY: usize = 18;
/// Longest time of one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(2);

pub(super) fn meet_at(address: &str, job: &Job, join: &Join, patience: Duration) -> Result<Met, MeetError> {
    let failed = |source| MeetError::Address { address: address.to_owned(), source };
    let rank_0 = address.to_socket_addrs().map_err(failed)?.next();
    let rank_0 = rank_0.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let key = job.key.as_deref().map(Key::from_file).transpose()?;
    let guard = match &key {
        Some(key) => Guard::Key(key),
        None if job.trusts_network => Guard::Trust,
        None if rank_0.ip().is_loopback() => Guard::User,
        None => return Err(MeetError::Unguarded(rank_0)),
    };
    let mut meeting = Meeting::new(job, guard, join, patience);
    if job.rank.0 == 0 {
        gather(&listen(rank_0).map_err(failed)?, job.ranks, &mut meeting)?;
    } else {
        come(rank_0, job, &mut meeting).map_err(|error| error.unwrap_or_else(failed))?;
    }
    Ok(meeting.met)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn connect(address: &SocketAddr) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect_timeout(address, ATTEMPT)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// Meets all ranks as rank 0, then sends each rank the addresses of the others.
fn gather(listener: &TcpListener, ranks: u16, meeting: &mut Meeting<'_>) -> Result<(), MeetError> {
    let mut table = vec![0; usize::from(ranks) * ENTRY];
    let mut reception = Reception::new(listener, meeting.guard, HELLO_BYTES + MORE_BYTES, usize::from(ranks));
    for _ in 1..ranks {
        let hello = meeting.welcome(&mut reception)?;
        let entry = table.chunks_exact_mut(ENTRY).nth(hello.join.rank.0.into());
        if let (Some(entry), Some(ip)) = (entry, hello.from) {
            entry.copy_from_slice(&entry_of(ip, hello.more));
        }
    }
    let rank = meeting.join.rank;
    let until = meeting.deadline;
    for (join, line) in meeting.met.iter_mut().flatten() {
        line.say(&table, until).map_err(|_| MeetError::Lost { rank, other: join.rank })?;
    }
    Ok(())
}

/// Meets all ranks as a rank other than rank 0. An `io::Error` in the result is an error about rank 0's address.
fn come(rank_0: SocketAddr, job: &Job, meeting: &mut Meeting<'_>) -> Result<(), Result<MeetError, io::Error>> {
    let rank = job.rank;
    // Finds the address of this host on the way to rank 0, because the other ranks reach this host by it too.
    // Connecting a datagram socket finds the address without sending anything.
    let any = if rank_0.is_ipv4() { IpAddr::from([0; 4]) } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = UdpSocket::bind((any, 0)).map_err(Err)?;
    probe.connect(rank_0).map_err(Err)?;
    let listener = listen((probe.local_addr().map_err(Err)?.ip(), 0).into()).map_err(Err)?;
    let mut hello = meeting.join.encode();
    hello.extend_from_slice(&listener.local_addr().map_err(Err)?.port().to_le_bytes());
    let line = meeting.ask(&hello, || connect(&rank_0)).map_err(Ok)?;
    meeting.be_answered(Rank(0), line, &hello, || connect(&rank_0)).map_err(Ok)?;
    let mut table = vec![0; usize::from(job.ranks) * ENTRY];
    let lost = || MeetError::Lost { rank, other: Rank(0) };
    let (join, mut line) = meeting.met[0].take().ok_or_else(|| Ok(lost()))?;
    if !meeting.read(&mut line, &mut table).map_err(Ok)? {
        return Err(Ok(lost()));
    }
    meeting.met[0] = Some((join, line));
    let address = |rank: Rank| table.chunks_exact(ENTRY).nth(rank.0.into()).map(address_of);
    let connect = |rank| connect(&address(rank).ok_or(io::ErrorKind::NotFound)?);
    meeting.introduce(1..rank.0, &listener, connect).map_err(Ok)
}

fn entry_of(ip: IpAddr, port: [u8; 2]) -> [u8; ENTRY] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut entry = [0; ENTRY];
    entry[..16].copy_from_slice(&ip.octets());
    entry[16..].copy_from_slice(&port);
    entry
}

fn address_of(entry: &[u8]) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&entry[..16]);
    SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), u16::from_le_bytes([entry[16], entry[17]]))
}
