//! Meeting by TCP: everyone knows rank 0's address, and learns the others' from it.
//!
//! A rank connects to rank 0, says who it is and at which port it listens, and gets a table of all ranks' addresses when all
//! have come. Then it connects to the ranks below itself, as on one host. Nothing guards these links.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::job::Job;
use super::meet::{Join, MeetError, Meeting, Met, Socket, connect, is_ready};

/// Bytes of an address in the table: an IPv6 one, or an IPv4 one in its form, and a port.
const ENTRY: usize = 18;
/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(2);

impl Socket for TcpStream {
    fn limit(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

pub(super) fn meet_at(address: &str, job: &Job, join: &Join, patience: Duration) -> Result<Met, MeetError> {
    let failed = |source| MeetError::Address { address: address.to_owned(), source };
    let rank_0 = address.to_socket_addrs().map_err(failed)?.next();
    let rank_0 = rank_0.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    if !rank_0.ip().is_loopback() && !job.trusts_network {
        return Err(MeetError::Unguarded(rank_0));
    }
    let mut meeting = Meeting::new(job, join, patience);
    if job.rank.0 == 0 {
        gather(&TcpListener::bind(rank_0).map_err(failed)?, job.ranks, &mut meeting)?;
    } else {
        come(rank_0, job, &mut meeting).map_err(|error| error.unwrap_or_else(failed))?;
    }
    Ok(meeting.met)
}

/// Rank 0: takes everyone in, then tells everyone where the others are.
fn gather(listener: &TcpListener, ranks: u16, meeting: &mut Meeting<'_>) -> Result<(), MeetError> {
    let mut table = vec![0; usize::from(ranks) * ENTRY];
    let mut streams = Vec::new();
    for _ in 1..ranks {
        let stream = is_ready(listener, meeting.deadline).then(|| listener.accept().ok()).flatten();
        let (mut stream, from) = stream.ok_or_else(|| meeting.missing())?;
        let _ = stream.set_nodelay(true);
        let theirs = meeting.hear(&mut stream)?;
        let mut port = [0; 2];
        meeting.read(&mut stream, &mut port)?;
        meeting.say(&mut stream)?;
        if let Some(entry) = table.chunks_exact_mut(ENTRY).nth(theirs.rank.0.into()) {
            entry.copy_from_slice(&entry_of(from.ip(), port));
        }
        streams.push(stream.try_clone().map_err(|_| meeting.stranger())?);
        meeting.place(theirs, stream)?;
    }
    streams.iter_mut().try_for_each(|stream| stream.write_all(&table)).map_err(|_| meeting.stranger())
}

/// Any other rank. An error of the system's is about rank 0's address.
fn come(rank_0: SocketAddr, job: &Job, meeting: &mut Meeting<'_>) -> Result<(), Result<MeetError, io::Error>> {
    let deadline = meeting.deadline;
    let stream = connect(deadline, || TcpStream::connect_timeout(&rank_0, ATTEMPT));
    let mut stream = stream.ok_or_else(|| Ok(meeting.missing()))?;
    stream.set_nodelay(true).map_err(Err)?;
    // Others reach this rank the way rank 0 does.
    let listener = TcpListener::bind((stream.local_addr().map_err(Err)?.ip(), 0)).map_err(Err)?;
    let port = listener.local_addr().map_err(Err)?.port();
    meeting.say(&mut stream).map_err(Ok)?;
    stream.write_all(&port.to_le_bytes()).map_err(Err)?;
    let theirs = meeting.hear(&mut stream).map_err(Ok)?;
    let mut again = stream.try_clone().map_err(Err)?;
    meeting.place(theirs, stream).map_err(Ok)?;
    let mut table = vec![0; usize::from(job.ranks) * ENTRY];
    meeting.read(&mut again, &mut table).map_err(Ok)?;
    let address = |rank: usize| table.chunks_exact(ENTRY).nth(rank).map(address_of);
    let ready = |stream: TcpStream| stream.set_nodelay(true).ok().map(|()| stream);
    meeting
        .introduce(
            1..job.rank.0,
            |rank| {
                let address = address(rank.0.into())?;
                connect(deadline, || TcpStream::connect_timeout(&address, ATTEMPT)).and_then(ready)
            },
            || is_ready(&listener, deadline).then(|| listener.accept().ok()).flatten().and_then(|(s, _)| ready(s)),
        )
        .map_err(Ok)
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
