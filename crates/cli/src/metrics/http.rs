//! A small HTTP/1.1 server that answers `GET /metrics` and nothing else. Each connection gets one answer.

use std::io::{self, PipeReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The path under which the figures are.
pub(super) const PATH: &str = "/metrics";
/// Largest number of open connections. A further one takes the place of the oldest.
const CONNECTIONS_MAX: usize = 16;
/// Largest size of a request, in bytes.
const REQUEST_MAX: usize = 8 << 10;
/// Longest life of a connection.
const LIFE: Duration = Duration::from_secs(5);
/// Most bytes that are read after an answer. If the peer has sent more, it may not see the answer.
const REST_MAX: usize = 4 << 20;
/// Most bytes that are moved for one connection before the others have their turn.
const TURN_BYTES: usize = 256 << 10;
/// Pause after an accept that failed, for example because no descriptor is left.
const PAUSE: Duration = Duration::from_millis(50);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The present step of a connection.
enum State {
    /// Receives the request.
    Reads(Vec<u8>),
    /// Sends the answer.
    Writes { answer: Vec<u8>, sent: usize },
    /// Has answered, and receives the rest of the request. If the connection were closed at once, the peer's system
    /// could throw the answer away.
    Drains { received: usize },
}

struct Connection {
    stream: TcpStream,
    since: Instant,
    state: State,
}

/// Answers peers until the other end of `stop` is closed. `page` makes the text of an answer.
pub(super) fn serve(listener: &TcpListener, stop: &PipeReader, page: &dyn Fn() -> String) {
    let mut open: Vec<Connection> = Vec::new();
    loop {
        let mut ready =
            vec![PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        ready.extend(open.iter().map(|connection| PollFd::new(&connection.stream, connection.waits_for())));
        let oldest = open.iter().map(|connection| LIFE.saturating_sub(connection.since.elapsed())).min();
        let timeout =
            oldest.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
        if !ready[0].revents().is_empty() {
            return;
        }
        let has_guests = !ready[1].revents().is_empty();
        open.retain_mut(|connection| connection.since.elapsed() < LIFE && connection.go_on(page));
        if has_guests {
            accept(listener, &mut open);
        }
    }
}

/// Accepts the connections that wait now. At most [`CONNECTIONS_MAX`] of them, so that the open ones have their turn.
fn accept(listener: &TcpListener, open: &mut Vec<Connection>) {
    for _ in 0..CONNECTIONS_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_err() {
                    continue;
                }
                if open.len() == CONNECTIONS_MAX {
                    open.remove(0);
                }
                open.push(Connection { stream, since: Instant::now(), state: State::Reads(Vec::new()) });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(PAUSE),
        }
    }
}

impl Connection {
    fn waits_for(&self) -> PollFlags {
        if matches!(self.state, State::Writes { .. }) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Moves bytes as far as this is possible without waiting. Returns false at the end of the connection.
    fn go_on(&mut self, page: &dyn Fn() -> String) -> bool {
        let mut moved = 0;
        while moved < TURN_BYTES {
            match self.step(page) {
                Ok(0) => return false,
                Ok(bytes) => moved += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Moves some bytes and returns how many. 0 means the end of the connection.
    fn step(&mut self, page: &dyn Fn() -> String) -> io::Result<usize> {
        let mut buffer = [0; 4 << 10];
        match &mut self.state {
            State::Reads(request) => {
                let len = self.stream.read(&mut buffer)?;
                request.extend_from_slice(&buffer[..len]);
                if let Some(answer) = answer(request, page) {
                    self.state = State::Writes { answer, sent: 0 };
                }
                Ok(len)
            }
            State::Writes { answer, sent } => {
                let len = self.stream.write(&answer[*sent..])?;
                *sent += len;
                if *sent == answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Drains { received: 0 };
                }
                Ok(len)
            }
            State::Drains { received } => {
                let len = self.stream.read(&mut buffer)?;
                *received += len;
                Ok(if *received > REST_MAX { 0 } else { len })
            }
        }
    }
}

/// Returns the answer to a request. `None` if the request is not complete.
fn answer(request: &[u8], page: &dyn Fn() -> String) -> Option<Vec<u8>> {
    let is_complete = request.windows(4).any(|bytes| bytes == b"\r\n\r\n") || request.windows(2).any(|b| b == b"\n\n");
    if !is_complete {
        return (request.len() > REQUEST_MAX).then(|| refusal("431 Request Header Fields Too Large", "too long"));
    }
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else {
        return Some(refusal("400 Bad Request", "this is no HTTP request"));
    };
    if !version.starts_with(b"HTTP/1.") {
        return Some(refusal("505 HTTP Version Not Supported", "only HTTP/1.1 is spoken here"));
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    Some(match method {
        _ if path != PATH.as_bytes() => refusal("404 Not Found", "the figures are at /metrics"),
        b"GET" => reply("200 OK", OPEN_METRICS, "", &page(), true),
        b"HEAD" => reply("200 OK", OPEN_METRICS, "", &page(), false),
        _ => reply("405 Method Not Allowed", PLAIN, "Allow: GET, HEAD\r\n", "only GET and HEAD\n", true),
    })
}

fn refusal(status: &str, reason: &str) -> Vec<u8> {
    reply(status, PLAIN, "", &format!("{reason}\n"), true)
}

fn reply(status: &str, kind: &str, headers: &str, body: &str, has_body: bool) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n{headers}\r\n"
    );
    (head + if has_body { body } else { "" }).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answered(request: &[u8]) -> Option<String> {
        answer(request, &|| "figures\n".to_owned()).map(|answer| String::from_utf8(answer).unwrap())
    }

    #[test]
    fn only_a_get_of_the_path_has_the_figures() {
        let text = answered(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"), "{text}");
        assert!(text.contains("Content-Length: 8\r\n") && text.ends_with("\r\n\r\nfigures\n"), "{text}");
        let text = answered(b"HEAD /metrics HTTP/1.0\n\n").unwrap();
        assert!(text.contains("200 OK") && text.contains("Content-Length: 8\r\n") && text.ends_with("\r\n\r\n"));
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics HTTP/2\r\n\r\n", "505"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"\n\n", "400"),
            (&[b'a'; REQUEST_MAX + 1], "431"),
        ] {
            let text = answered(request).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")) && !text.contains("figures\n"), "{text}");
        }
    }

    #[test]
    fn half_a_request_has_no_answer_yet() {
        for part in [&b""[..], b"GET /metrics", b"GET /metrics HTTP/1.1\r\nHost: a\r\n", &[b'a'; REQUEST_MAX]] {
            assert!(answered(part).is_none());
        }
    }

    proptest! {
        #[test]
        fn no_request_panics(mut request in proptest::collection::vec(any::<u8>(), 0..200)) {
            request.extend_from_slice(b"\r\n\r\n");
            prop_assert!(answered(&request).is_some_and(|text| text.starts_with("HTTP/1.1 ")));
        }
    }
}
