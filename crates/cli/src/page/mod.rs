//! The report of a run as one page that needs nothing else: `--report=FILE.html`.
//!
//! The page is HTML that an XML parser reads, too. Its charts are drawn here. Each chart has a table behind it, which a
//! short script reads to show values under the pointer. This module must not know how a run is started.

mod behind;
mod chart;
mod charts;
mod figures;
mod heat;
mod map;
mod processes;
mod python;
mod recorder;
mod sizes;
mod timeline;
mod waited;
mod words;

use std::ffi::OsString;
use std::time::SystemTime;

use hanare::counters::Snapshot;
use hanare_settings::{ServerSpec, human_size};
use hanare_sys::memory::Memory;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

use self::charts::Latency;
pub(crate) use self::recorder::{Checkpoint, Recorder, Samples};
use crate::fit::Prediction;
use crate::report::Figures;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("hover.js");
/// Most processes whose table is open from the start.
const UNFOLDED_MAX: usize = 12;

/// All that is known of a run. The JSON has this structure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    #[serde(flatten)]
    figures: Figures,
    #[serde(flatten)]
    setting: Setting,
    /// The time of writing, in UTC.
    written_at: String,
    fault_latency: Latency,
    /// Run times with other sizes of local memory. `None` if nothing can be predicted.
    fit: Option<Prediction>,
    #[serde(flatten)]
    samples: Samples,
}

/// The circumstances of a run, which do not change while it lasts.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Setting {
    command_line: Vec<String>,
    servers: Vec<Server>,
    redundancy: String,
    machine: Machine,
}

/// Where evicted pages are.
#[derive(Debug, Clone, Serialize)]
struct Server {
    /// The address. `None` for the private server of the run.
    address: Option<String>,
    /// Most bytes that the run may keep on it. `None` if the run sets no limit.
    limit_bytes: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
struct Machine {
    host: String,
    kernel: String,
    processor: Option<String>,
    cpus: Option<usize>,
    memory_bytes: Option<u64>,
}

impl Setting {
    /// Describes a run on this machine. Without `servers`, the run has a private server.
    pub(crate) fn new(
        command_line: impl Iterator<Item = OsString>,
        servers: &[ServerSpec],
        redundancy: String,
    ) -> Self {
        let named =
            |server: &ServerSpec| Server { address: Some(server.endpoint.to_string()), limit_bytes: server.capacity };
        let private = || vec![Server { address: None, limit_bytes: None }];
        Setting {
            command_line: command_line.map(|word| word.to_string_lossy().into_owned()).collect(),
            servers: if servers.is_empty() { private() } else { servers.iter().map(named).collect() },
            redundancy,
            machine: Machine::this(),
        }
    }
}

impl Machine {
    fn this() -> Self {
        let system = rustix::system::uname();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Machine {
            host: system.nodename().to_string_lossy().into_owned(),
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            processor: model.map(|(_, name)| name.trim().to_owned()),
            cpus: std::thread::available_parallelism().ok().map(usize::from),
            memory_bytes: Memory::now().ok().map(|memory| memory.total_bytes),
        }
    }

    fn words(&self) -> String {
        let mut parts = vec![self.host.clone()];
        parts.extend(self.processor.clone());
        parts.extend(self.cpus.map(|cpus| format!("{cpus} CPUs")));
        parts.extend(self.memory_bytes.map(|bytes| format!("{} of memory", human_size(bytes))));
        parts.push(self.kernel.clone());
        words::outside(&parts.join(", "))
    }
}

/// Returns this machine in words.
pub(crate) fn machine() -> String {
    Machine::this().words()
}

impl Record {
    /// Puts together what is known of a run now.
    pub(crate) fn new(figures: Figures, setting: Setting, seen: &Snapshot, samples: Samples) -> Self {
        let written_at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let fit = Prediction::new(seen, figures.elapsed_s).ok();
        Record { figures, setting, written_at, fault_latency: Latency::of(&seen.fault_hist), fit, samples }
    }

    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Returns the page. Sections of what did not happen are left out.
    pub(crate) fn page(&self) -> String {
        let program = words::outside(&self.figures.program);
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    // An XML parser wants the end of the element.
                    (PreEscaped("<meta charset=\"utf-8\"/>"))
                    (PreEscaped("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"))
                    title { (program) " – Hanare report" }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    header {
                        h1 { "Hanare report: " (program) }
                        p.answer { (words::unbroken(&words::summary(&self.figures))) }
                        p.next { (with_flags(&self.next_step())) }
                    }
                    main {
                        // Along the time of the run.
                        @for chart in charts::over_time(self) { (chart) }
                        (map::section(self))
                        // Along other axes.
                        (sizes::section(self))
                        (self.samples.python.section(self.figures.mode))
                        (self.samples.waited.sections())
                        (charts::latency(self))
                        // The parts of the run.
                        (self.choices())
                        (self.servers())
                        (self.processes())
                        section #figures { h2 { "All figures" } (figures::table(&self.figures)) }
                    }
                    (self.footer())
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        page.into_string() + "\n"
    }

