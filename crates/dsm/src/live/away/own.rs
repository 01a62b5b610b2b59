//! A private memory server of this rank's own, for ranks that no launcher gave one: it ends with the process.
//!
//! It is `hanare serve --private SOCKET`, as `hanare run` starts it: quiet, and gone when its standard input ends, of which
//! this process holds the other end. On standard output it says a line: `ready`, or `failed: REASON`.

use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hanare_sys::memory::Memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::AwayError;

/// How long it may take to be ready.
const READY: Duration = Duration::from_secs(10);
/// The longest path whose AF_UNIX address still fits with the socket's name behind it.
const DIR_LEN_MAX: usize = 80;
/// The longest line it may say.
const LINE_LEN_MAX: u64 = 4096;

/// Starts it with its share of half of the memory that is available; says where it listens.
pub(super) fn start(ranks: u16) -> Result<PathBuf, AwayError> {
    let failed = |what: String| AwayError::Start { what };
    let base = std::env::temp_dir();
    let base = if base.as_os_str().len() <= DIR_LEN_MAX { base } else { PathBuf::from("/tmp") };
    // The server removes directories of such names with their socket.
    let dir = base.join(format!("hanare-rank-{}", std::process::id()));
    let socket = dir.join("memory.socket");
    // Ignored: left by an earlier process of this number, if by any. Making the folder tells what stays.
    let _ = std::fs::remove_file(&socket);
    // Ignored: as above.
    let _ = std::fs::remove_dir(&dir);
    let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(|error| failed(format!("cannot make {}: {error}", dir.display())))?;
    let memory = Memory::now().map_or(1 << 30, |memory| memory.available_bytes / 2) / u64::from(ranks);
    let name = std::env::var_os("HANARE_BIN").unwrap_or_else(|| "hanare".into());
    let mut serve = Command::new(&name);
    serve.args(["serve", "--memory", &memory.to_string(), "--private"]).arg(&socket);
    // It must not be a rank, nor page itself.
    let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("HANARE_") || name == "LD_PRELOAD";
    std::env::vars_os().filter(|(name, _)| ours(name)).for_each(|(name, _)| {
        serve.env_remove(name);
    });
    serve.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let spawned = serve.spawn().map_err(|error| failed(format!("cannot run {}: {error}", name.to_string_lossy())));
    // Ignored: an empty folder stays at worst, and the error that matters is told.
    let mut child = spawned.inspect_err(|_| _ = std::fs::remove_dir(&dir))?;
    let line = child.stdout.take().map(first_line).unwrap_or_default();
    if line != "ready" {
        // It ends with its standard input, or has ended.
        drop(child.stdin.take());
        // Ignored: it fails for a child that has ended.
        let _ = child.kill();
        // Ignored: what it ended with says less than its line.
        let _ = child.wait();
        // Ignored: a folder stays at worst, and the error that matters is told.
        let _ = std::fs::remove_dir_all(&dir);
        return Err(failed(line.strip_prefix("failed: ").unwrap_or("it was not ready in time").to_owned()));
    }
    // Its standard input stays open as long as this process lives.
    std::mem::forget(child);
    Ok(socket)
}

/// The first line that comes in time.
fn first_line(mut output: impl Read + std::os::fd::AsFd) -> String {
    let until = Instant::now() + READY;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") && (line.len() as u64) < LINE_LEN_MAX {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let ready = poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left));
        let mut byte = [0];
        match ready {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(1..) if output.read(&mut byte).is_ok_and(|count| count == 1) => line.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&line).trim_end().to_owned()
}
