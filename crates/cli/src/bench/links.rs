//! The cost of links. Two threads poll on plain nonblocking sockets. A memory copy is measured too, because client and
//! server on one host copy memory instead of sending messages. Hanare's own protocol is not involved, so these figures
//! are floors.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::floor::{Floors, median_us, median_within_us};

const REQUEST_BYTES: usize = 64;
const CHUNK_BYTES: usize = 1 << 20;
const STREAM_BYTES: usize = 512 << 20;
/// Buffer size of the Unix sockets, in bytes. Hanare's links request the same size.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Number of failed attempts between two checks of the clock. Before each check, the thread yields to other threads.
const SPINS: u32 = 256;
/// The longest time for one figure. A busy machine gives fewer samples instead of a longer wait.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Silence after which the peer counts as failed.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Size in bytes of the memory to copy from. It is larger than the caches of most machines, so its bytes are in no
/// cache.
const COLD_BYTES: usize = 128 << 20;

/// A connected nonblocking stream.
trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Measures both kinds of sockets and memory copies.
pub(super) fn measure(floors: &mut Floors) -> io::Result<()> {
    let names = ["tcp_rtt_4k_us", "tcp_rtt_64k_us", "tcp_rtt_1m_us", "tcp_stream_gb_per_s"];
    measure_kind(floors, names, tcp_pair)?;
    let names = ["unix_rtt_4k_us", "unix_rtt_64k_us", "unix_rtt_1m_us", "unix_stream_gb_per_s"];
    measure_kind(floors, names, unix_pair)?;
    floors.put("tcp_stream_cold_gb_per_s", stream_gb_per_s(tcp_pair()?, COLD_BYTES)?);
    copies(floors);
    Ok(())
}

fn measure_kind<S: Stream>(
    floors: &mut Floors,
    names: [&'static str; 4],
    pair: impl Fn() -> io::Result<(S, S)>,
) -> io::Result<()> {
    for (name, (reply_bytes, rounds)) in names.into_iter().zip([(4 << 10, 4000), (64 << 10, 1000), (1 << 20, 200)]) {
        floors.put(name, round_trip_us(pair()?, reply_bytes, rounds)?);
    }
    floors.put(names[3], stream_gb_per_s(pair()?, CHUNK_BYTES)?);
    Ok(())
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((near, far))
}

fn unix_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (near, far) = UnixStream::pair()?;
    for end in [&near, &far] {
        end.set_nonblocking(true)?;
        // Ignored: if these sizes are refused, the system's defaults stay, as for Hanare's links.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(end, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(end, SOCKET_BUFFER_BYTES);
    }
    Ok((near, far))
}

/// Runs `answer` on the far end while `ask` runs on the near end. Closing the near end stops the answers.
fn both<S: Stream, T>(
    (mut near, mut far): (S, S),
    answer: impl FnOnce(&mut S) -> io::Result<Infallible> + Send,
    ask: impl FnOnce(&mut S) -> io::Result<T>,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let answerer = scope.spawn(move || answer(&mut far));
        let asked = ask(&mut near);
        drop(near);
        let Err(ended) = answerer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let closed = [ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        // If both failed, the asker's error is the cause. The other thread only saw that its peer had closed.
        if asked.is_err() || closed.contains(&ended.kind()) { asked } else { Err(ended) }
    })
}

fn round_trip_us<S: Stream>(pair: (S, S), reply_bytes: usize, rounds: usize) -> io::Result<f64> {
    let answer = move |far: &mut S| {
        let (mut request, reply) = ([0; REQUEST_BYTES], vec![1; reply_bytes]);
        loop {
            receive(far, &mut request)?;
            send(far, &reply)?;
        }
    };
    both(pair, answer, |near| {
        let (request, mut reply) = ([2; REQUEST_BYTES], vec![0; reply_bytes]);
        let mut round = |_| send(near, &request).and_then(|()| receive(near, &mut reply));
        (0..rounds / 20).try_for_each(&mut round)?;
        median_within_us(TIME_MAX, rounds, round)
    })
}

/// Returns the rate of a stream, in GB/s. Each end has a buffer of `around` bytes and goes through it again and again,
/// one chunk at a time. If the buffer is larger than the caches, the stream resembles a stream of pages that were not
/// accessed for a long time.
fn stream_gb_per_s<S: Stream>(pair: (S, S), around: usize) -> io::Result<f64> {
    let answer = move |far: &mut S| {
        let bytes = vec![1; around];
        loop {
            bytes.chunks(CHUNK_BYTES).try_for_each(|chunk| send(far, chunk))?;
        }
    };
    both(pair, answer, |near| {
        let mut room = vec![2; around];
        receive(near, &mut room[..CHUNK_BYTES])?;
        let (began, mut bytes) = (Instant::now(), 0);
        while bytes < STREAM_BYTES && began.elapsed() < TIME_MAX {
            let at = bytes % around;
            receive(near, &mut room[at..at + CHUNK_BYTES])?;
            bytes += CHUNK_BYTES;
        }
        Ok(bytes as f64 / began.elapsed().as_secs_f64() / 1e9)
    })
}

fn send(stream: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => patience.after(error)?,
        }
    }
    Ok(())
}

fn receive(stream: &mut impl Read, mut bytes: &mut [u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) => patience.after(error)?,
        }
    }
    Ok(())
}

/// A bounded spin. It yields to other threads now and then, and gives up after [`SILENCE_MAX`].
#[derive(Default)]
struct Patience {
    spins: u32,
    since: Option<Instant>,
}

impl Patience {
    fn after(&mut self, error: io::Error) -> io::Result<()> {
        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
            return Err(error);
        }
        std::hint::spin_loop();
        self.spins += 1;
        if self.spins.is_multiple_of(SPINS) {
            std::thread::yield_now();
            if self.since.get_or_insert_with(Instant::now).elapsed() > SILENCE_MAX {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

/// Measures copies of pages that no cache holds. The same-host link makes such copies instead of requests.
fn copies(floors: &mut Floors) {
    const SMALL: usize = 4 << 10;
    const LARGE: usize = 2 << 20;
    let cold = vec![1_u8; COLD_BYTES];
    let mut page = vec![0_u8; SMALL];
    // An odd stride visits every page once and defeats the processor's prefetcher.
    let (pages, stride) = (COLD_BYTES / SMALL, 10_007);
    let small = median_us(pages / 2, |round| {
        let at = round * stride % pages * SMALL;
        page.copy_from_slice(&cold[at..at + SMALL]);
        std::hint::black_box(&mut page);
        Ok::<(), Infallible>(())
    });
    // The bytes are not 0, because the kernel would allocate zeroed memory only at the first access.
    let mut frames = vec![2_u8; COLD_BYTES / 2];
    let count = frames.len() / LARGE;
    let large = median_us(count, |round| {
        let (from, to) = (round * 2 * LARGE, round * LARGE);
        frames[to..to + LARGE].copy_from_slice(&cold[from..from + LARGE]);
        std::hint::black_box(&mut frames);
        Ok::<(), Infallible>(())
    });
    for (name, Ok(figure)) in [("memcpy_4k_us", small), ("memcpy_2m_us", large)] {
        floors.put(name, figure);
    }
}
