//! Where a run waited: the code whose accesses waited, and the allocations whose pages they waited for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hanare::profile::{Seen, SiteKind, SiteSeen};
use hanare::stats::Stats;
use maud::{Markup, html};
use serde::Serialize;

use super::words;
use crate::symbols::{Modules, Name, Names, Spot};

/// Most rows of each table.
pub(super) const ROWS_MAX: usize = 20;
/// Time between two readings of a process' modules.
const LOOK: Duration = Duration::from_secs(1);
/// How long a checkpoint waits for symbols.
const CHECKPOINT_WAIT: Duration = Duration::from_millis(200);
/// How long the end of a run waits for symbols.
const END_WAIT: Duration = Duration::from_secs(5);
/// Libraries that allocate for their callers. The caller's code is named in their place.
const ALLOCATORS: [&str; 5] = ["libhanare", "libc.so", "libc-", "libstdc++", "libc++"];

/// Code with the time that it waited.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Place {
    /// The function, or the module and the offset in its file, or the address.
    pub(crate) function: String,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    /// The file of code. `None` if it is unknown.
    pub(crate) module: Option<String>,
    pub(crate) seconds: f64,
    /// The part of all waits.
    pub(crate) share: f64,
}

/// An allocation site with the time that accesses to its memory waited.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Site {
    #[serde(flatten)]
    pub(crate) place: Place,
    /// Address space that it has had in one process, in bytes. Memory that was freed and allocated again counts once.
    pub(crate) bytes: u64,
    pub(crate) allocations: u64,
    /// The processes, as the records count them, and the ranges in each: offset and length.
    #[serde(skip)]
    pub(crate) ranges: Vec<(usize, u64, u64)>,
}

/// The waits of a run, as far as they are known.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Waited {
    #[serde(rename = "waited_in")]
    pub(crate) places: Vec<Place>,
    #[serde(rename = "waited_for")]
    pub(crate) sites: Vec<Site>,
    /// Records that found no room.
    #[serde(rename = "waits_lost")]
    pub(crate) lost: u64,
}

/// Learns what the records of a run mean, while its processes live.
pub(crate) struct Gatherer {
    modules: Vec<Modules>,
    look_at: Instant,
    names: Option<Names>,
}

impl Gatherer {
    pub(crate) fn new() -> Self {
        Gatherer { modules: Vec::new(), look_at: Instant::now(), names: None }
    }

    /// Reads the modules of processes that are new, or have waited in unknown code, and of all now and then.
    pub(crate) fn look(&mut self, stats: &Stats) {
        let (processes, places) = stats.profile_places();
        let all = Instant::now() >= self.look_at;
        if all {
            self.look_at = Instant::now() + LOOK;
        }
        let first_new = self.modules.len();
        self.modules.resize_with(processes.len(), Modules::default);
        for (index, process) in processes.iter().enumerate() {
            // Another image of the same process has replaced this one.
            let is_past = processes[index + 1..].iter().any(|later| later.pid == process.pid);
            let mut own = places.iter().filter(|(of, _)| *of == index);
            let known = &self.modules[index];
            if is_past || !(all || index >= first_new || own.any(|(_, at)| known.spot(*at).is_none())) {
                continue;
            }
            if let Some(now) = Modules::of(process.pid, process.base) {
                self.modules[index] = now.with_earlier(&self.modules[index]);
            }
        }
    }

    /// Returns what is known up to now.
    pub(crate) fn so_far(&mut self, stats: &Stats) -> Waited {
        self.waited(stats, CHECKPOINT_WAIT)
    }

    /// Returns what is known at the end.
    pub(crate) fn finish(mut self, stats: &Stats) -> Waited {
        self.waited(stats, END_WAIT)
    }

    fn waited(&mut self, stats: &Stats, wait: Duration) -> Waited {
        let Some(seen) = stats.profile_seen() else { return Waited::default() };
        let spots: Vec<Spot> = seen
            .waits
            .iter()
            .filter_map(|it| self.spot(it.process, it.at))
            .chain(seen.sites.iter().filter_map(|it| self.call(it)?.0))
            .collect();
        self.names.get_or_insert_with(Names::new).look_up(spots.iter(), wait);
        let all_ns: u64 = seen.sites.iter().map(|it| it.ns).fold(0, u64::saturating_add);
        Waited { places: self.places(&seen, all_ns), sites: self.sites(&seen, all_ns), lost: seen.lost }
    }

    fn spot(&self, process: usize, at: u64) -> Option<Spot> {
        self.modules.get(process)?.spot(at)
    }

