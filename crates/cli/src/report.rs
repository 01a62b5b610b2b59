//! The figures of a run: as lines for people (`--report`), and as part of the JSON (`--stats-json`) and the page.

use std::time::Duration;

use hanare::counters::Snapshot;
use hanare_settings::{format_size, human_size};
use serde::Serialize;

use crate::narrow::fitted;
use crate::outside::safe;
use crate::supervise::End;

/// Width of the report, in columns, where no terminal is narrower.
const WIDTH: usize = 80;
/// Column in which the parts of a line begin.
const INDENT: usize = 15;
/// Column in which the rest of a long first line begins.
const HEAD_INDENT: usize = 8;

/// The figures of one run. The JSON has this structure. Units are in the names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) hanare_version: &'static str,
    pub(crate) program: String,
    /// `None` while the program runs.
    pub(crate) exit_code: Option<u8>,
    /// The signal that ended the program.
    pub(crate) signal: Option<u8>,
    /// Whether that was SIGKILL, and the kernel has ended a process for want of memory meanwhile.
    pub(crate) killed_for_memory: bool,
    /// Number of processes that had far memory. 0 if no process had any.
    pub(crate) processes: u64,
    pub(crate) forks: u64,
    pub(crate) mode: &'static str,
    pub(crate) policy: String,
    pub(crate) choices: Vec<String>,
    pub(crate) prefetch: String,
    /// Page size in bytes. `None` if it is chosen automatically.
    pub(crate) page_size_bytes: Option<u64>,
    pub(crate) elapsed_s: f64,
    /// The elapsed time minus the threads' waits. 0 if the waits add up to more.
    pub(crate) calc_s: f64,
    pub(crate) swap_s: f64,
    pub(crate) set_bit_s: f64,
    pub(crate) clear_bit_s: f64,
    pub(crate) evict_s: f64,
    pub(crate) faults: u64,
    pub(crate) faults_read: u64,
    pub(crate) faults_write: u64,
    pub(crate) faults_first_write: u64,
    pub(crate) faults_zero: u64,
    pub(crate) faults_rescued: u64,
    pub(crate) faults_waited: u64,
    pub(crate) faults_hidden: u64,
    pub(crate) pages_hidden: u64,
    pub(crate) pages_held_back: u64,
    pub(crate) fault_us_p50: f64,
    pub(crate) fault_us_p90: f64,
    pub(crate) fault_us_p99: f64,
    /// Upper bound of the histogram's highest bucket that has a fault.
    pub(crate) fault_us_max: f64,
    pub(crate) requests: u64,
    pub(crate) pages_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) pages_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) pages_dropped_clean: u64,
    pub(crate) pages_discarded: u64,
    pub(crate) prefetch_pages: u64,
    pub(crate) prefetch_bytes: u64,
    pub(crate) prefetch_used: u64,
    pub(crate) prefetch_wasted: u64,
    /// `prefetch_used` divided by the sum of `prefetch_used` and `prefetch_wasted`. `None` if the sum is 0.
    pub(crate) prefetch_accuracy: Option<f64>,
    pub(crate) local_bytes_peak: u64,
    pub(crate) local_bytes_budget: u64,
    /// The slowdown that the run was to hold. `None` if it had a size of local memory instead.
    pub(crate) slowdown_asked: Option<f64>,
    /// The slowdown by the waits of the run: its time divided by its time without them.
    pub(crate) slowdown_held: Option<f64>,
    /// The budget at the end, if a slowdown was held. `local_bytes_budget` is then the largest budget.
    pub(crate) held_bytes: Option<u64>,
    pub(crate) far_bytes: u64,
    pub(crate) far_bytes_peak: u64,
    /// Peak of the private memory that is not far: the program's near memory and Hanare's own. Read every tenth of a
    /// second.
    pub(crate) private_bytes_peak: u64,
    /// Bytes of Hanare's own data at the end, in local memory: the pager's and the heap's.
    pub(crate) near_bytes: u64,
    /// Bytes of Hanare's own data for each 4 KiB of the peak of far memory. `None` if `near_bytes` is 0.
    pub(crate) near_bytes_per_far_page: Option<f64>,
    /// Allocations that failed with ENOMEM for lack of room on the servers.
    pub(crate) allocations_refused: u64,
    /// Losses of memory servers that the run survived.
    pub(crate) servers_lost: u64,
    /// Bytes of pages of which a part was missing at the end.
    pub(crate) parts_behind_bytes: u64,
    /// Bytes of missing parts that were rebuilt.
    pub(crate) parts_rebuilt_bytes: u64,
    /// Time in which pages lacked parts.
    pub(crate) degraded_s: f64,
    pub(crate) pages_small: u64,
    pub(crate) pages_large: u64,
    pub(crate) promotions: u64,
    pub(crate) demotions: u64,
}