    fn next_step(&self) -> String {
        let step = words::next_step(&self.figures, self.setting.machine.memory_bytes, self.fit.as_ref());
        let unknown_s = self.samples.python.unknown_s();
        match words::python_step(self.figures.mode, unknown_s, self.figures.waits_s()) {
            Some(more) => format!("{step} {more}"),
            None => step,
        }
    }

    fn choices(&self) -> Markup {
        let figures = &self.figures;
        let mut lines = figures.choices.iter();
        let mut chosen = |name: &str| match lines.next().filter(|reason| !reason.is_empty()) {
            Some(reason) => words::outside(&format!("{name}: {}", reason.trim_start_matches("chosen: "))),
            None => words::outside(name),
        };
        let page = match figures.page_size_bytes {
            Some(bytes) => human_size(bytes),
            None => format!(
                "auto: {} blocks became huge, {} became small again; {} base and {} huge pages at the end",
                words::grouped(figures.promotions),
                words::grouped(figures.demotions),
                words::grouped(figures.pages_small),
                words::grouped(figures.pages_large)
            ),
        };
        html! {
            @if figures.processes > 0 {
                section #choices {
                    h2 { "What was chosen" }
                    dl {
                        dt { "Trap mode" } dd { (figures.mode) }
                        dt { "Page size" } dd { (page) }
                        dt { "Replacement policy" } dd { (chosen(&figures.policy)) }
                        dt { "Prefetcher" } dd { (chosen(&figures.prefetch)) }
                    }
                }
            }
        }
    }