    /// Returns the code that called for an allocation, and its address. A return address may be that of the next line or
    /// function, so the byte before it counts.
    fn call(&self, site: &SiteSeen) -> Option<(Option<Spot>, u64)> {
        let frames = || site.frames.iter().map(|frame| frame - 1);
        let is_callers = |at: &u64| {
            let module = self.spot(site.process, *at).map(|spot| spot.module.name());
            module.is_none_or(|module| !ALLOCATORS.iter().any(|name| module.starts_with(name)))
        };
        let at = frames().find(is_callers).or_else(|| frames().next())?;
        Some((self.spot(site.process, at), at))
    }

    /// Describes code that waited for `ns` of `all_ns`.
    fn place(&self, spot: Option<Spot>, at: u64, ns: f64, all_ns: u64) -> Place {
        let name = spot.as_ref().zip(self.names.as_ref()).map_or_else(Name::default, |(spot, names)| names.of(spot));
        let module = spot.as_ref().map(|spot| spot.module.name());
        let function = match (name.function, &spot) {
            (Some(function), _) => function,
            (None, Some(spot)) => format!("{}+{:#x}", spot.module.name(), spot.offset),
            (None, None) => format!("{at:#x}"),
        };
        let share = words::share(ns, all_ns as f64).unwrap_or(0.0);
        Place { function, file: name.file, line: name.line, module, seconds: ns / 1e9, share }
    }

    /// Returns the code that waited longest. The instructions of a line count together.
    fn places(&self, seen: &Seen, all_ns: u64) -> Vec<Place> {
        // In thread mode the times are estimates. They are scaled to what was measured.
        let recorded: u64 = seen.waits.iter().map(|it| it.ns).fold(0, u64::saturating_add);
        let scale = words::share(all_ns as f64, recorded as f64).unwrap_or(1.0);
        let each =
            seen.waits.iter().map(|it| self.place(self.spot(it.process, it.at), it.at, it.ns as f64 * scale, all_ns));
        merged(
            each,
            |place| (place.function.clone(), place.file.clone(), place.line, place.module.clone()),
            |to, more| {
                to.seconds += more.seconds;
                to.share += more.share;
            },
        )
    }

    /// Returns the allocation sites whose pages were waited for longest.
    fn sites(&self, seen: &Seen, all_ns: u64) -> Vec<Site> {
        let each = seen.sites.iter().map(|it| {
            let of_kind =
                |function: &str| Place { function: function.to_owned(), ..self.place(None, 0, it.ns as f64, all_ns) };
            let place = match (it.kind, self.call(it)) {
                (SiteKind::Small, _) => of_kind("(blocks below 1 MiB)"),
                (SiteKind::Arrays, _) => of_kind("(static arrays)"),
                (SiteKind::Call, Some((spot, at))) => self.place(spot, at, it.ns as f64, all_ns),
                _ => of_kind("(other far memory)"),
            };
            let ranges = it.ranges.iter().map(|(offset, len)| (it.process, *offset, *len)).collect();
            Site { place, bytes: 0, allocations: it.allocations, ranges }
        });
        let key = |site: &Site| {
            let place = &site.place;
            (place.function.clone(), place.file.clone(), place.line, place.module.clone())
        };
        let mut sites = merged(each, key, |to: &mut Site, more: &Site| {
            to.place.seconds += more.place.seconds;
            to.place.share += more.place.share;
            to.allocations = to.allocations.saturating_add(more.allocations);
            to.ranges.extend_from_slice(&more.ranges);
        });
        for site in &mut sites {
            site.ranges.sort_unstable();
            site.bytes = covered(&site.ranges);
        }
        sites
    }
}

/// Returns how many bytes are in at least one of the ranges, in the process that has most. The ranges are sorted.
fn covered(ranges: &[(usize, u64, u64)]) -> u64 {
    let of_process = |ranges: &[(usize, u64, u64)]| {
        let (mut bytes, mut until) = (0_u64, 0);
        for (_, offset, len) in ranges {
            let end = offset.saturating_add(*len);
            bytes = bytes.saturating_add(end.saturating_sub(until.max(*offset)));
            until = until.max(end);
        }
        bytes
    };
    ranges.chunk_by(|a, b| a.0 == b.0).map(of_process).max().unwrap_or(0)
}

/// Something that waited.
trait Long {
    fn seconds(&self) -> f64;
}

impl Long for Place {
    fn seconds(&self) -> f64 {
        self.seconds
    }
}