impl Figures {
    /// Returns the figures of a run of `program` from its counters. `end` is `None` while the program runs.
    pub(crate) fn new(program: String, seen: &Snapshot, end: Option<&End>, elapsed: Duration) -> Self {
        let elapsed_s = elapsed.as_secs_f64();
        let [swap_s, set_bit_s, clear_bit_s] = [seen.swap_ns, seen.set_bit_ns, seen.clear_bit_ns].map(seconds);
        let fate_known = seen.prefetch_used + seen.prefetch_wasted;
        Figures {
            hanare_version: env!("CARGO_PKG_VERSION"),
            program,
            exit_code: end.map(End::exit_code),
            signal: end.and_then(End::signal),
            killed_for_memory: matches!(end, Some(End::OutOfMemory)),
            processes: seen.processes,
            forks: seen.forks,
            mode: mode_name(seen.mode),
            policy: seen.policy.clone(),
            choices: seen.choices.split('\n').map(str::to_owned).collect(),
            prefetch: seen.prefetch.clone(),
            page_size_bytes: Some(seen.page_size).filter(|bytes| *bytes > 0),
            elapsed_s,
            calc_s: (elapsed_s - swap_s - set_bit_s - clear_bit_s).max(0.0),
            swap_s,
            set_bit_s,
            clear_bit_s,
            evict_s: seconds(seen.evict_ns),
            faults: faults(seen),
            faults_read: seen.faults_read,
            faults_write: seen.faults_write,
            faults_first_write: seen.faults_first_write,
            faults_zero: seen.faults_zero,
            faults_rescued: seen.faults_rescued,
            faults_waited: seen.faults_waited,
            faults_hidden: seen.faults_hidden,
            pages_hidden: seen.pages_hidden,
            pages_held_back: seen.pages_held_back,
            fault_us_p50: micros(seen.percentile(0.5)),
            fault_us_p90: micros(seen.percentile(0.9)),
            fault_us_p99: micros(seen.percentile(0.99)),
            fault_us_max: micros(seen.slowest_ns()),
            requests: seen.requests,
            pages_in: seen.pages_in,
            bytes_in: seen.bytes_in,
            pages_out: seen.pages_out,
            bytes_out: seen.bytes_out,
            pages_dropped_clean: seen.pages_dropped_clean,
            pages_discarded: seen.pages_discarded,
            prefetch_pages: seen.prefetch_pages,
            prefetch_bytes: seen.prefetch_bytes,
            prefetch_used: seen.prefetch_used,
            prefetch_wasted: seen.prefetch_wasted,
            prefetch_accuracy: (fate_known > 0).then(|| seen.prefetch_used as f64 / fate_known as f64),
            local_bytes_peak: seen.local_bytes_peak,
            local_bytes_budget: seen.budget_bytes,
            slowdown_asked: known(seen.slowdown).map(thousandths),
            slowdown_held: known(seen.slowdown).and(known(seen.held_slowdown)).map(thousandths),
            held_bytes: known(seen.slowdown).map(|_| seen.held_bytes),
            far_bytes: seen.far_bytes,
            far_bytes_peak: seen.far_bytes_peak,
            private_bytes_peak: seen.private_bytes_peak,
            near_bytes: seen.near_bytes,
            near_bytes_per_far_page: known(seen.near_bytes).map(|bytes| per_far_page(bytes, seen)),
            allocations_refused: seen.allocations_refused,
            servers_lost: seen.servers_lost,
            parts_behind_bytes: seen.parts_behind_bytes,
            parts_rebuilt_bytes: seen.parts_rebuilt_bytes,
            degraded_s: seconds(seen.degraded_ns),
            pages_small: seen.pages_small,
            pages_large: seen.pages_large,
            promotions: seen.promotions,
            demotions: seen.demotions,
        }
    }