    fn servers(&self) -> Markup {
        let (figures, setting) = (&self.figures, &self.setting);
        let named: Vec<_> =
            setting.servers.iter().filter_map(|it| Some((it.address.as_deref()?, it.limit_bytes))).collect();
        let health = match figures.servers_lost {
            _ if named.is_empty() => "On a private server of this run, on this machine.".to_owned(),
            0 => "All servers answered before the program started. The run counted no loss of one.".to_owned(),
            lost => format!(
                "All servers answered before the program started. The processes counted {lost} losses, which the run survived. \
                 Pages lacked parts for {}.",
                words::seconds(figures.degraded_s)
            ),
        };
        html! {
            section #servers {
                h2 { "Where evicted pages were" }
                p { (health) @if setting.redundancy != "none" { " Redundancy: " (setting.redundancy) "." } }
                @if !named.is_empty() {
                    div.wide {
                        table.text {
                            thead { tr { th scope="col" { "memory server" } th scope="col" { "limit of this run" } } }
                            tbody {
                                @for (address, limit) in named {
                                    tr {
                                        td { (words::outside(address)) }
                                        td { (limit.map_or("none".to_owned(), human_size)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn processes(&self) -> Markup {
        let processes = &self.samples.processes;
        let count = processes.seen.len();
        html! {
            @if count > 0 {
                section #processes {
                    h2 { "Processes" }
                    p {
                        "Seen each second. Memory is the most that was resident at a time, as the kernel counts it."
                        @if processes.left_out { " Later processes are not listed." }
                    }
                    @if count > UNFOLDED_MAX {
                        details { summary { "Table: " (count) " processes" } (processes.table()) }
                    } @else {
                        (processes.table())
                    }
                }
            }
        }
    }

    fn footer(&self) -> Markup {
        let command = words::outside(&self.setting.command_line.join(" "));
        html! {
            footer {
                dl {
                    dt { "Command" } dd { code { (command) } }
                    dt { "Written" } dd { (self.written_at.replace('T', " ").replace('Z', " UTC")) }
                    dt { "Hanare" } dd { (self.figures.hanare_version) }
                    dt { "Machine" } dd { (self.setting.machine.words()) }
                }
            }
        }
    }
}

/// Sets the words in backticks as code.
fn with_flags(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::timeline::Sample;
    use super::*;
    use crate::supervise::End;
    use hanare::counters::add;
    use hanare::stats::Stats;
    use std::time::Duration;

    fn record(samples: Samples, fill: impl FnOnce(&Stats)) -> Record {
        let stats = Stats::attach(None, None).unwrap();
        fill(&stats);
        let seen = stats.snapshot();
        let (end, elapsed) = (End::Exited(0), Duration::from_secs(samples.timeline.intervals(1).len() as u64 * 999));
        let figures = Figures::new("a<b>&\"c".to_owned(), &seen, Some(&end), elapsed);
        let servers = ["n<1>:7441=1G".parse().unwrap(), "node2".parse().unwrap()];
        let setting = Setting::new(["hanare".into(), "\0</script>".into()].into_iter(), &servers, "mirror".to_owned());
        Record::new(figures, setting, &seen, samples)
    }

    #[test]
    fn the_page_of_days_is_small_and_has_every_section() {
        let mut samples = Samples::none();
        for nth in 1..=1_999_u64 {
            let noise = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            samples.timeline.push(Sample {
                time_s: nth as f64 * 131.7,
                local_bytes: noise >> 20,
                far_bytes: noise >> 18,
                private_bytes: noise >> 30,
                parts_behind_bytes: noise >> 31,
                bytes_in: nth * (noise >> 40),
                swap_ns: nth * 77_777_777_777,
                prefetch_used: nth * (noise >> 50),
                ..Sample::default()
            });
        }
        let page = record(samples, |stats| {
            let counters = [
                &stats.faults_read,
                &stats.pages_in,
                &stats.prefetch_pages,
                &stats.far_bytes_peak,
                &stats.servers_lost,
            ];
            counters.into_iter().for_each(|counter| add(counter, u64::MAX));
            add(&stats.processes, 3);
            (0..64).for_each(|shift| stats.fault_took(1 << shift));
            stats.choices.set("lirs <since> reference 7\nchosen: streams");
        })
        .page();
        assert!(page.len() < 500_000, "{} bytes", page.len());
        for id in
            ["memory", "waits", "faults", "traffic", "prefetch", "parts", "latency", "choices", "servers", "figures"]
        {
            assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
        }
        for part in ["<td>n&lt;1&gt;:7441</td><td>1 GiB</td>", "lirs &lt;since&gt; reference 7", "Redundancy: mirror."]
        {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf%"), "{page}");
    }

    #[test]
    fn a_page_about_nothing_has_no_empty_sections() {
        let page = record(Samples::none(), |_| {}).page();
        assert!(page.contains("ran 0\u{a0}s. None of its memory became far."), "{page}");
        for id in ["waits", "faults", "traffic", "prefetch", "parts", "latency", "choices", "processes"] {
            assert!(!page.contains(&format!("id=\"{id}\"")), "{id}");
        }
        assert!(page.contains("a&lt;b&gt;&amp;&quot;c") && page.contains("\\u{0}&lt;/script&gt;"), "{page}");
        assert_eq!((page.matches("<script>").count(), page.contains("NaN")), (1, false));
    }

    #[test]
    fn a_page_says_what_other_sizes_would_bring() {
        let stats = Stats::attach(None, None).unwrap();
        crate::fit::tests::a_loop(&stats);
        let page = |seconds| {
            let seen = stats.snapshot();
            let end = End::Exited(0);
            let figures = Figures::new("fold".to_owned(), &seen, Some(&end), Duration::from_secs(seconds));
            let setting = Setting::new(std::iter::empty(), &[], "none".to_owned());
            Record::new(figures, setting, &seen, Samples::none()).page()
        };
        let whole = page(8);
        for part in ["id=\"sizes\"", "<td>3.80 x</td>", "try <code>--local 952M</code>"] {
            assert!(whole.contains(part), "{part} is not in {whole}");
        }
        let nothing = page(0);
        assert!(!nothing.contains("id=\"sizes\"") && !nothing.contains("NaN"), "{nothing}");
    }

    #[test]
    fn the_json_has_each_name_once() {
        let record = record(Samples::none(), |stats| add(&stats.processes, 2));
        let text = serde_json::to_string(&record).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["processes"], 2);
        for name in ["timeline", "fault_latency", "processes_seen", "servers", "machine", "written_at", "command_line"]
        {
            assert_eq!(text.matches(&format!("\"{name}\":")).count(), 1, "{name} in {text}");
        }
    }
}
