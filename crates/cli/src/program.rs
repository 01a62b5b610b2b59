//! Finds the program that a user named, and checks whether it can run under Hanare.
//!
//! Only the program's file is examined, before anything is started. A program that would ignore the preload library
//! would run without far memory and without a message. A refusal is better.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Maximum number of scripts in a chain in which each script is the interpreter of the previous one, as in Linux.
const SCRIPT_DEPTH_MAX: u32 = 5;
/// The longest first line of a script that Linux reads, in bytes.
const SCRIPT_LINE_MAX: usize = 256;
const ELF_HEADER_LEN: usize = 64;
const PT_INTERP: u32 = 3;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Why a program is not run.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    /// There is no such program.
    #[error("{name}: program not found{hint}; check its name, or give its path")]
    NotFound {
        /// The name that the user gave.
        name: String,
        /// The place that was searched, as a part of the message.
        hint: &'static str,
    },
    /// The file exists but cannot be run.
    #[error("{path}: {reason}", path = path.display())]
    NotRunnable {
        /// The file.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
}

impl ProgramError {
    /// The exit code of `hanare run` for this error, as used by shells and env(1).
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            ProgramError::NotFound { .. } => 127,
            ProgramError::NotRunnable { .. } => 126,
        }
    }

    /// Returns the error for a program that the system did not start.
    pub(crate) fn of_start(name: &OsStr, error: &io::Error) -> Self {
        let hint = if name.as_bytes().contains(&b'/') { "" } else { " in PATH" };
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound { name: name.to_string_lossy().into_owned(), hint },
            _ => refusal(Path::new(name), format!("cannot be run: {error}")),
        }
    }
}

/// Returns the file that execvp(3) would find for `name`. Fails if the file cannot run under Hanare.
pub(crate) fn find(name: &OsStr, search_path: Option<OsString>) -> Result<PathBuf, ProgramError> {
    let search_path = search_path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let path = locate(name, &search_path)?;
    judge(&path, &search_path, SCRIPT_DEPTH_MAX)?;
    Ok(path)
}

fn locate(name: &OsStr, search_path: &OsStr) -> Result<PathBuf, ProgramError> {
    let is_page = name.as_bytes().ends_with(b".html");
    let not_found = |hint| ProgramError::NotFound {
        name: name.to_string_lossy().into_owned(),
        hint: match () {
            () if is_page => " (a page is asked for with --report=FILE)",
            () if name.as_bytes().contains(&b' ') => " (it has a blank: leave out the quotes around the command)",
            () => hint,
        },
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match path.metadata() {
            Ok(meta) if meta.is_dir() => Err(refusal(&path, "is a directory; give a program")),
            Ok(_) if may_execute(&path) => Ok(path),
            Ok(_) => Err(refusal(&path, "is not executable; chmod +x it or name its interpreter")),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(refusal(&path, "may not be looked at"))
            }
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                Err(refusal(&path, "is a loop of symbolic links; give the program itself"))
            }
            Err(_) => Err(not_found("")),
        };
    }
    let mut found_unfit = None;
    for dir in std::env::split_paths(search_path) {
        // An empty entry means the current directory.
        let path = if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        if !path.is_file() || name.is_empty() {
            continue;
        }
        if may_execute(&path) {
            return Ok(path);
        }
        found_unfit.get_or_insert(path);
    }
    match found_unfit {
        Some(path) => Err(refusal(&path, "is not executable; chmod +x it or name its interpreter")),
        None => Err(not_found(" in PATH")),
    }
}