    /// Returns the report for people, 80 columns wide.
    pub(crate) fn text(&self) -> String {
        self.text_within(WIDTH)
    }

    /// Returns the report for people, for a terminal of `width` columns. Only long names can make a line longer.
    pub(crate) fn text_within(&self, width: usize) -> String {
        let width = width.min(WIDTH);
        let item = |label: &str, parts: &[String]| item(label, parts, width);
        let end = match (self.signal, self.exit_code) {
            (Some(signal), _) => format!("killed by signal {signal}"),
            (None, Some(code)) => format!("exit code {code}"),
            (None, None) => "running".to_owned(),
        };
        let head = format!("hanare: report for {}: {end} after {:.3} s\n", safe(&self.program), self.elapsed_s);
        let mut text = fitted(&head, width, HEAD_INDENT);
        if self.processes == 0 {
            let causes = [
                "never set up: the program made no large allocation",
                "ended first",
                "or did not load Hanare's library",
            ];
            return text + &item("far memory", &causes.map(str::to_owned));
        }
        text += &item("time", &self.times());
        text += &item("faults", &self.kinds_of_faults());
        text += &item("a fault took", &self.fault_times());
        text += &item("in", &self.traffic_in());
        text += &item("out", &self.traffic_out());
        text += &item("prefetch", &self.prefetched());
        text += &self.memory(width);
        text += &item("set-up", &self.set_up());
        for (what, choice) in ["policy", "prefetch"].into_iter().zip(&self.choices) {
            // The reasons of the choice come after a semicolon. The page and the JSON have them.
            if let Some(choice) = choice.split(';').next().filter(|choice| !choice.is_empty()) {
                text += &item("chosen", &[format!("{what}: {choice}")]);
            }
        }
        text + &self.advice().map_or(String::new(), |advice| item("advice", &[advice]))
    }

    /// Returns the time that threads waited, added up.
    pub(crate) fn waits_s(&self) -> f64 {
        self.swap_s + self.set_bit_s + self.clear_bit_s
    }

    fn times(&self) -> Vec<String> {
        let mut times = vec![
            format!("calc {:.3} s", self.calc_s),
            format!("swap {:.3} s (waits for pages)", self.swap_s),
            format!("set bit {:.3} s (waits to open present pages)", self.set_bit_s),
            format!("clear bit {:.3} s (sampling of references)", self.clear_bit_s),
            format!("evicting {:.3} s", self.evict_s),
        ];
        if self.waits_s() > self.elapsed_s {
            times.push("all but calc summed over threads".to_owned());
        }
        times
    }

    fn kinds_of_faults(&self) -> Vec<String> {
        vec![
            format!("{}: read {}", self.faults, self.faults_read),
            format!("write {}", self.faults_write),
            format!("first write {} (of clean pages)", self.faults_first_write),
            format!("zero {} (first accesses)", self.faults_zero),
            format!("minor {} (bytes still in a frame)", self.faults_rescued),
            format!("waited {} (page in transit)", self.faults_waited),
        ]
    }

    fn fault_times(&self) -> Vec<String> {
        if self.fault_us_max == 0.0 {
            return vec!["unknown: none was timed".to_owned()];
        }
        vec![
            format!("p50 {}", duration(self.fault_us_p50)),
            format!("p90 {}", duration(self.fault_us_p90)),
            format!("p99 {}", duration(self.fault_us_p99)),
            format!("all below {}", bound(self.fault_us_max)),
        ]
    }

    fn traffic_in(&self) -> Vec<String> {
        let how = match (self.pages_in, self.requests) {
            (1.., 0) => "without requests: the server is on this host".to_owned(),
            (_, requests) => format!("{requests} requests"),
        };
        vec![format!("{} pages", self.pages_in), human_size(self.bytes_in), how]
    }

    fn traffic_out(&self) -> Vec<String> {
        vec![
            format!("{} pages", self.pages_out),
            human_size(self.bytes_out),
            format!("{} dropped clean (the server had them)", self.pages_dropped_clean),
            format!("{} discarded (freed)", self.pages_discarded),
        ]
    }