impl Long for Site {
    fn seconds(&self) -> f64 {
        self.place.seconds
    }
}

/// Merges what has the same key, and returns at most [`ROWS_MAX`] of the results, the longest first.
fn merged<T: Long, K: Ord>(each: impl Iterator<Item = T>, key: impl Fn(&T) -> K, merge: impl Fn(&mut T, &T)) -> Vec<T> {
    let mut found: BTreeMap<K, T> = BTreeMap::new();
    for it in each {
        match found.get_mut(&key(&it)) {
            Some(to) => merge(to, &it),
            None => drop(found.insert(key(&it), it)),
        }
    }
    let mut found: Vec<T> = found.into_values().collect();
    found.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    found.truncate(ROWS_MAX);
    found
}

impl Place {
    /// Returns the file and the line. If the symbols have none, returns the module.
    pub(crate) fn line_of(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}"),
            (Some(file), None) => file.clone(),
            (None, _) => self.module.clone().unwrap_or_default(),
        }
    }
}

impl Waited {
    /// Returns the two tables. Empty ones are left out.
    pub(crate) fn sections(&self) -> Markup {
        let sites: Vec<&Site> = self.sites.iter().filter(|site| site.place.seconds > 0.0).collect();
        html! {
            @if !self.places.is_empty() {
                section #waited-in {
                    h2 { "Where it waited" }
                    p {
                        "The code whose accesses waited, longest first. Without debug symbols a line has the file of the \
                         code, and without any symbols its offset there."
                        @if self.lost > 0 { " " (words::grouped(self.lost)) " records found no room, and are missing." }
                    }
                    (place_table(&self.places))
                }
            }
            @if !sites.is_empty() {
                section #waited-for {
                    h2 { "What it waited for" }
                    p { "The code that allocated the memory whose pages were waited for, longest first." }
                    div.wide {
                        table.names {
                            thead { tr {
                                th scope="col" { "allocated by" } th scope="col" { "line" } th scope="col" { "waited" }
                                th scope="col" { "share" } th scope="col" { "size" } th scope="col" { "allocations" }
                            } }
                            tbody {
                                @for site in sites {
                                    tr {
                                        (cells(&site.place))
                                        td { (words::bytes(site.bytes as f64)) }
                                        td { (words::grouped(site.allocations)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a table of code that waited.
pub(super) fn place_table(places: &[Place]) -> Markup {
    html! {
        div.wide {
            table.names {
                thead { tr {
                    th scope="col" { "function" } th scope="col" { "line" } th scope="col" { "waited" }
                    th scope="col" { "share" }
                } }
                tbody { @for place in places { tr { (cells(place)) } } }
            }
        }
    }
}

fn cells(place: &Place) -> Markup {
    html! {
        th scope="row" { code { (words::outside(&place.function)) } }
        td { (words::outside(&place.line_of())) }
        td { (words::seconds(place.seconds)) }
        td { (words::percent(place.share)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(function: &str, seconds: f64) -> Place {
        let (file, line) = (Some("a.c".to_owned()), Some(7));
        Place { function: function.to_owned(), file, line, module: None, seconds, share: seconds / 10.0 }
    }

    #[test]
    fn the_longest_come_first_and_few_are_kept() {
        let each = (0..100).map(|nth| place(&format!("f{}", nth % 50), f64::from(nth % 50)));
        let rows = merged(each, |it| it.function.clone(), |to, more| to.seconds += more.seconds);
        assert_eq!(covered(&[(0, 0, 10), (0, 2, 3), (0, 5, 10), (0, 20, 1), (1, 0, 15)]), 16);
        assert_eq!((rows.len(), rows[0].function.as_str(), rows[0].seconds), (ROWS_MAX, "f49", 98.0));
    }

    #[test]
    fn names_from_outside_are_text() {
        let site = |name: &str, seconds| Site {
            place: place(name, seconds),
            bytes: 3 << 20,
            allocations: 2,
            ranges: Vec::new(),
        };
        let places = vec![place("<b>&\u{202e}", 1.5)];
        let waited = Waited { places, sites: vec![site("build", 2.0), site("idle", 0.0)], lost: 3 };
        let page = waited.sections().into_string();
        for part in ["&lt;b&gt;&amp;\\u{202e}", "a.c:7", "1.5 s", "15 %", "build", "3 MiB", "3 records found no room"] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert!(!page.contains("idle"), "{page}");
        assert_eq!(Waited::default().sections().into_string(), "");
    }
}
