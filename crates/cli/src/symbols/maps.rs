//! The modules of a process, from `/proc/PID/maps`.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Module, Spot};

/// Most bytes of the list of mappings that are read.
const MAPS_MAX: u64 = 32 << 20;
/// The name of code that is in no file, such as that of a just-in-time compiler.
const NO_FILE: &str = "[generated code]";

/// The mappings of code of one process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Modules {
    code: Vec<Code>,
}

/// One mapping of code.
#[derive(Debug, Clone)]
struct Code {
    start: u64,
    end: u64,
    offset: u64,
    module: Arc<Module>,
}

impl Modules {
    /// Reads the modules of process `pid`. Returns `None` if they cannot be read, or if nothing is mapped at `witness`: the
    /// process is then another one.
    pub(crate) fn of(pid: u32, witness: u64) -> Option<Modules> {
        let mut text = Vec::new();
        let file = std::fs::File::open(format!("/proc/{pid}/maps")).ok()?;
        file.take(MAPS_MAX).read_to_end(&mut text).ok()?;
        Modules::parse(&String::from_utf8_lossy(&text), witness)
    }

    fn parse(text: &str, witness: u64) -> Option<Modules> {
        let mut modules = Modules::default();
        let mut is_there = false;
        for line in text.lines() {
            let Some((range, rest)) = line.split_once(' ') else { continue };
            let Some((start, end)) = range.split_once('-') else { continue };
            let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else { continue };
            is_there |= (start..end).contains(&witness);
            modules.code.extend(code(start, end, rest));
        }
        is_there.then_some(modules)
    }

    /// Returns the place at an address. `None` if no code is there.
    pub(crate) fn spot(&self, at: u64) -> Option<Spot> {
        let code = self.code.iter().find(|code| (code.start..code.end).contains(&at))?;
        Some(Spot { module: code.module.clone(), offset: code.offset.checked_add(at - code.start)? })
    }

    /// Adds the mappings of an earlier reading where there is none now, as of a library that was unloaded.
    pub(crate) fn with_earlier(mut self, earlier: &Modules) -> Modules {
        let is_gone = |old: &&Code| !self.code.iter().any(|new| new.start < old.end && old.start < new.end);
        let gone: Vec<Code> = earlier.code.iter().filter(is_gone).cloned().collect();
        self.code.extend(gone);
        self
    }
}

/// Reads what follows the range in a line: `r-xp OFFSET DEVICE INODE PATH`. Returns `None` if it is no code.
fn code(start: u64, end: u64, rest: &str) -> Option<Code> {
    let mut rest = rest;
    let mut field = || {
        let (field, after) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
        rest = after;
        field
    };
    let (rights, offset, _device, inode) = (field(), field(), field(), field());
    if !rights.contains('x') {
        return None;
    }
    let path = rest.trim();
    let path = if path.is_empty() { NO_FILE } else { path };
    let module = Module { path: PathBuf::from(path), inode: inode.parse().ok()? };
    Some(Code { start, end, offset: u64::from_str_radix(offset, 16).ok()?, module: Arc::new(module) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55e0c000-55e0d000 r--p 00000000 08:01 77 /opt/a b/prog
55e0d000-55e0f000 r-xp 00001000 08:01 77 /opt/a b/prog
7f000000-7f001000 rwxp 00000000 00:00 0 
7ffd0000-7ffd1000 r-xp 00000000 00:00 0 [vdso]
garbage
7f-zz r-xp
";

    #[test]
    fn code_is_found_in_its_module() {
        let modules = Modules::parse(MAPS, 0x55e0_c010).unwrap();
        let spot = modules.spot(0x55e0_d123).unwrap();
        assert_eq!((spot.offset, spot.module.inode, spot.module.name()), (0x1123, 77, "prog".to_owned()));
        assert_eq!(spot.module.path, PathBuf::from("/opt/a b/prog"));
        assert_eq!(modules.spot(0x7f00_0010).unwrap().module.name(), NO_FILE);
        assert_eq!(modules.spot(0x7ffd_0000).unwrap().module.name(), "[vdso]");
        assert!(modules.spot(0x55e0_c010).is_none() && modules.spot(0).is_none());
        assert!(Modules::parse(MAPS, 0x1000).is_none(), "another process");
        let later = Modules::parse("1000-2000 r-xp 0 0:0 0 x\n", 0x1000).unwrap().with_earlier(&modules);
        assert!(later.spot(0x1800).is_some() && later.spot(0x55e0_d123).is_some());
    }

    #[test]
    fn this_process_has_its_own_code() {
        let at = this_process_has_its_own_code as *const () as u64;
        let modules = Modules::of(std::process::id(), at).unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(modules.spot(at).unwrap().module.path, own);
        assert!(Modules::of(u32::MAX, at).is_none());
    }
}