fn may_execute(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn refusal(path: &Path, reason: impl Into<String>) -> ProgramError {
    ProgramError::NotRunnable { path: path.to_owned(), reason: reason.into() }
}

/// The kind of a file, by its first bytes.
enum Kind {
    Script { interpreter: OsString, argument: OsString },
    Elf,
    Other,
}

fn judge(path: &Path, search_path: &OsStr, depth: u32) -> Result<(), ProgramError> {
    let unreadable = |error: io::Error| refusal(path, format!("cannot be read to see what it is: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    let mut head = [0; SCRIPT_LINE_MAX];
    let len = read_at_most(&file, &mut head, 0).map_err(unreadable)?;
    match kind_of(&head[..len]) {
        Kind::Elf => {
            judge_elf(path, &file, &head[..len])?;
            judge_privilege(path, &file)
        }
        Kind::Script { .. } if depth == 0 => Err(refusal(path, "names scripts as interpreters without end")),
        Kind::Script { interpreter, argument } => {
            judge_interpreter(path, Path::new(&interpreter), &argument, search_path, depth)
        }
        Kind::Other => Err(refusal(path, "is neither a program nor a script; begin it with '#!' and its interpreter")),
    }
}

fn judge_interpreter(
    script: &Path,
    interpreter: &Path,
    argument: &OsStr,
    search_path: &OsStr,
    depth: u32,
) -> Result<(), ProgramError> {
    if !interpreter.is_file() || !may_execute(interpreter) {
        let name = interpreter.display();
        return Err(refusal(
            script,
            format!("its interpreter {name} cannot be run; install it or change the first line"),
        ));
    }
    judge(interpreter, search_path, depth - 1)?;
    // `#!/usr/bin/env NAME` runs NAME. If an option or an assignment comes before NAME, NAME is not examined.
    let is_env = interpreter.file_name() == Some(OsStr::new("env"));
    let first = argument.as_bytes().split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
    if is_env && !first.is_empty() && !first.starts_with(b"-") && !first.contains(&b'=') {
        let path = locate(OsStr::from_bytes(first), search_path)?;
        judge(&path, search_path, depth - 1)?;
    }
    Ok(())
}

fn kind_of(head: &[u8]) -> Kind {
    if head.starts_with(b"\x7fELF") {
        return Kind::Elf;
    }
    let Some(line) = head.strip_prefix(b"#!") else { return Kind::Other };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    if end == 0 {
        return Kind::Other;
    }
    Kind::Script {
        interpreter: OsStr::from_bytes(&line[..end]).to_owned(),
        argument: OsStr::from_bytes(line[end..].trim_ascii()).to_owned(),
    }
}

/// Refuses programs into which the dynamic linker would not load the preload library.
fn judge_elf(path: &Path, file: &File, head: &[u8]) -> Result<(), ProgramError> {
    let broken = || refusal(path, "is a damaged program (its ELF header makes no sense); rebuild it");
    if head.len() < ELF_HEADER_LEN {
        return Err(broken());
    }
    if head[4] != 2 {
        return Err(refusal(path, "is a 32-bit program; Hanare runs 64-bit programs only: rebuild it for 64 bits"));
    }
    if head[5] != 1 || half(head, 18) != Some(MACHINE) {
        return Err(refusal(path, "is a program for another kind of processor; rebuild it for this machine"));
    }
    if !matches!(half(head, 16), Some(2 | 3)) {
        return Err(refusal(path, "is an object file or a core dump, not a program; link it first"));
    }
    match interpreter_of(file, head).map_err(|_| broken())? {
        None => Err(refusal(
            path,
            "is statically linked, so Hanare cannot enter it; link it dynamically (without -static) or use dlmm.h",
        )),
        Some(linker) if linker.contains("musl") => {
            Err(refusal(path, "is linked to musl, and Hanare's library needs glibc; link it to glibc"))
        }
        Some(_) => Ok(()),
    }
}

/// Returns the path of the dynamic linker that the program names. `None` for a statically linked program.
fn interpreter_of(file: &File, head: &[u8]) -> io::Result<Option<String>> {
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    let table = long(head, 32).ok_or_else(damaged)?;
    let entry_len = u64::from(half(head, 54).ok_or_else(damaged)?);
    let count = u64::from(half(head, 56).ok_or_else(damaged)?);
    if entry_len < 56 {
        return Err(damaged());
    }
    for index in 0..count {
        let mut entry = [0; 56];
        let at = table.checked_add(index * entry_len).ok_or_else(damaged)?;
        file.read_exact_at(&mut entry, at)?;
        if entry[..4] == PT_INTERP.to_le_bytes() {
            let mut name = [0; 256];
            let len = long(&entry, 32).ok_or_else(damaged)?.min(256) as usize;
            file.read_exact_at(&mut name[..len], long(&entry, 8).ok_or_else(damaged)?)?;
            return Ok(Some(String::from_utf8_lossy(&name[..len]).into_owned()));
        }
    }
    Ok(None)
}

/// Refuses programs that gain privilege when started. The dynamic linker ignores LD_PRELOAD for them.
fn judge_privilege(path: &Path, file: &File) -> Result<(), ProgramError> {
    let meta = file.metadata().map_err(|error| refusal(path, format!("cannot be looked at: {error}")))?;
    let mode = meta.permissions().mode();
    if mode & 0o6000 != 0 {
        let bit = if mode & 0o4000 != 0 { "setuid" } else { "setgid" };
        return Err(refusal(
            path,
            format!("is {bit}, so the system lets no library enter it; run a copy without the bit"),
        ));
    }
    let mut value = [0_u8; 64];
    let has_capabilities = rustix::fs::fgetxattr(file, "security.capability", &mut value[..]).is_ok();
    if has_capabilities && !rustix::process::geteuid().is_root() {
        return Err(refusal(path, "has file capabilities, so the system lets no library enter it; run a copy without"));
    }
    Ok(())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn read_at_most(file: &File, into: &mut [u8], from: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], from + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn refused(path: &Path) -> (u8, String) {
        let error = find(path.as_os_str(), Some("/usr/bin:/bin".into())).unwrap_err();
        (error.exit_code(), error.to_string())
    }

    /// Returns an ELF file: a 64-bit header for this machine, one program header of type `entry`, and the bytes
    /// `linker`.
    fn elf(entry: u32, linker: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[16] = 3;
        bytes[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&entry.to_le_bytes());
        bytes[72] = 120;
        bytes[96] = linker.len() as u8;
        bytes.extend_from_slice(linker);
        bytes
    }

    #[test]
    fn ordinary_programs_and_scripts_are_found() {
        assert!(find(OsStr::new("cat"), Some("/nonexistent::/usr/bin:/bin".into())).is_ok());
        assert!(find(OsStr::new("/bin/sh"), None).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let inner = write(dir.path(), "inner", b"#! /bin/sh -e\necho\n", 0o755);
        let outer = write(dir.path(), "outer", format!("#!{}", inner.display()).as_bytes(), 0o755);
        assert_eq!(find(outer.as_os_str(), None).unwrap(), outer);
        let by_env = write(dir.path(), "by_env", b"#!/usr/bin/env sh\n", 0o755);
        assert!(find(by_env.as_os_str(), None).is_ok());
        let path = write(dir.path(), "program", &elf(PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0"), 0o755);
        assert!(find(path.as_os_str(), None).is_ok());
    }

    #[test]
    fn what_is_not_there_is_127() {
        for name in ["no-such-program-here", "/no/such/program", "", "./no-such-program"] {
            let error = find(OsStr::new(name), Some("/usr/bin".into())).unwrap_err();
            assert_eq!(error.exit_code(), 127, "{error}");
        }
    }

    #[test]
    fn what_cannot_run_is_126_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let with = |name: &str, bytes: &[u8], mode| write(dir.path(), name, bytes, mode);
        let dynamic = elf(PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0");
        let mut narrow = dynamic.clone();
        narrow[4] = 1;
        let mut foreign = dynamic.clone();
        foreign[18] = 8;
        let mut object = dynamic.clone();
        object[16] = 1;
        let mut damaged = dynamic.clone();
        damaged[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        for (path, reason) in [
            (with("plain", b"#!/bin/sh\n", 0o644), "not executable"),
            (with("static", &elf(1, b""), 0o755), "statically linked"),
            (with("musl", &elf(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0"), 0o755), "musl"),
            (with("narrow", &narrow, 0o755), "32-bit"),
            (with("foreign", &foreign, 0o755), "another kind of processor"),
            (with("object", &object, 0o755), "object file"),
            (with("damaged", &damaged, 0o755), "damaged"),
            (with("short", &dynamic[..70], 0o755), "damaged"),
            (with("setuid", &dynamic, 0o4755), "setuid"),
            (with("setgid", &dynamic, 0o2755), "setgid"),
            (with("text", b"hello\n", 0o755), "neither"),
            (with("empty", b"", 0o755), "neither"),
            (with("nameless", b"#!  \n", 0o755), "neither"),
            (with("orphan", b"#!/no/such/interpreter\n", 0o755), "/no/such/interpreter"),
            (dir.path().to_owned(), "directory"),
        ] {
            // Root may read any file, but executes only files with an x bit.
            let (code, message) = refused(&path);
            assert_eq!(code, 126, "{message}");
            assert!(message.contains(reason), "{message} lacks {reason}");
        }
        let looping = dir.path().join("loop");
        with("loop", format!("#!{}\n", looping.display()).as_bytes(), 0o755);
        assert_eq!(refused(&looping).0, 126);
        let script = with("script", format!("#!{}\n", dir.path().join("static").display()).as_bytes(), 0o755);
        assert!(refused(&script).1.contains("statically linked"));
    }

    proptest! {
        #[test]
        fn no_file_content_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), shape in 0..3) {
            let start: &[u8] = match shape { 0 => b"\x7fELF\x02\x01", 1 => b"#!", _ => b"" };
            bytes.splice(..0, start.iter().copied());
            let dir = tempfile::tempdir().unwrap();
            let path = write(dir.path(), "any", &bytes, 0o755);
            let _ = find(path.as_os_str(), Some("/usr/bin".into()));
        }

        #[test]
        fn no_program_header_panics(at in 16_usize..64, byte: u8) {
            let mut bytes = elf(PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0");
            bytes[at] = byte;
            let dir = tempfile::tempdir().unwrap();
            let path = write(dir.path(), "any", &bytes, 0o755);
            let _ = find(path.as_os_str(), Some("/usr/bin".into()));
        }
    }
}
