//! The temporary file into which a run is recorded. It lies in the folder of the file that the user named, and replaces
//! that file after the run.
//!
//! If the run recorded nothing, or if the recording cannot be completed, the named file stays as it was.

use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hanare_paging::trace::{Framer, Reader};
use rustix::fs::FlockOperation;
use tempfile::NamedTempFile;

const HEAD_LEN: usize = 8;
const END_BIT: u32 = 1 << 31;

/// A recording under way.
pub(super) struct Aside {
    target: PathBuf,
    /// The permissions of the file to be replaced. `None` if there is no such file.
    permissions: Option<Permissions>,
    file: NamedTempFile,
}

/// The result of a recording.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The recording covers the whole run, up to its size limit.
    Whole,
    /// The recording covers only the run's beginning, because the program ended before it completed the trace.
    Cut,
    /// A process that the program left running still writes the recording.
    Growing,
    /// The recording has no records. The named file is as it was.
    Nothing,
}

impl Aside {
    /// Makes the file in the folder of `target`. Checks that `target` can be replaced.
    pub(super) fn open(target: &Path) -> io::Result<Self> {
        let (target, permissions) = match std::fs::metadata(target) {
            Ok(meta) if !meta.is_file() => return Err(io::Error::other("it is no regular file")),
            Ok(meta) => {
                // Replacing a file needs only rights on its folder. This check also refuses a file that the user may
                // not write.
                File::options().write(true).open(target)?;
                (target.canonicalize()?, Some(meta.permissions()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (fresh(target)?, None),
            Err(error) => return Err(error),
        };
        if target.to_str().is_none() {
            return Err(io::Error::other("its path is not valid UTF-8"));
        }
        let folder = target.parent().unwrap_or(Path::new("/"));
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(".hanare-trace-").permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
        Ok(Self { target, permissions, file })
    }

    /// Returns the recording's path. It is absolute, because the program may change its directory before it has far
    /// pages.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Completes the recording after the run, and moves it to the named file.
    pub(super) fn settle(self) -> io::Result<Outcome> {
        let mut file = self.file.as_file();
        // The recording process holds this lock until it has recorded everything.
        let outcome = match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                match missing_end(&bytes) {
                    End::There => Outcome::Whole,
                    End::Nowhere => return Ok(Outcome::Nothing),
                    End::Missing(at, end) => {
                        file.set_len(at)?;
                        file.seek(SeekFrom::Start(at))?;
                        file.write_all(&end)?;
                        Outcome::Cut
                    }
                }
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Outcome::Growing,
            Err(errno) => return Err(errno.into()),
        };
        let kept = self.file.persist(&self.target).map_err(|error| error.error)?;
        if let Some(permissions) = self.permissions {
            kept.set_permissions(permissions)?;
        }
        Ok(outcome)
    }
}

/// Returns the absolute path of a file that does not exist yet.
fn fresh(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or(io::ErrorKind::NotFound)?;
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(folder.canonicalize()?.join(name))
}

/// The result of a search for a trace's end.
enum End {
    There,
    /// The trace has no record.
    Nowhere,
    /// The end is missing. These bytes must be written at this offset, behind the last complete chunk.
    Missing(u64, Vec<u8>),
}

/// Finds the end of a trace. If the program was killed while it recorded, computes the missing end.
fn missing_end(bytes: &[u8]) -> End {
    let Ok(reader) = Reader::new(bytes) else { return End::Nowhere };
    let start = reader.offset();
    let mut at = start;
    let (mut framer, _) = Framer::start(reader.header(), u64::MAX);
    while let Some(head) = bytes.get(at..at + HEAD_LEN) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let len = (length & !END_BIT) as usize;
        let Some(payload) = bytes.get(at + HEAD_LEN..at + HEAD_LEN + len) else { break };
        if length & END_BIT != 0 {
            let cut = payload.first() == Some(&1);
            if framer.end(cut) == bytes[at..] {
                return End::There;
            }
            return End::Nowhere;
        }
        // A complete chunk has the header that the framer computes for its payload.
        let (again, taken) = framer.chunk(payload);
        if len == 0 || taken != len || again != head {
            // The framer has counted this incomplete chunk. So the complete chunks are counted again without it.
            return missing_end(&bytes[..at]);
        }
        at += HEAD_LEN + len;
    }
    if at == start { End::Nowhere } else { End::Missing(at as u64, framer.end(true)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_paging::PageId;
    use hanare_paging::policy::Cause;
    use hanare_paging::trace::{Header, Record, write};

    fn trace() -> Vec<u8> {
        let header =
            Header { unit_bytes: 4096, units: 1 << 22, block_units: 1, policy: "fifo".into(), ..Header::default() };
        write(&header, (0..40_000_u32).map(|page| Record::Inserted(PageId(page * 97 % (1 << 22)), Cause::Read)))
    }

    /// Settles a recording of these bytes. Returns the outcome, and the trace if one was kept.
    fn settled(dir: &Path, bytes: &[u8]) -> (Outcome, Option<Vec<u8>>) {
        let target = dir.join("t");
        std::fs::write(&target, "old").unwrap();
        let aside = Aside::open(&target).unwrap();
        std::fs::write(aside.path(), bytes).unwrap();
        let outcome = aside.settle().unwrap();
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1, "something is left aside");
        let kept = std::fs::read(&target).unwrap();
        (outcome, (kept != b"old").then_some(kept))
    }

    #[test]
    fn a_trace_cut_anywhere_becomes_a_whole_one_of_its_beginning_or_nothing() {
        let (dir, whole) = (tempfile::tempdir().unwrap(), trace());
        assert_eq!(settled(dir.path(), &whole), (Outcome::Whole, Some(whole.clone())));
        let mut cuts = 0;
        for len in (0..whole.len()).step_by(311).chain([whole.len() - 1]) {
            let (outcome, kept) = settled(dir.path(), &whole[..len]);
            let Some(kept) = kept else {
                assert_eq!(outcome, Outcome::Nothing);
                continue;
            };
            assert_eq!(outcome, Outcome::Cut);
            cuts += 1;
            let mut reader = Reader::new(&kept).unwrap();
            assert!(reader.by_ref().all(|record| record.is_ok()), "{len}");
            assert!(reader.end().unwrap().cut, "{len}");
        }
        assert!(cuts > 100, "{cuts}");
    }

    #[test]
    fn a_damaged_chunk_ends_what_is_kept() {
        let (dir, mut bytes) = (tempfile::tempdir().unwrap(), trace());
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let (outcome, kept) = settled(dir.path(), &bytes);
        assert_eq!(outcome, Outcome::Cut);
        let kept = kept.unwrap();
        assert!(kept.len() < middle + 200 && Reader::new(&kept).unwrap().all(|record| record.is_ok()));
    }

    #[test]
    fn the_named_files_mode_and_link_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, "old").unwrap();
        std::fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let aside = Aside::open(&link).unwrap();
        std::fs::write(aside.path(), trace()).unwrap();
        assert_eq!(aside.settle().unwrap(), Outcome::Whole);
        assert_eq!(std::fs::read(&real).unwrap(), trace());
        assert_eq!(real.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
    }

    #[test]
    fn what_cannot_be_replaced_is_refused() {
        for path in ["/dev/null", "/tmp", "/no/such/dir/t", "", "/"] {
            assert!(Aside::open(Path::new(path)).is_err(), "{path}");
        }
    }
}
