//! The host file of the DLM papers. It names the compute node and the memory servers, and how much memory each of them
//! gives.
//!
//! Each line names a host (or `host:port`) and how many megabytes the host gives. The first line is the compute node.
//! The other lines are memory servers. `//` and `#` begin a comment. The form is that of figure 3 of *DLM memory
//! management*, where a megabyte is 1024 KiB. This module only reads the file, and connects to no host.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use hanare_wire::Endpoint;
use thiserror::Error;

use crate::ServerSpec;

/// The largest number of hosts in a file.
const HOSTS_MAX: usize = 4096;
/// The longest host file, in bytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Why a host file was refused.
#[derive(Debug, Error)]
pub enum HostfileError {
    /// The file could not be read.
    #[error("cannot read the host file {path}: {source}; check -f", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is too long to be a host file.
    #[error("{path} is larger than 1 MiB and no host file; check -f", path = path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A line does not have the form 'HOST MEGABYTES'.
    #[error("{file}:{line}: {reason}")]
    Line {
        /// The file's name.
        file: String,
        /// The number of the line, counted from 1.
        line: usize,
        /// What is wrong with the line.
        reason: String,
    },
    /// The file names no host.
    #[error("{file}: no host is named; write 'HOST MEGABYTES' lines, the compute node first")]
    Empty {
        /// The file's name.
        file: String,
    },
    /// The file names only the compute node.
    #[error("{file}: no memory server is named after the compute node {compute}; add a 'HOST MEGABYTES' line")]
    NoServer {
        /// The file's name.
        file: String,
        /// The first host, which is the compute node.
        compute: String,
    },
    /// The number given with `-n` is below 2 or above the number of hosts in the file.
    #[error("-n {count} does not fit {file}, which names {hosts} hosts; give 2 at least and {hosts} at most")]
    Count {
        /// The file's name.
        file: String,
        /// The number that the user gave with `-n`.
        count: usize,
        /// The number of hosts in the file.
        hosts: usize,
    },
}

/// The contents of a host file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostfile {
    /// Name of the compute node. The name has no effect, because the program runs on the host where it was started.
    pub compute: String,
    /// Local memory of the compute node, in bytes. It is the budget if the user gives no `--local`.
    pub compute_bytes: u64,
    /// The memory servers in the file's order, each with its capacity.
    pub servers: Vec<ServerSpec>,
}

impl Hostfile {
    /// Reads the host file `path`. Keeps the first `count` hosts, including the compute node, or all hosts if `count`
    /// is `None`.
    ///
    /// # Errors
    /// Returns an error if the file is unreadable, too long or malformed, or if it names no memory server. Also returns
    /// an error if `count` is below 2 or above the number of hosts.
    pub fn read(path: &Path, count: Option<usize>) -> Result<Self, HostfileError> {
        let unreadable = |source| HostfileError::Unreadable { path: path.to_owned(), source };
        // A device has no length, so only reading shows that it is too long.
        let mut text = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(FILE_LEN_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
        if text.len() as u64 > FILE_LEN_MAX {
            return Err(HostfileError::TooLong { path: path.to_owned() });
        }
        Self::parse(&String::from_utf8_lossy(&text), &path.display().to_string(), count)
    }

    /// Parses the text of a host file. Error messages use `file` as the file's name.
    ///
    /// # Errors
    /// Returns the errors of [`Hostfile::read`], except those of reading the file.
    pub fn parse(text: &str, file: &str, count: Option<usize>) -> Result<Self, HostfileError> {
        let mut hosts = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let at = |reason| HostfileError::Line { file: file.to_owned(), line: index + 1, reason };
            if let Some(host) = parse_line(line).map_err(at)? {
                hosts.push(host);
            }
            if hosts.len() > HOSTS_MAX {
                return Err(at(format!("more than {HOSTS_MAX} hosts; split the file")));
            }
        }
        let file = file.to_owned();
        if let Some(count) = count {
            if hosts.len() >= 2 && !(2..=hosts.len()).contains(&count) {
                return Err(HostfileError::Count { file, count, hosts: hosts.len() });
            }
            hosts.truncate(count);
        }
        let mut hosts = hosts.into_iter();
        let Some(first) = hosts.next() else {
            return Err(HostfileError::Empty { file });
        };
        let servers: Vec<ServerSpec> =
            hosts.map(|host| ServerSpec { endpoint: host.endpoint, capacity: Some(host.bytes) }).collect();
        if servers.is_empty() {
            return Err(HostfileError::NoServer { file, compute: first.name });
        }
        Ok(Hostfile { compute: first.name, compute_bytes: first.bytes, servers })
    }
}

struct Host {
    name: String,
    endpoint: Endpoint,
    bytes: u64,
}