    fn prefetched(&self) -> Vec<String> {
        let accuracy = match self.prefetch_accuracy {
            Some(share) => format!("{:.1} % of {} used", share * 100.0, self.prefetch_used + self.prefetch_wasted),
            None => "none judged yet".to_owned(),
        };
        let pages = format!("{}: {} pages", self.prefetch, self.prefetch_pages);
        vec![pages, human_size(self.prefetch_bytes), accuracy]
    }

    fn memory(&self, width: usize) -> String {
        let item = |label: &str, parts: &[String]| item(label, parts, width);
        let (peak, budget) = (human_size(self.local_bytes_peak), human_size(self.local_bytes_budget));
        let mut text = item("local", &[format!("peak {peak} of {budget}")]);
        if let (Some(asked), Some(bytes)) = (self.slowdown_asked, self.held_bytes) {
            let held = self.slowdown_held.map_or("nothing yet".to_owned(), |held| format!("{held:.2} x"));
            let budget_at_end = format!("budget {} at the end", human_size(bytes));
            text += &item("slowdown", &[format!("{held} held"), format!("{asked} x asked for"), budget_at_end]);
        }
        let mut far = vec![
            format!("peak {}", human_size(self.far_bytes_peak)),
            format!("{} at the end", human_size(self.far_bytes)),
        ];
        far.extend(self.near_bytes_per_far_page.map(|bytes| format!("{bytes:.1} B of near memory for each 4 KiB")));
        text += &item("far", &far);
        let private = human_size(self.private_bytes_peak);
        text += &item("near", &[format!("peak {private} of private memory that is not far")]);
        if self.servers_lost > 0 {
            let rebuilt = human_size(self.parts_rebuilt_bytes);
            let servers = [
                format!("{} lost", self.servers_lost),
                format!("{rebuilt} rebuilt in {:.3} s", self.degraded_s),
                format!("{} of pages lack a part at the end", human_size(self.parts_behind_bytes)),
            ];
            text += &item("servers", &servers);
        }
        text
    }

    fn set_up(&self) -> Vec<String> {
        let page = match self.page_size_bytes {
            Some(bytes) => format!("pages of {}", human_size(bytes)),
            None => format!(
                "page size auto ({} small, {} large, {} promoted, {} demoted)",
                self.pages_small, self.pages_large, self.promotions, self.demotions
            ),
        };
        let mut parts = vec![format!("mode {}", self.mode), page];
        parts.extend([format!("policy {}", self.policy), format!("prefetch {}", self.prefetch)]);
        if self.processes > 1 {
            parts.push(format!("{} processes", self.processes));
        }
        if self.processes > 1 && self.forks > 0 {
            parts.push(format!("{} of them forked with pages away", self.forks));
        }
        parts
    }

    /// Returns what to change after a run that mostly waited for pages, with little local memory.
    fn advice(&self) -> Option<String> {
        let waited = self.swap_s > self.elapsed_s / 2.0;
        let is_small = self.local_bytes_budget < self.far_bytes_peak / 4;
        let half = (self.far_bytes_peak / 2).next_multiple_of(1 << 20);
        (waited && is_small).then(|| {
            format!("the program mostly waited for pages. Half of its far memory is --local {}", format_size(half))
        })
    }
}

/// Returns a line of the report: a label, and its parts with commas between them. A part that would make the line wider
/// than `width_max` begins a new line. Only a part that is wider than a line is divided.
fn item(label: &str, parts: &[String], width_max: usize) -> String {
    let (mut text, mut line) = (String::new(), format!("  {label:<12}"));
    for (index, part) in parts.iter().enumerate() {
        let part = safe(part) + if index + 1 < parts.len() { "," } else { "" };
        let is_whole = part.chars().count() <= width_max - INDENT;
        let words: Vec<&str> = if is_whole { vec![&part] } else { part.split(' ').collect() };
        for word in words {
            let width = line.chars().count();
            if width >= INDENT && width + 1 + word.chars().count() > width_max {
                text += &(line + "\n");
                line = " ".repeat(INDENT - 1);
            }
            line += &format!(" {word}");
        }
    }
    text + &line + "\n"
}

/// Returns a time as text, in the largest unit in which it is at least 1.
fn duration(us: f64) -> String {
    match us {
        1e6.. => format!("{:.1} s", us / 1e6),
        1e3.. => format!("{:.1} ms", us / 1e3),
        _ => format!("{us:.1} us"),
    }
}

