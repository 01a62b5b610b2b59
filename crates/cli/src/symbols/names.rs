//! Names for places in files of code, from their symbols. A thread reads the files, one after another.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use addr2line::Loader;

use super::{Module, Spot};

/// Largest file whose symbols are read.
const FILE_MAX: u64 = 2 << 30;
/// Most bytes of a name.
const NAME_MAX: usize = 200;
/// Most program headers of a file.
const HEADERS_MAX: usize = 1000;

/// The names of a place, as far as the symbols have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

/// The places that belong to one file.
type Group = (Arc<Module>, Vec<u64>);

/// The names that are known, and the thread that finds them.
pub(crate) struct Names {
    /// `None` for a place that was asked for.
    known: HashMap<Spot, Option<Name>>,
    asked: usize,
    ask: Sender<Vec<Group>>,
    answers: Receiver<(Spot, Name)>,
}

impl Names {
    /// Starts the thread, which ends with this value. Without a thread, nothing has a name.
    pub(crate) fn new() -> Names {
        let (ask, questions) = mpsc::channel::<Vec<Group>>();
        let (answer, answers) = mpsc::channel();
        let work = move || {
            for (module, offsets) in questions.into_iter().flatten() {
                for found in names_in(&module, offsets) {
                    if answer.send(found).is_err() {
                        return;
                    }
                }
            }
        };
        // Ignored: without the thread, all places stay without a name.
        let _ = std::thread::Builder::new().name("hanare-symbols".to_owned()).spawn(work);
        Names { known: HashMap::new(), asked: 0, ask, answers }
    }

    /// Looks the places up. Waits for new ones, at most for `wait`.
    pub(crate) fn look_up<'a>(&mut self, spots: impl Iterator<Item = &'a Spot>, wait: Duration) {
        let until = Instant::now() + wait;
        let mut groups: BTreeMap<Arc<Module>, Vec<u64>> = BTreeMap::new();
        for spot in spots {
            if !self.known.contains_key(spot) {
                self.known.insert(spot.clone(), None);
                groups.entry(spot.module.clone()).or_default().push(spot.offset);
                self.asked += 1;
            }
        }
        // Ignored: if the thread has ended, no answer comes either.
        let _ = self.ask.send(groups.into_iter().collect());
        while self.asked > 0 {
            match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((spot, name)) => {
                    self.known.insert(spot, Some(name));
                    self.asked -= 1;
                }
                Err(_) => return,
            }
        }
    }

    /// Returns what is known about a place now.
    pub(crate) fn of(&self, spot: &Spot) -> Name {
        self.known.get(spot).cloned().flatten().unwrap_or_default()
    }
}

/// Returns a name for each offset of a file. It is empty if the file has no symbol there, or is another one by now.
fn names_in(module: &Arc<Module>, offsets: Vec<u64>) -> Vec<(Spot, Name)> {
    let symbols = Symbols::of(module);
    let name = |offset| {
        let name = symbols.as_ref().and_then(|symbols| symbols.name(offset)).unwrap_or_default();
        (Spot { module: module.clone(), offset }, name)
    };
    offsets.into_iter().map(name).collect()
}

/// The symbols of one file.
struct Symbols {
    loader: Loader,
    segments: Vec<Segment>,
}

/// A part of the file that is mapped: its offset and length in the file, and its address in the symbols.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    len: u64,
    address: u64,
}

impl Symbols {
    fn of(module: &Module) -> Option<Symbols> {
        let meta = std::fs::metadata(&module.path).ok()?;
        if !meta.is_file() || meta.ino() != module.inode || meta.len() > FILE_MAX {
            return None;
        }
        let segments = segments(&module.path)?;
        Some(Symbols { loader: Loader::new(&module.path).ok()?, segments })
    }

    fn name(&self, offset: u64) -> Option<Name> {
        let inside = |it: &&Segment| offset.checked_sub(it.offset).is_some_and(|distance| distance < it.len);
        let segment = self.segments.iter().find(inside)?;
        let at = segment.address.checked_add(offset - segment.offset)?;
        let mut name = self.by_lines(at).unwrap_or_default();
        if name.function.is_none() {
            name.function = self.loader.find_symbol(at).map(readable);
        }
        Some(name)
    }

    /// Returns the innermost function at an address, which may be inlined, with its line.
    fn by_lines(&self, at: u64) -> Option<Name> {
        let frame = self.loader.find_frames(at).ok()?.next().ok()??;
        let function = frame.function.as_ref().and_then(|function| function.raw_name().ok().map(|raw| readable(&raw)));
        let location = frame.location.as_ref();
        let file = location.and_then(|location| location.file).map(|path| cut(file_name(path)));
        Some(Name { function, file, line: location.and_then(|location| location.line) })
    }
}

fn readable(symbol: &str) -> String {
    cut(&addr2line::demangle_auto(symbol.into(), None))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(NAME_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Reads the loaded segments of a 64-bit ELF file.
fn segments(path: &Path) -> Option<Vec<Segment>> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(1 << 20).read_to_end(&mut head).ok()?;
    parse_segments(&head)
}

fn parse_segments(head: &[u8]) -> Option<Vec<Segment>> {
    const LOAD: u32 = 1;
    let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at.checked_add(2)?)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(head.get(at..at.checked_add(8)?)?.try_into().ok()?));
    // The magic, 64 bits, little-endian.
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (first, size, count) = (usize::try_from(long(32)?).ok()?, usize::from(half(54)?), usize::from(half(56)?));
    let mut segments = Vec::new();
    for index in 0..count.min(HEADERS_MAX) {
        let at = first.checked_add(index * size)?;
        if word(at)? == LOAD {
            segments.push(Segment { offset: long(at + 8)?, address: long(at + 16)?, len: long(at + 32)? });
        }
    }
    Some(segments)
}

#[cfg(test)]
mod tests {
    use super::super::Modules;
    use super::*;

    #[test]
    fn this_test_has_a_name() {
        let at = this_test_has_a_name as *const () as u64;
        let spot = Modules::of(std::process::id(), at).unwrap().spot(at).unwrap();
        let mut names = Names::new();
        names.look_up([&spot, &spot].into_iter(), Duration::from_secs(60));
        let name = names.of(&spot);
        assert!(name.function.as_deref().is_some_and(|it| it.contains("this_test_has_a_name")), "{name:?}");
        assert!(name.file.as_deref().is_none_or(|it| it == "names.rs"), "{name:?}");
        let other = Module { inode: spot.module.inode + 1, ..(*spot.module).clone() };
        let changed = Spot { module: Arc::new(other), ..spot };
        names.look_up([&changed].into_iter(), Duration::from_secs(60));
        assert_eq!((names.of(&changed), names.asked), (Name::default(), 0), "the file is another one by now");
    }

    #[test]
    fn broken_files_have_no_segments() {
        assert!(parse_segments(b"").is_none() && parse_segments(b"\x7fELF\x02\x01").is_none());
        let mut head = vec![0xff; 200];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert!(parse_segments(&head).is_none());
        head[32..40].copy_from_slice(&64_u64.to_le_bytes());
        head[54..58].copy_from_slice(&[56, 0, 1, 0]);
        head[64..68].copy_from_slice(&1_u32.to_le_bytes());
        assert_eq!(parse_segments(&head).unwrap().len(), 1);
        assert_eq!(cut(&"é".repeat(NAME_MAX + 1)).chars().count(), NAME_MAX + 1);
    }
}