fn parse_line(line: &str) -> Result<Option<Host>, String> {
    let mut words = without_comment(line).split_whitespace();
    let Some(name) = words.next() else {
        return Ok(None);
    };
    let Some(megabytes) = words.next() else {
        return Err(format!("'{name}' has no megabytes behind it; write 'HOST MEGABYTES'"));
    };
    if let Some(extra) = words.next() {
        return Err(format!("'{extra}' follows the megabytes; write 'HOST MEGABYTES', comments after // or #"));
    }
    let bytes = megabytes
        .parse::<u64>()
        .ok()
        .filter(|number| *number > 0)
        .and_then(|number| number.checked_mul(1 << 20))
        .ok_or_else(|| format!("'{megabytes}' is not a number of megabytes above 0; write it as in 'memhost1 2048'"))?;
    let endpoint: Endpoint = name.parse().map_err(|error: hanare_wire::EndpointError| error.to_string())?;
    Ok(Some(Host { name: name.to_owned(), endpoint, bytes }))
}

/// Returns the part of the line before its comment.
fn without_comment(line: &str) -> &str {
    let end = [line.find("//"), line.find('#')].into_iter().flatten().min();
    &line[..end.unwrap_or(line.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAPER: &str = "calhost 2048 // 2GB compute node\nmemhost1 2048 // 2GB memory server 1\nmemhost2 4096 # 4GB\n";

    fn parse(text: &str, count: Option<usize>) -> Result<Hostfile, String> {
        Hostfile::parse(text, "hosts", count).map_err(|error| error.to_string())
    }

    #[test]
    fn the_papers_example_reads() {
        let hosts = parse(PAPER, None).unwrap();
        assert_eq!(hosts.compute, "calhost");
        assert_eq!(hosts.compute_bytes, 2 << 30);
        let servers: Vec<String> = hosts.servers.iter().map(ToString::to_string).collect();
        let port = hanare_wire::DEFAULT_PORT;
        assert_eq!(servers, [format!("memhost1:{port}=2G"), format!("memhost2:{port}=4G")]);
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = Hostfile::read(Path::new("/dev/zero"), None).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero is larger than 1 MiB and no host file; check -f");
    }

    #[test]
    fn n_counts_the_compute_node() {
        assert_eq!(parse(PAPER, Some(2)).unwrap().servers.len(), 1);
        assert_eq!(parse(PAPER, Some(3)).unwrap().servers.len(), 2);
        for count in [0, 1, 4, usize::MAX] {
            let error = parse(PAPER, Some(count)).unwrap_err();
            assert_eq!(
                error,
                format!("-n {count} does not fit hosts, which names 3 hosts; give 2 at least and 3 at most")
            );
        }
    }

    #[test]
    fn ports_comments_and_blank_lines_read() {
        let hosts = parse("\n# all\n  here 1\r\n\n//x\n127.0.0.1:9000\t64//y\n[::1]:9001 32#z", None).unwrap();
        let servers: Vec<String> = hosts.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["127.0.0.1:9000=64M", "[::1]:9001=32M"]);
    }

    #[test]
    fn a_bad_line_is_named_with_file_and_number() {
        for (text, line) in [
            ("a", 1),
            ("a 1\nb", 2),
            ("a 1\n\nb x", 3),
            ("a 1\nb -5", 2),
            ("a 1\nb 0", 2),
            ("a 1\nb 1.5", 2),
            ("a 1\nb 99999999999999999999", 2),
            ("a 1\nb 18446744073709551615", 2),
            ("a 1\nb 5 MB", 2),
            ("a 1\nb:port 5", 2),
            ("a 1\n:1 5", 2),
        ] {
            let error = parse(text, None).unwrap_err();
            assert!(error.starts_with(&format!("hosts:{line}: ")), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(parse("", None).unwrap_err().contains("no host"));
        assert!(parse("// nothing\n", Some(2)).unwrap_err().contains("no host"));
        assert!(parse("calhost 5", None).unwrap_err().contains("no memory server"));
        assert!(parse("calhost 5", Some(1)).unwrap_err().contains("no memory server"));
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let missing = Hostfile::read(Path::new("/nonexistent/hosts"), None).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/hosts"), "{missing}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("binary");
        std::fs::write(&path, [0xff, 0xfe, b' ', b'1', b'\n', 0, 1, 2]).unwrap();
        assert!(matches!(Hostfile::read(&path, None), Err(HostfileError::Line { .. })));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,200}", count in proptest::option::of(0_usize..5)) {
            let _ = parse(&text, count);
        }

        #[test]
        fn lines_of_words_never_panic(text in "([a-z:0-9#/ .\\[\\]-]{0,20}\n){0,6}", count in proptest::option::of(0_usize..5)) {
            let _ = parse(&text, count);
        }
    }
}