/// Returns an upper bound of times as text, rounded up.
fn bound(us: f64) -> String {
    let (unit, name) = match us {
        1e6.. => (1e6, "s"),
        1e3.. => (1e3, "ms"),
        _ => (1.0, "us"),
    };
    format!("{:.1} {name}", (us / unit * 10.0).ceil() / 10.0)
}

/// Returns the number of faults of all kinds.
pub(crate) fn faults(seen: &Snapshot) -> u64 {
    [
        seen.faults_read,
        seen.faults_write,
        seen.faults_first_write,
        seen.faults_zero,
        seen.faults_rescued,
        seen.faults_waited,
    ]
    .into_iter()
    .fold(0, u64::saturating_add)
}

/// Returns the name of a trap mode, by its number in the counters.
pub(crate) fn mode_name(mode: u64) -> &'static str {
    match mode {
        1 => "thread",
        2 => "sigbus",
        3 => "sigsegv",
        _ => "none",
    }
}

fn per_far_page(bytes: u64, seen: &Snapshot) -> f64 {
    bytes as f64 * 4096.0 / seen.far_bytes_peak.max(1) as f64
}

/// Returns a counter that is 0 if its value is not known, or does not apply.
fn known(counter: u64) -> Option<u64> {
    Some(counter).filter(|count| *count > 0)
}

fn thousandths(count: u64) -> f64 {
    count as f64 / 1e3
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare::counters::add;
    use hanare::stats::Stats;

    fn figures(end: &End, fill: impl FnOnce(&Stats)) -> Figures {
        let stats = Stats::attach(None, None).unwrap();
        fill(&stats);
        Figures::new("sort".to_owned(), &stats.snapshot(), Some(end), Duration::from_millis(2500))
    }

    /// Returns the text without its line breaks.
    fn flat(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_json_has_units_in_its_names_and_the_right_values() {
        let figures = figures(&End::Signalled { number: 9, core: false }, |stats| {
            add(&stats.processes, 1);
            add(&stats.swap_ns, 1_500_000_000);
            add(&stats.bytes_in, 8192);
            add(&stats.faults_read, 3);
            add(&stats.faults_zero, 4);
            add(&stats.local_bytes_peak, 100);
            add(&stats.budget_bytes, 200);
            add(&stats.prefetch_used, 3);
            add(&stats.prefetch_wasted, 1);
            add(&stats.mode, 2);
            stats.policy.set("lru");
            stats.fault_took(10_000);
        });
        let json: serde_json::Value = serde_json::to_value(&figures).unwrap();
        for (name, value) in [
            ("bytes_in", 8192.0),
            ("swap_s", 1.5),
            ("calc_s", 1.0),
            ("elapsed_s", 2.5),
            ("faults", 7.0),
            ("local_bytes_peak", 100.0),
            ("local_bytes_budget", 200.0),
            ("prefetch_accuracy", 0.75),
            ("exit_code", 137.0),
            ("signal", 9.0),
        ] {
            assert_eq!(json[name].as_f64(), Some(value), "{name}");
        }
        let p50 = json["fault_us_p50"].as_f64().unwrap();
        assert!((8.0..=12.5).contains(&p50), "{p50}");
        assert_eq!((json["mode"].as_str(), json["policy"].as_str()), (Some("sigbus"), Some("lru")));
        assert!(json["page_size_bytes"].is_null());
    }

    #[test]
    fn the_text_says_how_the_run_ended_and_whether_memory_was_far() {
        let never = figures(&End::Exited(3), |_| {}).text();
        assert!(never.contains("exit code 3") && never.contains("never set up"), "{never}");
        let threaded = figures(&End::Signalled { number: 11, core: false }, |stats| {
            add(&stats.processes, 2);
            add(&stats.swap_ns, 9_000_000_000);
            add(&stats.local_bytes_peak, 3 << 19);
            add(&stats.page_size, 65536);
        });
        let text = threaded.text();
        for part in
            ["killed by signal 11", "calc 0.000 s", "summed over threads", "1.5 MiB", "pages of 64 KiB", "2 processes"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("servers"), "{text}");
    }

    #[test]
    fn names_from_outside_are_shown_without_control_characters() {
        let mut figures = figures(&End::Exited(0), |stats| add(&stats.processes, 1));
        (figures.program, figures.policy) = ("na me\u{1b}[31m<b>".to_owned(), "lru\u{202e}".to_owned());
        let text = flat(&figures.text());
        assert!(text.starts_with("hanare: report for na me\\u{1b}[31m<b>: exit"), "{text}");
        assert!(text.contains("policy lru\\u{202e},"), "{text}");
    }

    #[test]
    fn the_text_says_which_slowdown_was_held() {
        let text = figures(&End::Exited(0), |stats| {
            add(&stats.processes, 1);
            add(&stats.slowdown, 1_300);
            add(&stats.held_bytes, 96 << 20);
        });
        let text = flat(&text.text());
        assert!(text.contains("slowdown nothing yet held, 1.3 x asked for, budget 96 MiB at the end"), "{text}");
        assert!(!figures(&End::Exited(0), |stats| add(&stats.processes, 1)).text().contains("slowdown"));
    }

    #[test]
    fn the_text_names_losses_of_servers() {
        let text = figures(&End::Exited(0), |stats| {
            add(&stats.processes, 1);
            add(&stats.servers_lost, 2);
            add(&stats.parts_rebuilt_bytes, 3 << 20);
            add(&stats.parts_behind_bytes, 8192);
            add(&stats.degraded_ns, 490_000_000);
        });
        let text = flat(&text.text());
        assert!(text.contains("2 lost, 3 MiB rebuilt in 0.490 s, 8 KiB of pages lack a part"), "{text}");
    }

    #[test]
    fn the_text_fits_terminals_of_80_and_40_columns() {
        let figures = figures(&End::Exited(0), |stats| {
            for counter in [&stats.faults_read, &stats.faults_zero, &stats.pages_in, &stats.bytes_in, &stats.pages_out]
            {
                add(counter, 123_456_789);
            }
            add(&stats.processes, 3);
            add(&stats.forks, 2);
            add(&stats.far_bytes_peak, 123 << 30);
            add(&stats.near_bytes, 123 << 20);
            stats.choices.set(
                "lirs since reference 123456, as it missed less than lru, arc and mglru\n\
                 streams: its gate is shut",
            );
            stats.fault_took(1 << 30);
        });
        let narrow = figures.text_within(40);
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        assert_eq!(flat(&narrow), flat(&figures.text()));
        assert_eq!(figures.text_within(200), figures.text());
        let text = figures.text();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("  ") && !line.ends_with(' ')), "{text}");
        assert_eq!(text.matches("\n  prefetch ").count(), 1, "{text}");
        assert!(text.contains("without requests: the server is on this host"), "{text}");
        assert!(text.contains("\n  chosen       prefetch: streams: its gate is shut\n"), "{text}");
    }

    #[test]
    fn the_slowest_fault_is_told_as_a_bound() {
        let text = figures(&End::Exited(0), |stats| {
            add(&stats.processes, 1);
            stats.fault_took((1 << 30) - 1);
        });
        let text = text.text();
        assert!(text.contains("all below 1.1 s") && !text.contains("at most"), "{text}");
        assert_eq!(
            [0.5, 33.51, 1000.0, 100_663.3, 1_610_612.7].map(bound),
            ["0.5 us", "33.6 us", "1.0 ms", "100.7 ms", "1.7 s"]
        );
        assert_eq!([0.5, 999.0, 1536.0, 2e6].map(duration), ["0.5 us", "999.0 us", "1.5 ms", "2.0 s"]);
    }

    #[test]
    fn a_run_that_mostly_waited_is_given_advice() {
        let waited = |swap_ns, budget_bytes| {
            let figures = figures(&End::Exited(0), |stats| {
                add(&stats.processes, 1);
                add(&stats.swap_ns, swap_ns);
                add(&stats.budget_bytes, budget_bytes);
                add(&stats.far_bytes_peak, 100 << 20);
            });
            flat(&figures.text()).ends_with("mostly waited for pages. Half of its far memory is --local 50M")
        };
        assert!(waited(2_000_000_000, 1 << 20));
        assert!(!waited(2_000_000_000, 64 << 20) && !waited(1_000_000_000, 1 << 20));
    }
}
